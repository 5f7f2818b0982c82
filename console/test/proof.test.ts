// The promise, seen by a person: whatever breaks, the page shows the whole conversation, or says what is missing.

import type { Page } from "playwright-core";
import { afterEach, beforeEach, expect, test } from "vitest";
import { words } from "../../sdk/typescript/test/support/clients.ts";
import { Dice, seed } from "../../sdk/typescript/test/support/dice.ts";
import { Site, say, state } from "./page.ts";

const KEY = { BOWLINE_STATE__KEYS: '["k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]' };

let site: Site;

beforeEach(async () => {
  site = await Site.start(KEY);
});

afterEach(() => site.stop());

/**
 * From its next load on, the page notes whatever it shows of an answer that is not a beginning of `whole`. The last event has the
 * whole text, and would mend what was wrong before it.
 */
async function noteWrong(page: Page, whole: string): Promise<void> {
  await page.addInitScript(`window.wrong = [];
    new MutationObserver(() => {
      const text = document.querySelector(".answer .markdown")?.textContent ?? "";
      if (!${JSON.stringify(whole)}.startsWith(text)) window.wrong.push(text.slice(-100));
    }).observe(document, { subtree: true, childList: true, characterData: true });`);
}

const wrong = (page: Page) => page.evaluate("window.wrong");

/** A page that is connected, and has said something of which `until` is seen. */
async function talking(text: string, until: string): Promise<Page> {
  const page = await site.page();
  await state(page, "connected");
  await say(page, text);
  await page.getByText(until).first().waitFor();
  return page;
}

const answer = (page: Page) => page.locator(".answer .markdown").last().textContent();
const idle = (page: Page) => page.locator(".turn[aria-busy=false]").last().waitFor();

/** The session that the page shows. */
async function sessionOf(page: Page): Promise<string> {
  return (await page.evaluate("JSON.parse(localStorage.getItem('bowline')).sessionId")) as string;
}

/** Asks the server itself, beside the page. */
async function over(path: string, body?: object): Promise<Record<string, unknown>> {
  const sent = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(`${site.server.origin}/api/chat/sessions/${path}`, sent);
  expect(response.ok, `${path}: ${response.status}`).toBe(true);
  const text = await response.text();
  return text.startsWith("{") ? (JSON.parse(text) as Record<string, unknown>) : {};
}

test("a reload in the middle of an answer shows all of it", async () => {
  const page = await talking("/long 300 10", "tok40");
  await noteWrong(page, words(300));
  await page.reload();
  await page.getByText("tok300").waitFor();
  expect(await answer(page)).toBe(words(300));
  expect(await page.locator(".asked").allTextContents()).toEqual(["You: /long 300 10"]);
  expect(await wrong(page)).toEqual([]);
  expect(site.complaints).toEqual([]);
});

test("a server killed with -9 in the middle of an answer is found again; what was shown stays, and the run is told to be lost", async () => {
  const page = await talking("/long 100000 5", "tok40");
  await site.server.kill();
  await state(page, "connection_lost");
  const shown = (await answer(page)) ?? "";
  await site.server.restart();
  await state(page, "connected");
  await page.locator(".note.failed").waitFor();
  const whole = (await answer(page)) ?? "";
  expect(whole.startsWith(shown)).toBe(true);
  expect(words(100_000).startsWith(whole)).toBe(true);
  // Exactly what the log has: a page that begins from nothing shows the same.
  await page.reload();
  await page.locator(".note.failed").waitFor();
  expect(await answer(page)).toBe(whole);
  await say(page, "/echo still here");
  await page.locator(".answer").getByText("still here").waitFor();
});

test("a page that was offline for three heartbeats, while its buffer was trimmed, is filled from the session's state", async () => {
  await site.stop();
  // Three heartbeats are 90 s, unless they come each second.
  site = await Site.start({ ...KEY, BOWLINE_BUFFER__EVENTS_MAX: "20", BOWLINE_HEARTBEAT__INTERVAL: "1s" });
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/echo before");
  await idle(page);
  await say(page, "/long 200 10");
  await page.getByText("tok20").waitFor();
  const id = await sessionOf(page);
  await site.goOffline();
  await state(page, "connection_lost");
  // Meanwhile the answer ends, and another device asks two more questions.
  await expect.poll(async () => (await over(id))["status"], { timeout: 30_000 }).toBe("idle");
  for (const message of ["/echo while away", "/long 60 0"]) await over(`${id}/stream`, { message });
  await page.locator(".pill").getByText("attempt 3").waitFor();
  expect(await page.evaluate("navigator.onLine")).toBe(false);
  await site.goOnline();
  await page.getByText("What was said was filled in from the session's state.").waitFor();
  await state(page, "connected");
  expect(await page.locator(".asked").allTextContents()).toEqual(["/echo before", "/long 200 10", "/echo while away", "/long 60 0"].map((text) => `You: ${text}`));
  expect(await page.locator(".answer .markdown").allTextContents()).toEqual(["before", words(200), "while away", words(60)]);
  expect(await page.locator(".pill").textContent()).toMatch(/\d+ lost/);
});

test("a page whose session was forgotten while it was offline comes back with the state it kept", async () => {
  const page = await talking("/echo remember me", "remember me");
  await idle(page);
  await page.waitForFunction("localStorage.getItem('bowline:state') !== null");
  await site.goOffline();
  await state(page, "connection_lost");
  await site.server.wipe();
  await site.goOnline();
  await page.getByText("The session was rebuilt from the saved state.").waitFor();
  await state(page, "connected");
  await say(page, "/recall");
  await page.locator(".answer").getByText("/echo remember me").waitFor();
  // A reload has only the new server's log to read, which begins after the question; the rest is in the state.
  await page.reload();
  await expect.poll(() => page.locator(".answer .markdown").allTextContents()).toEqual(["remember me", "/echo remember me"]);
});

test("two tabs that share no connection: the second asks to take over, does, and the first is notified", async () => {
  const first = await talking("/long 100000 10", "tok20");
  // Another browser of the same person's, which knows the session.
  const kept = await first.evaluate("localStorage.getItem('bowline')");
  const elsewhere = await site.elsewhere();
  await elsewhere.addInitScript(`localStorage.setItem("bowline", ${JSON.stringify(kept)})`);
  const second = await elsewhere.newPage();
  await second.goto(site.origin);
  await state(second, "disconnected");
  await second.getByRole("button", { name: "Take over here" }).click();
  await state(second, "connected");
  await state(first, "disconnected");
  await second.getByText("tok60").waitFor();
  await second.getByRole("button", { name: "Stop" }).click();
  await second.locator(".note.cancelled").waitFor();
  // And back again.
  await first.getByRole("button", { name: "Take over here" }).click();
  await state(first, "connected");
  await first.locator(".note.cancelled").waitFor();
  expect(await answer(first)).toBe(await answer(second));
  await elsewhere.close();
});

test("a question is approved after a reload", async () => {
  const page = await talking("/confirm the launch", "the launch");
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await page.reload();
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByText("confirmed: the launch").waitFor();
  expect(await page.getByRole("button", { name: "Approve" }).count()).toBe(0);
});

test("Stop in one tab is seen in the other", async () => {
  const first = await talking("/long 100000 10", "tok20");
  const second = await site.page();
  await second.getByText("tok20").waitFor();
  await second.getByRole("button", { name: "Stop" }).click();
  for (const page of [first, second]) {
    await page.locator(".note.cancelled").waitFor();
    await page.getByRole("button", { name: "Send" }).waitFor();
  }
  expect(await answer(first)).toBe(await answer(second));
});

test("200 random cuts during one answer leave its text as it is, byte for byte", async () => {
  const start = seed();
  console.log(`seed ${start}`);
  const dice = new Dice(start);
  const page = await site.page();
  await noteWrong(page, words(4000));
  await page.reload();
  await state(page, "connected");
  // The network is back as soon as it is gone; else the waits between attempts would be all that this test does.
  await page.evaluate("void setInterval(() => dispatchEvent(new Event('online')), 10)");
  await say(page, "/long 4000 1");
  await page.getByText("tok5").first().waitFor();
  // Each wire carries a few frames and dies in the middle of one; some die before they have said hello.
  const { wire } = site;
  const before = wire.count;
  wire.budget = () => 200 + dice.below(8_000);
  wire.cutAll();
  await expect.poll(() => wire.count - before, { timeout: 50_000, interval: 20 }).toBeGreaterThanOrEqual(200);
  expect(await page.locator(".turn").getAttribute("aria-busy"), "the answer was not over before the last cut").toBe("true");
  wire.budget = () => Infinity;
  await idle(page);
  expect(await answer(page)).toBe(words(4000));
  expect(await wrong(page)).toEqual([]);
  await state(page, "connected");
});
