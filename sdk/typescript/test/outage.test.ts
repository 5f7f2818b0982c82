// Background work as a user of the chat store sees it, in Node and in a real browser, through outages of 1, 20, 45 and 120 s.
//
// All times are a twentieth of that, the store's own too, so that it can run each time. OUTAGE_SCALE=1 takes the real ones,
// with the store's defaults.

import { existsSync, readFileSync } from "node:fs";
import { type Server as HttpServer, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { type Browser, type Page, chromium } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ACTIVE_TASKS_KEY, type ChatStoreOptions, type StreamChunk, type TaskOutcome, createChatStore } from "../src/chat.ts";
import { type KeyValueStore, MemoryStore } from "../src/index.ts";
import { Blocker, type Blocking } from "./support/blocker.ts";
import { words } from "./support/clients.ts";
import { Cutter } from "./support/cutter.ts";
import { Server } from "./support/server.ts";

const SCALE = Number(process.env["OUTAGE_SCALE"] ?? 20);
const OUTAGES_SECONDS = [1, 20, 45, 120];
/** How long work goes on after the outage, and how long the slowest case may take. */
const AFTER_SECONDS = 10;
const LIMIT_MS = (180 * 1000) / SCALE + 240_000;
const STEPS = 200;
const CHROMIUM = process.env["CHROMIUM"] ?? "/usr/bin/chromium";

/** The store's times, to the same scale; its defaults if that is 1. */
const TIMES: Partial<ChatStoreOptions> =
  SCALE === 1 ? {} : { backoffSeconds: [1, 2, 4, 8, 16, 30, 60].map((seconds) => seconds / SCALE), silenceMs: 30_000 / SCALE, pollMs: 2_000 / SCALE };

const pause = (seconds: number) => new Promise((resolve) => setTimeout(resolve, (seconds * 1000) / SCALE));

/** Time that a slow machine takes to begin, whatever the scale. */
const HEAD_START_MS = 4_000;

/** Arguments of work that lasts for about so long. */
const lasting = (seconds: number) => ({ steps: STEPS, delay_ms: Math.ceil(((seconds * 1000) / SCALE + HEAD_START_MS) / STEPS) });

interface Seen {
  readonly chunks: StreamChunk[];
  readonly outcome: TaskOutcome;
}

/** A page, or what stands in for one in Node: a chat store with its storage. */
interface Tab {
  createSession(): Promise<string>;
  /** Returns the task. */
  start(sessionId: string, args: object): Promise<string>;
  ask(sessionId: string, message: string): void;
  follow(sessionId: string, taskId: string): void;
  /** Resolves once everything that is followed has so many chunks. */
  reached(count: number): Promise<void>;
  /** What was followed, to its end. */
  ended(): Promise<Seen[]>;
  activeTasks(): Promise<string>;
}

class NodeTab implements Tab {
  readonly #store;
  readonly #storage: KeyValueStore;
  readonly #seen: Promise<Seen>[] = [];
  readonly #chunks: StreamChunk[][] = [];

  constructor(baseUrl: string, storage: KeyValueStore) {
    this.#storage = storage;
    this.#store = createChatStore({ baseUrl, storage, ...TIMES });
  }

  createSession = async () => (await this.#store.createSession()).id;
  start = async (sessionId: string, args: object) => (await this.#store.startOperation(sessionId, "demo", args)).taskId;
  ask = (sessionId: string, message: string) => this.#note((onChunk) => this.#store.streamMessage(sessionId, message, onChunk));
  follow = (sessionId: string, taskId: string) => this.#note((onChunk) => this.#store.reconnectToTask(sessionId, taskId, "0", onChunk));
  ended = () => Promise.all(this.#seen);
  activeTasks = async () => (await this.#storage.getItem(ACTIVE_TASKS_KEY)) ?? "";

  async reached(count: number): Promise<void> {
    while (this.#chunks.some((chunks) => chunks.length < count)) await new Promise((resolve) => setTimeout(resolve, 5));
  }

  #note(read: (onChunk: (chunk: StreamChunk) => void) => Promise<TaskOutcome>): void {
    const chunks: StreamChunk[] = [];
    this.#chunks.push(chunks);
    this.#seen.push(read((chunk) => chunks.push(chunk)).then((outcome) => ({ chunks, outcome })));
  }
}

/** The same in a browser, from the built package. */
const PAGE = `<!doctype html><title>test</title><script type="module">
import { createChatStore } from "/dist/chat.js";
const seen = [], all = [];
const note = (read) => {
  const chunks = [];
  all.push(chunks);
  seen.push(read((chunk) => chunks.push(chunk)).then((outcome) => ({ chunks, outcome })));
};
window.open = (options) => (window.store = createChatStore(options));
window.ask = (session, message) => note((onChunk) => store.streamMessage(session, message, onChunk));
window.follow = (session, task) => note((onChunk) => store.reconnectToTask(session, task, "0", onChunk));
window.reached = (count) => all.every((chunks) => chunks.length >= count);
window.ended = () => Promise.all(seen);
</script>`;

class BrowserTab implements Tab {
  readonly #page: Page;

  private constructor(page: Page) {
    this.#page = page;
  }

  static async open(page: Page, baseUrl: string): Promise<BrowserTab> {
    await page.goto(site);
    await page.evaluate((options) => void (globalThis as never as { open(options: unknown): void }).open(options), { baseUrl, ...TIMES });
    return new BrowserTab(page);
  }

  createSession = () => this.#page.evaluate<string>("window.store.createSession().then(({ id }) => id)");
  start = (sessionId: string, args: object) =>
    this.#page.evaluate<string>(`window.store.startOperation(${JSON.stringify(sessionId)}, "demo", ${JSON.stringify(args)}).then(({ taskId }) => taskId)`);
  ask = (sessionId: string, message: string) => void this.#page.evaluate(`window.ask(${JSON.stringify(sessionId)}, ${JSON.stringify(message)})`);
  follow = (sessionId: string, taskId: string) => void this.#page.evaluate(`window.follow(${JSON.stringify(sessionId)}, ${JSON.stringify(taskId)})`);
  reached = async (count: number) => void (await this.#page.waitForFunction(`window.reached(${count})`, undefined, { timeout: LIMIT_MS }));
  ended = () => this.#page.evaluate<Seen[]>("window.ended()");
  activeTasks = () => this.#page.evaluate<string>(`localStorage.getItem(${JSON.stringify(ACTIVE_TASKS_KEY)})`);
}

let server: Server;
let browser: Browser;
let site: string;
let pages: HttpServer;

beforeAll(async () => {
  if (!existsSync(CHROMIUM)) throw new Error(`There is no browser at ${CHROMIUM}. Install Debian's chromium, or set CHROMIUM.`);
  server = await Server.start({ BOWLINE_AUTH__ORIGINS: '["*"]' });
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
  pages = createServer((request, response) => {
    const path = new URL(request.url ?? "/", "http://site").pathname;
    const isCode = /^\/dist\/[\w.-]+\.js$/.test(path);
    response.setHeader("content-type", isCode ? "text/javascript" : "text/html");
    response.end(isCode ? readFileSync(new URL(`..${path}`, import.meta.url)) : PAGE);
  });
  await new Promise<void>((resolve) => pages.listen(0, "127.0.0.1", resolve));
  site = `http://127.0.0.1:${(pages.address() as AddressInfo).port}/`;
});

afterAll(async () => {
  await browser?.close();
  pages?.closeAllConnections();
  await new Promise((resolve) => pages?.close(resolve));
  await server?.stop();
});

/** Tabs of one origin, and what closes them. */
type Open = (baseUrl: string) => Promise<{ tab(): Promise<Tab>; close(): Promise<void> }>;

const inNode: Open = async (baseUrl) => {
  const storage = new MemoryStore();
  return { tab: async () => new NodeTab(baseUrl, storage), close: async () => {} };
};

const inBrowser: Open = async (baseUrl) => {
  const context = await browser.newContext();
  return { tab: async () => BrowserTab.open(await context.newPage(), baseUrl), close: () => context.close() };
};

/** The whole stream of a task, from the server itself. */
async function wholeStream(taskId: string): Promise<string[]> {
  const body = await (await fetch(`${server.origin}/api/chat/tasks/${taskId}/stream?fold=0`)).text();
  return [...body.matchAll(/^id: (.*)$/gm)].map(([, id]) => id ?? "");
}

const stepsOf = (chunks: readonly StreamChunk[]) =>
  chunks.flatMap((chunk) => (chunk.type === "data-progress" ? [(chunk["data"] as { content: { current_step: number } }).content.current_step] : []));

async function checkWhole(taskId: string, { chunks, outcome }: Seen): Promise<void> {
  expect(outcome).toMatchObject({ via: "stream", terminal: "finish", status: "completed", result: { steps: STEPS } });
  expect(chunks.find(({ type }) => type === "tool-output-available")).toMatchObject({ output: { steps: STEPS } });
  expect(stepsOf(chunks)).toEqual(Array.from({ length: STEPS }, (_, n) => n + 1));
  expect(chunks.map(({ idx }) => idx)).toEqual(await wholeStream(taskId));
}

async function isRunning(taskId: string): Promise<boolean> {
  const task = (await (await fetch(`${server.origin}/api/chat/tasks/${taskId}`)).json()) as { status: string };
  return task.status === "running";
}

/** Resolves once no task is an active one any more. */
async function forgotten(tab: Tab): Promise<void> {
  while ((await tab.activeTasks()) !== "{}") await new Promise((resolve) => setTimeout(resolve, 20));
}

/** One operation and a turn in one tab; two operations in another, which follows the first as well; and the wire is down for a while. */
async function outage(open: Open, seconds: number): Promise<void> {
  const wire = await Cutter.start(server.port);
  const { tab, close } = await open(`http://127.0.0.1:${wire.port}`);
  try {
    const [one, two] = [await tab(), await tab()];
    const [first, second] = [await one.createSession(), await two.createSession()];
    const outlasting = lasting(seconds + AFTER_SECONDS);
    const a = await one.start(first, outlasting);
    const b = await two.start(second, outlasting);
    // This one ends while nobody can read it.
    const c = await two.start(second, lasting(seconds / 2));
    one.follow(first, a);
    one.ask(first, `/long ${STEPS} ${outlasting.delay_ms}`);
    for (const task of [b, c]) two.follow(second, task);
    two.follow(first, a);
    await Promise.all([one.reached(5), two.reached(5)]);
    wire.down = true;
    wire.cutAll();
    await pause(seconds);
    for (const task of [a, b]) {
      const active = await Promise.all([one.activeTasks(), two.activeTasks()]);
      if (await isRunning(task)) for (const known of active) expect(known).toContain(task);
    }
    wire.down = false;
    const [inOne, inTwo] = [await one.ended(), await two.ended()];
    await checkWhole(a, inOne[0] as Seen);
    for (const [n, task] of [b, c, a].entries()) await checkWhole(task, inTwo[n] as Seen);
    const { chunks, outcome } = inOne[1] as Seen;
    expect(outcome).toMatchObject({ via: "stream", status: "completed", result: { text: words(STEPS) } });
    expect(chunks.map((chunk) => (chunk.type === "text-delta" ? chunk["delta"] : "")).join("")).toBe(words(STEPS));
    await Promise.all([one, two].map(forgotten));
  } finally {
    await close();
    await wire.stop();
  }
}

/** Streams are blocked in this way, for a while or for ever. */
async function blocked(open: Open, blocking: Blocking, seconds: number | null): Promise<void> {
  const proxy = await Blocker.start(server.port);
  const { tab: newTab, close } = await open(proxy.origin);
  try {
    const tab = await newTab();
    proxy.blocking = blocking;
    const session = await tab.createSession();
    const tasks = [await tab.start(session, lasting((seconds ?? 0) + AFTER_SECONDS)), await tab.start(session, lasting(seconds ?? 0))];
    for (const task of tasks) tab.follow(session, task);
    if (seconds !== null) {
      await pause(seconds);
      // A slow machine opens its streams late: the block ends after one of them was tried again.
      while (proxy.streams <= tasks.length) await new Promise((resolve) => setTimeout(resolve, 20));
      proxy.blocking = "nothing";
    }
    const all = await tab.ended();
    for (const [n, seen] of all.entries()) {
      if (seconds !== null || blocking === "buffer") await checkWhole(tasks[n] ?? "", seen);
      // No stream, no chunks; but how it ended, and what came of it.
      else expect(seen).toMatchObject({ chunks: [], outcome: { via: "session", status: "completed", result: { steps: STEPS }, session: { id: session } } });
    }
    expect(proxy.streams).toBeGreaterThanOrEqual(tasks.length);
    await forgotten(tab);
  } finally {
    await close();
    await proxy.stop();
  }
}

for (const [where, open] of [["Node", inNode], ["a browser", inBrowser]] as const) {
  test.concurrent(`in ${where}: whatever the outage, operations and turns end with all chunks and the result, in every tab`, { timeout: LIMIT_MS }, async () => {
    await Promise.all(OUTAGES_SECONDS.map((seconds) => outage(open, seconds)));
  });

  test.concurrent(`in ${where}: streams that are blocked are awaited, and a task without a stream ends with its result`, { timeout: LIMIT_MS }, async () => {
    const ways: Blocking[] = ["hang", "swallow", "cut", "refuse"];
    await Promise.all([...ways.map((way) => blocked(open, way, 20)), ...ways.map((way) => blocked(open, way, null)), blocked(open, "buffer", null)]);
  });
}
