// The tasks that a client watches over its session's wire: asked for again on each new one, from the last chunk that came.

import { type Refusal, refusal } from "../failure.ts";
import { type Frame, type StreamChunk, isObject } from "../frame.ts";
import type { Turn } from "./turn.ts";

export interface Watch {
  /** By which the driver finds who listens. */
  readonly key: number;
  readonly taskId: string;
  /** The last chunk that came; `"0"` before any. */
  readonly cursor: string;
  /** Whether it was asked for on this wire. A second time would bring again what is on its way. */
  readonly asked: boolean;
}

/** How a watch ends that the next one of the same task has taken over. */
export const ELSEWHERE = "elsewhere";

/** A task that cannot be had for the moment is asked for again after this time, unless the server names another. */
const RETRY_MS = 1_000;

export function watch(turn: Turn, wanted: Watch): void {
  const { phase, watches } = turn.link;
  if (phase.at === "disconnected") {
    turn.do({ do: "fail", key: wanted.key, refusal: phase.cause ?? refusal("CLOSED", "The client is not connected.") });
    return;
  }
  const before = watches.find(({ taskId }) => taskId === wanted.taskId);
  if (before !== undefined) end(turn, before, ELSEWHERE);
  turn.set({ watches: [...turn.link.watches, wanted] });
  askWatches(turn);
}

export function unwatch(turn: Turn, key: number): void {
  const gone = turn.link.watches.find((one) => one.key === key);
  if (gone === undefined) return;
  if (gone.asked) turn.send({ event: "user.unwatch_task", task_id: gone.taskId });
  remove(turn, gone);
}

/** Asks for those that this wire does not bring yet. */
export function askWatches(turn: Turn): void {
  if (turn.link.phase.at !== "live") return;
  for (const { taskId, cursor, asked } of turn.link.watches) {
    if (!asked) turn.send({ event: "user.watch_task", task_id: taskId, content: { last_message_id: cursor } });
  }
  turn.set({ watches: turn.link.watches.map((one) => ({ ...one, asked: true })) });
}

/** The wire is gone, and with it what it brought. */
export function loseWatches(turn: Turn): void {
  turn.set({ watches: turn.link.watches.map((one) => ({ ...one, asked: false })) });
}

export function failWatches(turn: Turn, cause: Refusal): void {
  for (const one of turn.link.watches) failWatch(turn, one, cause);
}

/** `task.chunk` and `task.end`. */
export function watched(turn: Turn, frame: Frame): void {
  const found = turn.link.watches.find(({ taskId }) => taskId === frame.task_id);
  if (found === undefined || !isObject(frame.content)) return;
  if (frame.event === "task.end") return end(turn, found, String(frame.content["status"]));
  const chunk = frame.content as StreamChunk;
  const idx = frame.id ?? null;
  if (idx !== null) replace(turn, { ...found, cursor: idx });
  turn.do({ do: "chunk", key: found.key, chunk: idx === null ? chunk : { ...chunk, idx } });
}

/** A task could not be watched, or no longer. */
export function refuseWatch(turn: Turn, task: string, refused: Refusal): void {
  const found = turn.link.watches.find(({ taskId }) => taskId === task);
  if (found === undefined) return;
  if (refused.action !== "retry_later") return failWatch(turn, found, refused);
  replace(turn, { ...found, asked: false });
  turn.timer("watch", refused.retryAfterMs ?? RETRY_MS);
}

/** The task that a refusal names. */
export function refusedTask({ metadata }: Frame): string | undefined {
  const details = metadata?.["details"];
  return isObject(details) ? (details["task_id"] as string | undefined) : undefined;
}

function end(turn: Turn, over: Watch, status: string): void {
  turn.do({ do: "answer", key: over.key, answer: { kind: "watch", status, lastMessageId: over.cursor } });
  remove(turn, over);
}

function failWatch(turn: Turn, gone: Watch, cause: Refusal): void {
  turn.do({ do: "fail", key: gone.key, refusal: cause });
  remove(turn, gone);
}

function replace(turn: Turn, changed: Watch): void {
  turn.set({ watches: turn.link.watches.map((one) => (one.key === changed.key ? changed : one)) });
}

function remove(turn: Turn, gone: Watch): void {
  turn.set({ watches: turn.link.watches.filter((one) => one.key !== gone.key) });
}
