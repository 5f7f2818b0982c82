// The chat store against a handwritten server of task streams. `test/chat_live.test.ts` has the real one.

import { afterEach, beforeEach, expect, test } from "vitest";
import { ACTIVE_TASKS_KEY, type ActiveTask, type ChatStore, type ChatStoreOptions, type StreamChunk, createChatStore } from "../src/chat.ts";
import { SSE_START, sseStep } from "../src/chat/sse.ts";
import { MemoryStore } from "../src/index.ts";
import { Dice, seed } from "./support/dice.ts";
import { TaskServer } from "./support/tasks.ts";

const TASK: ActiveTask = { taskId: "task_1", operationId: "op_1", toolName: "generate_agent", lastMessageId: "0" };

let server: TaskServer;
let storage: MemoryStore;

beforeEach(async () => {
  server = await TaskServer.start();
  storage = new MemoryStore();
});

afterEach(() => server.stop());

function makeStore(options: Partial<ChatStoreOptions> = {}): ChatStore {
  return createChatStore({ baseUrl: server.origin, storage, backoffSeconds: [0.01], pollMs: 10, ...options });
}

function deltas(from: number, to: number): unknown[] {
  return Array.from({ length: to - from }, (_, n) => ({ type: "text-delta", id: "t", delta: `word${from + n} ` }));
}

function text(chunks: readonly StreamChunk[]): string {
  return chunks.map((chunk) => (chunk.type === "text-delta" ? String(chunk["delta"]) : "")).join("");
}

test("an active task outlives the page, under the contract's key", () => {
  makeStore().setActiveTask("sess_1", TASK);
  expect(JSON.parse(storage.getItem(ACTIVE_TASKS_KEY) ?? "")).toMatchObject({ sess_1: TASK });
  const reloaded = makeStore().getState();
  expect(reloaded.getActiveTask("sess_1")).toEqual(TASK);
  reloaded.updateTaskLastMessageId("sess_1", "ep-7");
  expect(makeStore().getActiveTask("sess_1")).toEqual({ ...TASK, lastMessageId: "ep-7" });
  expect(makeStore().getActiveTask("sess_2")).toBeNull();
});

test("what another program or an old version wrote there does no harm", () => {
  storage.setItem(ACTIVE_TASKS_KEY, JSON.stringify({ sess_1: { taskId: "task_1" }, sess_2: "?", sess_3: null }));
  const store = makeStore();
  expect(store.getActiveTasks()).toEqual({ sess_1: { taskId: "task_1", operationId: "", toolName: "", lastMessageId: "0" } });
  storage.setItem(ACTIVE_TASKS_KEY, "not JSON");
  expect(makeStore().getActiveTasks()).toEqual({});
});

test("a kept task expires", () => {
  const store = makeStore({ expireAfterMs: 0 });
  store.setActiveTask("sess_1", TASK);
  expect(store.getActiveTask("sess_1")).toBeNull();
  expect(JSON.parse(storage.getItem(ACTIVE_TASKS_KEY) ?? "")).toEqual({});
});

test("an asynchronous store is read before it counts as ready", async () => {
  storage.setItem(ACTIVE_TASKS_KEY, JSON.stringify({ sess_1: TASK }));
  const slow = { getItem: (key: string) => Promise.resolve(storage.getItem(key)), setItem: async () => {}, removeItem: async () => {} };
  const store = makeStore({ storage: slow });
  await store.ready;
  expect(store.getActiveTask("sess_1")).toEqual(TASK);
});

test("a stream that is cut again and again arrives whole, each chunk once, with its index", async () => {
  const store = makeStore();
  store.setActiveTask("sess_1", TASK);
  server.push({ type: "start" }, { type: "text-start", id: "t" }, ...deltas(0, 100));
  server.cutAfter = 7;
  const chunks: StreamChunk[] = [];
  const done = store.reconnectToTask("sess_1", "task_1", "0", (chunk) => {
    chunks.push(chunk);
    if (chunk.idx !== undefined) expect(store.getActiveTask("sess_1")?.lastMessageId).toBe(chunk.idx);
    if (chunks.length === 50) server.cutCleanly = true;
    if (chunks.length === 102) {
      server.push({ type: "text-end", id: "t" }, { type: "finish" });
      server.end();
    }
  });
  expect(await done).toEqual({ via: "stream", terminal: "finish", status: "completed" });
  expect(text(chunks)).toBe(deltas(0, 100).map((delta) => (delta as { delta: string }).delta).join(""));
  expect(chunks.map(({ idx }) => idx)).toEqual(server.chunks.map(({ id }) => id));
  expect(server.requests.length).toBeGreaterThan(10);
  expect(store.getActiveTask("sess_1")).toBeNull();
});

test("a page that comes back later reads on from the chunk it had", async () => {
  server.push({ type: "start" }, ...deltas(0, 10));
  const leaving = new AbortController();
  const store = makeStore();
  store.setActiveTask("sess_1", TASK);
  const first: StreamChunk[] = [];
  const cut = store.reconnectToTask("sess_1", "task_1", "0", (chunk) => {
    first.push(chunk);
    if (first.length === 5) leaving.abort(new Error("the tab was closed"));
  }, { signal: leaving.signal });
  await expect(cut).rejects.toThrow("the tab was closed");
  server.push({ type: "finish" });
  server.end();
  const reopened = makeStore();
  const task = reopened.getActiveTask("sess_1");
  const rest: StreamChunk[] = [];
  await reopened.reconnectToTask("sess_1", task?.taskId ?? "", task?.lastMessageId ?? "", (chunk) => rest.push(chunk));
  expect([...first, ...rest].map(({ idx }) => idx)).toEqual(server.chunks.map(({ id }) => id));
});

test("a clean end of the body without an end of the task is a cut, not a success", async () => {
  server.push({ type: "start" });
  server.cutAfter = 1;
  server.cutCleanly = true;
  server.push(...deltas(0, 1));
  const chunks: StreamChunk[] = [];
  const done = makeStore().reconnectToTask("sess_1", "task_1", "0", (chunk) => {
    chunks.push(chunk);
    if (chunks.length === 2) {
      server.push({ type: "abort" });
      server.end();
    }
  });
  expect(await done).toMatchObject({ via: "stream", terminal: "abort" });
  expect(chunks.map(({ type }) => type)).toEqual(["start", "text-delta", "abort"]);
});

test("an error is an error, also if a finish follows it", async () => {
  server.push({ type: "error", errorText: "lost" }, { type: "finish" });
  server.task = { status: "failed", error: { code: "AGENT_LOST", message: "lost" } };
  server.end();
  expect(await makeStore().reconnectToTask("sess_1", "task_1", "0", () => {})).toEqual({
    via: "stream",
    terminal: "error",
    status: "failed",
    error: { code: "AGENT_LOST", message: "lost" },
  });
});

test("a task that was read to its end before is asked how it ended", async () => {
  server.push({ type: "finish" });
  server.task = { status: "cancelled" };
  server.end();
  expect(await makeStore().reconnectToTask("sess_1", "task_1", "ep-1", () => {})).toEqual({ via: "stream", terminal: "abort", status: "cancelled" });
  expect(server.requests).toContain("GET /api/chat/tasks/task_1");
});

test("chunks that the server makes up have no index of their own", () => {
  const [, events] = sseStep(SSE_START, 'id: ep-3\ndata: {"type":"a"}\n\ndata: {"type":"data-gap"}\n\n');
  expect(events.map(({ id, hasId }) => [id, hasId])).toEqual([
    ["ep-3", true],
    ["ep-3", false],
  ]);
});

test("a stream that has expired is told by its task, with the result, and with the session", async () => {
  server.refuseWith = { status: 410, body: { code: "TASK_EXPIRED", message: "Gone.", recovery_action: "none" } };
  server.task = { status: "completed", result: { rows: 3 } };
  server.session = { status: "idle", active_stream: null, messages: [{ id: "m", role: "assistant", parts: [] }] };
  const store = makeStore();
  store.setActiveTask("sess_1", TASK);
  const outcome = await store.reconnectToTask("sess_1", "task_1", "0", () => {});
  expect(outcome).toEqual({ via: "session", reason: "TASK_EXPIRED", session: server.session, status: "completed", result: { rows: 3 } });
  expect(store.getActiveTask("sess_1")).toBeNull();
});

test("a session that is gone as well is told as gone", async () => {
  server.refuseWith = { status: 404, body: { code: "TASK_NOT_FOUND", message: "No.", recovery_action: "none" } };
  server.task = { code: "TASK_NOT_FOUND" };
  const outcome = await makeStore().reconnectToTask("sess_9", "task_1", "0", () => {});
  expect(outcome).toEqual({ via: "gone", reason: "TASK_NOT_FOUND", status: "unknown" });
});

test("an idle session says nothing of a task that runs: it is not given up, and its stream is taken up where it was", async () => {
  server.push({ type: "start" }, ...deltas(0, 5));
  server.session = { status: "idle", active_stream: null, messages: [] };
  const store = makeStore();
  store.setActiveTask("sess_1", TASK);
  const chunks: StreamChunk[] = [];
  const asked = (what: string) => server.requests.filter((request) => request.includes(what)).length;
  const done = store.reconnectToTask("sess_1", "task_1", "0", (chunk) => {
    chunks.push(chunk);
    if (chunks.length === 6) {
      server.refuseWith = { status: 503, body: { code: "SERVER_DRAINING", message: "Later." } };
      server.cutAll();
    }
  });
  // Far more attempts than any count after which it could have been given up.
  while (asked("/stream") < 30) await new Promise((resolve) => setTimeout(resolve, 5));
  expect(asked("GET /api/chat/tasks/task_1")).toBeGreaterThan(0);
  expect(store.getActiveTask("sess_1")?.lastMessageId).toBe("ep-6");
  server.push({ type: "text-delta", id: "t", delta: "more" }, { type: "finish" });
  server.refuseWith = null;
  server.task = { result: 7 };
  server.end();
  expect(await done).toEqual({ via: "stream", terminal: "finish", status: "completed", result: 7 });
  expect(chunks.map(({ idx }) => idx)).toEqual(server.chunks.map(({ id }) => id));
});

test("a task that is over while streams are blocked is told with its result", async () => {
  server.refuseWith = { status: 403, body: "a proxy's own page" };
  server.task = { result: { rows: 3 } };
  const done = makeStore().reconnectToTask("sess_1", "task_1", "0", () => {});
  const polls = () => server.requests.filter((request) => request === "GET /api/chat/tasks/task_1").length;
  while (polls() < 10) await new Promise((resolve) => setTimeout(resolve, 5));
  server.end();
  expect(await done).toMatchObject({ via: "session", reason: "UNREACHABLE", status: "completed", result: { rows: 3 } });
});

test("a kept position that makes no sense starts from the beginning, and says so", async () => {
  server.push({ type: "start" }, ...deltas(0, 3));
  for (const position of ["ep-99", "half a cursor", ""]) {
    const leaving = new AbortController();
    const chunks: StreamChunk[] = [];
    let resets = 0;
    const store = makeStore();
    store.setActiveTask("sess_1", { ...TASK, lastMessageId: position });
    const reading = store.reconnectToTask("sess_1", "task_1", position, (chunk) => {
      chunks.push(chunk);
      if (chunks.length === 4) leaving.abort(new Error("enough"));
    }, { signal: leaving.signal, onReset: () => resets++ });
    await expect(reading).rejects.toThrow("enough");
    expect(chunks.map(({ idx }) => idx)).toEqual(server.chunks.map(({ id }) => id));
    expect(resets).toBe(position === "" ? 0 : 1);
  }
  server.push({ type: "finish" });
  server.end();
  const chunks: StreamChunk[] = [];
  expect(await makeStore().reconnectToTask("sess_1", "task_1", "ep-99", (chunk) => chunks.push(chunk))).toMatchObject({ via: "stream", status: "completed" });
  expect(chunks).toHaveLength(5);
});

test("a task can be asked for", async () => {
  server.task = { session_id: "sess_1", tool_name: "demo", result: [1] };
  server.end();
  expect(await makeStore().getTask("task_1")).toMatchObject({ taskId: "task_1", sessionId: "sess_1", toolName: "demo", status: "completed", result: [1] });
  await expect(makeStore().getTask("task_9")).rejects.toMatchObject({ code: "TASK_NOT_FOUND" });
});

test("what the server advises is waited for", async () => {
  server.refuseWith = { status: 503, body: { code: "SERVER_DRAINING", message: "Later.", retry_after_ms: 300 } };
  const before = Date.now();
  const done = makeStore().reconnectToTask("sess_1", "task_1", "0", () => {});
  while (server.requests.filter((request) => request.includes("/stream")).length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  expect(Date.now() - before).toBeGreaterThanOrEqual(300);
  server.refuseWith = null;
  server.push({ type: "finish" });
  server.end();
  await done;
});

test("a wire that falls silent is dropped and dialed again", async () => {
  server.push({ type: "start" });
  const chunks: StreamChunk[] = [];
  const done = makeStore({ silenceMs: 60 }).reconnectToTask("sess_1", "task_1", "0", (chunk) => chunks.push(chunk));
  const streams = () => server.requests.filter((request) => request.includes("/stream")).length;
  while (streams() < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  server.push({ type: "finish" });
  server.end();
  expect(await done).toEqual({ via: "stream", terminal: "finish", status: "completed" });
  expect(chunks.map(({ type }) => type)).toEqual(["start", "finish"]);
});

test("what a listener throws is not taken for a cut", async () => {
  server.push({ type: "start" }, { type: "finish" });
  server.end();
  const failing = makeStore().reconnectToTask("sess_1", "task_1", "0", () => {
    throw new Error("a bug of the page");
  });
  await expect(failing).rejects.toThrow("a bug of the page");
});

test("an operation that is started becomes the session's active task", async () => {
  const store = makeStore();
  const task = await store.startOperation("sess_1", "demo", { steps: 3 });
  expect(task).toEqual({ taskId: "task_1", operationId: "op_1", toolName: "demo", lastMessageId: "0" });
  expect(store.getActiveTask("sess_1")).toEqual(task);
  await expect(store.startOperation("sess_9", "demo")).rejects.toMatchObject({ code: "SESSION_NOT_FOUND" });
});

test("events are read alike, however the bytes are cut", () => {
  const start = seed();
  console.log(`seed ${start}`);
  const dice = new Dice(start);
  const whole = ': hi\r\nid: e-1\r\ndata: {"a":"\u2028 é"}\r\n\r\nid: e-2\ndata: one\ndata: two\n\n: ping\n\ndata\rid:e-3\r\rretry: 5\n\nid: bad\0\ndata:  x\n\n';
  const all = sseStep(SSE_START, whole)[1];
  expect(all.map(({ id, data }) => [id, data])).toEqual([
    ["e-1", '{"a":"\u2028 é"}'],
    ["e-2", "one\ntwo"],
    ["e-3", ""],
    ["e-3", " x"],
  ]);
  for (let run = 0; run < 300; run++) {
    let state = SSE_START;
    const seen = [];
    for (let at = 0; at < whole.length; ) {
      const size = 1 + dice.below(8);
      const [next, events] = sseStep(state, whole.slice(at, at + size));
      state = next;
      seen.push(...events);
      at += size;
    }
    expect(seen).toEqual(all);
  }
});
