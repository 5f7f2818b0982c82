// Tasks watched over the session's own connection, against the real server.

import { afterEach, beforeEach, expect, test } from "vitest";
import { createChatStore } from "../src/chat.ts";
import { BowlineClient, MemoryStore, type StreamChunk } from "../src/index.ts";
import { closeClients, makeClient, next } from "./support/clients.ts";
import { Cutter } from "./support/cutter.ts";
import { Server } from "./support/server.ts";

let server: Server;
let wire: Cutter;

beforeEach(async () => {
  server = await Server.start();
  wire = await Cutter.start(server.port);
});

afterEach(async () => {
  closeClients();
  await wire.stop();
  await server.stop();
});

const store = () => createChatStore({ baseUrl: server.origin, storage: new MemoryStore() });

/** A client whose session runs an operation of so many steps. */
async function working(steps: number): Promise<{ client: BowlineClient; taskId: string; sessionId: string }> {
  const client = makeClient({ url: wire.url });
  const { id: sessionId } = await client.connect();
  const { taskId } = await store().startOperation(sessionId, "demo", { steps, delay_ms: 10 });
  return { client, taskId, sessionId };
}

test("a task that is watched over a wire which is cut again and again arrives whole, each chunk once", async () => {
  const { client, taskId, sessionId } = await working(40);
  const seen: StreamChunk[] = [];
  const ended = client.watchTask(taskId, "0", (chunk) => {
    seen.push(chunk);
    if (seen.length % 7 === 0) wire.cutAll();
  });
  expect(await ended).toMatchObject({ status: "completed", lastMessageId: seen.at(-1)?.idx });
  expect(wire.count).toBeGreaterThan(3);
  const whole: StreamChunk[] = [];
  await store().reconnectToTask(sessionId, taskId, "0", (chunk) => whole.push(chunk));
  expect(seen).toEqual(whole);
});

test("a task that has ended is told from where one stands, and an unknown one is an error", async () => {
  const { client, taskId } = await working(2);
  const first: StreamChunk[] = [];
  const { lastMessageId } = await client.watchTask(taskId, "0", (chunk) => first.push(chunk));
  expect(first.at(-1)?.type).toBe("finish");
  const again: StreamChunk[] = [];
  expect(await client.watchTask(taskId, lastMessageId, (chunk) => again.push(chunk))).toMatchObject({ status: "completed", lastMessageId });
  expect(again).toEqual([]);
  await expect(client.watchTask("task_unknown", "0", () => {})).rejects.toMatchObject({ code: "TASK_NOT_FOUND" });
});

test("who stops watching stops the stream and not the work", async () => {
  const { client, taskId, sessionId } = await working(20);
  const leaving = new AbortController();
  const seen: StreamChunk[] = [];
  const watching = client.watchTask(taskId, "0", (chunk) => {
    seen.push(chunk);
    if (seen.length === 3) leaving.abort(new Error("seen enough"));
  }, { signal: leaving.signal });
  await expect(watching).rejects.toThrow("seen enough");
  expect(await store().reconnectToTask(sessionId, taskId, "0", () => {})).toMatchObject({ via: "stream", terminal: "finish" });
  expect(seen).toHaveLength(3);
});

test("a server killed with -9 is found again, and the task is told to have failed", async () => {
  const { client, taskId } = await working(10_000);
  const seen: StreamChunk[] = [];
  let enough = () => {};
  const begun = new Promise<void>((resolve) => (enough = resolve));
  const ended = client.watchTask(taskId, "0", (chunk) => seen.push(chunk) === 5 && enough());
  await begun;
  const lost = next(client, "connection", ({ state }) => state === "connection_lost");
  await server.restart();
  await lost;
  expect(await ended).toMatchObject({ status: "failed" });
  expect(seen.map(({ type }) => type).slice(-2)).toEqual(["error", "finish"]);
});
