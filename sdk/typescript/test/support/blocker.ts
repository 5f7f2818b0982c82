// A proxy that lets all pass but event streams, as some do; how it fails them can be chosen.

import { type IncomingMessage, type Server, type ServerResponse, createServer, request } from "node:http";
import type { AddressInfo } from "node:net";

export type Blocking =
  | "nothing"
  /** The head comes, the body never does. */
  | "hang"
  /** Not even the head comes. */
  | "swallow"
  | "cut"
  | "refuse"
  /** The body comes when it is complete, all at once. */
  | "buffer";

export class Blocker {
  blocking: Blocking = "nothing";
  /** Event streams that were asked for. */
  streams = 0;
  readonly #server: Server;
  readonly #targetPort: number;

  private constructor(targetPort: number) {
    this.#targetPort = targetPort;
    this.#server = createServer((asked, answer) => this.#forward(asked, answer));
  }

  static async start(targetPort: number): Promise<Blocker> {
    const blocker = new Blocker(targetPort);
    await new Promise<void>((resolve) => blocker.#server.listen(0, "127.0.0.1", resolve));
    return blocker;
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #forward(asked: IncomingMessage, answer: ServerResponse): void {
    const { method, url, headers } = asked;
    const forwarded = request({ port: this.#targetPort, host: "127.0.0.1", method, path: url, headers: { ...headers, connection: "close" } }, (got) => {
      const isStream = got.headers["content-type"] === "text/event-stream";
      if (isStream) this.streams++;
      const head = () => answer.writeHead(got.statusCode ?? 502, got.headers);
      switch (isStream ? this.blocking : "nothing") {
        case "nothing":
          head();
          got.pipe(answer);
          answer.flushHeaders();
          return;
        case "hang":
          head();
          answer.flushHeaders();
          return void got.resume();
        case "swallow":
          return void got.resume();
        case "cut":
          got.destroy();
          return void answer.destroy();
        case "refuse":
          got.destroy();
          return void answer.writeHead(502, { "content-type": "text/html", "access-control-allow-origin": "*" }).end("<h1>Bad Gateway</h1>");
        case "buffer": {
          const parts: Buffer[] = [];
          got.on("data", (part: Buffer) => parts.push(part));
          return void got.on("end", () => {
            head();
            answer.end(Buffer.concat(parts));
          });
        }
      }
    });
    forwarded.on("error", () => answer.destroy());
    answer.on("close", () => forwarded.destroy());
    asked.pipe(forwarded);
  }
}
