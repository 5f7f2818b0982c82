// The client against a real server, over wires that are cut.

import { afterEach, beforeEach, expect, test } from "vitest";
import { BowlineError, type ConnectionState, MemoryStore } from "../src/index.ts";
import { closeClients, makeClient, next, nextEvent, record, textOf, words } from "./support/clients.ts";
import { Cutter } from "./support/cutter.ts";
import { Dice, seed } from "./support/dice.ts";
import { Server } from "./support/server.ts";
import { linkScenarios } from "./support/scenarios.ts";

const KEY = { BOWLINE_STATE__KEYS: '["k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]' };

let server: Server;
let wire: Cutter;

beforeEach(async () => {
  server = await Server.start(KEY);
  wire = await Cutter.start(server.port);
});

afterEach(async () => {
  closeClients();
  await wire.stop();
  await server.stop();
});

function inOrder(events: readonly { seq: number }[]): void {
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, n) => n + 1));
}

test("a message is answered, and both sides of the conversation arrive as events", async () => {
  const client = makeClient({ url: server.url });
  const events = record(client);
  const states: ConnectionState[] = [];
  client.on("connection", ({ state }) => states.at(-1) !== state && states.push(state));
  const session = await client.connect();
  expect(session.id).toMatch(/^sess_/);
  const answered = nextEvent(client, "agent.final_answer");
  const sent = await client.message("/echo hello");
  expect(sent).toMatchObject({ seq: 1, duplicate: false });
  expect((await answered).content).toBe("hello");
  inOrder(events);
  expect(states).toEqual(["connecting", "connected"]);
});

test("an answer that is cut again and again arrives whole, byte for byte", async () => {
  const start = seed();
  console.log(`seed ${start}`);
  const dice = new Dice(start);
  const client = makeClient({ url: wire.url });
  const events = record(client);
  await client.connect();
  const answered = nextEvent(client, "agent.final_answer");
  const off = client.on("connection", () => {
    // The greeting alone takes about 2 kB; every connection brings something, and none brings all.
    wire.budget = wire.count < 12 ? 3_500 + dice.below(6_000) : Infinity;
  });
  wire.budget = 5_000;
  client.drop();
  await client.message("/long 400 1");
  const final = await answered;
  off();
  expect(wire.count).toBeGreaterThan(5);
  inOrder(events);
  expect(textOf(events)).toBe(words(400));
  expect(final.content).toBe(words(400));
  expect(events.filter(({ event }) => event === "user.message")).toHaveLength(1);
});

test("a message whose echo is lost with the wire runs once", async () => {
  const client = makeClient({ url: wire.url });
  const events = record(client);
  await client.connect();
  for (let n = 1; n <= 10; n++) {
    const answered = next(client, "event", ({ event, content }) => event === "agent.final_answer" && content === `once ${n}`);
    const sent = client.message(`/echo once ${n}`);
    // The frame is on its way, and its answer will find nobody.
    wire.cutAll();
    await sent;
    await answered;
  }
  inOrder(events);
  expect(events).toHaveLength(20);
});

test("the states are told in their order, with the attempt and the next retry", async () => {
  const client = makeClient({ url: wire.url });
  await client.connect();
  const states: string[] = [];
  client.on("connection", ({ state }) => states.at(-1) !== state && states.push(state));
  const lost = next(client, "connection", ({ state }) => state === "connection_lost");
  const back = next(client, "connection", ({ state }) => state === "connected");
  wire.cutAll();
  const { attempt, retryAtMs, cause } = await lost;
  expect(attempt).toBe(1);
  expect(retryAtMs).toBeGreaterThan(0);
  expect(cause?.action).toBe("reconnect");
  expect(await back).toMatchObject({ attempt: 0, retryAtMs: null, cause: null, replayed: 0, gap: null });
  expect(states).toEqual(["connection_lost", "reconnecting", "connected"]);
});

test("a server killed with -9 is found again, and the open question can still be answered", async () => {
  const client = makeClient({ url: server.url });
  const events = record(client);
  await client.connect();
  const asked = nextEvent(client, "agent.user_confirm");
  await client.message("/confirm the launch");
  const { step_id } = await asked;
  const back = next(client, "connection", ({ state }) => state === "connected");
  await server.restart();
  await back;
  expect(client.session?.run).toBe("waiting");
  const answered = nextEvent(client, "agent.final_answer");
  await client.respond(step_id ?? "", { confirmed: true });
  expect((await answered).content).toBe("confirmed: the launch");
  inOrder(events);
});

test("a run that dies with the server ends as lost, with every piece that was shown", async () => {
  const client = makeClient({ url: server.url });
  const events = record(client);
  await client.connect();
  const some = next(client, "event", ({ content }) => content === " tok50");
  await client.message("/long 100000 1");
  await some;
  const ended = next(client, "event", ({ event }) => event === "agent.error");
  await server.restart();
  expect((await ended).metadata).toMatchObject({ error_code: "AGENT_LOST" });
  inOrder(events);
  const text = textOf(events);
  expect(words(100_000).startsWith(text)).toBe(true);
});

test("a reloaded page that lost its history gets it again from the first event", async () => {
  const storage = new MemoryStore();
  const first = makeClient({ url: server.url, storage });
  const { id } = await first.connect();
  const answered = nextEvent(first, "agent.final_answer");
  await first.message("/echo kept");
  await answered;
  first.close();
  const reloaded = makeClient({ url: server.url, storage });
  const events = record(reloaded);
  expect((await reloaded.connect()).id).toBe(id);
  inOrder(events);
  expect(events).toHaveLength(2);
  reloaded.close();
  const remembering = makeClient({ url: server.url, storage, resumeFrom: "kept" });
  const later = record(remembering);
  await remembering.connect();
  expect(later).toHaveLength(0);
});

test("a session that is gone comes back with the checkpoint that was kept, and remembers", async () => {
  const client = makeClient({ url: server.url });
  const { id } = await client.connect();
  const kept = next(client, "checkpoint");
  await client.message("/echo remember me");
  expect((await kept).sessionId).toBe(id);
  const restored = next(client, "restored");
  const back = next(client, "connection", ({ state }) => state === "connected");
  await server.wipe();
  expect(await restored).toMatchObject({ source: "snapshot", originalSessionId: id, warnings: [] });
  await back;
  expect(client.session?.id).not.toBe(id);
  const answered = nextEvent(client, "agent.final_answer");
  await client.message("/recall");
  expect((await answered).content).toBe("/echo remember me");
});

test("without a state a session that is gone is replaced, and the page is told to begin anew", async () => {
  const client = makeClient({ url: server.url, checkpoints: false });
  const { id } = await client.connect();
  const reset = next(client, "reset");
  const back = next(client, "connection", ({ state }) => state === "connected");
  await server.wipe();
  expect(await reset).toMatchObject({ why: "new_session" });
  await back;
  expect(client.session?.id).not.toBe(id);
});

test("an exported state restores the living session elsewhere, once", async () => {
  const client = makeClient({ url: server.url });
  const { id } = await client.connect();
  const asked = nextEvent(client, "agent.user_confirm");
  await client.message("/confirm the move");
  const { step_id } = await asked;
  const exported = await client.requestState({ format: "token" });
  expect(typeof exported.signedState).toBe("string");
  expect(exported.metadata["message_count"]).toBe(1);
  client.close();
  const elsewhere = makeClient({ url: server.url });
  const events = record(elsewhere);
  const restored = next(elsewhere, "restored");
  const session = await elsewhere.restore(JSON.parse(JSON.stringify(exported)) as object);
  expect(session).toMatchObject({ run: "waiting", lastSeq: 2 });
  expect(session.id).not.toBe(id);
  expect(await restored).toMatchObject({ source: "live", originalSessionId: id });
  const answered = nextEvent(elsewhere, "agent.final_answer");
  await elsewhere.respond(step_id ?? "", { confirmed: true });
  await answered;
  inOrder(events);
  expect(elsewhere.sealed === null || elsewhere.sealed.sessionId === session.id).toBe(true);
  // The old id leads on to the new one.
  const follower = makeClient({ url: server.url });
  const seen = record(follower);
  expect((await follower.observe(id)).id).toBe(session.id);
  inOrder(seen);
});

test("a forged state is refused, and nothing is made in its place", async () => {
  const client = makeClient({ url: server.url });
  const failed = await client.restore({ state: {}, signature: "x" }).catch((error: unknown) => error);
  expect(failed).toBeInstanceOf(BowlineError);
  expect(failed).toMatchObject({ code: "STATE_VERIFICATION_FAILED", action: "export_state_again" });
  expect(client.connection.state).toBe("disconnected");
});

test("a second device watches, asks to take over, and does", async () => {
  const holder = makeClient({ url: server.url });
  const { id } = await holder.connect();
  const watcher = makeClient({ url: server.url });
  const seen = record(watcher);
  await watcher.observe(id);
  await expect(watcher.message("may I?")).rejects.toMatchObject({ code: "SESSION_READ_ONLY" });
  const watched = nextEvent(watcher, "agent.final_answer");
  await holder.message("/echo mine");
  await watched;
  inOrder(seen);

  const asking = makeClient({ url: server.url, storage: holderStore(id) });
  await expect(asking.connect()).rejects.toMatchObject({ code: "SESSION_ALREADY_ACTIVE", action: "take_over" });
  const loser = next(holder, "connection", ({ state }) => state === "disconnected");
  await asking.takeOver();
  expect((await loser).cause?.code).toBe("SESSION_TAKEN_OVER");
  const answered = nextEvent(asking, "agent.final_answer");
  await asking.message("/echo now mine");
  await answered;
});

/** What another browser would have kept of the session. */
function holderStore(id: string): MemoryStore {
  const store = new MemoryStore();
  store.setItem("bowline", JSON.stringify({ sessionId: id, ids: [id], epoch: null, lastSeq: 0 }));
  return store;
}

test("a new session is made beside the old one, with the agent that is named", async () => {
  const client = makeClient({ url: server.url });
  const first = await client.connect();
  const second = await client.create({ agent: "demo" });
  expect(second.id).not.toBe(first.id);
  await expect(client.create({ agent: "nobody" })).rejects.toMatchObject({ code: "INVALID_PAYLOAD" });
});

test("a client that is closed before it could dial does not dial", async () => {
  const client = makeClient({ url: wire.url });
  const connecting = client.connect();
  client.close();
  await expect(connecting).rejects.toMatchObject({ code: "CLOSED" });
  const { id } = await client.connect();
  expect(id).toMatch(/^sess_/);
  expect(wire.count).toBe(1);
});

test("Stop stops the run, and says so in the log", async () => {
  const client = makeClient({ url: server.url });
  const events = record(client);
  await client.connect();
  const some = next(client, "event", ({ content }) => content === " tok5");
  await client.message("/long 100000 5");
  await some;
  expect(await client.cancel("enough")).toMatchObject({ cancelled: true });
  expect(events.at(-1)).toMatchObject({ event: "agent.cancelled", metadata: { reason: "enough" } });
  expect(await client.cancel()).toMatchObject({ cancelled: false });
});

test("while a run is active another message is refused, and can be sent later", async () => {
  const client = makeClient({ url: server.url });
  await client.connect();
  await client.message("/long 100000 5");
  await expect(client.message("/echo now?")).rejects.toMatchObject({ code: "AGENT_BUSY", action: "retry_later" });
  await client.cancel();
  await client.message("/echo now!");
});

test("an ended session is over, and the next connect makes another", async () => {
  const client = makeClient({ url: server.url });
  const { id } = await client.connect();
  await client.end();
  expect(client.connection).toMatchObject({ state: "disconnected", cause: { code: "SESSION_INACTIVE" } });
  expect((await client.connect()).id).not.toBe(id);
});

test("a wire that has gone silent is noticed after two heartbeat intervals", async () => {
  await server.stop();
  server = await Server.start({ ...KEY, BOWLINE_HEARTBEAT__INTERVAL: "200ms" });
  wire.targetPort = server.port;
  const client = makeClient({ url: wire.url });
  await client.connect();
  const lost = next(client, "connection", ({ state }) => state === "connection_lost");
  const back = next(client, "connection", ({ state }) => state === "connected");
  wire.silent = true;
  expect((await lost).cause?.message).toMatch(/two heartbeat intervals/);
  wire.silent = false;
  await back;
});

test("a drained server is returned to when it says", async () => {
  const client = makeClient({ url: server.url });
  await client.connect();
  const drained = next(client, "notice", ({ metadata }) => metadata?.["code"] === "SERVER_DRAINING");
  const lost = next(client, "connection", ({ state }) => state === "connection_lost");
  const back = next(client, "connection", ({ state }) => state === "connected");
  const before = Date.now();
  const ended = server.terminate();
  const wanted = Number((await drained).metadata?.["retry_after_ms"]);
  const { retryAtMs } = await lost;
  expect(retryAtMs).toBeGreaterThanOrEqual(before + wanted);
  await ended;
  await server.restart();
  await back;
});

test("what is no longer retained is told with its bounds before any later event", async () => {
  await server.stop();
  server = await Server.start({ ...KEY, BOWLINE_BUFFER__EVENTS_MAX: "10" });
  const client = makeClient({ url: server.url });
  const { id } = await client.connect();
  const answered = nextEvent(client, "agent.final_answer");
  await client.message("/long 40 0");
  await answered;
  const late = makeClient({ url: server.url });
  const story: string[] = [];
  late.on("gap", ({ fromSeq, toSeq, lost }) => story.push(`gap ${fromSeq}-${toSeq} (${lost})`));
  late.on("event", ({ seq }) => story.push(`event ${seq}`));
  const { lastSeq } = await late.observe(id);
  expect(lastSeq).toBe(42);
  expect(story[0]).toBe("gap 1-32 (32)");
  expect(story.slice(1)).toEqual(Array.from({ length: 10 }, (_, n) => `event ${33 + n}`));
  expect(late.connection.gap).toEqual({ fromSeq: 1, toSeq: 32, lost: 32 });
});

test("a gap is filled with what was said, from the session's state", async () => {
  await server.stop();
  server = await Server.start({ ...KEY, BOWLINE_BUFFER__EVENTS_MAX: "10" });
  const storage = new MemoryStore();
  const client = makeClient({ url: server.url, storage });
  await client.connect();
  for (const text of ["/echo first", "/long 40 0"]) {
    const answered = nextEvent(client, "agent.final_answer");
    await client.message(text);
    await answered;
  }
  client.close();
  const reloaded = makeClient({ url: server.url, storage });
  const told = next(reloaded, "history");
  await reloaded.connect();
  expect(reloaded.connection.gap).toMatchObject({ fromSeq: 1 });
  const { messages, steps, lastSeq } = await told;
  expect(messages.map(({ role, content }) => `${role}: ${String(content)}`)).toEqual([
    "user: /echo first",
    "assistant: first",
    "user: /long 40 0",
    `assistant: ${words(40)}`,
  ]);
  expect([steps, lastSeq]).toEqual([2, 44]);
});

test("a resume token is kept, renewed and used, where a session's name proves nothing", async () => {
  await server.stop();
  server = await Server.start({ ...KEY, BOWLINE_SESSION__OWNERSHIP: "token" });
  wire.targetPort = server.port;
  const storage = new MemoryStore();
  const client = makeClient({ url: wire.url, storage });
  const { id } = await client.connect();
  const tokens = new Set<unknown>();
  for (let n = 0; n < 3; n++) {
    tokens.add((JSON.parse(storage.getItem("bowline") ?? "{}") as Record<string, unknown>)["resumeToken"]);
    const back = next(client, "connection", ({ state }) => state === "connected");
    wire.cutAll();
    await back;
  }
  expect(client.session?.id).toBe(id);
  expect(tokens.size).toBe(3);
  const stranger = makeClient({ url: server.url });
  await expect(stranger.observe(id)).rejects.toMatchObject({ code: "SESSION_NOT_FOUND" });
});

test.each(linkScenarios().map((scenario) => [scenario.name, scenario] as const))("the client holds %s against a live server", async (_name, scenario) => {
  await server.stop();
  server = await Server.start({ BOWLINE_BUFFER__EVENTS_MAX: String(scenario.keep ?? 100_000) });
  const writer = makeClient({ url: server.url });
  const { id, epoch } = await writer.connect();
  let reader = makeClient({ url: server.url });
  let events = record(reader);
  let seen = 0;
  for (const step of scenario.steps) {
    if (step.append !== undefined) {
      for (let n = 0; n < step.append / 2; n++) {
        const answered = nextEvent(writer, "agent.final_answer");
        await writer.message("/echo x");
        await answered;
      }
    } else if (step.attach !== undefined) {
      const { seq, epoch: named } = step.attach;
      reader = makeClient({ url: server.url });
      events = record(reader);
      seen = 0;
      const resumed = next(reader, "resumed");
      await reader.observe(id, seq === undefined ? null : { epoch: named === "current" ? epoch : (named ?? null), seq });
      Object.assign(reader, { verdict: (await resumed).verdict });
    } else if (step.cut) {
      reader.close();
    } else if (step.verdict !== undefined) {
      expect((reader as unknown as { verdict: string }).verdict).toBe(step.verdict);
      if (step.lost !== undefined) expect(reader.connection.gap).toMatchObject({ lost: step.lost, toSeq: (step.first ?? 0) - 1 });
    } else if (step.events !== undefined) {
      const [from, to] = step.events;
      const wanted = seen + to - from + 1;
      if (events.length < wanted) await next(reader, "event", () => events.length >= wanted);
      expect(events.slice(seen, wanted).map((event) => event.seq)).toEqual(Array.from({ length: to - from + 1 }, (_, n) => from + n));
      seen = wanted;
    } else if (step.replayed !== undefined) {
      expect(reader.connection.replayed).toBe(step.replayed);
    } else if (step.quiet) {
      expect(events).toHaveLength(seen);
    }
  }
});
