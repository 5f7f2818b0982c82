// The pages as pictures, with something on them: a server at work, whose MCP servers are not all well. `pictures.sh` runs it.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Page } from "playwright-core";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Server } from "../../sdk/typescript/test/support/server.ts";
import { Site, say, state } from "./page.ts";

const FOLDER = process.env["PICTURES"] ?? "";
/** How much of the curves is there to be seen. */
const CURVE_SECONDS = Number(process.env["PICTURES_CURVE_SECONDS"] ?? 50);
/** Those that the documents show. All of them are made with PICTURES_ALL=1. */
const CHOSEN = ["plan-desk-light", "chat-phone-light", "lost-phone-dark", "sessions-desk-light", "session-phone-dark", "backends-desk-light", "node-desk-dark"];
const ALL = process.env["PICTURES_ALL"] === "1";
const SIZES = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } } as const;

let site: Site;
let work: string;
let backends: Server[];

beforeEach(async () => {
  if (FOLDER === "") throw new Error("PICTURES must name a folder.");
  work = mkdtempSync(join(tmpdir(), "bowline-pictures-"));
  backends = [await Server.start(), await Server.start()];
  const [library, ledger] = backends.map((server) => ({ url: `${server.origin}/mcp` }));
  const file = join(work, "mcp.json");
  writeFileSync(file, JSON.stringify({ mcpServers: { library } }));
  site = await Site.start({ BOWLINE_HUB__SERVERS_FILE: file, BOWLINE_BUFFER__EVENTS_MAX: "1000", BOWLINE_AGENTS__DEMO__KIND: "demo", BOWLINE_AGENTS__DEMO__SPEED: "0.15" });
  await post("/api/admin/backends", { name: "ledger", ...ledger });
});

afterEach(async () => {
  await site.stop();
  await Promise.all(backends.map((server) => server.stop()));
  rmSync(work, { recursive: true, force: true });
});

async function shoot(page: Page, name: string, size: keyof typeof SIZES, colorScheme: "light" | "dark"): Promise<void> {
  const file = `${name}-${size}-${colorScheme}`;
  if (!ALL && !CHOSEN.includes(file)) return;
  await page.emulateMedia({ colorScheme });
  await page.setViewportSize(SIZES[size]);
  await page.waitForFunction(`document.documentElement.scrollWidth <= ${SIZES[size].width}`);
  await page.evaluate("document.fonts.ready.then(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))))");
  await page.screenshot({ path: join(FOLDER, `${file}.png`) });
}

/** Everything in both sizes, in light and in dark. */
async function shootAll(page: Page, name: string): Promise<void> {
  for (const size of ["desk", "phone"] as const) for (const scheme of ["light", "dark"] as const) await shoot(page, name, size, scheme);
}

function post(path: string, body: object): Promise<Response> {
  return fetch(`${site.server.origin}${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

/** A session of somebody else's, who says these things and reads the answers. */
async function somebody(...messages: string[]): Promise<void> {
  const { id } = (await (await post("/api/chat/sessions", {})).json()) as { id: string };
  for (const message of messages) await (await post(`/api/chat/sessions/${id}/stream`, { message })).text();
}

test("the pages as they are while there is work", async () => {
  await somebody("/echo What did the harbour master say?", "/long 3000 0");
  await somebody("/plan a move to another town");
  await somebody("/op thumbnails 40 5", "/op backup 12 60000");
  void somebody("/confirm sending the invoices").catch(() => {});

  const chat = await site.page();
  await state(chat, "connected");
  await shootAll(chat, "welcome");
  await say(chat, "/echo A **bowline** makes a loop that does not slip:\n\n1. Lay a small loop.\n2. Bring the end *up* through it,\n3. around behind the line,\n4. and back down.\n\n> The rabbit comes out of the hole, goes around the tree, and back into the hole.");
  await chat.locator(".turn[aria-busy=false]").waitFor();
  await say(chat, "/plan a small garden");
  await chat.locator(".plan li.running").getByText("50 %").first().waitFor();
  await shootAll(chat, "plan");
  await chat.locator(".turn[aria-busy=false]").nth(1).waitFor();
  await say(chat, "/confirm the launch");
  await chat.getByRole("button", { name: "Approve" }).waitFor();
  await shootAll(chat, "chat");

  await backends[1]?.kill();
  const page = await site.page("#node");
  await page.locator(".facts").waitFor();
  await chat.getByRole("button", { name: "Approve" }).click();
  await chat.getByText("confirmed: the launch").waitFor();
  await say(chat, "/long 100000 15");
  await chat.getByText("tok50").waitFor();
  site.wire.down = true;
  site.wire.cutAll();
  await chat.locator(".pill").getByText("attempt 3").waitFor();
  await shootAll(chat, "lost");
  site.wire.down = false;
  await chat.evaluate("void dispatchEvent(new Event('online'))");
  await state(chat, "connected");
  const until = Date.now() + CURVE_SECONDS * 1000;
  for (let cuts = 0; Date.now() < until || cuts === 0; cuts++) {
    await chat.getByRole("button", { name: "Drop the connection" }).click();
    const target = (await chat.locator(".answer").last().textContent())?.length ?? 0;
    // A while of work between two cuts, as much as the answer tells.
    await expect.poll(async () => (await chat.locator(".answer").last().textContent())?.length ?? 0, { timeout: 60_000 }).toBeGreaterThan(target + 1500);
  }
  await page.bringToFront();
  await page.getByRole("img", { name: /^Events: stored [1-9]/ }).waitFor();
  await shootAll(page, "node");

  for (const [link, shows] of [["Sessions", /waiting/], ["Tasks", /completed/], ["Backends", /next in \d+ s/], ["Settings", "store.url"]] as const) {
    await page.getByRole("link", { name: link, exact: true }).click();
    await page.getByText(shows).first().waitFor();
    await shootAll(page, link.toLowerCase());
  }
  await page.getByRole("link", { name: "Backends", exact: true }).click();
  await page.getByRole("button", { name: "Remove ledger" }).click();
  await page.getByRole("button", { name: "Add a server" }).click();
  await page.getByLabel("Name").fill("search");
  await page.getByLabel("URL").fill("https://search.example/mcp");
  await shootAll(page, "address");
  await page.getByLabel("Program").check();
  await shootAll(page, "program");
  await page.getByRole("link", { name: "Sessions", exact: true }).click();
  await page.getByRole("row", { name: /A \*\*bowline/ }).getByRole("link").click();
  await page.getByText(/events, /).waitFor();
  await shootAll(page, "session");
});
