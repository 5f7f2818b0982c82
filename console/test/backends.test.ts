// The MCP servers behind this one, seen while one of them is away. It is real: another Bowline, which speaks MCP as well.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Server } from "../../sdk/typescript/test/support/server.ts";
import { Site, objections } from "./page.ts";

let folder: string;
let backend: Server;
let site: Site;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "bowline-backends-"));
  backend = await Server.start();
  const file = join(folder, "mcp.json");
  writeFileSync(file, JSON.stringify({ mcpServers: { library: { url: `${backend.origin}/mcp` } } }));
  site = await Site.start({ BOWLINE_HUB__SERVERS_FILE: file });
});

afterEach(async () => {
  await site.stop();
  await backend.stop();
  rmSync(folder, { recursive: true, force: true });
});

test("a backend that was killed is tried again, with the attempt and the seconds until the next, and comes back by the button", async () => {
  const page = await site.page("#backends");
  const row = page.getByRole("listitem", { name: "library" });
  const current = row.locator("[aria-current=step]");
  await current.getByText("connected", { exact: true }).waitFor();
  await row.getByText("healthy").waitFor();
  await row.getByText(/^[1-9]\d* tools · /).waitFor();

  await backend.kill();
  await current.getByText("reconnecting").waitFor();
  // Enough attempts for a wait that can be watched.
  await row.getByText(/^Attempt [3-9] · next in \d+ s$/).waitFor();
  const left = async () => Number(/next in (\d+) s/.exec((await row.textContent()) ?? "")?.[1] ?? 0);
  const before = await left();
  await expect.poll(left, { timeout: 20_000, interval: 100 }).toBeLessThan(before);
  await row.locator(".note.failed").getByText(/./).waitFor();
  expect(await objections(page)).toEqual([]);

  await row.getByRole("button", { name: "Reconnect library" }).click();
  await row.getByText("It did not answer.").waitFor();
  await backend.restart();
  await row.getByRole("button", { name: "Reconnect library" }).click();
  await current.getByText("connected", { exact: true }).waitFor();
  await row.getByText("It is back.").waitFor();
  expect(site.complaints).toEqual([]);
});
