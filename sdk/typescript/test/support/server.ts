// A server in a process of its own, which can be killed and started again on the same directory.

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));

/** `BOWLINE_BIN`, or what `cargo build -p bowline` leaves. */
function binary(): string {
  const found = process.env["BOWLINE_BIN"] ?? join(process.env["CARGO_TARGET_DIR"] ?? join(ROOT, "target"), "debug/bowline");
  if (!existsSync(found)) throw new Error(`There is no server at ${found}. Run \`cargo build -p bowline\` first, or set BOWLINE_BIN.`);
  return found;
}

export class Server {
  port = 0;
  readonly #home = mkdtempSync(join(tmpdir(), "bowline-sdk-"));
  readonly #env: Record<string, string>;
  #child: ChildProcess | null = null;

  private constructor(env: Record<string, string>) {
    this.#env = env;
  }

  static async start(env: Record<string, string> = {}): Promise<Server> {
    const server = new Server(env);
    await server.#spawn();
    return server;
  }

  get url(): string {
    return `ws://127.0.0.1:${this.port}/ws`;
  }

  get origin(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  /** kill -9. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** SIGTERM: the server drains. */
  async terminate(): Promise<void> {
    await this.#end("SIGTERM");
  }

  /** The same again, on the same directory and, unless it is taken, the same port. */
  async restart(): Promise<void> {
    await this.kill();
    await this.#spawn();
  }

  /** All that was stored is lost. */
  async wipe(): Promise<void> {
    await this.kill();
    rmSync(join(this.#home, "data"), { recursive: true });
    await this.#spawn();
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.#home, { recursive: true, force: true });
  }

  async #spawn(): Promise<void> {
    const { BOWLINE_TEST_SEED: _seed, BOWLINE_BIN: _bin, ...inherited } = process.env;
    const child = spawn(binary(), ["serve", "--listen", `127.0.0.1:${this.port}`, "--store", `disk:${join(this.#home, "data")}`], {
      cwd: this.#home,
      env: { ...inherited, BOWLINE_LOG__LEVEL: "warn", ...this.#env },
      stdio: ["ignore", "pipe", "inherit"],
    });
    this.#child = child;
    const lines = createInterface({ input: child.stdout });
    this.port = await new Promise<number>((resolve, reject) => {
      child.once("exit", (code) => reject(new Error(`the server ended with ${code}`)));
      child.once("error", reject);
      lines.on("line", (line) => {
        const served = /serving at http:\/\/[^:]+:(\d+)/.exec(line);
        if (served !== null) resolve(Number(served[1]));
      });
    });
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    this.#child = null;
    if (child === null || child.exitCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await ended;
  }
}
