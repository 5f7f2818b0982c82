// A link with its effects laid out, and a clock that moves when a test says so.

import type { ClientFrame, Frame, LoggedEvent, StreamChunk } from "../../src/frame.ts";
import type { Answer, Question } from "../../src/link/ask.ts";
import { type ConnectionState, type Effect, type Input, type Link, type Policy, type TimerName, type Told, connectionState, newLink } from "../../src/link/state.ts";
import { step } from "../../src/link/step.ts";
import type { Refusal } from "../../src/failure.ts";

export const POLICY: Policy = {
  clientId: "tab-1",
  create: {},
  whenHeld: "ask",
  whenGone: "create",
  backoffSeconds: [1, 2, 4, 8, 16, 30, 60],
  attemptsMax: Infinity,
};

export class Rig {
  link: Link;
  nowMs = 1_000_000;
  random = 0.5;
  /** Whether a wire is open or being opened. */
  wired = false;
  hungUpWith: number[] = [];
  readonly sent: ClientFrame[] = [];
  readonly delivered: LoggedEvent[] = [];
  readonly chunks: StreamChunk[] = [];
  readonly told: Told[] = [];
  readonly answers = new Map<number, Answer>();
  readonly failures = new Map<number, Refusal>();
  readonly timers = new Map<TimerName, number>();
  readonly states: ConnectionState[] = [];
  kept = 0;
  tokensFetched = 0;
  #keys = 0;

  constructor(known: Parameters<typeof newLink>[1] = {}, policy: Partial<Policy> = {}) {
    this.link = newLink({ ...POLICY, ...policy }, known);
    this.states.push(this.state);
  }

  get state(): ConnectionState {
    return connectionState(this.link.phase);
  }

  happen(input: Input): void {
    if (input.on === "closed") this.wired = false;
    const before = JSON.stringify(this.link);
    const frozen = this.link;
    const [link, effects] = step(this.link, input, { nowMs: this.nowMs, random: this.random });
    if (JSON.stringify(frozen) !== before) throw new Error("step changed its argument");
    this.link = link;
    effects.forEach((effect) => this.#do(effect));
    if (this.states.at(-1) !== this.state) this.states.push(this.state);
  }

  frame(...frames: Frame[]): void {
    for (const frame of frames) this.happen({ on: "frame", frame });
  }

  ask(question: Question): number {
    const key = ++this.#keys;
    this.happen({ on: "ask", ask: { key, question, wasSent: false, tries: 0 } });
    return key;
  }

  watch(taskId: string, cursor = "0"): number {
    const key = ++this.#keys;
    this.happen({ on: "watch", watch: { key, taskId, cursor, asked: false } });
    return key;
  }

  /** Lets the earliest timer fire; returns its name. */
  tick(): TimerName | null {
    const [name, at] = [...this.timers].sort((a, b) => a[1] - b[1])[0] ?? [];
    if (name === undefined || at === undefined) return null;
    this.nowMs = Math.max(this.nowMs, at);
    this.timers.delete(name);
    this.happen({ on: "timer", name });
    return name;
  }

  /** Lets time pass and every timer in it fire. */
  pass(ms: number): void {
    const until = this.nowMs + ms;
    for (;;) {
      const due = Math.min(...this.timers.values());
      if (due > until) break;
      this.tick();
    }
    this.nowMs = until;
  }

  /** The frames of one kind that were sent. */
  sentOf(event: string): ClientFrame[] {
    return this.sent.filter((frame) => frame.event === event);
  }

  get lastSent(): ClientFrame | undefined {
    return this.sent.at(-1);
  }

  #do(effect: Effect): void {
    switch (effect.do) {
      case "dial":
        if (this.wired) throw new Error("dialed beside an open wire");
        this.wired = true;
        return;
      case "hang_up":
        if (this.wired) this.hungUpWith.push(effect.code);
        this.wired = false;
        return;
      case "send":
        if (!this.wired) throw new Error(`sent without a wire: ${JSON.stringify(effect.frame)}`);
        return void this.sent.push(effect.frame);
      case "deliver":
        return void this.delivered.push(effect.event);
      case "chunk":
        return void this.chunks.push(effect.chunk);
      case "tell":
        return void this.told.push(effect.told);
      case "answer":
        return void this.answers.set(effect.key, effect.answer);
      case "fail":
        return void this.failures.set(effect.key, effect.refusal);
      case "timer":
        return void this.timers.set(effect.name, this.nowMs + effect.inMs);
      case "stop_timers":
        return effect.names.forEach((name) => this.timers.delete(name));
      case "keep":
        this.kept++;
        return;
      case "keep_state":
        return;
      case "fetch_token":
        this.tokensFetched++;
    }
  }
}
