// Following a task: the rules one at a time, and then against chance.

import { expect, test } from "vitest";
import type { Refused } from "../src/chat/api.ts";
import { type Follow, type FollowEffect, type FollowInput, type FollowPolicy, type FollowTimer, followStep, newFollow } from "../src/chat/follow.ts";
import { type TaskInfo, type TaskOutcome, isBeyond, readTask, turnOf } from "../src/chat/task.ts";
import type { Refusal } from "../src/failure.ts";
import type { StreamChunk } from "../src/frame.ts";
import { Dice, seed } from "./support/dice.ts";

const POLICY: FollowPolicy = { backoffSeconds: [1, 2, 4, 8, 16, 30, 60], attemptsMax: 5, silenceMs: 30_000, pollMs: 2_000 };

function refusedWith(status: number, code: string): Refused {
  return { status, code, message: "No.", action: "none", retryAfterMs: null };
}

/** A machine with its effects laid out, and a clock that moves when a test says so. */
class Rig {
  follow: Follow;
  nowMs = 1_000_000;
  random = 0.5;
  opened: { taskId: string | null; cursor: string }[] = [];
  isOpen = false;
  asked: ("task" | "session")[] = [];
  pending: "task" | "session" | null = null;
  delivered: StreamChunk[] = [];
  kept: string | null = null;
  resets = 0;
  outcome: TaskOutcome | null = null;
  failure: Refusal | null = null;
  readonly timers = new Map<FollowTimer, number>();

  constructor(from: Partial<Pick<Follow, "taskId" | "messageId" | "cursor">> = {}, policy: Partial<FollowPolicy> = {}) {
    this.follow = newFollow({ ...POLICY, ...policy }, { taskId: "task_1", messageId: null, cursor: "0", ...from });
    this.happen({ on: "start" });
  }

  happen(input: FollowInput): void {
    const before = JSON.stringify(this.follow);
    const frozen = this.follow;
    const [follow, effects] = followStep(this.follow, input, { nowMs: this.nowMs, random: this.random });
    if (JSON.stringify(frozen) !== before) throw new Error("the step changed its argument");
    this.follow = follow;
    for (const effect of effects) this.#do(effect);
  }

  chunk(n: number, type = "text-delta"): void {
    this.happen({ on: "heard" });
    this.happen({ on: "chunk", chunk: { type, idx: `ep-${n}` } });
  }

  end(end: "cut" | "done" | "nothing_more"): void {
    this.isOpen = false;
    this.happen({ on: "read", reading: { end } });
  }

  refuse(status: number, code: string): void {
    this.isOpen = false;
    this.happen({ on: "read", reading: { end: "refused", refused: refusedWith(status, code) } });
  }

  task(body: Record<string, unknown>): void {
    expect(this.pending).toBe("task");
    this.pending = null;
    this.happen({ on: "task", told: { is: "told", value: readTask("task_1", body) } });
  }

  fail(): void {
    const on = this.pending;
    if (on === null) throw new Error("nothing was asked");
    this.pending = null;
    this.happen({ on, told: { is: "unreachable" } });
  }

  tick(): FollowTimer | null {
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
    while (Math.min(...this.timers.values()) <= until) this.tick();
    this.nowMs = until;
  }

  #do(effect: FollowEffect): void {
    switch (effect.do) {
      case "open":
        if (this.isOpen) throw new Error("opened beside an open stream");
        this.isOpen = true;
        return void this.opened.push(effect);
      case "hang_up":
        this.isOpen = false;
        return;
      case "ask_task":
      case "ask_session":
        if (this.pending !== null) throw new Error("asked beside a question");
        this.pending = effect.do === "ask_task" ? "task" : "session";
        return void this.asked.push(this.pending);
      case "deliver":
        return void this.delivered.push(effect.chunk);
      case "keep":
        this.kept = effect.cursor;
        return;
      case "name":
        return;
      case "reset":
        this.resets++;
        this.delivered = [];
        return;
      case "timer":
        return void this.timers.set(effect.name, this.nowMs + effect.inMs);
      case "stop_timers":
        return effect.names.forEach((name) => this.timers.delete(name));
      case "finish":
        this.outcome = effect.outcome;
        return;
      case "fail":
        this.failure = effect.refusal;
    }
  }
}

test("a stream that is read to its end gives its status, and the result as the task tells it", () => {
  const rig = new Rig();
  rig.chunk(1, "start");
  rig.chunk(2, "finish");
  rig.end("done");
  expect(rig.outcome).toBeNull();
  rig.task({ status: "completed", result: { rows: 3 }, last_message_id: "ep-2" });
  expect(rig.outcome).toEqual({ via: "stream", terminal: "finish", status: "completed", result: { rows: 3 } });
});

test("the first return is immediate, from the same cursor; from the second on the task is asked meanwhile", () => {
  const rig = new Rig();
  rig.chunk(7);
  rig.end("cut");
  expect(rig.timers.get("retry")).toBe(rig.nowMs + 125);
  expect(rig.asked).toEqual([]);
  rig.tick();
  expect(rig.opened.at(-1)).toMatchObject({ cursor: "ep-7" });
  rig.end("cut");
  expect(rig.timers.get("retry")).toBe(rig.nowMs + 1_000);
  expect(rig.asked).toEqual(["task"]);
});

test("an outage of any length ends with the stream where it was, at once when a request gets through", () => {
  const rig = new Rig();
  rig.chunk(21);
  rig.end("cut");
  // A day without network.
  for (const until = rig.nowMs + 24 * 3600 * 1000; rig.nowMs < until; ) {
    rig.tick();
    if (rig.isOpen) rig.end("cut");
    if (rig.pending !== null) rig.fail();
  }
  expect(rig.outcome).toBeNull();
  expect(rig.opened.length).toBeLessThan(24 * 60 + 20);
  while (rig.pending === null) {
    rig.tick();
    if (rig.isOpen) rig.end("cut");
  }
  const before = rig.opened.length;
  rig.task({ status: "running", last_message_id: "ep-500" });
  expect(rig.opened.length).toBe(before + 1);
  expect(rig.opened.at(-1)).toMatchObject({ cursor: "ep-21" });
});

test("a task that runs is never given up, whatever its streams do", () => {
  const rig = new Rig();
  for (const until = rig.nowMs + 3 * 3600 * 1000; rig.nowMs < until; ) {
    if (rig.isOpen) rig.end("cut");
    if (rig.pending !== null) rig.task({ status: "running", last_message_id: "ep-9" });
    rig.tick();
  }
  expect(rig.outcome).toBeNull();
  // Streams are tried again and again, but not without pause.
  expect(rig.opened.length).toBeGreaterThan(3 * 45);
  expect(rig.opened.length).toBeLessThan(3 * 80);
});

test("a task that is over while its streams are blocked is told with its result, and with the session", () => {
  const rig = new Rig();
  while (rig.outcome === null && rig.nowMs < 1_000_000 + 10 * 60_000) {
    if (rig.isOpen) rig.end("cut");
    else if (rig.pending === "task") rig.task({ status: rig.nowMs > 1_030_000 ? "completed" : "running", result: 7, last_message_id: "ep-9" });
    else if (rig.pending === "session") {
      rig.pending = null;
      rig.happen({ on: "session", told: { is: "told", value: { status: "idle" } } });
    } else rig.tick();
  }
  expect(rig.outcome).toEqual({ via: "session", reason: "UNREACHABLE", session: { status: "idle" }, status: "completed", result: 7 });
  expect(rig.nowMs).toBeLessThan(1_060_000);
});

test("a stream that hangs is doubted before it is dropped: the task is asked beside it", () => {
  const rig = new Rig();
  rig.pass(12_000);
  expect(rig.asked).toEqual(["task"]);
  expect(rig.opened).toHaveLength(1);
  rig.task({ status: "completed", result: 1, last_message_id: "ep-1" });
  // All that is left to read would be there at once.
  rig.pass(5_000);
  expect(rig.isOpen).toBe(false);
  rig.tick();
  expect(rig.opened).toHaveLength(2);
});

test("a quiet stream that is heard of is not doubted", () => {
  const rig = new Rig();
  for (let n = 0; n < 100; n++) {
    rig.pass(10_000);
    rig.happen({ on: "heard" });
  }
  expect([rig.asked, rig.opened.length]).toEqual([[], 1]);
  rig.end("cut");
  expect(rig.timers.get("retry")).toBe(rig.nowMs + 125);
});

test("a position that makes no sense starts from the beginning", () => {
  for (const [status, code] of [[409, "CURSOR_AHEAD"], [400, "INVALID_PAYLOAD"]] as const) {
    const rig = new Rig({ cursor: "nonsense" });
    rig.refuse(status, code);
    expect(rig.opened.at(-1)).toMatchObject({ cursor: "0" });
    expect([rig.kept, rig.resets]).toEqual(["0", 1]);
    rig.chunk(1, "start");
    expect(rig.delivered).toHaveLength(1);
  }
  // Of a task that is over the server says only that there is nothing more.
  const rig = new Rig({ cursor: "99" });
  rig.end("nothing_more");
  rig.task({ status: "completed", last_message_id: "ep-9" });
  expect(rig.opened.at(-1)).toMatchObject({ cursor: "0" });
  expect(isBeyond("ep-9.2", "ep-9") || isBeyond("ep-9", "ep-9") || isBeyond("other-99", "ep-9") || isBeyond("0", "ep-9")).toBe(false);
});

test("a stream that is gone is believed if the task is over or gone as well", () => {
  const over = new Rig();
  over.refuse(410, "TASK_EXPIRED");
  over.task({ status: "failed", error: { code: "AGENT_LOST", message: "Lost." }, last_message_id: "ep-9" });
  expect(over.pending).toBe("session");
  over.pending = null;
  over.happen({ on: "session", told: { is: "refused", refused: refusedWith(410, "SESSION_EXPIRED") } });
  expect(over.outcome).toEqual({ via: "session", reason: "TASK_EXPIRED", session: null, status: "failed", error: { code: "AGENT_LOST", message: "Lost." } });

  const running = new Rig();
  running.refuse(404, "TASK_NOT_FOUND");
  running.task({ status: "running" });
  running.pass(250);
  expect([running.outcome, running.opened.length]).toEqual([null, 2]);

  const gone = new Rig();
  gone.refuse(404, "TASK_NOT_FOUND");
  for (const code of ["TASK_NOT_FOUND", "SESSION_NOT_FOUND"]) {
    const on = gone.pending as "task" | "session";
    gone.pending = null;
    gone.happen({ on, told: { is: "refused", refused: refusedWith(404, code) } });
  }
  expect(gone.outcome).toEqual({ via: "gone", reason: "TASK_NOT_FOUND", status: "unknown" });
});

test("what is said by something that is no Bowline says nothing of the task", () => {
  const rig = new Rig();
  rig.refuse(404, "HTTP_404");
  rig.tick();
  rig.refuse(403, "HTTP_403");
  rig.pending = null;
  rig.happen({ on: "task", told: { is: "refused", refused: refusedWith(404, "HTTP_404") } });
  expect([rig.outcome, rig.failure]).toEqual([null, null]);
});

test("credentials that are refused twice are told, and the task is left alone", () => {
  const rig = new Rig();
  rig.refuse(401, "UNAUTHORIZED");
  for (let n = 0; n < 2; n++) {
    while (rig.pending === null) {
      rig.tick();
      if (rig.isOpen) rig.refuse(401, "UNAUTHORIZED");
    }
    rig.pending = null;
    rig.happen({ on: "task", told: { is: "refused", refused: refusedWith(401, "UNAUTHORIZED") } });
  }
  expect(rig.failure).toMatchObject({ code: "UNAUTHORIZED" });
});

test("a page that wakes does not wait", () => {
  const rig = new Rig();
  for (let n = 0; n < 6; n++) {
    rig.end("cut");
    if (n < 5) while (!rig.isOpen) rig.tick();
  }
  expect(rig.timers.get("retry")).toBe(rig.nowMs + 16_000);
  rig.happen({ on: "wake" });
  expect(rig.isOpen).toBe(true);
});

test("a turn is named by its answer, by its first chunk, or by the session, and is asked for until it is", () => {
  const first = new Rig({ taskId: null, messageId: "m-1" });
  first.end("cut");
  first.tick();
  expect(first.opened.map(({ taskId }) => taskId)).toEqual([null, null]);
  first.happen({ on: "chunk", chunk: { type: "start", messageId: "turn_1_s", idx: "ep-1.1" } });
  first.end("cut");
  first.tick();
  expect(first.opened.at(-1)).toEqual({ do: "open", taskId: "turn_1_s", cursor: "ep-1.1" });

  const blocked = new Rig({ taskId: null, messageId: "m-1" });
  blocked.pass(12_000);
  expect(blocked.pending).toBe("session");
  blocked.pending = null;
  blocked.happen({ on: "session", told: { is: "told", value: { messages: [{ role: "user", id: "m-1" }], active_streams: [{ task_id: "turn_1_s" }, { task_id: "task_2", operation_id: "op" }] } } });
  blocked.pass(2_000);
  expect(blocked.pending).toBe("task");

  const refused = new Rig({ taskId: null, messageId: "m-1" });
  refused.refuse(409, "AGENT_BUSY");
  expect(refused.failure).toMatchObject({ code: "AGENT_BUSY" });

  expect(turnOf({ messages: [{ role: "user", id: "m-1" }, { role: "assistant", id: "turn_1_s" }] }, "m-1")).toBe("turn_1_s");
  expect(turnOf({ messages: [{ role: "user", id: "m-0" }], active_streams: [{ task_id: "turn_1_s" }] }, "m-1")).toBeNull();
});

/** A task with its stream, behind a wire that breaks as it likes. */
class World {
  readonly rig = new Rig();
  count = 0;
  isEnded = false;
  isDown = false;
  isCalm = false;
  streams: "sound" | "hang" | "cut" | "refused" = "sound";
  /** How much of what is there the open stream has sent. */
  sent = 0;

  constructor(readonly dice: Dice) {
    this.arrive();
  }

  get info(): TaskInfo {
    const status = this.isEnded ? "completed" : "running";
    return readTask("task_1", { status, last_message_id: `ep-${this.count}`, ...(this.isEnded ? { result: this.count } : {}) });
  }

  /** Whatever was asked or opened is answered, as the wire allows. */
  arrive(): void {
    const { rig } = this;
    if (rig.pending !== null) {
      const on = rig.pending;
      rig.pending = null;
      if (this.isDown) rig.happen({ on, told: { is: "unreachable" } });
      else if (on === "task") rig.happen({ on, told: { is: "told", value: this.info } });
      else rig.happen({ on, told: { is: "told", value: { status: "idle" } } });
    }
    if (!rig.isOpen) return;
    if (this.isDown || this.streams === "cut") return rig.end("cut");
    if (this.streams === "refused") return rig.refuse(502, "HTTP_502");
    if (this.streams === "hang") return;
    const at = rig.opened.at(-1)?.cursor ?? "0";
    this.sent = Math.max(this.sent, at === "0" ? 0 : Number(at.split("-")[1]));
    const stopAt = !this.isCalm && this.dice.chance(0.3) ? this.sent + this.dice.below(5) : Infinity;
    if (this.isEnded && this.sent === this.count && rig.delivered.length === 0) return rig.end("nothing_more");
    while (this.sent < this.count) {
      if (this.sent >= stopAt) return this.lose();
      this.sent++;
      rig.chunk(this.sent, this.isEnded && this.sent === this.count ? "finish" : "text-delta");
    }
    if (this.isEnded) {
      this.sent = 0;
      rig.end("done");
    }
  }

  lose(): void {
    this.sent = 0;
    this.rig.end("cut");
  }

  act(): void {
    const { dice, rig } = this;
    rig.random = dice.next();
    switch (dice.below(9)) {
      case 0:
      case 1:
        if (!this.isEnded) this.count += dice.below(4);
        break;
      case 2:
        this.isDown = !this.isDown;
        if (this.isDown && rig.isOpen) this.lose();
        break;
      case 3:
        this.streams = (["sound", "hang", "cut", "refused"] as const)[dice.below(4)] ?? "sound";
        if (this.streams !== "sound") this.sent = 0;
        if (this.streams !== "sound" && rig.isOpen) this.lose();
        break;
      case 4:
        if (dice.chance(0.05) && !this.isEnded) {
          this.count++;
          this.isEnded = true;
        }
        break;
      case 5:
        if (dice.chance(0.2)) rig.happen({ on: "wake" });
        break;
      default:
        rig.tick();
    }
    if (!rig.isOpen) this.sent = 0;
    this.arrive();
  }
}

test("whatever breaks: each chunk once and in order, no end before the task's, and in the end all of it with the result", () => {
  const start = seed();
  console.log(`seed ${start}`);
  let whole = 0;
  for (let run = 0; run < 300; run++) {
    const world = new World(new Dice(start + run));
    const { rig } = world;
    for (let n = 0; n < 200 && rig.outcome === null; n++) {
      world.act();
      if (rig.outcome !== null) expect(world.isEnded).toBe(true);
    }
    // The faults stop, and the task ends.
    const { phase, blocked, isUnproven } = rig.follow;
    const gaveUp = phase.at === "closing" || (rig.outcome as TaskOutcome | null)?.via === "session" || blocked + (isUnproven ? 1 : 0) >= POLICY.attemptsMax;
    Object.assign(world, { isDown: false, isCalm: true, streams: "sound", sent: rig.isOpen ? world.sent : 0 });
    if (!world.isEnded) {
      world.count++;
      world.isEnded = true;
    }
    for (let n = 0; n < 400 && rig.outcome === null; n++) {
      world.arrive();
      if (!rig.isOpen) world.sent = 0;
      if (rig.outcome === null && rig.pending === null) rig.tick();
    }
    const numbers = rig.delivered.map(({ idx }) => Number(idx?.split("-")[1]));
    expect(numbers).toEqual(numbers.map((_, n) => n + 1));
    expect(rig.outcome, `seed ${start + run}`).toMatchObject({ status: "completed", result: world.count });
    if (!gaveUp) expect(numbers.length, `seed ${start + run}`).toBe(world.count);
    if (!gaveUp) whole++;
  }
  expect(whole).toBeGreaterThan(100);
});
