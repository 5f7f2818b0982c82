// A client that plays one connection of a flow: asked to do what a step sends, and judged by the frames that come back.

import { expect } from "vitest";
import { WebSocket } from "ws";
import { type BowlineClient, type BowlineOptions, type ClientFrame, type Frame, MemoryStore, type Position, type Sealed } from "../../src/index.ts";
import type { Socket } from "../../src/socket.ts";
import { makeClient } from "./clients.ts";
import type { Names } from "./scenarios.ts";

type Fields = Record<string, unknown>;

export class Player {
  readonly #url: string;
  /** Who played before, in whose storage we find what it kept. */
  readonly #before: Player | null;
  readonly #storage = new MemoryStore();
  readonly #received: Frame[] = [];
  readonly #sent: ClientFrame[] = [];
  readonly #sockets: WebSocket[] = [];
  #client: BowlineClient | null = null;
  #wake: () => void = () => {};
  /** Asked for something while it was not connected: it says no by itself, and no frame tells so. */
  #refusedHere = false;

  constructor(url: string, before: Player | null) {
    this.#url = url;
    this.#before = before;
  }

  /** What a frame would ask for. What the client has sent by itself already is not asked for again. */
  perform(frame: Fields): void {
    const unasked = this.#sent.findIndex(({ event }) => event === frame["event"]);
    if (unasked >= 0) return void this.#sent.splice(0, unasked + 1);
    this.#refusedHere = this.#client?.connection.state === "disconnected" && frame["event"] === "user.message";
    const { event, content, session_id: id } = frame;
    const fields = typeof content === "object" && content !== null ? (content as Fields) : {};
    const done = this.#do(String(event), fields, { ...frame, id: typeof id === "string" ? id : undefined });
    // How it ends is told by the frames.
    done?.then(() => {}, () => {});
    this.#sent.length = 0;
  }

  #do(event: string, content: Fields, frame: Fields & { id: string | undefined }): Promise<unknown> | null {
    const { id } = frame;
    switch (event) {
      case "user.create_session":
        return this.#make(content).create();
      case "user.message":
        return this.#open.message(frame["content"], frame["message_id"] === undefined ? {} : { messageId: String(frame["message_id"]) });
      case "user.response":
        return this.#open.respond(String(frame["step_id"]), content as never);
      case "user.request_state":
        return this.#open.requestState(content);
      case "user.end_session":
        return this.#open.end();
      case "user.ack":
        // Acks go out by themselves.
        return null;
      case "user.reconnect":
        return this.#reconnect(content, id ?? "");
      case "user.reconnect_with_state":
        return this.#restore(frame["signed_state"] ?? content["signed_state"]);
      default:
        throw new Error(`the client has nothing for ${event}`);
    }
  }

  #reconnect(content: Fields, id: string): Promise<unknown> {
    const { mode, take_over } = content;
    const client = this.#client ?? this.#make(content, id);
    if (mode === "observe") return client.observe(id);
    if (take_over === true) return client.takeOver(id);
    return client.session === null || client.session.id === id ? client.connect() : client.observe(id);
  }

  /** With the state as the one before kept it, which is the one that the flow names. */
  #restore(signedState: unknown): Promise<unknown> {
    const kept = JSON.parse(this.#before?.kept("bowline:state") ?? "null") as Sealed;
    expect(kept.signedState).toEqual(signedState);
    this.#storage.setItem("bowline", this.#before?.kept("bowline") ?? "");
    return this.#make({}).restore(kept);
  }

  get #open(): BowlineClient {
    if (this.#client === null) throw new Error("it has not begun");
    return this.#client;
  }

  #make(content: Fields, returningTo?: string): BowlineClient {
    const config = content["config"] as { checkpoints?: boolean } | undefined;
    const options: Partial<BowlineOptions> = {
      checkpoints: config?.checkpoints === true,
      storage: this.#storage,
      resumeFrom: "kept",
      // A flow says itself how it goes on.
      whenGone: "stop",
      ...(typeof content["client_id"] === "string" ? { clientId: content["client_id"] } : {}),
      ...(typeof content["app_version"] === "string" ? { appVersion: content["app_version"] } : {}),
    };
    if (returningTo !== undefined) this.#inherit(returningTo, positionIn(content));
    this.#client = makeClient({ url: this.#url, dial: (url, protocols) => this.#dial(url, protocols), ...options });
    return this.#client;
  }

  /** The same browser, opened again: what the one before kept, with the position that the flow names. */
  #inherit(id: string, position: Position | null): void {
    const state = this.#before?.kept("bowline:state");
    if (state != null) this.#storage.setItem("bowline:state", state);
    this.#storage.setItem("bowline", JSON.stringify({ sessionId: id, ids: [id], epoch: position?.epoch ?? null, lastSeq: position?.seq ?? 0 }));
  }

  kept(key: string): string | null {
    return this.#storage.getItem(key);
  }

  #dial(url: string, protocols: string[]): Socket {
    const socket = new WebSocket(url, protocols);
    this.#sockets.push(socket);
    socket.on("message", (data) => {
      const frame = JSON.parse(String(data)) as Frame;
      if (frame.event !== "system.heartbeat" && frame.event !== "system.connected") this.#received.push(frame);
      this.#wake();
    });
    const send = socket.send.bind(socket);
    socket.send = (text: never) => {
      this.#sent.push(JSON.parse(text) as ClientFrame);
      send(text);
    };
    return socket as unknown as Socket;
  }

  async #next(): Promise<Frame> {
    while (this.#received.length === 0) await new Promise<void>((resolve) => (this.#wake = resolve));
    return this.#received.shift() as Frame;
  }

  async expect(pattern: unknown, names: Names): Promise<void> {
    if (this.#refusedHere) return;
    const frame = await this.#next();
    expect(names.matches(pattern, frame), `expected ${JSON.stringify(pattern)}, got ${JSON.stringify(frame)}`).toBe(true);
  }

  async until(pattern: unknown, names: Names): Promise<void> {
    while (!names.matches(pattern, await this.#next()));
  }

  /** Gone without a goodbye. */
  vanish(): void {
    for (const socket of this.#sockets) socket.terminate();
    this.#client?.close();
  }
}

function positionIn({ last_seq, last_event_id }: Fields): Position | null {
  if (typeof last_event_id === "string") {
    const dash = last_event_id.lastIndexOf("-");
    return { epoch: last_event_id.slice(0, dash), seq: Number(last_event_id.slice(dash + 1)) };
  }
  return typeof last_seq === "number" ? { epoch: null, seq: last_seq } : null;
}
