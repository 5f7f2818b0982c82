// What the leading tab passes on, and to whom.

import { expect, test } from "vitest";
import type { Frame } from "../src/frame.ts";
import type { Socket } from "../src/socket.ts";
import { Mux, type PortNews } from "../src/tabs/mux.ts";

/** A mux over a wire that a test speaks for. */
class Stage {
  readonly sent: Record<string, unknown>[] = [];
  readonly told = new Map<string, PortNews[]>();
  readonly wires: Socket[] = [];
  readonly mux: Mux;

  constructor() {
    const dial = () => {
      const wire: Socket = { onmessage: null, onclose: null, onerror: null, send: (text) => this.sent.push(JSON.parse(text)), close: () => {} };
      this.wires.push(wire);
      return wire;
    };
    this.mux = new Mux(dial, (port, news) => this.told.set(port, [...(this.told.get(port) ?? []), news]), "all-tabs");
  }

  say(frame: Frame): void {
    this.wires.at(-1)?.onmessage?.({ data: JSON.stringify(frame) });
  }

  ask(port: string, frame: object): void {
    this.mux.send(port, JSON.stringify(frame));
  }

  /** The frames that a port was given since it was last asked. */
  heard(port: string): Frame[] {
    const news = this.told.get(port) ?? [];
    this.told.set(port, []);
    return news.map((one) => (one.say === "frame" ? (JSON.parse(one.text) as Frame) : { event: `closed ${one.code}` }));
  }
}

function attached(...ports: string[]): Stage {
  const stage = new Stage();
  for (const port of ports) stage.mux.open(port, []);
  stage.say({ event: "system.connected" });
  for (const port of ports) {
    stage.ask(port, { event: "user.reconnect", session_id: "s", content: { client_id: port } });
    stage.say(greeting(5, 6, "t1"));
    stage.say({ event: "system.notice", session_id: "s", metadata: { action: "replay" } });
  }
  for (const port of ports) stage.heard(port);
  stage.sent.length = 0;
  return stage;
}

function greeting(from: number, last: number, resume_token: string): Frame {
  const metadata = { reconnected: true, last_seq: last, resume: { verdict: "replay", from_seq: from, to_seq: last }, resume_token };
  return { event: "agent.session_created", session_id: "s", metadata };
}

test("an ack ahead of what came since the last greeting is not passed on: the server would refuse it", () => {
  const stage = attached("a");
  const ack = (seq: number) => stage.ask("a", { event: "user.ack", session_id: "s", content: { last_event_id: `e-p-${seq}` } });
  ack(6);
  expect(stage.sent).toHaveLength(0);
  stage.say({ event: "agent.thinking", session_id: "s", seq: 6 });
  ack(6);
  expect(stage.sent).toHaveLength(1);
});

test("a greeting and its replay notice go to the tab that asked, its events and its token to all", () => {
  const stage = attached("a", "b");
  stage.ask("b", { event: "user.reconnect", session_id: "s", content: { resume_token: "stale", client_id: "b" } });
  expect(stage.sent).toEqual([{ event: "user.reconnect", session_id: "s", content: { resume_token: "t1", client_id: "all-tabs" } }]);
  stage.say(greeting(6, 6, "t2"));
  stage.say({ event: "agent.thinking", session_id: "s", seq: 6 });
  stage.say({ event: "system.notice", session_id: "s", metadata: { action: "replay" } });
  expect(stage.heard("a").map(({ event, metadata }) => [event, metadata?.["resume_token"]])).toEqual([
    ["system.notice", "t2"],
    ["agent.thinking", undefined],
  ]);
  expect(stage.heard("b").map(({ event }) => event)).toEqual(["agent.session_created", "system.notice", "agent.thinking", "system.notice"]);
});

test("a refusal goes to who asked last", () => {
  const stage = attached("a", "b");
  stage.ask("b", { event: "user.message", session_id: "s", content: "x" });
  stage.say({ event: "agent.error", session_id: "s", metadata: { error_code: "AGENT_BUSY" } });
  expect(stage.heard("a")).toEqual([]);
  expect(stage.heard("b")).toHaveLength(1);
});

test("sessions are made one at a time, so that each answer has its owner", () => {
  const stage = new Stage();
  for (const port of ["a", "b", "c"]) stage.mux.open(port, []);
  stage.say({ event: "system.connected" });
  for (const port of ["a", "b", "c"]) stage.ask(port, { event: "user.create_session", content: {} });
  expect(stage.sent).toHaveLength(1);
  stage.say({ event: "agent.session_created", session_id: "s1", metadata: {} });
  stage.say({ event: "system.error", metadata: { error_code: "TOO_MANY_SESSIONS" } });
  stage.say({ event: "agent.session_created", session_id: "s3", metadata: {} });
  expect(["a", "b", "c"].map((port) => stage.heard(port)[1]?.event)).toEqual([
    "agent.session_created",
    "system.error",
    "agent.session_created",
  ]);
});

test("a tab that only watches does not take the session from one that holds it", () => {
  const stage = attached("a", "b");
  stage.ask("b", { event: "user.reconnect", session_id: "s", content: { mode: "observe" } });
  expect(stage.sent[0]).toMatchObject({ content: { client_id: "all-tabs" } });
  expect((stage.sent[0]?.["content"] as object | undefined) ?? {}).not.toHaveProperty("mode");
});

test("events of a session that its tab has left go to nobody, however well they would fit", () => {
  const stage = attached("a", "b");
  stage.mux.open("c", []);
  stage.ask("c", { event: "user.create_session", content: {} });
  stage.say({ event: "agent.session_created", session_id: "s2", metadata: {} });
  stage.mux.close("c", 1000);
  stage.ask("b", { event: "user.reconnect", session_id: "s", content: {} });
  stage.say(greeting(6, 6, "t2"));
  stage.heard("b");
  stage.say({ event: "agent.thinking", session_id: "s2", seq: 6 });
  expect(stage.heard("b")).toEqual([]);
  stage.say({ event: "agent.thinking", session_id: "older name of s", seq: 6 });
  expect(stage.heard("b")).toHaveLength(1);
});

test("a task's chunks go to the tab that watched it last, and the one before is told", () => {
  const stage = attached("a", "b");
  const watch = (port: string) => stage.ask(port, { event: "user.watch_task", task_id: "t", content: { last_message_id: "0" } });
  const chunk: Frame = { event: "task.chunk", task_id: "t", id: "e-1", content: { type: "text-delta" } };
  watch("a");
  stage.say(chunk);
  expect([stage.heard("a"), stage.heard("b")]).toEqual([[chunk], []]);
  watch("b");
  expect(stage.heard("a")).toEqual([{ event: "task.end", task_id: "t", content: { status: "elsewhere" } }]);
  const refusal: Frame = { event: "system.error", metadata: { error_code: "STORE_UNAVAILABLE", details: { task_id: "t" } } };
  stage.say(chunk);
  stage.say(refusal);
  expect([stage.heard("a"), stage.heard("b")]).toEqual([[], [chunk, refusal]]);
  stage.sent.length = 0;
  stage.mux.close("b", 1000);
  expect(stage.sent).toEqual([{ event: "user.unwatch_task", task_id: "t" }]);
});

test("one tab that finds the wire dead ends it for all; a stranger is told that it has none", () => {
  const stage = attached("a", "b");
  stage.mux.close("a", 3000);
  expect(stage.heard("b")).toEqual([{ event: "closed 1006" }]);
  stage.ask("b", { event: "user.pong" });
  expect(stage.heard("b")).toEqual([{ event: "closed 1006" }]);
  stage.mux.open("b", []);
  expect(stage.wires).toHaveLength(2);
});
