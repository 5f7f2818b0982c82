// The examples, run as a reader would run them.

import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { type Server as HttpServer, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { chromium } from "playwright-core";
import { build } from "vite";
import { afterEach, beforeEach, expect, test } from "vitest";
import { words } from "./support/clients.ts";
import { Cutter } from "./support/cutter.ts";
import { Server } from "./support/server.ts";

const HERE = fileURLToPath(new URL("..", import.meta.url));
const KEY = { BOWLINE_STATE__KEYS: '["k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]', BOWLINE_AUTH__ORIGINS: '["*"]' };
const run = promisify(execFile);

let server: Server;
let folder: string;

beforeEach(async () => {
  server = await Server.start(KEY);
  folder = mkdtempSync(join(tmpdir(), "bowline-example-"));
});

afterEach(async () => {
  await server.stop();
  rmSync(folder, { recursive: true });
});

const node = (...args: string[]) => run(process.execPath, args, { cwd: HERE, timeout: 30_000 });

test("the chat example prints the whole answer, though its wire is cut", async () => {
  const { stdout, stderr } = await node("examples/chat.mjs", server.url, "/long 60 20");
  expect(stdout).toBe(`${words(60)}\n`);
  expect(stderr).toMatch(/connection_lost[\s\S]*reconnecting[\s\S]*connected, replayed \d/);
});

test("the restore example comes back to a server that has forgotten it", async () => {
  const file = join(folder, "session.json");
  expect((await node("examples/restore.mjs", "save", server.url, file)).stdout).toBe("remember me\n");
  await server.wipe();
  expect((await node("examples/restore.mjs", "load", server.url, file)).stdout).toBe("restored from snapshot\n/echo remember me\n");
});

test("the task example follows an operation to its end", async () => {
  const made = await fetch(`${server.origin}/api/chat/sessions`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  const { id } = (await made.json()) as { id: string };
  const { stdout } = await node("examples/task.mjs", server.origin, id);
  expect(stdout).toMatch(/^\S+ start\n[\s\S]*finish\ncompleted { steps: 3, tool: .demo. }\n$/);
});

test("the Python example prints the whole answer, though its wire is cut after every twenty events", async () => {
  const python = join(HERE, "../python/.venv/bin/python");
  if (!existsSync(python)) throw new Error("There is no Python with websockets. Run sdk/typescript/test.sh, which makes one.");
  const source = readFileSync(join(HERE, "../python/client.py"), "utf8");
  expect(source.trimEnd().split("\n").length).toBeLessThan(80);
  const wire = await Cutter.start(server.port);
  const { stdout } = await run(python, ["../python/client.py", wire.url, "/long 200 2", "20"], { cwd: HERE, timeout: 30_000 });
  expect(stdout).toBe(`${words(200)}\n`);
  expect(wire.count).toBeGreaterThan(3);
  await wire.stop();
});

test("the React example shows the whole answer, though its wire is cut by a person", async () => {
  await build({
    root: join(HERE, "examples"),
    logLevel: "error",
    build: { outDir: folder, emptyOutDir: true, rollupOptions: { input: join(HERE, "examples/react.tsx"), output: { entryFileNames: "react.js" } } },
  });
  const site: HttpServer = createServer((request, response) => {
    const isCode = request.url === "/react.js";
    response.setHeader("content-type", isCode ? "text/javascript" : "text/html");
    response.end(isCode ? readFileSync(join(folder, "react.js")) : '<!doctype html><div id="root"></div><script type="module" src="/react.js"></script>');
  });
  await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", resolve));
  const browser = await chromium.launch({ executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${(site.address() as AddressInfo).port}/?server=${encodeURIComponent(server.url)}`);
    await page.getByRole("status").getByText("connected", { exact: true }).waitFor();
    await page.getByLabel("Message").fill("/long 200 10");
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText("tok30").waitFor();
    expect(await page.getByRole("button", { name: "Send" }).isDisabled()).toBe(true);
    // The way back may take less than a frame, so what the page says of it is noted as it is said.
    await page.evaluate(`{
      const status = document.querySelector("[role=status]");
      window.said = [];
      new MutationObserver(() => window.said.push(status.textContent)).observe(status, { childList: true, characterData: true, subtree: true });
    }`);
    await page.getByRole("button", { name: "Cut the wire" }).click();
    await page.waitForFunction("window.said.length > 1 && window.said.at(-1) === 'connected'");
    await page.getByText("tok200").waitFor();
    expect(await page.locator("#answer").textContent()).toBe(words(200));
  } finally {
    await browser.close();
    await new Promise((resolve) => site.close(resolve));
  }
});
