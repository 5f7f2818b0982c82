// What a person can do on the chat page.

import { readFileSync } from "node:fs";
import { afterEach, beforeEach, expect, test } from "vitest";
import { words } from "../../sdk/typescript/test/support/clients.ts";
import { Site, say, state } from "./page.ts";

const KEY = { BOWLINE_STATE__KEYS: '["k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]' };

let site: Site;

beforeEach(async () => {
  site = await Site.start(KEY);
});

afterEach(() => site.stop());

test("an answer is shown whole though the connection is dropped, and the pill tells the truth", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/long 300 10");
  await page.getByText("tok40").waitFor();
  await page.getByRole("button", { name: "Drop the connection" }).click();
  await page.locator(".pill").getByText(/^Connected · \d+ replayed$/).waitFor();
  await page.getByText("tok300").waitFor();
  expect(await page.locator(".answer .markdown").textContent()).toBe(words(300));
  expect(site.complaints).toEqual([]);
});

test("a question is approved with the keyboard, and Stop stops", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/confirm the launch");
  const approve = page.getByRole("button", { name: "Approve" });
  await approve.waitFor();
  await approve.focus();
  await page.keyboard.press("Enter");
  await page.getByText("confirmed: the launch").waitFor();
  await say(page, "/long 100000 10");
  await page.getByText("tok20").waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.locator(".note.cancelled").waitFor();
  await page.getByRole("button", { name: "Send" }).waitFor();
});

test("a plan is shown with its tasks until all are done", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/plan a garden");
  await page.getByRole("region", { name: "Plan" }).waitFor();
  await page.locator(".turn[aria-busy=false] .answer").waitFor();
  expect(await page.locator(".plan li.done").count()).toBe(3);
});

test("work in the background tells how far it is, and its end though the turn is long over", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/op index 20 100");
  await page.locator(".turn[aria-busy=false]").waitFor();
  const progress = page.getByRole("progressbar", { name: "Progress of index" });
  await progress.waitFor();
  await page.locator(".tool.running").getByText(/step \d+ of 20/).waitFor();
  await page.locator(".tool.success").waitFor();
  expect(await progress.count()).toBe(0);
  expect(await page.locator(".turn").count()).toBe(1);
});

test("a second tab shows what the first one shows", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/long 300 10");
  await page.getByText("tok40").waitFor();
  const opened = site.context.waitForEvent("page");
  await page.getByRole("button", { name: "Open a second tab" }).click();
  const second = await opened;
  for (const tab of [page, second]) {
    await tab.getByText("tok300").waitFor();
    expect(await tab.locator(".answer .markdown").textContent()).toBe(words(300));
  }
});

test("a state is saved to a file, and restored on a server that has forgotten everything", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/echo remember me");
  await page.locator(".turn[aria-busy=false]").waitFor();
  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: "Save state" }).click();
  const file = await (await saving).path();
  expect(JSON.parse(readFileSync(file, "utf8"))).toHaveProperty("signedState");
  await page.evaluate("localStorage.clear()");
  await site.server.wipe();
  await page.reload();
  await state(page, "connected");
  await page.getByLabel("Saved state").setInputFiles(file);
  await page.getByText("The session was rebuilt from the saved state.").waitFor();
  await say(page, "/recall");
  await page.locator(".answer").getByText("/echo remember me").waitFor();
});

test("markdown is shown as such, and nothing in it runs", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/echo **bold** `code` <img src=x onerror=alert(1)> [a](javascript:alert(1)) [b](https://example.com)");
  await page.locator(".answer strong").waitFor();
  expect(await page.locator(".answer img").count()).toBe(0);
  expect(await page.locator(".answer a").evaluateAll((links) => links.map((link) => link.getAttribute("href")))).toEqual(["https://example.com"]);
});

test("a token is asked for where one is wanted", async () => {
  await site.stop();
  site = await Site.start({ BOWLINE_AUTH__MODE: "tokens", BOWLINE_AUTH__TOKENS: '[{ token = "a-token-of-some-length-0123456789", principal = "alice", admin = true }]' });
  const page = await site.page();
  await state(page, "disconnected");
  await page.getByLabel("Token").fill("a-token-of-some-length-0123456789");
  await page.keyboard.press("Enter");
  await state(page, "connected");
});
