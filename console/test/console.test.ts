// What an operator sees, and that it is true.

import { afterEach, beforeEach, expect, test } from "vitest";
import { Site, say, state } from "./page.ts";

let site: Site;

beforeEach(async () => {
  site = await Site.start();
});

afterEach(() => site.stop());

test("a session is listed with who has it and what is retained, and its log grows while one looks", async () => {
  const chat = await site.page();
  await state(chat, "connected");
  await say(chat, "/echo a title to be seen");
  await chat.locator(".turn[aria-busy=false]").waitFor();
  const page = await site.page("#sessions");
  const row = page.getByRole("row", { name: /a title to be seen/ });
  await row.getByText("idle").waitFor();
  await row.getByText("holder").waitFor();
  await row.getByRole("img", { name: "events 1 to 2 retained, acknowledged up to 2" }).waitFor();
  await row.getByRole("link").click();
  await page.getByRole("listitem").filter({ hasText: "agent.final_answer" }).waitFor();
  await say(chat, "/echo said later");
  await page.getByRole("listitem").filter({ hasText: "said later" }).first().waitFor();
  await page.getByText("4 events, 1 to 4").waitFor();
  expect(site.complaints).toEqual([]);
});

test("work in the background is listed, and its log can be read", async () => {
  const chat = await site.page();
  await state(chat, "connected");
  await say(chat, "/op index 3 0");
  await chat.locator(".tool.success").waitFor();
  const page = await site.page("#tasks");
  const row = page.getByRole("row", { name: /index/ });
  await row.getByText("completed").waitFor();
  await row.getByRole("link").first().click();
  await page.getByRole("listitem").filter({ hasText: "step 3 of 3" }).first().waitFor();
  await page.getByText("over", { exact: true }).waitFor();
});

test("the node shows its pace, and how returns went", async () => {
  const chat = await site.page();
  await state(chat, "connected");
  await chat.getByRole("button", { name: "Drop the connection" }).click();
  const page = await site.page("#node");
  await page.getByRole("row", { name: /missed nothing 1/ }).waitFor();
  await say(chat, "/long 100000 1");
  await page.getByRole("img", { name: /^Events: stored [1-9]\d* per s, sent [1-9]\d* per s$/ }).waitFor();
  await page.getByRole("img", { name: /^Commit latency: median [\d.]+ ms, 99 % [\d.]+ ms$/ }).waitFor();
  await page.getByRole("img", { name: /^Open now: connections 1, streams/ }).waitFor();
  expect(site.complaints).toEqual([]);
});

test("a server that is gone is said to be gone, and found again", async () => {
  const page = await site.page("#node");
  await page.locator(".facts").waitFor();
  await site.server.kill();
  await page.getByRole("alert").getByText("The server cannot be reached. What you see is old.").waitFor();
  await state(page, "stale");
  await site.server.restart();
  await state(page, "fresh");
});

test("settings are shown with where they came from, and secrets are not", async () => {
  await site.stop();
  const token = "a-token-of-some-length-0123456789";
  site = await Site.start({ BOWLINE_AUTH__MODE: "tokens", BOWLINE_AUTH__TOKENS: `[{ token = "${token}", principal = "alice", admin = true }, { token = "no-${token}", principal = "bob" }]` });
  const page = await site.page("#settings");
  await page.getByLabel("Token").fill(`no-${token}`);
  await page.keyboard.press("Enter");
  await page.getByText("This needs the credential of an admin.").waitFor();
  await page.getByLabel("Token").fill(token);
  await page.keyboard.press("Enter");
  await page.getByLabel("Only what was set").check();
  await page.getByRole("row", { name: /auth.mode.*tokens.*BOWLINE_AUTH__MODE/ }).waitFor();
  expect(await page.content()).not.toContain(token);
});
