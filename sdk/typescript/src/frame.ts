// What travels over the WebSocket: the frames of PROTOCOL.md as types, and how one is read.

/** A frame about a session or a connection. Only logged events have `seq`. */
export interface Frame {
  readonly event: string;
  readonly session_id?: string;
  readonly seq?: number;
  readonly event_id?: string;
  readonly timestamp?: string;
  readonly step_id?: string;
  readonly task_id?: string;
  /** The cursor of a `task.chunk`; `null` for one that was made up. */
  readonly id?: string | null;
  readonly content?: unknown;
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** A logged event: stored before it was sent, numbered once and for all. */
export interface LoggedEvent extends Frame {
  readonly seq: number;
}

/** A chunk of the AI SDK's UI message stream. `idx` is the cursor after it. Made-up chunks have none. */
export interface StreamChunk {
  readonly type: string;
  readonly idx?: string;
  readonly [field: string]: unknown;
}

/** A frame that we send. What is `undefined` in it is left out. */
export interface ClientFrame {
  readonly event: string;
  readonly [field: string]: unknown;
}

export type RunState = "idle" | "running" | "waiting";

/** What the server made of our cursor. */
export type Verdict = "caught_up" | "replay" | "gap" | "other_epoch" | "ahead_of_log";

/** The verdict with its figures, as `metadata.resume` has it. */
export interface Resume {
  readonly verdict: Verdict;
  readonly from_seq?: number;
  readonly to_seq?: number;
  readonly first_retained_seq?: number;
  readonly lost?: number;
}

export function isLogged(frame: Frame): frame is LoggedEvent {
  return typeof frame.seq === "number";
}

/** Reads one text frame. Anything that is not a frame is `null`: a peer may send what it likes. */
export function readFrame(text: unknown): Frame | null {
  if (typeof text !== "string") return null;
  try {
    const frame: unknown = JSON.parse(text);
    return isObject(frame) && typeof frame["event"] === "string" ? (frame as unknown as Frame) : null;
  } catch {
    return null;
  }
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A number from `metadata`, or `undefined`. */
export function figure(frame: Frame, name: string): number | undefined {
  const value = frame.metadata?.[name];
  return typeof value === "number" ? value : undefined;
}

/** A text from `metadata`, or `undefined`. */
export function word(frame: Frame, name: string): string | undefined {
  const value = frame.metadata?.[name];
  return typeof value === "string" ? value : undefined;
}

const AFTER = new Map<string, RunState>([
  ["agent.final_answer", "idle"],
  ["agent.error", "idle"],
  ["agent.cancelled", "idle"],
  ["agent.user_confirm", "waiting"],
  ["user.message", "running"],
  ["user.response", "running"],
  ["plan.start", "running"],
]);

/** Whether this logged event is the last one of its run. */
export function endsRun(event: LoggedEvent): boolean {
  return AFTER.get(event.event) === "idle";
}

/** What a logged event does to the state of the run. A call with the status `waiting` is one of a function that only another client has. */
export function runStateAfter(event: LoggedEvent, before: RunState): RunState {
  const waits = event.event === "agent.tool_call" && word(event, "status") === "waiting";
  return waits ? "waiting" : (AFTER.get(event.event) ?? before);
}
