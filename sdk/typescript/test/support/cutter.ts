// A wire that can be cut at any byte: forwards TCP connections, each for a given number of bytes in all.

import { type AddressInfo, type Server, type Socket, connect, createServer } from "node:net";

export class Cutter {
  /** How many bytes the next connection may carry before it is cut; or each one, if it is a function. */
  budget: number | (() => number) = Infinity;
  /** Connections that were made. */
  count = 0;
  /** While true, nobody gets through. */
  down = false;
  /** While true, bytes are swallowed and nobody is told: a half-open wire. */
  silent = false;
  targetPort: number;
  readonly #server: Server;
  readonly #open = new Set<Socket>();

  private constructor(targetPort: number) {
    this.targetPort = targetPort;
    this.#server = createServer((inner) => this.#forward(inner));
  }

  static async start(targetPort: number): Promise<Cutter> {
    const cutter = new Cutter(targetPort);
    await new Promise<void>((resolve) => cutter.#server.listen(0, "127.0.0.1", resolve));
    return cutter;
  }

  get url(): string {
    return `ws://127.0.0.1:${this.port}/ws`;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  cutAll(): void {
    for (const socket of this.#open) socket.destroy();
  }

  async stop(): Promise<void> {
    this.cutAll();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #forward(inner: Socket): void {
    if (this.down) return void inner.destroy();
    this.count++;
    let left = typeof this.budget === "number" ? this.budget : this.budget();
    const outer = connect(this.targetPort, "127.0.0.1");
    const pair = [inner, outer];
    const cut = () => pair.forEach((socket) => socket.destroy());
    const pipe = (from: Socket, to: Socket) => {
      this.#open.add(from);
      from.on("data", (bytes: Buffer) => {
        if (this.silent) return;
        const allowed = bytes.subarray(0, Math.max(0, Math.min(bytes.length, left)));
        left -= bytes.length;
        to.write(allowed);
        // What was allowed still arrives; a frame may be cut in its middle.
        if (left <= 0) to.end(cut);
      });
      from.on("error", cut);
      from.on("close", () => {
        this.#open.delete(from);
        cut();
      });
    };
    pipe(inner, outer);
    pipe(outer, inner);
  }
}
