// The chat store where a resume token proves whose a session is, against the real server.

import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { type ChatStore, type ChatStoreOptions, type StreamChunk, createChatStore } from "../src/chat.ts";
import { MemoryStore } from "../src/index.ts";
import { closeClients, makeClient } from "./support/clients.ts";
import { Server } from "./support/server.ts";

let server: Server;
let storage: MemoryStore;

beforeAll(async () => {
  server = await Server.start({ BOWLINE_SESSION__OWNERSHIP: "token" });
});

beforeEach(() => {
  storage = new MemoryStore();
});

afterEach(closeClients);
afterAll(() => server.stop());

function makeStore(options: Partial<ChatStoreOptions> = {}): ChatStore {
  return createChatStore({ baseUrl: server.origin, storage, backoffSeconds: [0.02], pollMs: 20, ...options });
}

/** A session that something else made, with its token. */
async function makeSession(): Promise<{ id: string; resume_token: string }> {
  const response = await fetch(`${server.origin}/api/chat/sessions`, { method: "POST" });
  return (await response.json()) as { id: string; resume_token: string };
}

/** Everything that a store can do with a session. */
async function use(store: ChatStore, id: string): Promise<void> {
  const chunks: StreamChunk[] = [];
  expect(await store.streamMessage(id, "/echo mine", (chunk) => chunks.push(chunk))).toMatchObject({ status: "completed", result: { text: "mine" } });
  const { taskId } = await store.startOperation(id, "demo", { steps: 2, delay_ms: 0 });
  expect(await store.reconnectToTask(id, taskId, "0", () => {})).toMatchObject({ status: "completed", result: { steps: 2 } });
  expect(await store.getTask(taskId)).toMatchObject({ status: "completed" });
  await store.cancelTask(taskId);
  expect(await store.getSession(id)).toMatchObject({ id });
  expect(await store.loadActiveTasks(id)).toEqual([]);
}

test("a session that the store created is its own, also after a reload of the page; others are turned away", async () => {
  const { id } = await makeStore().createSession();
  await use(makeStore(), id);
  await expect(createChatStore({ baseUrl: server.origin, storage: new MemoryStore() }).getSession(id)).rejects.toMatchObject({ code: "SESSION_NOT_FOUND" });
  await makeStore().endSession(id);
  await expect(makeStore().getSession(id)).rejects.toMatchObject({ code: expect.stringMatching(/^SESSION_/) as string });
});

test("a token that a caller hands over is sent: a text, or a function of the session's id", async () => {
  const { id, resume_token } = await makeSession();
  await use(makeStore({ resumeToken: resume_token }), id);
  const asked: string[] = [];
  const other = makeStore({
    storage: new MemoryStore(),
    resumeToken: async (session) => {
      asked.push(session);
      return session === id ? resume_token : null;
    },
  });
  await use(other, id);
  expect(new Set(asked)).toEqual(new Set([id]));
  const third = makeStore({ storage: new MemoryStore() });
  third.setResumeToken(id, resume_token);
  await use(third, id);
});

test("a token that was renewed over a WebSocket is taken up, and a stale one of the store's own does no harm", async () => {
  const client = makeClient({ url: server.url });
  const { id, resumeToken } = await client.connect();
  expect(resumeToken).toBeTypeOf("string");
  const store = makeStore({ resumeToken: (session) => (session === client.session?.id ? client.session.resumeToken : null) });
  await use(store, id);
  for (let n = 0; n < 2; n++) {
    client.drop();
    await new Promise<void>((resolve) => {
      const off = client.on("connection", ({ state }) => state === "connected" && (off(), resolve()));
    });
    expect(client.session?.resumeToken).not.toBe(resumeToken);
    await use(store, id);
  }
  // What was handed over as a text has gone stale; what was kept meanwhile has not.
  await use(makeStore({ resumeToken: resumeToken ?? "" }), id);
  await use(makeStore({ storage: new MemoryStore(), resumeToken: () => client.session?.resumeToken }), id);
});

test("an operation that was begun before a reload is read on, with the token that was kept", async () => {
  const first = makeStore();
  const { id } = await first.createSession();
  const { taskId } = await first.startOperation(id, "demo", { steps: 10, delay_ms: 20 });
  const reloaded = makeStore();
  const kept = reloaded.getActiveTask(id);
  expect(kept?.taskId).toBe(taskId);
  expect(await reloaded.reconnectToTask(id, taskId, kept?.lastMessageId ?? "", () => {})).toMatchObject({ via: "stream", status: "completed", result: { steps: 10 } });
  expect(await makeStore().getTask(taskId)).toMatchObject({ status: "completed" });
});
