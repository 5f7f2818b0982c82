// The chat store: which tasks run in which session, and the way back to their streams from wherever they broke.

import { BACKOFF_SECONDS } from "../backoff.ts";
import { guarded } from "../emitter.ts";
import { type StreamChunk, isObject } from "../frame.ts";
import type { ActiveStream, OperationStarted, Session, SessionMade, Task } from "../generated/answers.ts";
import { type KeyValueStore, defaultStore } from "../keeping.ts";
import { randomId } from "../random.ts";
import { type ActiveTask, type ActiveTaskInfo, ActiveTasks } from "./active.ts";
import { Api, type ApiOptions, type Received } from "./api.ts";
import type { FollowPolicy } from "./follow.ts";
import { type Followed, followTask } from "./follower.ts";
import { pageTools } from "./shared.ts";
import { type TaskInfo, type TaskOutcome, readTask } from "./task.ts";
import { type ResumeTokenSource, ResumeTokens } from "./tokens.ts";

export type { ActiveTask, ActiveTaskInfo, StreamChunk };

export interface ChatStoreOptions extends ApiOptions {
  /** The server's origin; the page's own by default. */
  readonly baseUrl?: string;
  readonly token?: string | (() => string | null | Promise<string | null>);
  /**
   * What proves that a session is yours, where the server asks for it: for all sessions, or for each by its id. Tokens of
   * sessions that this store created it keeps by itself, and those that the server renews.
   */
  readonly resumeToken?: ResumeTokenSource;
  readonly storage?: KeyValueStore;
  readonly fetch?: typeof fetch;
  /** When a kept task is forgotten without asking the server. Default: seven days after its last chunk. */
  readonly expireAfterMs?: number;
  /** Waits before the second, third, … attempt in a row; the first is immediate. */
  readonly backoffSeconds?: readonly number[];
  /**
   * Streams in a row that bring nothing, while other requests get through, before a task that is over is reported without the
   * rest of its stream. A task that runs is never given up. Default 5.
   */
  readonly attemptsMax?: number;
  /** Silence that counts as loss. Default 30 s, three times what the server lets pass. */
  readonly silenceMs?: number;
  /** Between two looks at a task whose stream cannot be had. Default 2 s. */
  readonly pollMs?: number;
  readonly random?: () => number;
}

export interface ReconnectOptions {
  readonly signal?: AbortSignal;
  /** The position made no sense to the server: what was shown counts for nothing, and all of it follows. */
  readonly onReset?: () => void;
}

/** A session that was made. */
export interface CreatedSession {
  readonly id: string;
  readonly createdAt: string | null;
}

export interface ChatStore {
  /** The store itself, for those used to `useChatStore.getState()`. */
  getState(): ChatStore;
  /** Makes a session, and keeps what proves that it is ours. */
  createSession(options?: { readonly agent?: string; readonly config?: Readonly<Record<string, unknown>> }): Promise<CreatedSession>;
  /** The session as the server shows it: `status`, `messages`, `active_streams`, … */
  getSession(sessionId: string): Promise<Session>;
  /** Ends the session and its work for good. */
  endSession(sessionId: string): Promise<void>;
  /** Hands over what proves a session to be ours, or what it is now. */
  setResumeToken(sessionId: string, token: string): void;
  /** Remembers a task beside those of the session that are known. */
  setActiveTask(sessionId: string, task: ActiveTask): void;
  /** The newest of the session. */
  getActiveTask(sessionId: string): ActiveTask | null;
  /** The newest of each session; or all of one session, the oldest first. */
  getActiveTasks(): Record<string, ActiveTask>;
  getActiveTasks(sessionId: string): ActiveTask[];
  /** Asks the server what is at work in the session, remembers what was not known, and gives all, the oldest first. */
  loadActiveTasks(sessionId: string): Promise<ActiveTask[]>;
  /** Forgets one task of the session, or all. */
  clearActiveTask(sessionId: string, taskId?: string): void;
  /** Moves the position of a task; of the newest, if none is named. */
  updateTaskLastMessageId(sessionId: string, lastMessageId: string, taskId?: string): void;
  /** Tells when the active tasks have changed, here or in another tab. Returns what stops it. */
  subscribe(listener: () => void): () => void;
  /**
   * Reads the task's stream from `lastMessageId` to its end, through any number of cuts, however long; each chunk once, in order.
   * It ends when the task is over, and not before. The task is no active one after that.
   */
  reconnectToTask(
    sessionId: string,
    taskId: string,
    lastMessageId: string,
    onChunk: (chunk: StreamChunk) => void,
    options?: ReconnectOptions,
  ): Promise<TaskOutcome>;
  /**
   * Asks in a session, and reads the turn as `reconnectToTask` reads a task. Under one `messageId` a message runs once, however
   * often it has to be sent.
   */
  streamMessage(
    sessionId: string,
    message: unknown,
    onChunk: (chunk: StreamChunk) => void,
    options?: ReconnectOptions & { readonly messageId?: string },
  ): Promise<TaskOutcome>;
  /** Starts a background operation and makes it an active task of the session. */
  startOperation(sessionId: string, toolName: string, args?: unknown, toolCallId?: string): Promise<ActiveTask>;
  /** The task as it is now, with its result once it is over; for as long as its session lives. */
  getTask(taskId: string, sessionId?: string): Promise<TaskInfo>;
  /** Stops the task's work. */
  cancelTask(taskId: string, sessionId?: string): Promise<void>;
  /** Resolves once kept tasks have been read; at once with `localStorage`. */
  readonly ready: Promise<void>;
}

export function createChatStore(options: ChatStoreOptions = {}): ChatStore {
  return new Store(options);
}

class Store implements ChatStore {
  readonly #api: Api;
  readonly #policy: FollowPolicy;
  readonly #random: () => number;
  readonly #tasks: ActiveTasks;
  readonly #tokens: ResumeTokens;
  readonly #listeners = new Set<() => void>();
  readonly ready: Promise<void>;

  constructor(options: ChatStoreOptions) {
    const storage = options.storage ?? defaultStore();
    const tools = pageTools(storage);
    const onChange = () => [...this.#listeners].forEach(guarded);
    this.#tasks = new ActiveTasks(storage, { tools, onChange, ...(options.expireAfterMs === undefined ? {} : { expireAfterMs: options.expireAfterMs }) });
    this.#tokens = new ResumeTokens(storage, options.resumeToken, tools);
    this.#api = new Api(options, this.#tokens);
    this.#random = options.random ?? Math.random;
    this.#policy = {
      backoffSeconds: options.backoffSeconds ?? BACKOFF_SECONDS,
      attemptsMax: options.attemptsMax ?? 5,
      silenceMs: options.silenceMs ?? 30_000,
      pollMs: options.pollMs ?? 2_000,
    };
    this.ready = Promise.all([this.#tasks.ready, this.#tokens.ready]).then(() => {});
  }

  getState(): ChatStore {
    return this;
  }

  createSession = async (options: { readonly agent?: string; readonly config?: Readonly<Record<string, unknown>> } = {}): Promise<CreatedSession> => {
    const made = await this.#api.json<SessionMade>({ method: "POST", path: "/api/chat/sessions", sessionId: null, body: options });
    const id = text(made, "id");
    const token = text(made, "resume_token");
    if (token !== "") this.#tokens.keep(id, token);
    return { id, createdAt: text(made, "created_at") || null };
  };

  getSession = (sessionId: string): Promise<Session> =>
    this.#api.json<Session>({ method: "GET", path: sessionPath(sessionId), sessionId }) as Promise<Session>;

  endSession = async (sessionId: string): Promise<void> => {
    await this.#api.json({ method: "DELETE", path: sessionPath(sessionId), sessionId });
    this.#tasks.remove(sessionId);
    this.#tokens.forget(sessionId);
  };

  setResumeToken = (sessionId: string, token: string): void => this.#tokens.keep(sessionId, token);

  setActiveTask = (sessionId: string, task: ActiveTask): void => this.#tasks.set(sessionId, task);
  getActiveTask = (sessionId: string): ActiveTask | null => this.#tasks.get(sessionId);
  clearActiveTask = (sessionId: string, taskId?: string): void => this.#tasks.remove(sessionId, taskId);

  getActiveTasks = ((sessionId?: string) => (sessionId === undefined ? this.#tasks.all() : this.#tasks.of(sessionId))) as ChatStore["getActiveTasks"];

  loadActiveTasks = async (sessionId: string): Promise<ActiveTask[]> => {
    const session = await this.getSession(sessionId);
    const streams: readonly unknown[] = Array.isArray(session["active_streams"]) ? session["active_streams"] : [session["active_stream"]];
    const known = new Set(this.#tasks.of(sessionId).map(({ taskId }) => taskId));
    for (const stream of streams.filter(isObject) as readonly Received<ActiveStream>[]) {
      const taskId = text(stream, "task_id");
      if (taskId === "" || known.has(taskId)) continue;
      // The server's own `last_message_id` is the end of the stream so far, of which nothing was read here.
      this.#tasks.set(sessionId, { taskId, operationId: text(stream, "operation_id"), toolName: text(stream, "tool_name"), lastMessageId: "0" });
    }
    return this.#tasks.of(sessionId);
  };

  updateTaskLastMessageId = (sessionId: string, lastMessageId: string, taskId = this.#tasks.get(sessionId)?.taskId): void => {
    if (taskId !== undefined) this.#tasks.move(sessionId, taskId, lastMessageId);
  };

  subscribe = (listener: () => void): (() => void) => {
    const own = () => listener();
    this.#listeners.add(own);
    return () => void this.#listeners.delete(own);
  };

  reconnectToTask = (
    sessionId: string,
    taskId: string,
    lastMessageId: string,
    onChunk: (chunk: StreamChunk) => void,
    options: ReconnectOptions = {},
  ): Promise<TaskOutcome> => this.#follow(sessionId, { taskId, cursor: lastMessageId }, onChunk, options);

  streamMessage = (
    sessionId: string,
    message: unknown,
    onChunk: (chunk: StreamChunk) => void,
    { messageId = randomId("m_"), ...options }: ReconnectOptions & { readonly messageId?: string } = {},
  ): Promise<TaskOutcome> => this.#follow(sessionId, { message, messageId }, onChunk, options);

  async #follow(sessionId: string, what: Followed["what"], onChunk: (chunk: StreamChunk) => void, options: ReconnectOptions): Promise<TaskOutcome> {
    const { taskId, outcome } = await followTask(this.#api, this.#policy, {
      sessionId,
      what,
      onChunk,
      onReset: options.onReset ?? (() => {}),
      onNamed: (named) => this.#tasks.set(sessionId, { taskId: named, operationId: "", toolName: "", lastMessageId: "0" }),
      onPosition: (named, cursor) => this.#tasks.move(sessionId, named, cursor),
      signal: options.signal,
      random: this.#random,
    });
    if (taskId !== null) this.#tasks.remove(sessionId, taskId);
    return outcome;
  }

  startOperation = async (sessionId: string, toolName: string, args: unknown = {}, toolCallId = randomId("call_")): Promise<ActiveTask> => {
    const path = `${sessionPath(sessionId)}/operations`;
    const body = await this.#api.json<OperationStarted>({ method: "POST", path, sessionId, body: { tool_name: toolName, arguments: args, tool_call_id: toolCallId } });
    const task = { taskId: text(body, "task_id"), operationId: text(body, "operation_id"), toolName: text(body, "tool_name") || toolName, lastMessageId: "0" };
    this.setActiveTask(sessionId, task);
    return task;
  };

  getTask = async (taskId: string, sessionId = this.#sessionOf(taskId)): Promise<TaskInfo> =>
    readTask(taskId, await this.#api.json<Task>({ method: "GET", path: taskPath(taskId), sessionId }));

  cancelTask = async (taskId: string, sessionId = this.#sessionOf(taskId)): Promise<void> => {
    await this.#api.json({ method: "POST", path: `${taskPath(taskId)}/cancel`, sessionId, body: {} });
  };

  /** Whose task this is; a turn's name says it. */
  #sessionOf(taskId: string): string | null {
    return this.#tasks.sessionOf(taskId) ?? /^turn_\d+_(.+)$/.exec(taskId)?.[1] ?? null;
  }
}

const sessionPath = (sessionId: string): string => `/api/chat/sessions/${encodeURIComponent(sessionId)}`;
const taskPath = (taskId: string): string => `/api/chat/tasks/${encodeURIComponent(taskId)}`;

function text<Answer>(body: Received<Answer>, name: keyof Answer): string {
  return typeof body[name] === "string" ? (body[name] as string) : "";
}
