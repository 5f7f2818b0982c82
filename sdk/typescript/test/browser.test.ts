// The built package in a real browser: tabs, reloads, storage and locks as they really are.

import { existsSync, readFileSync } from "node:fs";
import { type Server as HttpServer, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { type Browser, type BrowserContext, type Page, chromium } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { words } from "./support/clients.ts";
import { Cutter } from "./support/cutter.ts";
import { Server } from "./support/server.ts";

const CHROMIUM = process.env["CHROMIUM"] ?? "/usr/bin/chromium";

/** A page that shows what a client is given, in `window.seen`. */
const PAGE = (url: string) => `<!doctype html><title>test</title><script type="module">
import { BowlineClient } from "/dist/index.js";
window.seen = [];
window.client = new BowlineClient({ url: ${JSON.stringify(url)}, name: new URLSearchParams(location.search).get("name") ?? "bowline", backoffSeconds: [0.05] });
window.client.on("event", (event) => window.seen.push(event));
window.states = [];
window.client.on("connection", ({ state }) => window.states.at(-1) !== state && window.states.push(state));
window.ready = window.client.connect();
</script>`;

let browser: Browser;
let context: BrowserContext;
let server: Server;
let wire: Cutter;
let site: HttpServer;
let origin: string;

beforeAll(async () => {
  if (!existsSync(CHROMIUM)) throw new Error(`There is no browser at ${CHROMIUM}. Install Debian's chromium, or set CHROMIUM.`);
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
});

afterAll(() => browser?.close());

beforeEach(async () => {
  server = await Server.start({ BOWLINE_AUTH__ORIGINS: '["*"]' });
  wire = await Cutter.start(server.port);
  site = createServer((request, response) => {
    const path = new URL(request.url ?? "/", "http://site").pathname;
    const isCode = /^\/dist\/[\w.-]+\.js$/.test(path);
    response.setHeader("content-type", isCode ? "text/javascript" : "text/html");
    response.end(isCode ? readFileSync(new URL(`..${path}`, import.meta.url)) : PAGE(wire.url));
  });
  await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", resolve));
  origin = `http://127.0.0.1:${(site.address() as AddressInfo).port}`;
  context = await browser.newContext();
});

afterEach(async () => {
  await context.close();
  await new Promise((resolve) => site.close(resolve));
  await wire.stop();
  await server.stop();
});

async function open(name = "bowline"): Promise<{ page: Page; id: string }> {
  const page = await context.newPage();
  await page.goto(`${origin}/?name=${name}`);
  return { page, id: await page.evaluate("window.ready.then(({ id }) => id)") };
}

/** The pieces of the answer, once its last event is there; and the numbers of all events. */
async function answer(page: Page): Promise<{ text: string; seqs: number[] }> {
  await page.waitForFunction("window.seen.some(({ event }) => event === 'agent.final_answer')");
  return page.evaluate(`({
    text: window.seen.filter(({ event }) => event === "agent.partial_answer").map(({ content }) => content).join(""),
    seqs: window.seen.map(({ seq }) => seq),
  })`);
}

const upTo = (count: number) => Array.from({ length: count }, (_, n) => n + 1);

test("eight tabs share one connection, and outlive the one that leads", async () => {
  const tabs = [];
  for (let n = 0; n < 8; n++) tabs.push(await open(`tab${n}`));
  expect(new Set(tabs.map(({ id }) => id)).size).toBe(8);
  expect(wire.count).toBe(1);
  const rest = tabs.slice(1).map(({ page }) => page);
  await Promise.all(rest.map((page) => page.evaluate("window.client.message('/long 150 5')")));
  await Promise.all(rest.map((page) => page.waitForFunction("window.seen.length > 20")));
  await tabs[0]?.page.close();
  for (const page of rest) {
    const { text, seqs } = await answer(page);
    expect(text).toBe(words(150));
    expect(seqs).toEqual(upTo(152));
  }
  expect(wire.count).toBe(2);
});

test("a tab that joins others is connected by its first dial", async () => {
  await open("first");
  for (let n = 0; n < 12; n++) {
    const { page } = await open(`tab${n}`);
    expect(await page.evaluate("window.states")).toEqual(["connecting", "connected"]);
    if (n % 2 === 0) await page.close();
  }
  expect(wire.count).toBe(1);
});

test("two tabs on one session both show all of it", async () => {
  const first = await open();
  const second = await open();
  expect(second.id).toBe(first.id);
  await second.page.evaluate("window.client.message('/long 100 2')");
  for (const { page } of [first, second]) {
    const { text, seqs } = await answer(page);
    expect(text).toBe(words(100));
    expect(seqs).toEqual(upTo(102));
  }
  expect(wire.count).toBe(1);
});

test("a page reloaded in the middle of an answer shows all of it, once", async () => {
  const { page, id } = await open();
  await page.evaluate("window.client.message('/long 300 5')");
  await page.waitForFunction("window.seen.length > 30");
  await page.reload();
  expect(await page.evaluate("window.ready.then(({ id }) => id)")).toBe(id);
  const { text, seqs } = await answer(page);
  expect(text).toBe(words(300));
  expect(seqs).toEqual(upTo(302));
});

test("the network coming back ends the wait", async () => {
  const { page } = await open();
  // The first attempt is made at once and finds nothing; the next would be in an hour.
  await page.evaluate("window.client.close()");
  await page.evaluate(`(async () => {
    const { BowlineClient } = await import("/dist/index.js");
    window.client = new BowlineClient({ url: ${JSON.stringify(wire.url)}, backoffSeconds: [3600] });
    await window.client.connect();
  })()`);
  wire.down = true;
  wire.cutAll();
  await page.waitForFunction("window.client.connection.state === 'connection_lost' && window.client.connection.attempt === 2");
  wire.down = false;
  await page.evaluate("dispatchEvent(new Event('online'))");
  await page.waitForFunction("window.client.connection.state === 'connected'");
});
