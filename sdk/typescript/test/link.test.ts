// The link's rules, one at a time.

import { expect, test } from "vitest";
import { backoffMs } from "../src/backoff.ts";
import type { Frame } from "../src/frame.ts";
import { sealedFrom } from "../src/sealed.ts";
import { Dice, seed } from "./support/dice.ts";
import { HELLO, Log, SESSION } from "./support/log.ts";
import { Rig } from "./support/rig.ts";

const KNOWN = { session: { id: SESSION, ids: [SESSION], resumeToken: null }, position: { epoch: "current", seq: 0 } };

function heartbeat(seq: number): Frame {
  return { event: "system.heartbeat", session_id: SESSION, metadata: { seq } };
}

function refused(error_code: string, recovery_action: string, more: object = {}): Frame {
  return { event: "agent.error", session_id: SESSION, content: "No.", metadata: { error_code, recovery_action, ...more } };
}

/** Answers the last `user.reconnect`. */
function answer(rig: Rig, log: Log): void {
  const request = rig.lastSent;
  if (request?.event !== "user.reconnect") throw new Error(`not asked: ${JSON.stringify(request)}`);
  rig.frame(...log.answer(request));
}

/** A link that is live in a log of `count` events. */
function live(count = 0, policy: ConstructorParameters<typeof Rig>[1] = {}): { rig: Rig; log: Log } {
  const log = new Log();
  for (let n = 0; n < count; n++) log.append();
  const rig = new Rig(KNOWN, policy);
  rig.happen({ on: "start", intent: { to: "resume" } });
  rig.frame(HELLO);
  answer(rig, log);
  expect(rig.state).toBe("connected");
  return { rig, log };
}

/** How long the link means to wait, in seconds. */
function waits(rig: Rig): number {
  if (rig.link.phase.at !== "waiting") throw new Error(rig.link.phase.at);
  return (rig.link.phase.retryAtMs - rig.nowMs) / 1000;
}

test("the first attempt to return is immediate; the waits from the second on are 1, 2, 4, 8, 16, 30, 60 seconds, and never end", () => {
  const { rig } = live();
  rig.pass(20_000);
  const seen: number[] = [];
  for (let n = 0; n < 50; n++) {
    rig.happen({ on: "closed", code: 1006 });
    seen.push(waits(rig));
    expect(rig.tick()).toBe("retry");
  }
  expect(seen.slice(0, 9)).toEqual([0.125, 1, 2, 4, 8, 16, 30, 60, 60]);
  expect(new Set(seen.slice(7))).toEqual(new Set([60]));
  expect(backoffMs(2, 0)).toBe(800);
  expect(backoffMs(2, 0.999)).toBeGreaterThan(1_190);
});

test("whatever chance says, the first return takes at most 250 ms, and a later one its wait with a fifth more or less", () => {
  const start = seed();
  console.log(`seed ${start}`);
  const dice = new Dice(start);
  for (let run = 0; run < 2_000; run++) {
    const random = dice.next();
    const attempt = 1 + dice.below(12);
    const seconds = Array.from({ length: 1 + dice.below(5) }, () => dice.below(100) / 10);
    const waitMs = backoffMs(attempt, random, seconds);
    if (attempt === 1) {
      expect(waitMs).toBeLessThanOrEqual(Math.min(250, (seconds[0] ?? 0) * 1000));
    } else {
      const base = (seconds[Math.min(attempt - 2, seconds.length - 1)] ?? 0) * 1000;
      expect(Math.abs(waitMs - base)).toBeLessThanOrEqual(base * 0.2 + 1);
    }
    expect(waitMs).toBeGreaterThanOrEqual(0);
  }
});

test("a time that the server advised is waited for, also before the first return", () => {
  const { rig } = live();
  rig.frame({ event: "system.notice", metadata: { code: "SERVER_DRAINING", action: "reconnect", retry_after_ms: 3_000 } });
  rig.happen({ on: "closed", code: 4000 });
  expect(waits(rig)).toBe(3);
});

test("a link that never holds is not tried without pause", () => {
  const { rig, log } = live();
  const seen: number[] = [];
  for (let n = 0; n < 12; n++) {
    rig.happen({ on: "closed", code: 1006 });
    seen.push(waits(rig));
    rig.tick();
    rig.frame(HELLO);
    answer(rig, log);
    expect(rig.state).toBe("connected");
  }
  expect(seen).toEqual([0.125, 0.125, 0.125, 0.125, 0.125, 1, 2, 4, 8, 16, 30, 60]);
  // One that held for a while was sound.
  rig.pass(5_000);
  rig.happen({ on: "closed", code: 1006 });
  expect(waits(rig)).toBe(0.125);
});

test("with a limit it gives up, says so, and starts again when asked", () => {
  const rig = new Rig(KNOWN, { attemptsMax: 2 });
  rig.happen({ on: "start", intent: { to: "resume" } });
  for (let n = 0; n < 3; n++) {
    rig.happen({ on: "closed", code: 1006 });
    rig.tick();
  }
  expect(rig.link.phase).toMatchObject({ at: "disconnected", cause: { code: "GAVE_UP" } });
  rig.happen({ on: "start", intent: { to: "resume" } });
  expect(rig.state).toBe("connecting");
});

test("acks are gathered for 200 ms, and count what they cover", () => {
  const { rig, log } = live();
  for (let n = 0; n < 7; n++) rig.frame(log.append());
  expect(rig.sentOf("user.ack")).toEqual([]);
  rig.pass(199);
  expect(rig.sentOf("user.ack")).toEqual([]);
  rig.pass(1);
  expect(rig.sentOf("user.ack")).toEqual([
    { event: "user.ack", session_id: SESSION, content: { last_event_id: "current-7", received_count: 7 } },
  ]);
});

test("a heartbeat is answered with an ack at once", () => {
  const { rig } = live(3);
  rig.frame(heartbeat(3));
  expect(rig.lastSent).toMatchObject({ event: "user.ack", content: { last_event_id: "current-3" } });
});

test("a heartbeat that stays ahead of us is a gap: what is missing is asked for", () => {
  const { rig, log } = live(3);
  log.append();
  rig.frame(heartbeat(4));
  rig.pass(2_000);
  expect(rig.state).toBe("reconnecting");
  answer(rig, log);
  expect(rig.state).toBe("connected");
  expect(rig.delivered.map(({ seq }) => seq)).toEqual([1, 2, 3, 4]);
  rig.pass(200);
  expect(rig.lastSent).toMatchObject({ event: "user.ack", content: { gap_detected: true } });
});

test("a heartbeat that overtook its events is no gap", () => {
  const { rig, log } = live(3);
  const event = log.append();
  rig.frame(heartbeat(4), event);
  rig.pass(5_000);
  expect(rig.sentOf("user.reconnect")).toHaveLength(1);
});

test("somebody else's heartbeat is a sign of life and nothing more", () => {
  const { rig } = live(3);
  rig.frame({ event: "system.heartbeat", session_id: "sess_other", metadata: { seq: 99 } });
  rig.pass(5_000);
  expect(rig.sentOf("user.reconnect")).toHaveLength(1);
  expect(rig.sentOf("user.ack")).toHaveLength(1);
});

test("silence for two intervals, as the greeting told them, is loss; any frame is a sign of life", () => {
  const { rig } = live();
  rig.pass(59_000);
  rig.frame(heartbeat(0));
  rig.pass(59_000);
  expect(rig.state).toBe("connected");
  rig.pass(1_000);
  expect(rig.states).toContain("connection_lost");
});

test("a wake ends the wait, and makes a link that seems sound prove it", () => {
  const { rig, log } = live();
  rig.happen({ on: "closed", code: 1006 });
  rig.happen({ on: "wake" });
  expect(rig.state).toBe("reconnecting");
  rig.frame(HELLO);
  answer(rig, log);
  rig.pass(20_000);
  rig.happen({ on: "wake" });
  expect(rig.state).toBe("connected");
  expect(rig.lastSent?.event).toBe("user.reconnect");
  // Nobody answers: the wire was half open.
  rig.pass(10_000);
  expect(rig.states.at(-1)).toBe("connection_lost");
});

test("a frame of a dead wire's cannot come, but a late one changes nothing", () => {
  const { rig, log } = live();
  rig.happen({ on: "closed", code: 1006 });
  rig.frame(log.append());
  expect(rig.delivered).toEqual([]);
});

test("an expiring token is renewed in band, and the link stays", () => {
  const { rig } = live();
  rig.frame({ event: "system.notice", metadata: { action: "token_expiring", expires_at: 1 } });
  expect(rig.tokensFetched).toBe(1);
  rig.happen({ on: "token", token: "fresh" });
  expect(rig.lastSent).toEqual({ event: "user.authenticate", content: { token: "fresh" } });
  expect(rig.state).toBe("connected");
});

test("a refused credential is tried once more with a fresh one, then told", () => {
  const { rig } = live();
  rig.happen({ on: "closed", code: 4203 });
  expect(rig.state).toBe("connection_lost");
  rig.tick();
  rig.happen({ on: "closed", code: 4203 });
  expect(rig.link.phase).toMatchObject({ at: "disconnected", cause: { code: "UNAUTHORIZED", action: "authenticate" } });
});

test("who was taken over stays away, also if the close comes first", () => {
  for (const news of ["notice", "close"]) {
    const { rig } = live();
    if (news === "close") rig.happen({ on: "closed", code: 4201 });
    else rig.frame({ event: "system.notice", session_id: SESSION, metadata: { code: "SESSION_TAKEN_OVER", action: "taken_over" } });
    expect(rig.link.phase).toMatchObject({ at: "disconnected", cause: { code: "SESSION_TAKEN_OVER" } });
    expect(rig.timers.size).toBe(0);
  }
});

test("41xx means to start anew", () => {
  const { rig } = live();
  rig.happen({ on: "closed", code: 4100 });
  rig.tick();
  rig.frame(HELLO);
  expect(rig.lastSent?.event).toBe("user.create_session");
});

test("the ways back are quick, then with state, then a new session", () => {
  const sealed = { ...sealedFrom({ state: { session_id: SESSION } }), validUntilMs: 2_000_000 };
  const rig = new Rig({ ...KNOWN, sealed });
  rig.happen({ on: "start", intent: { to: "resume" } });
  rig.frame(HELLO);
  expect(rig.lastSent?.event).toBe("user.reconnect");
  rig.frame(refused("SESSION_EXPIRED", "create_new_session"));
  expect(rig.lastSent).toMatchObject({ event: "user.reconnect_with_state", signed_state: sealed.signedState, content: { last_seq: 0 } });
  rig.frame({ event: "error.recovery_failed", metadata: { error_code: "STATE_STALE", recovery_action: "create_new_session" } });
  expect(rig.lastSent?.event).toBe("user.create_session");
  expect(rig.link.sealed).toBeNull();
  expect(rig.told).toContainEqual({ kind: "reset", why: "new_session" });
  rig.frame({ event: "agent.session_created", session_id: "sess_new", metadata: { epoch: "e", last_seq: 0 } });
  expect(rig.states).toEqual(["disconnected", "connecting", "connected"]);
});

test("a state that has expired is not sent, and not kept", () => {
  const sealed = { ...sealedFrom("token"), validUntilMs: 1_500_000 };
  const rig = new Rig({ sealed });
  rig.nowMs = 2_000_000;
  rig.happen({ on: "start", intent: { to: "resume" } });
  rig.frame(HELLO);
  expect(rig.lastSent?.event).toBe("user.create_session");
  expect(rig.link.sealed).toBeNull();
  // It may also expire while its session is held.
  const held = new Rig({ ...KNOWN, sealed });
  held.happen({ on: "start", intent: { to: "resume" } });
  held.nowMs = 2_000_000;
  held.frame(HELLO, refused("SESSION_EXPIRED", "create_new_session"));
  expect(held.lastSent?.event).toBe("user.create_session");
  expect(held.link.sealed).toBeNull();
});

test("what a lost session may have taken is not run again in another", () => {
  const { rig } = live();
  const sent = rig.ask({ kind: "message", messageId: "m-1", content: "pay" });
  const waiting = rig.ask({ kind: "message", messageId: "m-2", content: "thank" });
  rig.happen({ on: "closed", code: 1006 });
  rig.tick();
  rig.frame(HELLO, refused("SESSION_NOT_FOUND", "create_new_session"));
  rig.frame({ event: "agent.session_created", session_id: "sess_new", metadata: { epoch: "e", last_seq: 0 } });
  expect(rig.failures.get(sent)?.code).toBe("SESSION_NOT_FOUND");
  expect(rig.sentOf("user.message").map((frame) => [frame["session_id"], frame["message_id"]])).toEqual([
    [SESSION, "m-1"],
    ["sess_new", "m-2"],
  ]);
  expect(rig.failures.has(waiting)).toBe(false);
});

test("a message is sent again after a loss only if the replay does not hold it", () => {
  const { rig, log } = live();
  const key = rig.ask({ kind: "message", messageId: "m-1", content: "hello" });
  rig.happen({ on: "closed", code: 1006 });
  rig.tick();
  log.append({ event: "user.message", metadata: { message_id: "m-1" } });
  rig.frame(HELLO);
  answer(rig, log);
  expect(rig.answers.get(key)).toMatchObject({ seq: 1 });
  expect(rig.sentOf("user.message")).toHaveLength(1);
});

test("a probe sends nothing again that is under way on the same wire", () => {
  const { rig, log } = live();
  const key = rig.ask({ kind: "plan", action: "replan", fields: {} });
  rig.nowMs += 5_000;
  rig.happen({ on: "wake" });
  answer(rig, log);
  expect(rig.sentOf("user.replan")).toHaveLength(1);
  rig.frame({ event: "system.notice", session_id: SESSION, metadata: { action: "replan", ok: true } });
  expect(rig.answers.get(key)).toEqual({ kind: "plan", ok: true });
});

test("what is refused while a probe is under way was asked before it; the probe goes on", () => {
  const { rig, log } = live();
  const key = rig.ask({ kind: "response", stepId: "s", content: { confirmed: true } });
  rig.nowMs += 5_000;
  rig.happen({ on: "wake" });
  const probe = rig.lastSent;
  rig.frame(refused("UNKNOWN_STEP", "fix_request"));
  expect(rig.failures.get(key)?.code).toBe("UNKNOWN_STEP");
  rig.frame(...log.answer(probe ?? { event: "" }));
  expect(rig.link.phase.at).toBe("live");
});

test("a plan request that was cut has an unknown outcome, and is not sent again", () => {
  const { rig, log } = live();
  const key = rig.ask({ kind: "plan", action: "restart_task", fields: { task_id: "t1" } });
  rig.happen({ on: "closed", code: 1006 });
  expect(rig.failures.get(key)?.code).toBe("OUTCOME_UNKNOWN");
  rig.tick();
  rig.frame(HELLO);
  answer(rig, log);
  expect(rig.sentOf("user.restart_task")).toHaveLength(1);
});

test("what the server cannot take for the moment is sent again when it says", () => {
  const { rig } = live();
  const key = rig.ask({ kind: "message", messageId: "m-1", content: "hello" });
  for (let n = 0; n < 4; n++) {
    rig.frame(refused("STORE_UNAVAILABLE", "retry_later", { retry_after_ms: 500 }));
    rig.pass(500);
  }
  expect(rig.sentOf("user.message")).toHaveLength(5);
  rig.frame(refused("STORE_UNAVAILABLE", "retry_later", { retry_after_ms: 500 }));
  expect(rig.failures.get(key)?.code).toBe("STORE_UNAVAILABLE");
});

test("a live reader that was trimmed past is told before its next event", () => {
  const { rig, log } = live(2);
  const metadata = { code: "REPLAY_GAP", first_retained_seq: 6, lost: 3, from_seq: 3, to_seq: 5 };
  for (let n = 0; n < 3; n++) log.append();
  rig.frame({ event: "system.notice", session_id: SESSION, metadata }, log.append());
  expect(rig.told).toContainEqual({ kind: "gap", fromSeq: 3, toSeq: 5, lost: 3 });
  expect(rig.delivered.at(-1)?.seq).toBe(6);
});

/** A link that comes back to a log which begins after its place. */
function gapped(intent: { mode: "hold" | "observe" } = { mode: "hold" }): { rig: Rig; log: Log } {
  const log = new Log(3);
  for (let n = 0; n < 9; n++) log.append();
  const rig = new Rig(KNOWN);
  rig.happen({ on: "start", intent: { to: "attach", takeOver: false, ...intent } });
  rig.frame(HELLO);
  answer(rig, log);
  expect(rig.told).toContainEqual({ kind: "gap", fromSeq: 1, toSeq: 6, lost: 6 });
  return { rig, log };
}

test("a gap is filled from the session's state, also if the wire is lost once more before the answer", () => {
  const { rig, log } = gapped();
  expect(rig.sentOf("user.request_state")).toHaveLength(1);
  rig.happen({ on: "closed", code: 1006 });
  rig.tick();
  rig.frame(HELLO);
  answer(rig, log);
  expect(rig.sentOf("user.request_state")).toHaveLength(2);
  const messages = [{ role: "user", content: "hello" }];
  const signed_state = { state: { memory_snapshot: messages, current_step: 1, last_seq: 9 } };
  rig.frame({ event: "agent.state_exported", session_id: SESSION, metadata: { signed_state } });
  expect(rig.told.at(-1)).toEqual({ kind: "history", messages, steps: 1, lastSeq: 9 });
  expect(rig.link.sealed?.signedState).toEqual(signed_state);
  expect(rig.answers.size + rig.failures.size).toBe(0);
});

test("who only watches cannot ask for the state, and a state that cannot be read fills nothing", () => {
  expect(gapped({ mode: "observe" }).rig.sentOf("user.request_state")).toEqual([]);
  const { rig } = gapped();
  rig.frame({ event: "agent.state_exported", session_id: SESSION, metadata: { signed_state: "Yndsc3Qx" } });
  expect(rig.told.some(({ kind }) => kind === "history")).toBe(false);
  expect(rig.link.asks).toEqual([]);
});

function chunk(task_id: string, id: string | null, type = "text-delta"): Frame {
  return { event: "task.chunk", session_id: SESSION, task_id, id, content: { type } };
}

const over = (task_id: string): Frame => ({ event: "task.end", session_id: SESSION, task_id, content: { status: "completed" } });

test("a watched task is read on after a loss, from the last chunk that had a cursor", () => {
  const { rig, log } = live();
  const key = rig.watch("task_1");
  expect(rig.lastSent).toEqual({ event: "user.watch_task", task_id: "task_1", content: { last_message_id: "0" } });
  rig.frame(chunk("task_1", "e-1"), chunk("task_1", "e-2"), chunk("task_1", null, "data-gap"), chunk("task_2", "e-7"));
  rig.happen({ on: "closed", code: 1006 });
  rig.tick();
  rig.frame(HELLO);
  answer(rig, log);
  expect(rig.lastSent).toEqual({ event: "user.watch_task", task_id: "task_1", content: { last_message_id: "e-2" } });
  rig.frame(chunk("task_1", "e-3"), over("task_1"), chunk("task_1", "e-4"));
  expect(rig.chunks.map(({ idx }) => idx)).toEqual(["e-1", "e-2", undefined, "e-3"]);
  expect(rig.answers.get(key)).toEqual({ kind: "watch", status: "completed", lastMessageId: "e-3" });
});

test("a probe over the same wire asks for no task again: what is on its way would come twice", () => {
  const { rig, log } = live();
  rig.watch("task_1");
  rig.nowMs += 5_000;
  rig.happen({ on: "wake" });
  answer(rig, log);
  expect(rig.sentOf("user.watch_task")).toHaveLength(1);
});

test("a task that cannot be watched is told, and fails no other request", () => {
  const { rig } = live();
  const asked = rig.ask({ kind: "message", messageId: "m-1", content: "hello" });
  const [gone, later] = [rig.watch("task_1"), rig.watch("task_2")];
  const no = (code: string, action: string, task_id: string): Frame => {
    return { event: "system.error", content: "No.", metadata: { error_code: code, recovery_action: action, details: { task_id } } };
  };
  rig.frame(no("TASK_NOT_FOUND", "none", "task_1"), no("STORE_UNAVAILABLE", "retry_later", "task_2"), no("TASK_EXPIRED", "none", "task_3"));
  expect(rig.failures.get(gone)?.code).toBe("TASK_NOT_FOUND");
  rig.pass(1_000);
  expect(rig.sentOf("user.watch_task").map(({ task_id }) => task_id)).toEqual(["task_1", "task_2", "task_2"]);
  rig.frame(over("task_2"));
  expect(rig.answers.has(later)).toBe(true);
  expect(rig.failures.has(asked)).toBe(false);
});

test("the next watch of a task takes it over, an ended one is asked for no more, and none outlives the client", () => {
  const { rig } = live();
  const [first, second] = [rig.watch("task_1"), rig.watch("task_1", "e-5")];
  expect(rig.answers.get(first)).toMatchObject({ status: "elsewhere" });
  rig.happen({ on: "unwatch", key: second });
  expect(rig.lastSent).toEqual({ event: "user.unwatch_task", task_id: "task_1" });
  const third = rig.watch("task_3");
  rig.happen({ on: "stop" });
  expect(rig.failures.get(third)?.code).toBe("CLOSED");
  expect(rig.failures.get(rig.watch("task_4"))?.code).toBe("CLOSED");
  expect(rig.link.watches).toEqual([]);
});

test("events keep the name they were logged under, and a newcomer learns it", () => {
  const log = new Log();
  log.append({ session_id: "sess_older" });
  log.append();
  const rig = new Rig(KNOWN);
  rig.happen({ on: "start", intent: { to: "resume" } });
  rig.frame(HELLO);
  answer(rig, log);
  expect(rig.delivered).toHaveLength(2);
  rig.frame(log.append({ session_id: "sess_older" }));
  expect(rig.delivered).toHaveLength(3);
  rig.frame({ event: "agent.thinking", session_id: "sess_stranger", seq: 4 });
  expect(rig.delivered).toHaveLength(3);
});

test("another session gets a wire of its own, and what was asked of the old one is told to have failed", () => {
  const { rig } = live(1);
  const key = rig.ask({ kind: "message", messageId: "m-1", content: "hello" });
  rig.happen({ on: "start", intent: { to: "create" } });
  expect(rig.failures.get(key)?.code).toBe("CLOSED");
  expect(rig.hungUpWith).toEqual([1000]);
  expect(rig.link.phase.at).toBe("dialing");
});

test("held by another: it asks, takes over, or watches, as it was told", () => {
  const outcomes = (["ask", "take_over", "observe"] as const).map((whenHeld) => {
    const rig = new Rig(KNOWN, { whenHeld });
    rig.happen({ on: "start", intent: { to: "resume" } });
    rig.frame(HELLO, refused("SESSION_ALREADY_ACTIVE", "take_over"));
    const { mode, take_over } = (rig.lastSent?.["content"] ?? {}) as Record<string, unknown>;
    return [rig.state, mode, take_over];
  });
  expect(outcomes).toEqual([
    ["disconnected", undefined, undefined],
    ["connecting", undefined, true],
    ["connecting", "observe", undefined],
  ]);
});
