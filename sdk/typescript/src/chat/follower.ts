// Drives `followStep`: does what it says, and feeds it what happens. It holds no rule of its own.

import { BowlineError } from "../failure.ts";
import { isObject, type StreamChunk } from "../frame.ts";
import { onWake } from "../wake.ts";
import { type Api, refusedBy } from "./api.ts";
import { type Follow, type FollowEffect, type FollowInput, type FollowPolicy, type FollowTimer, type Told, followStep, newFollow } from "./follow.ts";
import { readStream } from "./stream.ts";
import { type TaskOutcome, readTask } from "./task.ts";

/** Names the task of a turn in the answer to its POST. */
const TASK_HEADER = "x-workflow-run-id";

/** The share of `silenceMs` within which a plain request has to be answered. */
const ANSWER_SHARE = 1 / 3;

export interface Followed {
  readonly sessionId: string;
  /** A task that is known, from a cursor on; or a message that asks for a turn. */
  readonly what: { readonly taskId: string; readonly cursor: string } | { readonly messageId: string; readonly message: unknown };
  readonly onChunk: (chunk: StreamChunk) => void;
  readonly onReset: () => void;
  readonly onNamed: (taskId: string) => void;
  readonly onPosition: (taskId: string, cursor: string) => void;
  readonly signal: AbortSignal | undefined;
  readonly random: () => number;
}

/** Resolves once the task is over, with the id under which it was known. */
export function followTask(api: Api, policy: FollowPolicy, followed: Followed): Promise<{ taskId: string | null; outcome: TaskOutcome }> {
  return new Promise((resolve, reject) => new Follower(api, policy, followed, resolve, reject));
}

class Follower {
  readonly #api: Api;
  readonly #followed: Followed;
  readonly #resolve: (value: { taskId: string | null; outcome: TaskOutcome }) => void;
  readonly #reject: (error: unknown) => void;
  readonly #timers = new Map<FollowTimer, ReturnType<typeof setTimeout>>();
  readonly #unlisten: () => void;
  readonly #aborted = () => this.#end(() => this.#reject(this.#followed.signal?.reason));
  #follow: Follow;
  #stream: AbortController | null = null;
  #asking: AbortController | null = null;
  #isOver = false;

  constructor(
    api: Api,
    policy: FollowPolicy,
    followed: Followed,
    resolve: (value: { taskId: string | null; outcome: TaskOutcome }) => void,
    reject: (error: unknown) => void,
  ) {
    this.#api = api;
    this.#followed = followed;
    this.#resolve = resolve;
    this.#reject = reject;
    const { what, signal } = followed;
    const from = "taskId" in what ? { ...what, messageId: null } : { taskId: null, cursor: "0", messageId: what.messageId };
    this.#follow = newFollow(policy, from);
    this.#unlisten = onWake(() => this.#happen({ on: "wake" }));
    signal?.addEventListener("abort", this.#aborted, { once: true });
    if (signal?.aborted) this.#aborted();
    this.#happen({ on: "start" });
  }

  #happen(input: FollowInput): void {
    if (this.#isOver) return;
    const [follow, effects] = followStep(this.#follow, input, { nowMs: Date.now(), random: this.#followed.random() });
    this.#follow = follow;
    for (const effect of effects) {
      if (this.#isOver) return;
      this.#do(effect);
    }
  }

  #do(effect: FollowEffect): void {
    const { onChunk, onNamed, onPosition, onReset } = this.#followed;
    switch (effect.do) {
      case "open":
        return void this.#open(effect.taskId, effect.cursor);
      case "hang_up":
        this.#stream?.abort();
        this.#stream = null;
        return;
      case "ask_task": {
        const path = `/api/chat/tasks/${encodeURIComponent(effect.taskId)}`;
        return void this.#ask(path, (body) => readTask(effect.taskId, body)).then((told) => this.#happen({ on: "task", told }));
      }
      case "ask_session": {
        const path = `/api/chat/sessions/${encodeURIComponent(this.#followed.sessionId)}`;
        return void this.#ask(path, (body) => body).then((told) => this.#happen({ on: "session", told }));
      }
      // What the application throws is its own, and no fault of the wire.
      case "deliver":
        return this.#call(() => onChunk(effect.chunk));
      case "reset":
        return this.#call(onReset);
      case "name":
        return onNamed(effect.taskId);
      case "keep":
        return onPosition(effect.taskId, effect.cursor);
      case "timer":
        clearTimeout(this.#timers.get(effect.name));
        this.#timers.set(effect.name, setTimeout(() => this.#happen({ on: "timer", name: effect.name }), effect.inMs));
        return;
      case "stop_timers":
        for (const name of effect.names) clearTimeout(this.#timers.get(name));
        return;
      case "finish":
        return this.#end(() => this.#resolve({ taskId: this.#follow.taskId, outcome: effect.outcome }));
      case "fail":
        return this.#end(() => this.#reject(new BowlineError(effect.refusal)));
    }
  }

  #call(listener: () => void): void {
    try {
      listener();
    } catch (error) {
      this.#end(() => this.#reject(error));
    }
  }

  async #open(taskId: string | null, cursor: string): Promise<void> {
    this.#stream?.abort();
    const stream = new AbortController();
    this.#stream = stream;
    const { sessionId, what } = this.#followed;
    const request = () => {
      const { signal } = stream;
      if (taskId !== null) {
        const path = `/api/chat/tasks/${encodeURIComponent(taskId)}/stream?last_message_id=${encodeURIComponent(cursor)}`;
        return this.#api.send({ method: "GET", path, sessionId, signal });
      }
      const body = "message" in what ? { message: what.message, message_id: what.messageId } : {};
      return this.#api.send({ method: "POST", path: `/api/chat/sessions/${encodeURIComponent(sessionId)}/stream`, sessionId, body, signal });
    };
    // Whatever a former stream still brings is ignored.
    const happen = (input: FollowInput) => (stream === this.#stream ? this.#happen(input) : undefined);
    const reading = await readStream(request, {
      opened: (headers) => {
        const named = headers.get(TASK_HEADER);
        if (named !== null) happen({ on: "named", taskId: named });
      },
      heard: () => happen({ on: "heard" }),
      chunk: (chunk) => happen({ on: "chunk", chunk }),
    });
    if (stream !== this.#stream) return;
    this.#stream = null;
    stream.abort();
    this.#happen({ on: "read", reading });
  }

  async #ask<Value>(path: string, read: (body: Record<string, unknown>) => Value): Promise<Told<Value>> {
    const asking = new AbortController();
    this.#asking = asking;
    const late = setTimeout(() => asking.abort(), this.#follow.policy.silenceMs * ANSWER_SHARE);
    try {
      const response = await this.#api.send({ method: "GET", path, sessionId: this.#followed.sessionId, signal: asking.signal });
      if (!response.ok) return { is: "refused", refused: await refusedBy(response) };
      const body: unknown = await response.json();
      // A page that something else answers with is no answer.
      return isObject(body) ? { is: "told", value: read(body) } : { is: "unreachable" };
    } catch {
      return { is: "unreachable" };
    } finally {
      clearTimeout(late);
    }
  }

  #end(settle: () => void): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#followed.signal?.removeEventListener("abort", this.#aborted);
    this.#unlisten();
    this.#stream?.abort();
    this.#stream = null;
    this.#asking?.abort();
    for (const timer of this.#timers.values()) clearTimeout(timer);
    settle();
  }
}
