// Following one task to its end, as a pure machine: what is known (`Follow`), what happens (`FollowInput`), what is to be done.
//
// Whether a task is over only the task can say, or its stream. A session's status says nothing of it, and a stream that cannot be
// reached says nothing at all. So nothing here counts attempts in order to give up: it counts them to wait.

import type { Session } from "../generated/answers.ts";
import { backoffMs } from "../backoff.ts";
import { type Refusal, refusal } from "../failure.ts";
import type { StreamChunk } from "../frame.ts";
import type { Moment } from "../link/state.ts";
import type { Received, Refused } from "./api.ts";
import type { Reading } from "./stream.ts";
import { type TaskInfo, type TaskOutcome, type Terminal, endingOf, isBeyond, terminalOf, turnOf } from "./task.ts";

export interface FollowPolicy {
  /** Waits before the second, third, … attempt in a row. */
  readonly backoffSeconds: readonly number[];
  /** Streams in a row that bring nothing, while other requests get through, before they count as blocked. */
  readonly attemptsMax: number;
  /** Silence that counts as loss. */
  readonly silenceMs: number;
  /** Between two looks at the task. */
  readonly pollMs: number;
}

/** The share of `silenceMs` after which a stream that says nothing is doubted, and the task is asked beside it. */
const QUIET_SHARE = 0.4;
/** The share for which a stream has to live to count as sound; and which a task that is over has to send the rest. */
const STEADY_SHARE = 1 / 6;
/** Looks at a task that still runs though its stream has ended, before the stream is believed alone. */
const SETTLING_ASKS_MAX = 10;

export type FollowTimer = "retry" | "silence" | "quiet" | "poll";

type Phase =
  | { readonly at: "reading"; readonly openedAtMs: number; readonly heardAtMs: number; readonly isMoving: boolean }
  | { readonly at: "waiting" }
  /** Read to the end; what is missing is the result. */
  | { readonly at: "settling"; readonly asks: number }
  /** The stream cannot be had. What is missing is the session's final state. */
  | { readonly at: "closing"; readonly reason: string }
  | { readonly at: "over" };

export interface Follow {
  readonly policy: FollowPolicy;
  /** `null` for a turn that has no name yet. */
  readonly taskId: string | null;
  /** The message that asks for the turn, if it is one. */
  readonly messageId: string | null;
  readonly cursor: string;
  readonly terminal: Terminal | null;
  readonly phase: Phase;
  /** Attempts in a row that brought nothing. */
  readonly failures: number;
  /** The task, once it said that it is over; and whether its stream was asked for since. */
  readonly ended: TaskInfo | null;
  readonly isAskedSince: boolean;
  /** Why the stream is gone for good, as far as the stream itself says. */
  readonly gone: string | null;
  /** Streams in a row that brought nothing while the task could be asked. */
  readonly blocked: number;
  /** The last stream brought nothing, and nothing got through since: this may be an outage. */
  readonly isUnproven: boolean;
  readonly isPolling: boolean;
  readonly isAsking: boolean;
  readonly pollFailures: number;
  /** Refused credentials in a row. */
  readonly refusals: number;
}

/** What a plain request brought. */
export type Told<Value> = { readonly is: "told"; readonly value: Value } | { readonly is: "refused"; readonly refused: Refused } | { readonly is: "unreachable" };

export type FollowInput =
  | { readonly on: "start" }
  /** The answer to our message named the turn. */
  | { readonly on: "named"; readonly taskId: string }
  | { readonly on: "heard" }
  | { readonly on: "chunk"; readonly chunk: StreamChunk }
  | { readonly on: "read"; readonly reading: Reading }
  | { readonly on: "task"; readonly told: Told<TaskInfo> }
  | { readonly on: "session"; readonly told: Told<Received<Session>> }
  | { readonly on: "timer"; readonly name: FollowTimer }
  /** The network came back, or the page woke up. */
  | { readonly on: "wake" };

export type FollowEffect =
  /** Opens the stream behind the cursor; without a name, by asking for the turn. */
  | { readonly do: "open"; readonly taskId: string | null; readonly cursor: string }
  | { readonly do: "hang_up" }
  | { readonly do: "ask_task"; readonly taskId: string }
  | { readonly do: "ask_session" }
  | { readonly do: "deliver"; readonly chunk: StreamChunk }
  /** The task has a name. */
  | { readonly do: "name"; readonly taskId: string }
  /** The position, to be kept. */
  | { readonly do: "keep"; readonly taskId: string; readonly cursor: string }
  /** The position made no sense: what was delivered counts for nothing, and all of it follows. */
  | { readonly do: "reset" }
  | { readonly do: "timer"; readonly name: FollowTimer; readonly inMs: number }
  | { readonly do: "stop_timers"; readonly names: readonly FollowTimer[] }
  | { readonly do: "finish"; readonly outcome: TaskOutcome }
  | { readonly do: "fail"; readonly refusal: Refusal };

export function newFollow(policy: FollowPolicy, from: Pick<Follow, "taskId" | "messageId" | "cursor">): Follow {
  return {
    policy,
    ...from,
    terminal: null,
    phase: { at: "waiting" },
    failures: 0,
    ended: null,
    isAskedSince: false,
    gone: null,
    blocked: 0,
    isUnproven: false,
    isPolling: false,
    isAsking: false,
    pollFailures: 0,
    refusals: 0,
  };
}

/** Pure: the same arguments give the same result. */
export function followStep(follow: Follow, input: FollowInput, moment: Moment): [Follow, readonly FollowEffect[]] {
  const turn = new Step(follow, moment);
  if (follow.phase.at !== "over") turn.happen(input);
  return [turn.follow, turn.effects];
}

/** What a refusal means for someone who follows a task. */
function meaning({ status, code }: Refused): "gone" | "position" | "credentials" | "later" | "wrong" {
  // Not from a server of ours: a proxy, a captive portal, a deployment under way.
  if (code.startsWith("HTTP_") || status >= 500 || status === 429 || status === 408) return "later";
  if ((status === 404 || status === 410) && /^(TASK|SESSION)_/.test(code)) return "gone";
  if (status === 401) return "credentials";
  return code === "CURSOR_AHEAD" || status === 400 ? "position" : "wrong";
}

class Step {
  follow: Follow;
  readonly effects: FollowEffect[] = [];
  readonly #moment: Moment;

  constructor(follow: Follow, moment: Moment) {
    this.follow = follow;
    this.#moment = moment;
  }

  happen(input: FollowInput): void {
    const { phase } = this.follow;
    switch (input.on) {
      case "start":
        return this.#open();
      case "named":
        return this.#name(input.taskId);
      case "heard":
        if (phase.at !== "reading") return;
        this.#set({ phase: { ...phase, heardAtMs: this.#moment.nowMs }, isUnproven: false, refusals: 0 });
        return this.#stopPolling();
      case "chunk":
        if (phase.at === "reading") this.#chunk(input.chunk, phase);
        return;
      case "read":
        if (phase.at === "reading") this.#read(input.reading);
        return;
      case "task":
        this.#set({ isAsking: false });
        return this.#task(input.told);
      case "session":
        this.#set({ isAsking: false });
        return this.#session(input.told);
      case "timer":
        return this.#timer(input.name);
      case "wake":
        if (phase.at === "waiting") this.#open();
        return this.#timer("poll");
    }
  }

  #set(change: Partial<Follow>): void {
    this.follow = { ...this.follow, ...change };
  }

  #do(effect: FollowEffect): void {
    this.effects.push(effect);
  }

  #after(name: FollowTimer, inMs: number): void {
    this.#do({ do: "timer", name, inMs });
  }

  #stop(...names: FollowTimer[]): void {
    this.#do({ do: "stop_timers", names });
  }

  /** How long silence may last. A task that is over has all of its stream to send, at once. */
  #silenceMs(): number {
    const { policy, ended } = this.follow;
    return ended === null ? policy.silenceMs : policy.silenceMs * STEADY_SHARE;
  }

  #open(): void {
    const { taskId, cursor, ended, policy } = this.follow;
    const { nowMs } = this.#moment;
    this.#set({ phase: { at: "reading", openedAtMs: nowMs, heardAtMs: nowMs, isMoving: false }, isAskedSince: ended !== null, gone: null });
    this.#stop("retry");
    this.#after("silence", this.#silenceMs());
    this.#after("quiet", policy.silenceMs * QUIET_SHARE);
    this.#do({ do: "open", taskId, cursor });
  }

  #name(taskId: string): void {
    if (this.follow.taskId !== null) return;
    this.#set({ taskId });
    this.#do({ do: "name", taskId });
  }

  #chunk(chunk: StreamChunk, phase: Extract<Phase, { at: "reading" }>): void {
    // The first chunk of a turn names it.
    if (chunk.type === "start" && typeof chunk["messageId"] === "string") this.#name(chunk["messageId"]);
    if (chunk.idx !== undefined) {
      if (chunk.idx === this.follow.cursor) return;
      this.#set({ cursor: chunk.idx, failures: 0, blocked: 0, phase: { ...phase, isMoving: true, heardAtMs: this.#moment.nowMs } });
      if (this.follow.taskId !== null) this.#do({ do: "keep", taskId: this.follow.taskId, cursor: chunk.idx });
    }
    // An `error` is followed by a `finish`, which does not make it a success.
    if (chunk.type === "error" || chunk.type === "abort") this.#set({ terminal: chunk.type });
    else if (chunk.type === "finish") this.#set({ terminal: this.follow.terminal ?? "finish" });
    this.#do({ do: "deliver", chunk });
  }

  #read(reading: Reading): void {
    switch (reading.end) {
      case "done":
        return this.follow.terminal === null ? this.#failed(null) : this.#settle();
      case "nothing_more":
        return this.follow.taskId === null ? this.#failed(null) : this.#settle();
      case "cut":
        return this.#failed(null);
      case "refused":
        return this.#refused(reading.refused);
    }
  }

  #refused(refused: Refused): void {
    const { taskId, cursor } = this.follow;
    const means = meaning(refused);
    if (means === "position" && taskId !== null && cursor !== "0") return this.#restart();
    if (means === "later") return this.#failed(refused.retryAfterMs);
    if (taskId === null) {
      // Credentials may only have expired: they are fetched anew for each request.
      const mayTryAgain = means === "credentials" && this.follow.refusals === 0;
      if (!mayTryAgain) return this.#fail(refused);
      this.#set({ refusals: 1 });
      return this.#failed(null);
    }
    // What that means the task itself has to say.
    this.#failed(refused.retryAfterMs);
    if (this.follow.phase.at !== "waiting") return;
    if (means === "gone") this.#set({ gone: refused.code });
    this.#poll();
  }

  /** A position that makes no sense is no position. */
  #restart(): void {
    const { taskId } = this.follow;
    this.#set({ cursor: "0", terminal: null });
    this.#do({ do: "reset" });
    if (taskId !== null) this.#do({ do: "keep", taskId, cursor: "0" });
    this.#open();
  }

  /** The stream was lost, or could not be had. It will be asked for again. */
  #failed(advisedMs: number | null): void {
    const { phase, failures, policy, blocked, taskId, cursor } = this.follow;
    if (phase.at !== "reading") return;
    const steady = phase.heardAtMs - phase.openedAtMs >= policy.silenceMs * STEADY_SHARE;
    const isSound = phase.isMoving || steady;
    const attempt = isSound ? 1 : failures + 1;
    this.#set({ failures: attempt, blocked: isSound ? 0 : blocked, isUnproven: !isSound, phase: { at: "waiting" } });
    // Without a name the turn can only be read from its start.
    if (taskId === null && cursor !== "0") {
      this.#set({ cursor: "0", terminal: null });
      this.#do({ do: "reset" });
    }
    this.#stop("silence", "quiet");
    if (this.#isBlocked()) return this.#close("UNREACHABLE");
    this.#after("retry", advisedMs ?? backoffMs(attempt, this.#moment.random, policy.backoffSeconds));
    if (attempt > 1) this.#poll();
  }

  /** The task is over, plain requests get through, and streams bring nothing, again and again. */
  #isBlocked(): boolean {
    const { ended, isAskedSince, blocked, policy } = this.follow;
    return ended !== null && isAskedSince && blocked >= policy.attemptsMax;
  }

  #poll(): void {
    if (this.follow.isPolling) return;
    this.#set({ isPolling: true, pollFailures: 0 });
    this.#ask();
  }

  #stopPolling(): void {
    if (!this.follow.isPolling) return;
    this.#set({ isPolling: false, pollFailures: 0 });
    this.#stop("poll");
  }

  /** Asks the task; or, while that has no name, the session. */
  #ask(): void {
    const { taskId, phase, isAsking } = this.follow;
    if (isAsking) return;
    this.#set({ isAsking: true });
    this.#stop("poll");
    if (taskId === null || phase.at === "closing") this.#do({ do: "ask_session" });
    else this.#do({ do: "ask_task", taskId });
  }

  #askLater(advisedMs: number | null): void {
    const { policy, pollFailures } = this.follow;
    const pauseMs = pollFailures === 0 ? policy.pollMs : Math.max(policy.pollMs, backoffMs(pollFailures, this.#moment.random, policy.backoffSeconds));
    this.#after("poll", advisedMs ?? pauseMs);
  }

  #task(told: Told<TaskInfo>): void {
    const { phase } = this.follow;
    if (phase.at === "closing") return this.#ask();
    if (phase.at !== "settling" && !this.follow.isPolling) return;
    if (told.is !== "told") return this.#notTold(told, (refused) => (phase.at === "settling" ? this.#finish(null) : this.#close(refused.code)));
    const wasOut = this.#gotThrough();
    if (phase.at === "settling") return this.#settled(told.value, phase.asks);
    if (told.value.status === "running") {
      if (phase.at === "waiting" && wasOut) this.#open();
      return this.#askLater(null);
    }
    const isNews = this.follow.ended === null;
    // What is left to read is there at once, so the waits begin anew.
    this.#set({ ended: told.value, failures: isNews ? 0 : this.follow.failures });
    if (this.follow.gone !== null) return this.#close(this.follow.gone);
    if (phase.at === "waiting" && this.#isBlocked()) return this.#close("UNREACHABLE");
    if (phase.at === "waiting" && (isNews || wasOut)) this.#open();
    if (phase.at === "reading" && isNews) this.#after("silence", this.#silenceMs());
    this.#askLater(null);
  }

  /** A plain request was answered. Returns whether that is news: the one before was not. */
  #gotThrough(): boolean {
    const { pollFailures, blocked, isUnproven } = this.follow;
    const wasOut = pollFailures > 0;
    // What failed while nothing got through does not show that streams alone are blocked.
    this.#set({ pollFailures: 0, refusals: 0, blocked: blocked + (isUnproven && !wasOut ? 1 : 0), isUnproven: false });
    return wasOut;
  }

  /** The plain request brought nothing that could be used. */
  #notTold(told: Exclude<Told<unknown>, { is: "told" }>, whenGone: (refused: Refused) => void): void {
    const means = told.is === "refused" ? meaning(told.refused) : "later";
    if (told.is === "refused" && means === "gone") return whenGone(told.refused);
    if (told.is === "refused" && (means === "wrong" || means === "position" || (means === "credentials" && this.follow.refusals > 0))) {
      return this.#fail(told.refused);
    }
    this.#set({ pollFailures: this.follow.pollFailures + 1, refusals: this.follow.refusals + (means === "credentials" ? 1 : 0) });
    this.#askLater(told.is === "refused" ? told.refused.retryAfterMs : null);
  }

  #session(told: Told<Received<Session>>): void {
    const { phase, messageId, ended, isPolling, taskId } = this.follow;
    if (phase.at === "closing") {
      if (told.is === "told") return this.#finish(told.value);
      return this.#notTold(told, () => (ended === null ? this.#finish(undefined) : this.#finish(null)));
    }
    if (phase.at === "settling") return this.#ask();
    if (!isPolling) return;
    if (told.is !== "told") return this.#notTold(told, (refused) => this.#fail(refused));
    const wasOut = this.#gotThrough();
    const found = taskId === null && messageId !== null ? turnOf(told.value, messageId) : null;
    if (found !== null) this.#name(found);
    if (phase.at === "waiting" && wasOut) this.#open();
    this.#askLater(null);
  }

  #settle(): void {
    this.#stop("retry", "silence", "quiet", "poll");
    this.#set({ phase: { at: "settling", asks: 0 }, isPolling: false, pollFailures: 0 });
    if (this.follow.ended === null || this.follow.terminal === null) this.#ask();
    else this.#finish(null);
  }

  #settled(task: TaskInfo, asks: number): void {
    if (this.follow.terminal === null && isBeyond(this.follow.cursor, task.lastMessageId)) return this.#restart();
    if (task.status === "running" && asks < SETTLING_ASKS_MAX) {
      this.#set({ phase: { at: "settling", asks: asks + 1 } });
      return this.#askLater(null);
    }
    this.#set({ ended: task });
    this.#finish(null);
  }

  #close(reason: string): void {
    const { isAsking } = this.follow;
    this.#do({ do: "hang_up" });
    this.#stop("retry", "silence", "quiet", "poll");
    this.#set({ phase: { at: "closing", reason }, isPolling: false, pollFailures: 0 });
    if (!isAsking) this.#ask();
  }

  /** `undefined`: there is no session any more, and nothing is known of the task. */
  #finish(session: Received<Session> | null | undefined): void {
    const { phase, ended, terminal } = this.follow;
    const ending = endingOf(ended, terminal);
    const outcome = ((): TaskOutcome => {
      if (phase.at !== "closing") return { via: "stream", terminal: terminal ?? terminalOf(ending.status), ...ending };
      if (session === undefined) return { via: "gone", reason: phase.reason, ...ending };
      return { via: "session", reason: phase.reason, session: session as Session | null, ...ending };
    })();
    this.#over();
    this.#do({ do: "finish", outcome });
  }

  #fail({ code, message, status, action, retryAfterMs }: Refused): void {
    this.#over();
    const cause = refusal(code, message || `HTTP ${status}`, action);
    this.#do({ do: "fail", refusal: retryAfterMs === null ? cause : { ...cause, retryAfterMs } });
  }

  #over(): void {
    this.#set({ phase: { at: "over" }, isPolling: false });
    this.#do({ do: "hang_up" });
    this.#stop("retry", "silence", "quiet", "poll");
  }

  #timer(name: FollowTimer): void {
    const { phase, policy, isPolling } = this.follow;
    switch (name) {
      case "retry":
        if (phase.at === "waiting") this.#open();
        return;
      case "poll":
        if (isPolling || phase.at === "settling" || phase.at === "closing") this.#ask();
        return;
      case "quiet": {
        if (phase.at !== "reading") return;
        const leftMs = phase.heardAtMs + policy.silenceMs * QUIET_SHARE - this.#moment.nowMs;
        if (leftMs > 0) return this.#after("quiet", leftMs);
        this.#after("quiet", policy.silenceMs * QUIET_SHARE);
        return this.#poll();
      }
      case "silence": {
        if (phase.at !== "reading") return;
        const leftMs = phase.heardAtMs + this.#silenceMs() - this.#moment.nowMs;
        if (leftMs > 0) return this.#after("silence", leftMs);
        this.#do({ do: "hang_up" });
        return this.#failed(null);
      }
    }
  }
}
