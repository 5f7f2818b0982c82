// The answers of the HTTP endpoints. Generated from the server's types: UPDATE_DOCS=1 cargo test -p bowline typescript_types

/** Something under way: a turn, or an operation. */
export interface ActiveStream {
  readonly last_message_id: string;
  readonly operation_id?: string;
  readonly task_id: string;
  readonly tool_name?: string | null;
}

/** Some of all sessions, and how many there are. */
export interface AllSessions {
  readonly sessions: readonly AnySessionSummary[];
  readonly total: number;
}

/** Some of all tasks, and how many there are. */
export interface AllTasks {
  readonly tasks: readonly AnyTask[];
  readonly total: number;
}

/** A session of any owner, with how full its buffer is. */
export interface AnySession {
  readonly acked_seq: number;
  readonly agent?: string;
  readonly buffer: {
    readonly buffer_size: number;
    readonly buffer_usage_percent: number;
    readonly newest_event_seq: number | null;
    readonly oldest_event_seq: number | null;
    readonly session_age_seconds: number;
    readonly unacked_events: number;
  };
  readonly created_at?: string;
  readonly epoch: string | null;
  readonly first_retained_seq: number | null;
  /** Whether a client has it. */
  readonly held: boolean;
  readonly id: string;
  readonly last_active_at?: string;
  readonly last_seq: number | null;
  readonly life?: SessionLife;
  /** The log it is kept in, whose name it had first. */
  readonly log: string;
  readonly messages?: number;
  /** Which node has it, if that is another one. */
  readonly node?: string;
  readonly observers: number;
  readonly owner: string;
  readonly state?: SessionState;
  readonly title?: string | null;
  /** Why its record cannot be read. */
  readonly unreadable?: string;
}

/** A session of any owner. */
export interface AnySessionSummary {
  readonly acked_seq: number;
  readonly agent?: string;
  readonly created_at?: string;
  readonly epoch: string | null;
  readonly first_retained_seq: number | null;
  /** Whether a client has it. */
  readonly held: boolean;
  readonly id: string;
  readonly last_active_at?: string;
  readonly last_seq: number | null;
  readonly life?: SessionLife;
  /** The log it is kept in, whose name it had first. */
  readonly log: string;
  readonly messages?: number;
  /** Which node has it, if that is another one. */
  readonly node?: string;
  readonly observers: number;
  readonly owner: string;
  readonly state?: SessionState;
  readonly title?: string | null;
  /** Why its record cannot be read. */
  readonly unreadable?: string;
}

/** A task of any owner with a log of its own. */
export interface AnyTask {
  readonly created_at?: string;
  readonly finished_at?: string | null;
  readonly last_seq: number | null;
  readonly operation_id?: string;
  readonly owner: string;
  /** Its stream is gone, and only how it ended is known. */
  readonly released?: boolean;
  readonly session_id?: string | null;
  readonly status?: TaskStatus;
  readonly task_id: string;
  readonly tool_name?: string | null;
  /** Why its record cannot be read. */
  readonly unreadable?: string;
}

/** What an endpoint of the API answers in place of what was asked for. */
export interface ApiProblem {
  readonly error: {
    readonly code: "INVALID_JSON" | "INVALID_PAYLOAD" | "UNKNOWN_EVENT" | "UNKNOWN_STEP" | "NOT_SUPPORTED" | "MESSAGE_TOO_LARGE" | "RATE_LIMITED" | "UNAUTHORIZED" | "SESSION_NOT_FOUND" | "SESSION_EXPIRED" | "SESSION_INACTIVE" | "SESSION_ALREADY_ACTIVE" | "SESSION_TAKEN_OVER" | "SESSION_READ_ONLY" | "TOO_MANY_SESSIONS" | "AGENT_BUSY" | "AGENT_FAILED" | "AGENT_LOST" | "AGENT_UNREACHABLE" | "STATE_VERIFICATION_FAILED" | "STATE_EXPIRED" | "STATE_VERSION_MISMATCH" | "STATE_STALE" | "STATE_TOO_LARGE" | "STATE_RESTORE_FAILED" | "REPLAY_GAP" | "EPOCH_MISMATCH" | "CURSOR_AHEAD" | "TASK_NOT_FOUND" | "TASK_EXPIRED" | "TASK_ENDED" | "IDEMPOTENCY_CONFLICT" | "OUTCOME_UNKNOWN" | "SERVER_DRAINING" | "STORE_UNAVAILABLE" | "INTERNAL";
    /** A sentence for people. */
    readonly message: string;
    /** The field that is wrong, if it is one. */
    readonly param: string | null;
    readonly recovery_action: "create_new_session" | "export_state_again" | "request_state" | "reconnect" | "take_over" | "retry" | "retry_later" | "authenticate" | "fix_request" | "none";
    /** The API's own kinds. */
    readonly type: "authentication_error" | "permission_error" | "not_found_error" | "rate_limit_error" | "server_error" | "invalid_request_error";
  };
}

/** The chunks are durable. */
export interface Appended {
  readonly last_message_id: string;
}

/** An MCP server. */
export interface Backend {
  /** What was called, and how that ended. A node of an older version does not say. */
  readonly calls?: BackendCalls;
  readonly command?: string;
  /** Whether it is in the servers file. A node of an older version does not say. */
  readonly configured?: boolean;
  readonly connected: boolean;
  readonly connectedAt?: string;
  readonly consecutiveHealthFailures?: number;
  readonly healthStatus?: string;
  readonly lastError?: string;
  readonly name: string;
  readonly nextRetryMs?: number;
  /** Which node shows it, where there can be several. */
  readonly node?: string;
  /** Who added it; null if it is for everyone. */
  readonly owner: string | null;
  readonly protocolVersion?: string;
  readonly reconnectAttempt?: number;
  readonly status: "connecting" | "connected" | "reconnecting" | "disconnected" | "error";
  readonly tools: number;
  readonly url?: string;
  readonly [member: string]: unknown;
}

/** Calls of one server since this node began. */
export interface BackendCalls {
  readonly lastMs: number | null;
  /** Null before the first has ended. */
  readonly meanMs: number | null;
  /** Under way now. */
  readonly open: number;
  readonly outcomes: Readonly<Record<string, number>>;
  readonly total: number;
}

/** How a dial went that was asked for. */
export interface BackendReconnected {
  readonly status: "connecting" | "connected" | "reconnecting" | "disconnected" | "error";
  readonly success: boolean;
}

/** A server is removed. */
export interface BackendRemoved {
  readonly name: string;
  readonly removed: true;
}

/** All MCP servers, and those of the servers file that were removed. */
export interface Backends {
  readonly backends: readonly Backend[];
  readonly removed: readonly RemovedBackend[];
}

/** How a task that was ended stands. */
export interface Ended {
  readonly last_message_id: string;
  readonly status: TaskStatus;
  readonly task_id: string;
}

/** One thing that a response was asked. */
export type InputItem = {
  readonly content: readonly InputPart[];
  readonly id: string;
  readonly role: string;
  /** Whatever was asked is whole. */
  readonly status: "completed";
  readonly type: "message";
} | {
  readonly call_id: string;
  readonly id: string;
  readonly output: unknown;
  /** Whatever was asked is whole. */
  readonly status: "completed";
  readonly type: "function_call_output";
} | {
  readonly approval_request_id: string;
  readonly approve: unknown;
  readonly id: string;
  readonly reason: unknown;
  readonly type: "mcp_approval_response";
};

/** What a response was asked. */
export interface InputItems {
  readonly data: readonly InputItem[];
  readonly first_id: string | null;
  readonly has_more: boolean;
  readonly last_id: string | null;
  /** What the API calls any list. */
  readonly object: "list";
}

/** One piece of a message. */
export type InputPart = {
  readonly text: unknown;
  readonly type: "input_text";
} | {
  readonly annotations: readonly unknown[];
  readonly text: unknown;
  readonly type: "output_text";
} | {
  /** How closely a model looks at an image is its own affair. */
  readonly detail: "auto";
  readonly image_url: unknown;
  readonly type: "input_image";
} | {
  readonly file_data?: string;
  readonly file_url?: string;
  readonly filename: unknown;
  readonly type: "input_file";
};

/** An agent, as the API tells of a model. */
export interface Model {
  /** When an agent was made is not known, so it is as old as time. */
  readonly created: number;
  readonly id: string;
  readonly object: "model";
  readonly owned_by: string;
}

/** The agents of this server. */
export interface Models {
  readonly data: readonly Model[];
  /** What the API calls any list. */
  readonly object: "list";
}

/** This server: version, store, counts. */
export interface Node {
  readonly agents: readonly string[];
  readonly connections: number;
  readonly default_agent: string;
  readonly draining: boolean;
  readonly events_appended: number;
  /** Where it listens. */
  readonly listen: string;
  readonly ready: boolean;
  readonly runs_active: number;
  readonly sessions: {
    readonly ended: number;
    readonly held: number;
    readonly idle: number;
    readonly running: number;
    readonly waiting: number;
  };
  /** How the store is. */
  readonly store: {
    readonly bytes: number;
    readonly logs: number;
    /** What a crash or a power cut can lose, in one sentence. */
    readonly loss_window: string;
    /** Logs that were set aside because a record of theirs is damaged. */
    readonly quarantined: readonly string[];
    /** When what was stored is safe from a power cut. */
    readonly sync: "always" | "interval" | "by Redis";
    /** What is wrong, in sentences. */
    readonly troubles: readonly string[];
    readonly url: string;
    /** Whether it takes events now. */
    readonly writable: boolean;
  };
  readonly streams: number;
  readonly tasks: {
    readonly cancelled: number;
    readonly completed: number;
    readonly failed: number;
    readonly running: number;
  };
  readonly uptime_seconds: number;
  readonly version: string;
}

/** This server among those on the same store. */
export interface NodeHealth {
  readonly incarnation: number;
  readonly name: string;
  /** Why the others cannot see it. */
  readonly trouble: string | null;
}

/** An operation is at work. */
export interface OperationStarted {
  /** A sentence for people. */
  readonly message: string;
  readonly operation_id: string;
  readonly task_id: string;
  readonly tool_name: string | null;
  readonly type: "operation_started";
}

/** What an endpoint answers in place of what was asked for. */
export interface Problem {
  readonly code: "INVALID_JSON" | "INVALID_PAYLOAD" | "UNKNOWN_EVENT" | "UNKNOWN_STEP" | "NOT_SUPPORTED" | "MESSAGE_TOO_LARGE" | "RATE_LIMITED" | "UNAUTHORIZED" | "SESSION_NOT_FOUND" | "SESSION_EXPIRED" | "SESSION_INACTIVE" | "SESSION_ALREADY_ACTIVE" | "SESSION_TAKEN_OVER" | "SESSION_READ_ONLY" | "TOO_MANY_SESSIONS" | "AGENT_BUSY" | "AGENT_FAILED" | "AGENT_LOST" | "AGENT_UNREACHABLE" | "STATE_VERIFICATION_FAILED" | "STATE_EXPIRED" | "STATE_VERSION_MISMATCH" | "STATE_STALE" | "STATE_TOO_LARGE" | "STATE_RESTORE_FAILED" | "REPLAY_GAP" | "EPOCH_MISMATCH" | "CURSOR_AHEAD" | "TASK_NOT_FOUND" | "TASK_EXPIRED" | "TASK_ENDED" | "IDEMPOTENCY_CONFLICT" | "OUTCOME_UNKNOWN" | "SERVER_DRAINING" | "STORE_UNAVAILABLE" | "INTERNAL";
  readonly details?: Readonly<Record<string, unknown>>;
  /** A sentence for people. */
  readonly message: string;
  readonly recovery_action: "create_new_session" | "export_state_again" | "request_state" | "reconnect" | "take_over" | "retry" | "retry_later" | "authenticate" | "fix_request" | "none";
  readonly retry_after_ms?: number;
}

/** Whether the server takes traffic. */
export interface Readiness {
  readonly draining: boolean;
  /** Null where a server shares its store with no other. */
  readonly node: NodeHealth | null;
  readonly ready: boolean;
  /** How the store is. */
  readonly store: {
    /** What a crash or a power cut can lose, in one sentence. */
    readonly loss_window: string;
    /** Logs that were set aside because a record of theirs is damaged. */
    readonly quarantined: readonly string[];
    /** What is wrong, in sentences. */
    readonly troubles: readonly string[];
    /** Whether it takes events now. */
    readonly writable: boolean;
  };
}

/** An MCP server of the servers file that was removed. */
export interface RemovedBackend {
  readonly command?: string;
  readonly name: string;
  readonly removedAt: string;
  readonly url?: string;
}

/** The answer to a question is in the log, and the run goes on. */
export interface Responded {
  readonly accepted: true;
  readonly confirmed: boolean;
  readonly step_id: string;
}

/** A response is gone. */
export interface ResponseDeleted {
  readonly deleted: true;
  readonly id: string;
  readonly object: "response";
}

/** A session: its history, and what is at work. */
export interface Session {
  /** The one that began last. */
  readonly active_stream: ActiveStream | null;
  /** The turn and the operations that are under way, oldest first. */
  readonly active_streams: readonly ActiveStream[];
  readonly agent: string;
  readonly created_at: string;
  readonly id: string;
  readonly messages: readonly UIMessage[];
  readonly status: SessionState;
  readonly title: string | null;
  readonly updated_at: string;
}

export type SessionLife = "active" | "ended" | "expired" | {
  readonly superseded: {
    readonly by: string;
  };
};

/** A session that was just made. */
export interface SessionMade {
  readonly created_at: string;
  readonly id: string;
  /** What proves that it is its maker's, where that is asked for. */
  readonly resume_token?: string;
  readonly status: SessionState;
}

/** How a session stands. */
export type SessionState = "idle" | "running" | "waiting" | "ended";

/** A session in a list. */
export interface SessionSummary {
  readonly agent: string;
  readonly created_at: string;
  readonly id: string;
  readonly status: SessionState;
  readonly title: string | null;
  readonly updated_at: string;
}

/** Some of the caller's sessions, and how many there are. */
export interface Sessions {
  readonly sessions: readonly SessionSummary[];
  readonly total: number;
}

export interface Setting {
  /** Where the value came from. */
  readonly source: string;
  readonly value: unknown;
}

/** The settings in force, without secrets. */
export interface Settings {
  /** The file that was read, if any. */
  readonly file: string | null;
  readonly settings: Readonly<Record<string, Setting>>;
}

/** A task as its owner sees it. */
export interface Task {
  readonly created_at: string;
  readonly error?: TaskError;
  readonly finished_at: string | null;
  /** The cursor at its end, so far. */
  readonly last_message_id: string;
  readonly operation_id: string | null;
  /** What the work gave: an operation's result, `{text}` of a turn. */
  readonly result?: unknown;
  /** The result was too old to be kept; how the task ended is known. */
  readonly result_expired?: true;
  readonly session_id: string | null;
  readonly status: TaskStatus;
  readonly task_id: string;
  readonly tool_name: string | null;
}

/** Whether a task was stopped, and how it stands. */
export interface TaskCancelled {
  readonly cancelled: boolean;
  readonly status: TaskStatus;
}

/** Why a task failed. */
export interface TaskError {
  readonly code: string;
  readonly message: string;
}

/** A task that was just made. */
export interface TaskMade {
  readonly operation_id: string;
  /** What proves that it is its maker's, where nothing else does. */
  readonly resume_token?: string;
  readonly task_id: string;
}

/** How a task stands. */
export type TaskStatus = "running" | "completed" | "failed" | "cancelled";

/** How long the stream of a task can be read after its end: the setting `stream.ttl`. */
export interface Ttl {
  readonly stream_ttl_ms: number;
  readonly stream_ttl_seconds: number;
}

/** Whether anything was stopped. */
export interface TurnCancelled {
  readonly cancelled: boolean;
  readonly status: "cancelled" | "idle";
}

/** A message in the shape of the AI SDK. */
export interface UIMessage {
  readonly id: string;
  readonly metadata: {
    readonly created_at: string;
    /** The answer broke off. */
    readonly interrupted?: boolean;
  };
  readonly parts: readonly {
    readonly type: string;
  }[];
  readonly role: "user" | "assistant";
}
