// The promise, tried with chance: cut, doubled, swapped or swallowed frames, trimmed and re-begun logs; the application still
// sees every event once, in order, or is told exactly what is missing; and no message runs twice.

import { expect, test } from "vitest";
import type { ClientFrame, Frame } from "../src/frame.ts";
import { Dice, seed } from "./support/dice.ts";
import { HELLO, Log, SESSION } from "./support/log.ts";
import { Rig } from "./support/rig.ts";

/** A wire that loses what was on its way when it is cut, and a server that takes each message once. */
class World {
  readonly log = new Log();
  readonly rig = new Rig();
  readonly dice: Dice;
  down: Frame[] = [];
  attached = false;
  epochs = 0;
  messages = 0;
  sentSeen = 0;

  constructor(from: number) {
    this.dice = new Dice(from);
    this.rig.happen({
      on: "start",
      intent: { to: "attach", sessionId: SESSION, mode: "hold", takeOver: false, position: { epoch: null, seq: 0 } },
    });
    this.down = [HELLO];
  }

  append(frame: Partial<Frame> = {}): void {
    const event = this.log.append(frame);
    if (this.attached) this.down.push(event);
  }

  /** What the client sent since the last look reaches the server, or is lost with the wire. */
  up(lost: boolean): void {
    const fresh = this.rig.sent.slice(this.sentSeen);
    this.sentSeen = this.rig.sent.length;
    if (!lost) fresh.forEach((frame) => this.serve(frame));
  }

  serve(frame: ClientFrame): void {
    if (frame.event === "user.reconnect") {
      this.attached = true;
      this.down.push(...this.log.answer(frame));
    } else if (frame.event === "user.message") {
      const id = frame["message_id"];
      const known = [...this.log.contents.values()].find((event) => event.metadata?.["message_id"] === id);
      const metadata = { action: "duplicate_message", message_id: id, seq: known?.seq };
      if (known === undefined) this.append({ event: "user.message", metadata: { message_id: id } });
      else this.down.push({ event: "system.notice", session_id: SESSION, metadata });
    } else if (frame.event === "user.request_state") {
      const signed_state = { state: { memory_snapshot: [], current_step: 0, last_seq: this.log.last } };
      this.down.push({ event: "agent.state_exported", session_id: SESSION, metadata: { signed_state } });
    } else if (frame.event === "user.ack") {
      // Never ahead of what the log has, and never after the wire is gone.
      const acked = String((frame["content"] as Record<string, unknown>)["last_event_id"]);
      if (acked.startsWith(`${this.log.epoch}-`)) expect(Number(acked.split("-")[1])).toBeLessThanOrEqual(this.log.last);
    }
  }

  deliver(): void {
    const frame = this.down.shift();
    if (frame !== undefined) this.rig.frame(frame);
    this.follow();
  }

  cut(told: boolean): void {
    this.up(true);
    this.attached = false;
    this.down = [];
    if (told) this.rig.happen({ on: "closed", code: 1006 });
    this.follow();
  }

  /** The server answers whatever dial the client has made meanwhile. */
  follow(): void {
    if (!this.rig.wired) this.attached = false;
    if (this.rig.link.phase.at === "dialing" && !this.attached && this.down.length === 0) this.down = [HELLO];
  }

  act(): void {
    const { dice, rig } = this;
    const before = rig.wired;
    switch (dice.below(16)) {
      case 0:
      case 1:
      case 2:
        return this.append();
      case 3:
        return this.cut(true);
      case 4:
        // Half-open: nothing comes any more, and nobody says so.
        return dice.chance(0.3) ? this.cut(false) : undefined;
      case 5:
        if (this.down.length > 0) this.down.splice(dice.below(this.down.length), 0, this.down[dice.below(this.down.length)] as Frame);
        return;
      case 6: {
        // A frame is swallowed. Without a heartbeat, only a later event could tell.
        const numbered = this.down.findIndex((frame) => frame.seq !== undefined);
        if (numbered >= 0) this.down.splice(numbered, 1);
        return;
      }
      case 7:
        if (this.down.length > 1) this.down.push(...this.down.splice(dice.below(this.down.length - 1), 1));
        return;
      case 8:
        return dice.chance(0.2) ? this.trimUnread() : undefined;
      case 9:
        return dice.chance(0.05) ? this.beginAnew() : undefined;
      case 10:
        if (this.messages < 10) rig.ask({ kind: "message", messageId: `m-${++this.messages}`, content: "hello" });
        return this.up(false);
      case 11:
        rig.random = dice.next();
        rig.tick();
        if (before && !rig.wired) this.down = [];
        return this.follow();
      case 12:
        rig.happen({ on: "wake" });
        return this.follow();
      case 13:
        if (this.attached) this.down.push({ event: "system.heartbeat", session_id: SESSION, metadata: { seq: this.log.last } });
        return;
      default:
        this.up(false);
        for (let n = dice.below(6); n >= 0; n--) this.deliver();
    }
  }

  /** Old events go, but only once nobody live is owed them: a live reader would be told by a notice. */
  trimUnread(): void {
    this.cut(true);
    this.log.trim(Math.min(this.log.next, this.log.first + this.dice.below(5)));
  }

  /** The log's end was lost with the power: numbers are given out anew, in another epoch. */
  beginAnew(): void {
    this.cut(true);
    const { log } = this;
    const kept = log.first + this.dice.below(log.next - log.first + 1);
    for (let n = kept; n < log.next; n++) log.contents.delete(n);
    log.next = kept;
    log.epoch = `epoch${++this.epochs}`;
  }

  /** The faults stop. */
  settle(): void {
    for (let round = 0; round < 200; round++) {
      this.up(false);
      while (this.down.length > 0) {
        this.deliver();
        this.up(false);
      }
      const done = this.rig.state === "connected" && this.rig.link.position?.seq === this.log.last && this.rig.link.asks.length === 0;
      if (done) return;
      if (this.attached) this.down.push({ event: "system.heartbeat", session_id: SESSION, metadata: { seq: this.log.last } });
      else {
        this.rig.tick();
        this.follow();
      }
      if (this.down.length === 0) {
        this.rig.tick();
        this.follow();
      } else {
        while (this.down.length > 0) this.deliver();
        this.rig.pass(2_500);
        this.follow();
      }
    }
    throw new Error(`it does not settle: ${JSON.stringify(this.rig.link.phase)} at ${this.rig.link.position?.seq} of ${this.log.last}`);
  }
}

/** Reads what the application was given, in order: events and news. */
function check(world: World, story: readonly ({ seq: number } | { skipTo: number } | { reset: true })[]): void {
  let next: number | null = 1;
  for (const part of story) {
    if ("reset" in part) next = null;
    else if ("skipTo" in part) {
      if (next !== null) expect(part.skipTo).toBeGreaterThan(next);
      next = part.skipTo;
    } else {
      if (next !== null) expect(part.seq).toBe(next);
      next = part.seq + 1;
    }
  }
  if (next !== null) expect(next, "everything came").toBe(world.log.next);
}

function play(from: number): World {
  const world = new World(from);
  const story: ({ seq: number } | { skipTo: number } | { reset: true })[] = [];
  let [events, news] = [0, 0];
  const note = () => {
    // A greeting's news come before the events that follow it; within one step there is at most one kind.
    for (; news < world.rig.told.length; news++) {
      const told = world.rig.told[news];
      if (told?.kind === "gap") story.push({ skipTo: told.toSeq + 1 });
      if (told?.kind === "reset") story.push({ reset: true });
    }
    for (; events < world.rig.delivered.length; events++) story.push({ seq: world.rig.delivered[events]?.seq ?? 0 });
  };
  const happen = world.rig.happen.bind(world.rig);
  world.rig.happen = (input) => {
    happen(input);
    note();
  };
  for (let n = 0; n < 300; n++) world.act();
  world.settle();
  check(world, story);
  return world;
}

test("cut anywhere: every event once and in order, or the loss is told; every message runs once", () => {
  const start = seed();
  console.log(`seed ${start}`);
  for (let run = 0; run < 400; run++) {
    try {
      const world = play(start + run);
      const ids = world.rig.delivered.map((event) => event.metadata?.["message_id"]).filter((id) => id !== undefined);
      // What was delivered twice can only have come again in another epoch.
      if (world.epochs === 0) expect(new Set(ids).size, "no message runs twice").toBe(ids.length);
      expect(world.rig.answers.size, "every message is answered").toBe(world.messages);
    } catch (error) {
      throw new Error(`BOWLINE_TEST_SEED=${start + run}`, { cause: error });
    }
  }
});
