// The built page in a real browser, in front of a real server: one origin for both, as the binary will serve them.

import { existsSync, readFileSync } from "node:fs";
import { type IncomingMessage, type Server as HttpServer, createServer, request } from "node:http";
import { type AddressInfo, type Socket, connect } from "node:net";
import { type Browser, type BrowserContext, type Page, chromium } from "playwright-core";
import { expect } from "vitest";
import { Server } from "../../sdk/typescript/test/support/server.ts";

const CHROMIUM = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
const DIST = new URL("../dist/", import.meta.url);
const TYPES: Record<string, string> = { html: "text/html", js: "text/javascript", css: "text/css" };

export class Site {
  /** Everything the page asked for that is not ours. */
  readonly foreign: string[] = [];
  readonly complaints: string[] = [];
  readonly #open = new Set<Socket>();

  private constructor(
    readonly server: Server,
    readonly browser: Browser,
    readonly context: BrowserContext,
    readonly http: HttpServer,
  ) {
    http.on("request", (incoming: IncomingMessage, outgoing) => {
      const path = new URL(incoming.url ?? "/", "http://site").pathname;
      if (path.startsWith("/api/")) {
        const asked = request({ port: server.port, path: incoming.url, method: incoming.method, headers: incoming.headers }, (answer) => {
          outgoing.writeHead(answer.statusCode ?? 500, answer.headers);
          answer.pipe(outgoing);
        });
        incoming.pipe(asked.on("error", () => outgoing.destroy()));
        return;
      }
      const file = new URL(path === "/" ? "index.html" : `.${path}`, DIST);
      if (!existsSync(file)) return void outgoing.writeHead(404).end();
      outgoing.setHeader("content-type", TYPES[file.pathname.split(".").at(-1) ?? ""] ?? "application/octet-stream");
      outgoing.end(readFileSync(file));
    });
    http.on("upgrade", (incoming: IncomingMessage, inner: Socket) => {
      const outer = connect(server.port, "127.0.0.1");
      const head = [`GET ${incoming.url} HTTP/1.1`];
      for (let n = 0; n < incoming.rawHeaders.length; n += 2) head.push(`${incoming.rawHeaders[n]}: ${incoming.rawHeaders[n + 1]}`);
      outer.write(`${head.join("\r\n")}\r\n\r\n`);
      this.#open.add(inner);
      const end = () => [inner, outer].forEach((socket) => socket.destroy());
      for (const socket of [inner, outer]) socket.on("error", end).on("close", end);
      inner.pipe(outer).pipe(inner);
    });
  }

  static async start(env: Record<string, string> = {}): Promise<Site> {
    if (!existsSync(CHROMIUM)) throw new Error(`There is no browser at ${CHROMIUM}. Install Debian's chromium, or set CHROMIUM.`);
    const http = createServer();
    await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
    const server = await Server.start({ BOWLINE_AUTH__ORIGINS: '["*"]', ...env });
    const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
    return new Site(server, browser, await browser.newContext(), http);
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.http.address() as AddressInfo).port}`;
  }

  async page(): Promise<Page> {
    const page = await this.context.newPage();
    page.on("request", (asked) => {
      const url = asked.url();
      if (!url.startsWith(this.origin) && !url.startsWith("data:") && !url.startsWith("blob:")) this.foreign.push(url);
    });
    page.on("console", (message) => message.type() === "error" && this.complaints.push(message.text()));
    page.on("pageerror", (error) => this.complaints.push(String(error)));
    await page.goto(this.origin);
    return page;
  }

  cutAll(): void {
    for (const socket of this.#open) socket.destroy();
    this.#open.clear();
  }

  async stop(): Promise<void> {
    await this.browser.close();
    this.cutAll();
    await new Promise((resolve) => this.http.close(resolve));
    await this.server.stop();
    expect(this.foreign, "nothing is asked of third parties").toEqual([]);
  }
}

/** Waits until the pill shows a state. */
export function state(page: Page, wanted: string): Promise<unknown> {
  return page.locator(`.pill[data-state="${wanted}"]`).waitFor();
}

export async function say(page: Page, text: string): Promise<void> {
  await page.getByLabel("Message.").fill(text);
  await page.keyboard.press("Enter");
}
