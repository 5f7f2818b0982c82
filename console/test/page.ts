// The page in a real browser, as the binary serves it, over a wire that can be cut.

import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { type Browser, type BrowserContext, type Page, chromium } from "playwright-core";
import { expect } from "vitest";
import { Cutter } from "../../sdk/typescript/test/support/cutter.ts";
import { Server } from "../../sdk/typescript/test/support/server.ts";

const CHROMIUM = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
const FROM_DISK = Boolean(process.env["CONSOLE_FROM_DISK"]);

export class Site {
  /** Everything the page asked for that is not ours. */
  readonly foreign: string[] = [];
  readonly complaints: string[] = [];

  private constructor(
    readonly server: Server,
    readonly browser: Browser,
    readonly context: BrowserContext,
    readonly wire: Cutter,
  ) {}

  static async start(env: Record<string, string> = {}): Promise<Site> {
    if (!existsSync(CHROMIUM)) throw new Error(`There is no browser at ${CHROMIUM}. Install Debian's chromium, or set CHROMIUM.`);
    const server = await Server.start({ BOWLINE_AUTH__ORIGINS: '["*"]', ...env });
    const wire = await Cutter.start(server.port);
    // A page that no server sent counts as one of the public net, which may not speak to this machine.
    const own = FROM_DISK ? ["--disable-features=LocalNetworkAccessChecks"] : [];
    const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", ...own] });
    return new Site(server, browser, await device(browser), wire);
  }

  /** A browser of its own, which knows nothing of the other tabs. */
  elsewhere(): Promise<BrowserContext> {
    return device(this.browser);
  }

  get origin(): string {
    return `http://127.0.0.1:${this.wire.port}`;
  }

  async page(hash = ""): Promise<Page> {
    const page = await this.context.newPage();
    page.on("request", (asked) => {
      const url = asked.url();
      if (!url.startsWith(this.origin) && !url.startsWith("data:") && !url.startsWith("blob:")) this.foreign.push(url);
    });
    page.on("console", (message) => message.type() === "error" && this.complaints.push(message.text()));
    page.on("pageerror", (error) => this.complaints.push(String(error)));
    await page.goto(`${this.origin}/${hash}`);
    return page;
  }

  /** The browser knows that it is offline, and nothing gets through. */
  async goOffline(): Promise<void> {
    await this.context.setOffline(true);
    this.wire.down = true;
    this.wire.cutAll();
  }

  async goOnline(): Promise<void> {
    this.wire.down = false;
    await this.context.setOffline(false);
  }

  async stop(): Promise<void> {
    await this.browser.close();
    await this.wire.stop();
    await this.server.stop();
    expect(this.foreign, "nothing is asked of third parties").toEqual([]);
  }
}

async function device(browser: Browser): Promise<BrowserContext> {
  const context = await browser.newContext();
  if (FROM_DISK) await fromDisk(context);
  return context;
}

/** While the page is worked on: what `npm run build` has left, without building the binary each time. */
async function fromDisk(context: BrowserContext): Promise<void> {
  const dist = new URL("../dist/", import.meta.url);
  await context.route(/^http:\/\/[^/]+\/(assets\/.*)?(#.*)?$/, async (route) => {
    const { pathname } = new URL(route.request().url());
    const path = new URL(pathname === "/" ? "index.html" : `.${pathname}`, dist);
    await route.fulfill({ path: path.pathname });
  });
}

/** Waits until the pill shows a state. */
export function state(page: Page, wanted: string): Promise<unknown> {
  return page.locator(`.pill[data-state="${wanted}"]`).waitFor();
}

export async function say(page: Page, text: string): Promise<void> {
  await page.getByLabel("Message.").fill(text);
  await page.keyboard.press("Enter");
}

/** What axe-core objects to, in words. */
export async function objections(page: Page): Promise<string[]> {
  await page.evaluate(readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
  const { violations } = (await page.evaluate("axe.run()")) as { violations: { id: string; nodes: { html: string }[] }[] };
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
}
