// What an operator sees.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Site, say, state } from "./page.ts";

let site: Site;

beforeEach(async () => {
  site = await Site.start();
});

afterEach(() => site.stop());

test("the overview shows the node, its sessions and its pace, on 390 pixels too", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/echo a title to be seen");
  await page.locator(".turn[aria-busy=false]").waitFor();
  await page.getByRole("link", { name: "Overview" }).click();
  await page.getByRole("row", { name: /^sess_\S+ idle demo holder 2 .*a title to be seen$/ }).waitFor();
  await page.getByRole("img", { name: /Now: [\d.]+ events per second, 1 connections/ }).waitFor();
  await page.setViewportSize({ width: 390, height: 844 });
  // The chart follows the page's width a moment later.
  await page.waitForFunction("document.documentElement.scrollWidth <= 390");
  await page.evaluate(readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
  const { violations } = (await page.evaluate("axe.run()")) as { violations: { id: string; nodes: { html: string }[] }[] };
  expect(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`)).toEqual([]);
  expect(site.complaints).toEqual([]);
  await page.getByRole("link", { name: "Chat" }).click();
  await page.locator(".answer").getByText("a title to be seen").waitFor();
});

test("a server that is gone is said to be gone, and found again", async () => {
  const page = await site.page();
  await page.getByRole("link", { name: "Overview" }).click();
  await page.locator(".facts").waitFor();
  await site.server.kill();
  await page.getByRole("alert").getByText(/./).waitFor();
  await site.server.restart();
  await page.getByRole("alert").getByText(/./).waitFor({ state: "hidden" });
});
