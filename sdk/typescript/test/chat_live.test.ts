// The chat store against the real server, over wires that are cut.

import { afterEach, beforeEach, expect, test } from "vitest";
import { type ChatStore, type ChatStoreOptions, type StreamChunk, createChatStore } from "../src/chat.ts";
import { MemoryStore } from "../src/index.ts";
import { closeClients, makeClient, nextEvent, textOf, record, words } from "./support/clients.ts";
import { Cutter } from "./support/cutter.ts";
import { Dice, seed } from "./support/dice.ts";
import { Server } from "./support/server.ts";

let server: Server;
let wire: Cutter;
let storage: MemoryStore;

beforeEach(async () => {
  server = await Server.start();
  wire = await Cutter.start(server.port);
  storage = new MemoryStore();
});

afterEach(async () => {
  closeClients();
  await wire.stop();
  await server.stop();
});

function makeStore(options: Partial<ChatStoreOptions> = {}): ChatStore {
  return createChatStore({ baseUrl: `http://127.0.0.1:${wire.port}`, storage, backoffSeconds: [0.02], pollMs: 20, ...options });
}

async function makeSession(): Promise<string> {
  const response = await fetch(`${server.origin}/api/chat/sessions`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  expect(response.status).toBe(201);
  return ((await response.json()) as { id: string }).id;
}

function deltaText(chunks: readonly StreamChunk[]): string {
  return chunks.map((chunk) => (chunk.type === "text-delta" ? String(chunk["delta"]) : "")).join("");
}

function indexes(chunks: readonly StreamChunk[]): string[] {
  return chunks.flatMap(({ idx }) => (idx === undefined ? [] : [idx]));
}

test("a turn that is cut again and again arrives whole, byte for byte, and runs once", async () => {
  const start = seed();
  console.log(`seed ${start}`);
  const dice = new Dice(start);
  const id = await makeSession();
  const store = makeStore({ attemptsMax: 50 });
  const chunks: StreamChunk[] = [];
  wire.budget = 1_500;
  const outcome = await store.streamMessage(id, "/long 400 2", (chunk) => {
    chunks.push(chunk);
    if (chunk.idx !== undefined) expect(store.getActiveTask(id)?.lastMessageId).toBe(chunk.idx);
    wire.budget = wire.count < 10 ? 900 + dice.below(3_000) : Infinity;
  });
  expect(outcome).toMatchObject({ via: "stream", terminal: "finish" });
  expect(wire.count).toBeGreaterThan(5);
  expect(deltaText(chunks)).toBe(words(400));
  expect(new Set(indexes(chunks)).size).toBe(indexes(chunks).length);
  expect(chunks.filter(({ type }) => type === "start")).toHaveLength(1);
  expect(store.getActiveTask(id)).toBeNull();
  // One log, two views: the WebSocket has the same, and one question.
  const client = makeClient({ url: server.url });
  const events = record(client);
  await client.observe(id);
  expect(textOf(events)).toBe(words(400));
  expect(events.filter(({ event }) => event === "user.message")).toHaveLength(1);
});

test("an operation goes on while the page is closed, and is read on by the next one", async () => {
  const id = await makeSession();
  const store = makeStore();
  const task = await store.startOperation(id, "demo", { steps: 12, delay_ms: 20 });
  expect(task).toMatchObject({ toolName: "demo", lastMessageId: "0" });
  const leaving = new AbortController();
  const first: StreamChunk[] = [];
  const cut = store.reconnectToTask(id, task.taskId, "0", (chunk) => {
    first.push(chunk);
    if (first.length === 4) leaving.abort(new Error("the tab was closed"));
  }, { signal: leaving.signal });
  await expect(cut).rejects.toThrow("the tab was closed");

  const reopened = makeStore();
  const kept = reopened.getActiveTask(id);
  expect(kept?.taskId).toBe(task.taskId);
  const rest: StreamChunk[] = [];
  const outcome = await reopened.reconnectToTask(id, kept?.taskId ?? "", kept?.lastMessageId ?? "", (chunk) => rest.push(chunk));
  expect(outcome).toMatchObject({ via: "stream", terminal: "finish" });
  const whole: StreamChunk[] = [];
  await makeStore().reconnectToTask(id, task.taskId, "0", (chunk) => whole.push(chunk));
  expect(deltaText([...first, ...rest])).toBe(deltaText(whole));
  expect(new Set(indexes([...first, ...rest])).size).toBe(indexes([...first, ...rest]).length);
});

test("a task that has ended and was read to its end is told by how it ended", async () => {
  const id = await makeSession();
  const store = makeStore();
  const { taskId } = await store.startOperation(id, "demo", { steps: 100, delay_ms: 50 });
  let last = "0";
  const reading = store.reconnectToTask(id, taskId, "0", ({ idx }) => {
    last = idx ?? last;
  });
  await store.cancelTask(taskId);
  expect(await reading).toMatchObject({ via: "stream", terminal: "abort" });
  expect(await store.reconnectToTask(id, taskId, last, () => {})).toMatchObject({ via: "stream", terminal: "abort" });
});

test("a turn whose server was killed with -9 is ended as an error, with all that was shown", async () => {
  const id = await makeSession();
  const chunks: StreamChunk[] = [];
  let restarted: Promise<void> | null = null;
  const outcome = await makeStore({ attemptsMax: 500 }).streamMessage(id, "/long 100000 2", (chunk) => {
    chunks.push(chunk);
    if (chunks.length === 60) restarted = server.restart();
  });
  await restarted;
  expect(outcome).toMatchObject({ via: "stream", terminal: "error" });
  expect(words(100_000).startsWith(deltaText(chunks))).toBe(true);
  expect(deltaText(chunks).length).toBeGreaterThan(100);
});

test("an unknown task falls back to the session, and an unknown session is gone", async () => {
  const id = await makeSession();
  const store = makeStore();
  await store.streamMessage(id, "/echo kept", () => {});
  const outcome = await store.reconnectToTask(id, "task_unknown", "0", () => {});
  expect(outcome).toMatchObject({ via: "session", reason: "TASK_NOT_FOUND", session: { status: "idle" } });
  expect(JSON.stringify(outcome)).toContain("kept");
  expect(await store.reconnectToTask("sess_unknown", "task_unknown", "0", () => {})).toMatchObject({ via: "gone" });
});

test("an expired stream falls back to the task and its session, and the result is there", async () => {
  await server.stop();
  server = await Server.start({ BOWLINE_STREAM__TTL: "1ms" });
  wire.targetPort = server.port;
  const id = await makeSession();
  const store = makeStore();
  const { taskId } = await store.startOperation(id, "demo", { steps: 1, delay_ms: 0 });
  await store.reconnectToTask(id, taskId, "0", () => {});
  let outcome;
  do outcome = await store.reconnectToTask(id, taskId, "0", () => {});
  while (outcome.via === "stream");
  expect(outcome).toMatchObject({ via: "session", reason: "TASK_EXPIRED", status: "completed", result: { steps: 1 }, session: { id, status: "idle" } });
  expect(await store.getTask(taskId)).toMatchObject({ taskId, sessionId: id, toolName: "demo", status: "completed", result: { steps: 1 } });
});

test("several operations of a session are all found by a page that knows nothing, and each ends with its output", async () => {
  const id = await makeSession();
  const first = makeStore();
  const tasks = [];
  for (let n = 1; n <= 3; n++) tasks.push((await first.startOperation(id, "demo", { steps: 20 + n, delay_ms: 50 })).taskId);
  const store = makeStore({ storage: new MemoryStore() });
  expect(store.getActiveTask(id)).toBeNull();
  expect((await store.loadActiveTasks(id)).map(({ taskId }) => taskId)).toEqual(tasks);
  expect(store.getActiveTask(id)?.taskId).toBe(tasks[2]);
  expect(await store.getSession(id)).toMatchObject({ status: "running", active_streams: tasks.map((task_id) => ({ task_id })), active_stream: { task_id: tasks[2] } });
  const read = async ({ taskId, lastMessageId }: { taskId: string; lastMessageId: string }, n: number) => {
    const chunks: StreamChunk[] = [];
    const outcome = await store.reconnectToTask(id, taskId, lastMessageId, (chunk) => chunks.push(chunk));
    expect(outcome).toMatchObject({ via: "stream", status: "completed", result: { steps: 21 + n } });
    expect(chunks.find(({ type }) => type === "tool-output-available")).toMatchObject({ output: { steps: 21 + n } });
  };
  await Promise.all(store.getActiveTasks(id).map(read));
  expect(store.getActiveTasks(id)).toEqual([]);
});

test("a kept position that makes no sense to the server starts from the beginning", async () => {
  const id = await makeSession();
  const store = makeStore();
  const { taskId } = await store.startOperation(id, "demo", { steps: 30, delay_ms: 20 });
  const read = async (position: string) => {
    const chunks: StreamChunk[] = [];
    const outcome = await store.reconnectToTask(id, taskId, position, (chunk) => chunks.push(chunk));
    expect(outcome).toMatchObject({ via: "stream", status: "completed", result: { steps: 30 } });
    return indexes(chunks);
  };
  const running = await Promise.all(["999999", "not a cursor"].map(read));
  const whole = await read("0");
  expect(whole.length).toBeGreaterThan(30);
  for (const seen of [...running, await read("999999"), await read("not a cursor")]) expect(seen).toEqual(whole);
});

test("a refused message is an error and not a stream", async () => {
  const store = makeStore();
  await expect(store.streamMessage("sess_unknown", "hello", () => {})).rejects.toMatchObject({
    code: "SESSION_NOT_FOUND",
    action: "create_new_session",
  });
});

test("what starts over SSE is seen over the WebSocket, and the other way round", async () => {
  const id = await makeSession();
  const client = makeClient({ url: server.url });
  await client.takeOver(id);
  const answered = nextEvent(client, "agent.final_answer");
  const chunks: StreamChunk[] = [];
  await makeStore().streamMessage(id, "/echo both ways", (chunk) => chunks.push(chunk));
  expect((await answered).content).toBe("both ways");
  expect(deltaText(chunks)).toBe("both ways");
});
