// A task as the server describes it, and how following one ends.

import { isObject } from "../frame.ts";
import type { Session, Task, TaskError, TaskStatus } from "../generated/answers.ts";
import type { Received } from "./api.ts";

export type { TaskError, TaskStatus };

/** `GET /api/chat/tasks/{id}`. */
export interface TaskInfo {
  readonly taskId: string;
  readonly sessionId: string | null;
  readonly operationId: string | null;
  readonly toolName: string | null;
  readonly status: TaskStatus;
  readonly createdAt: string | null;
  readonly finishedAt: string | null;
  /** The cursor at its end, so far. */
  readonly lastMessageId: string;
  readonly result?: unknown;
  /** The result was too old to be kept; how the task ended is known. */
  readonly resultExpired?: true;
  readonly error?: TaskError;
}

export type Terminal = "finish" | "abort" | "error";

/** How a task ended. `unknown`: the server does not know any more. */
export interface TaskEnding {
  readonly status: Exclude<TaskStatus, "running"> | "unknown";
  /** What the work gave: an operation's result, `{text}` of a turn. */
  readonly result?: unknown;
  readonly error?: TaskError;
}

/** How a task was seen to end. */
export type TaskOutcome = TaskEnding &
  (
    | /** Its stream was read to the end. `terminal` is its last chunk's type: `finish`, `abort`, or `error` before a `finish`. */
    { readonly via: "stream"; readonly terminal: Terminal }
    | /** The stream could not be had (`reason`). The session as it was after that; `null` if it is gone and only the task was left. */
    { readonly via: "session"; readonly reason: string; readonly session: Session | null }
    | /** Neither task nor session is there any more. */
    { readonly via: "gone"; readonly reason: string }
  );

const TERMINALS = { completed: "finish", cancelled: "abort", failed: "error" } as const;
const STATUSES = { finish: "completed", abort: "cancelled", error: "failed" } as const;

export function terminalOf(status: TaskEnding["status"]): Terminal {
  return status === "unknown" ? "finish" : TERMINALS[status];
}

/** The ending in what the task said, or else in its last chunk. */
export function endingOf(task: TaskInfo | null, terminal: Terminal | null): TaskEnding {
  if (task === null || task.status === "running") return { status: terminal === null ? "unknown" : STATUSES[terminal] };
  const { status, result, error } = task;
  return { status, ...(result === undefined ? {} : { result }), ...(error === undefined ? {} : { error }) };
}

export function readTask(taskId: string, body: Received<Task>): TaskInfo {
  const text = (name: keyof Task) => (typeof body[name] === "string" ? (body[name] as string) : null);
  const status = text("status");
  const error = body["error"];
  return {
    taskId: text("task_id") ?? taskId,
    sessionId: text("session_id"),
    operationId: text("operation_id"),
    toolName: text("tool_name"),
    // Whatever this version does not know is not over.
    status: status === "completed" || status === "failed" || status === "cancelled" ? status : "running",
    createdAt: text("created_at"),
    finishedAt: text("finished_at"),
    lastMessageId: text("last_message_id") ?? "0",
    ...(body["result"] === undefined ? {} : { result: body["result"] }),
    ...(body["result_expired"] === true ? { resultExpired: true as const } : {}),
    ...(isObject(error) ? { error: { code: String(error["code"] ?? ""), message: String(error["message"] ?? "") } } : {}),
  };
}

/** The task of the turn that a message began, from the session as polled; `null` while there is none. */
export function turnOf(session: Received<Session>, messageId: string): string | null {
  const messages = (Array.isArray(session["messages"]) ? session["messages"] : []).filter(isObject);
  const asked = messages.findIndex(({ id, role }) => role === "user" && id === messageId);
  if (asked === -1) return null;
  const after = messages.slice(asked + 1);
  const next = after[0];
  // An answer has the name of its task. Until there is one, the turn is the one that runs, if nothing was asked since.
  if (next !== undefined) return next["role"] === "assistant" && typeof next["id"] === "string" ? next["id"] : null;
  const streams = Array.isArray(session["active_streams"]) ? session["active_streams"] : [session["active_stream"]];
  const turn = streams.filter(isObject).find((stream) => typeof stream["operation_id"] !== "string");
  return typeof turn?.["task_id"] === "string" ? turn["task_id"] : null;
}

/** Whether a cursor lies behind the end of what there is: then it cannot be a position in this stream. */
export function isBeyond(cursor: string, end: string): boolean {
  const [one, other] = [cursor, end].map((text) => /^(?:(.+)-)?(\d+)(?:\.\d+)?$/.exec(text));
  if (!one || !other) return cursor !== "0";
  const sameEpoch = one[1] === undefined || other[1] === undefined || one[1] === other[1];
  return sameEpoch && Number(one[2]) > Number(other[2]);
}
