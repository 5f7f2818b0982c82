// A handwritten server for task streams, as the tasks' contract describes them: one log per task, resumed by cursor.

import { type IncomingMessage, type Server, type ServerResponse, createServer } from "node:http";
import type { AddressInfo, Socket } from "node:net";

interface Chunk {
  readonly id: string;
  readonly body: unknown;
}

export class TaskServer {
  readonly chunks: Chunk[] = [];
  readonly requests: string[] = [];
  /** Whether the task has ended: then `[DONE]` follows the last chunk. */
  ended = false;
  /** What the session says of itself. */
  session: Record<string, unknown> = { status: "running", active_stream: { task_id: "task_1" }, messages: [] };
  /** What the task says of itself, if not what its chunks say. */
  task: Record<string, unknown> | null = null;
  /** Answers every stream with this status instead, while set. */
  refuseWith: { status: number; body: unknown } | null = null;
  /** How many chunks a connection may carry before it is cut; and how. */
  cutAfter = Infinity;
  cutCleanly = false;
  readonly #server: Server;
  readonly #readers = new Set<() => void>();
  readonly #sockets = new Set<Socket>();

  private constructor() {
    this.#server = createServer((request, response) => this.#serve(request, response));
    this.#server.on("connection", (socket: Socket) => {
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
  }

  static async start(): Promise<TaskServer> {
    const server = new TaskServer();
    await new Promise<void>((resolve) => server.#server.listen(0, "127.0.0.1", resolve));
    return server;
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  push(...bodies: unknown[]): void {
    for (const body of bodies) this.chunks.push({ id: `ep-${this.chunks.length + 1}`, body });
    this.wake();
  }

  end(): void {
    this.ended = true;
    this.wake();
  }

  wake(): void {
    for (const reader of [...this.#readers]) reader();
  }

  cutAll(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  async stop(): Promise<void> {
    this.cutAll();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #serve(request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url ?? "/", "http://test");
    this.requests.push(`${request.method} ${url.pathname}${url.search}`);
    const json = (status: number, body: unknown) => {
      response.writeHead(status, { "content-type": "application/json" });
      response.end(JSON.stringify(body));
    };
    if (url.pathname === "/api/chat/sessions/sess_1") return json(200, this.session);
    if (url.pathname.startsWith("/api/chat/sessions/")) {
      if (url.pathname === "/api/chat/sessions/sess_1/operations") {
        return json(202, { type: "operation_started", tool_name: "demo", operation_id: "op_1", task_id: "task_1", message: "Started." });
      }
      return json(404, { code: "SESSION_NOT_FOUND", message: "No such session." });
    }
    if (url.pathname === "/api/chat/tasks/task_1") {
      const told = { task_id: "task_1", status: this.ended ? "completed" : "running", last_message_id: `ep-${this.chunks.length}`, ...this.task };
      return "code" in told ? json(404, told) : json(200, told);
    }
    if (!url.pathname.startsWith("/api/chat/tasks/task_1/")) return json(404, { code: "TASK_NOT_FOUND", message: "No such task." });
    if (this.refuseWith !== null) return json(this.refuseWith.status, this.refuseWith.body);
    this.#stream(url.searchParams.get("last_message_id") ?? "0", response);
  }

  #stream(cursor: string, response: ServerResponse): void {
    let next = cursor === "0" ? 0 : Number(cursor.split("-").at(-1));
    const refuse = (status: number, code: string) => void response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify({ code }));
    if (!Number.isInteger(next)) return refuse(400, "INVALID_PAYLOAD");
    if (!this.ended && next > this.chunks.length) return refuse(409, "CURSOR_AHEAD");
    if (this.ended && next >= this.chunks.length) return void response.writeHead(204).end();
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.flushHeaders();
    let left = this.cutAfter;
    const more = () => {
      while (next < this.chunks.length) {
        const { id, body } = this.chunks[next++] as Chunk;
        const text = `id: ${id}\ndata: ${JSON.stringify(body)}\n\n`;
        if (left-- <= 0) {
          this.#readers.delete(more);
          // Half of the chunk still arrives.
          if (this.cutCleanly) response.end();
          else response.write(text.slice(0, text.length / 2), () => response.destroy());
          return;
        }
        response.write(text);
      }
      if (this.ended) {
        this.#readers.delete(more);
        response.end("data: [DONE]\n\n");
      }
    };
    this.#readers.add(more);
    response.on("close", () => this.#readers.delete(more));
    more();
  }
}
