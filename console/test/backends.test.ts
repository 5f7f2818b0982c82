// The MCP servers behind this one, seen while one of them is away. It is real: another Bowline, which speaks MCP as well.

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Locator, Page } from "playwright-core";
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

const SECRET = "Bearer a-secret-of-some-length";

/** The card of a server, and the state that it shows. */
function card(page: Page, name: string): { card: Locator; state: (wanted: string) => Promise<void> } {
  const found = page.getByRole("listitem", { name, exact: true });
  return { card: found, state: (wanted) => found.locator("[aria-current=step]").getByText(wanted, { exact: true }).waitFor() };
}

async function openForm(page: Page): Promise<Locator> {
  await page.getByRole("button", { name: "Add a server" }).click();
  const form = page.getByRole("form", { name: "Add a server" });
  await focused(form.getByLabel("Name"));
  return form;
}

async function focused(locator: Locator): Promise<void> {
  await expect.poll(() => locator.evaluate((element) => element === document.activeElement), { timeout: 20_000 }).toBe(true);
}

/** What browsers say of every refusal is no complaint of ours. */
function complaints(): string[] {
  return site.complaints.filter((text) => !/status of 4\d\d/.test(text));
}

test("a server is added by its address, connects, and is removed after one more question", async () => {
  const page = await site.page("#backends");
  const form = await openForm(page);
  await form.getByLabel("Name").fill("shelf");
  await form.getByLabel("URL").fill(`${backend.origin}/mcp`);
  await form.getByLabel("Headers").fill(`Authorization: ${SECRET}\nX-Team: tools`);
  await form.getByRole("button", { name: "Add" }).click();

  const { card: added, state } = card(page, "shelf");
  await state("connected");
  await added.getByText(/^[1-9]\d* tools · /).waitFor();
  await page.getByText("shelf was added.").waitFor();
  expect(await form.count()).toBe(0);
  await focused(page.getByRole("button", { name: "Add a server" }));
  await openForm(page);
  expect(await form.getByLabel("Headers").inputValue()).toBe("");
  expect(await page.content()).not.toContain(SECRET);
  await form.getByRole("button", { name: "Cancel" }).click();
  await form.waitFor({ state: "detached" });
  await focused(page.getByRole("button", { name: "Add a server" }));

  await added.getByRole("button", { name: "Remove shelf" }).click();
  await focused(added.getByRole("button", { name: "Keep shelf" }));
  await page.keyboard.press("Escape");
  await focused(added.getByRole("button", { name: "Remove shelf" }));
  await page.keyboard.press("Enter");
  await added.getByText("Remove it for all clients?").waitFor();
  await added.getByRole("button", { name: "Remove shelf" }).click();
  await added.waitFor({ state: "detached" });
  await page.getByText("shelf was removed.").waitFor();
  await focused(page.getByRole("button", { name: "Add a server" }));
  await card(page, "library").state("connected");
  expect(site.complaints).toEqual([]);
});

test("a server of the file says where it stands, is removed after one more question, and is restored", async () => {
  const page = await site.page("#backends");
  const { card: configured, state } = card(page, "library");
  await state("connected");
  await configured.getByText("in the servers file").waitFor();
  await configured.getByRole("button", { name: "Remove library" }).click();
  await configured.getByText("Remove it for all clients, until it is restored or its entry in the servers file changes?").waitFor();
  await focused(configured.getByRole("button", { name: "Keep library" }));
  await configured.getByRole("button", { name: "Remove library" }).click();
  await configured.waitFor({ state: "detached" });
  await page.getByText("library was removed.").waitFor();

  const removed = page.getByRole("listitem", { name: "library, removed" });
  await removed.getByText(`${backend.origin}/mcp`).waitFor();
  await removed.getByText(/^Removed .* ago$|^Removed just now$/).waitFor();
  expect(await objections(page)).toEqual([]);
  await removed.getByRole("button", { name: "Restore library" }).click();
  await state("connected");
  await removed.waitFor({ state: "detached" });
  await page.getByText("library was restored.").waitFor();
  await focused(page.getByRole("button", { name: "Add a server" }));
  expect(site.complaints).toEqual([]);
});

test("a server that two nodes show has a card for each, and is removed where a node says whether the servers file has it", async () => {
  const page = await site.context.newPage();
  // What nodes that share a Redis answer; the last is of a version that did not say what is configured.
  await page.route(/\/api\/admin\/backends$/, async (route) => {
    const response = await route.fetch();
    const [{ configured: _, ...one }] = ((await response.json()) as { backends: [Record<string, unknown>] }).backends;
    await route.fulfill({ response, json: { backends: [{ ...one, node: "n1", configured: true }, { ...one, node: "n2", configured: false }, { ...one, node: "n3" }] } });
  });
  await page.goto(`${site.origin}/#backends`);
  const cards = page.getByRole("listitem", { name: "library", exact: true });
  await expect.poll(() => cards.count(), { timeout: 20_000 }).toBe(3);
  await expect.poll(() => cards.getByRole("heading").allTextContents()).toEqual(["n1", "n2", "n3"].map((node) => expect.stringMatching(new RegExp(`^library +on ${node}$`))));
  expect(await page.getByRole("button", { name: "Remove library" }).count()).toBe(2);
  expect(await cards.filter({ hasText: "on n3" }).getByRole("button", { name: "Remove library" }).count()).toBe(0);
  expect(await page.getByText("in the servers file").count()).toBe(1);
});

test("what the server refuses is said at the form, which keeps what was typed", async () => {
  const page = await site.page("#backends");
  const form = await openForm(page);
  const alert = form.getByRole("alert");
  await form.getByLabel("Name").fill("library");
  await form.getByLabel("URL").fill(`${backend.origin}/mcp`);
  await form.getByLabel("Headers").fill(`X-Team: tools\n${SECRET}`);
  await form.getByRole("button", { name: "Add" }).click();
  await alert.getByText("Line 2 of the headers is not “Name: value”.", { exact: true }).waitFor();
  await form.getByLabel("Headers").fill(`Authorization: ${SECRET}`);
  await form.getByRole("button", { name: "Add" }).click();
  await alert.getByText("Not added: there is a server named library already; remove it first or choose another name.").waitFor();
  await focused(form.getByRole("button", { name: "Add" }));
  expect(await form.getByLabel("URL").inputValue()).toBe(`${backend.origin}/mcp`);

  await form.getByLabel("Program").check();
  await form.getByLabel("Name").fill("files");
  await form.getByLabel("Command").fill("cat");
  await form.getByRole("button", { name: "Add" }).click();
  await alert.getByText(/^Not added: programs cannot be added at run time here; .*`hub.allow_stdio_add`\.$/).waitFor();
  expect(await page.getByRole("list").getByRole("heading").allTextContents()).toEqual([expect.stringMatching(/^library/)]);
  expect(complaints()).toEqual([]);
});

test("a program is added with its arguments, its environment and its directory", async () => {
  await site.stop();
  site = await Site.start({ BOWLINE_HUB__ALLOW_STDIO_ADD: "true" });
  const page = await site.page("#backends");
  await page.getByText("There are no MCP servers. Add one here").waitFor();
  const form = await openForm(page);
  await form.getByLabel("Program").check();
  await form.getByLabel("Name").fill("shell");
  await form.getByLabel("Command").fill("sh");
  await form.getByLabel("Arguments").fill('-c\necho "$GREETING from $PWD" > said; exec cat');
  await form.getByLabel("Environment").fill("GREETING=a = b");
  await form.getByLabel("Working directory").fill(folder);
  await form.getByRole("button", { name: "Add" }).click();
  const said = () => (existsSync(join(folder, "said")) ? readFileSync(join(folder, "said"), "utf8") : "");
  await expect.poll(said, { timeout: 20_000 }).toBe(`a = b from ${folder}\n`);
  await card(page, "shell").card.getByText("sh", { exact: true }).waitFor();
});

test("a server that is removed elsewhere meanwhile is said to be gone", async () => {
  const page = await site.page("#backends");
  const form = await openForm(page);
  await form.getByLabel("Name").fill("shelf");
  await form.getByLabel("URL").fill(`${backend.origin}/mcp`);
  await form.getByRole("button", { name: "Add" }).click();
  const { card: added, state } = card(page, "shelf");
  await state("connected");
  await added.getByRole("button", { name: "Remove shelf" }).click();
  // The list stays as it was seen, so that the button is still there.
  await page.route(/\/api\/admin\/backends$/, () => {});
  expect((await fetch(`${site.server.origin}/api/admin/backends/shelf`, { method: "DELETE" })).status).toBe(200);
  await added.getByRole("button", { name: "Remove shelf" }).click();
  await added.getByRole("alert").getByText("There is no server named shelf.").waitFor();
  expect(complaints()).toEqual([]);
});
