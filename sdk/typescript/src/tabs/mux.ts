// Many tabs over one WebSocket: each tab's client believes that it has a wire of its own, called a port here.

import { type Frame, isObject, readFrame, word } from "../frame.ts";
import { WIRE_DEAD } from "../link/loss.ts";
import { ELSEWHERE, refusedTask } from "../link/watching.ts";
import { randomId } from "../random.ts";
import type { Socket } from "../socket.ts";

/** What is sent to a port. */
export type PortNews = { readonly say: "frame"; readonly text: string } | { readonly say: "closed"; readonly code: number };

interface Request {
  readonly event: string;
  readonly session_id?: string;
  readonly task_id?: string;
  readonly content?: Record<string, unknown>;
  readonly [field: string]: unknown;
}

interface Shared {
  /** Who asked to be attached and was not answered yet, in order; `null` for ourselves. */
  readonly greetings: (string | null)[];
  /** Who was greeted and is being replayed to. */
  replaying: string | null;
  /** The last event that came since the last greeting. The server takes no ack beyond it. */
  lastSeq: number;
  /** The port of the last request; only it gets a refusal. */
  asker: string | null;
  /** Which ports may write. */
  readonly holders: Set<string>;
  resumeToken: string | null;
}

export class Mux {
  readonly #dial: (protocols: string[]) => Socket;
  readonly #tell: (port: string, news: PortNews) => void;
  /** One name for all tabs: the connection that comes back is then never kept waiting by its predecessor. */
  readonly #clientId: string;
  /** The sessions and tasks that a port has to do with. */
  readonly #ports = new Map<string, Set<string>>();
  readonly #sessions = new Map<string, Shared>();
  /** Requests that name no session are answered one at a time, since nothing else distinguishes their answers. */
  #unnamed: { readonly port: string; readonly text: string }[] = [];
  #socket: Socket | null = null;
  #hello: string | null = null;

  constructor(dial: (protocols: string[]) => Socket, tell: (port: string, news: PortNews) => void, clientId = randomId("tabs_")) {
    this.#dial = dial;
    this.#tell = tell;
    this.#clientId = clientId;
  }

  open(port: string, protocols: string[]): void {
    this.#ports.set(port, new Set());
    if (this.#hello !== null) return this.#tell(port, { say: "frame", text: this.#hello });
    if (this.#socket !== null) return;
    try {
      const socket = this.#dial(protocols);
      this.#socket = socket;
      const current = () => this.#socket === socket;
      socket.onmessage = ({ data }) => current() && this.#receive(data);
      socket.onclose = ({ code }) => current() && this.#closed(code);
      socket.onerror = () => {};
    } catch {
      this.#closed(1006);
    }
  }

  send(port: string, text: string): void {
    const sessions = this.#ports.get(port);
    const request = readFrame(text) as Request | null;
    if (sessions === undefined) return this.#tell(port, { say: "closed", code: 1006 });
    if (request === null) return;
    const { event, session_id: id } = request;
    if (event === "user.create_session" || request["signed_state"] !== undefined) {
      this.#unnamed.push({ port, text: JSON.stringify(this.#renamed(request)) });
      if (this.#unnamed.length === 1) this.#socket?.send(this.#unnamed[0]?.text ?? "");
    } else if (event === "user.reconnect" && id !== undefined) {
      sessions.add(id);
      this.#attach(port, id, request);
    } else if (request.task_id !== undefined && id === undefined) {
      if (event === "user.watch_task") this.#watch(port, request.task_id);
      this.#socket?.send(text);
    } else if (event !== "user.ack" || id === undefined || ackedSeq(request) <= this.#session(id).lastSeq) {
      if (id !== undefined && event !== "user.ack") this.#session(id).asker = port;
      this.#socket?.send(text);
    }
  }

  close(port: string, code: number): void {
    const sessions = this.#ports.get(port);
    if (sessions === undefined) return;
    this.#ports.delete(port);
    this.#unnamed = this.#unnamed.filter((waiting, index) => index === 0 || waiting.port !== port);
    // The silence of one tab is the silence of all: there is only one wire.
    if (code === WIRE_DEAD) return this.#hangUp(WIRE_DEAD);
    if (this.#ports.size === 0) return this.#hangUp(1000);
    for (const id of sessions) this.#leave(port, id);
  }

  /** Notifies all ports of this wire that it is gone. */
  #hangUp(code: number): void {
    const socket = this.#socket;
    this.#closed(1006);
    try {
      socket?.close(code);
    } catch {
      // It was closed already.
    }
  }

  #attach(port: string, id: string, request: Request): void {
    const session = this.#session(id);
    const { mode, ...content } = request.content ?? {};
    const observing = mode === "observe";
    if (observing) session.holders.delete(port);
    else session.holders.add(port);
    // To the server we are one. As an observer it would take the hold from the other tabs.
    const sentMode = observing && session.holders.size === 0 ? mode : undefined;
    const token = session.resumeToken ?? content["resume_token"];
    session.greetings.push(port);
    this.#socket?.send(JSON.stringify(this.#renamed({ ...request, content: { ...content, resume_token: token, mode: sentMode } })));
  }

  /** The server knows one watch for each task of a connection. So the newest has it, and the others are notified. */
  #watch(port: string, task: string): void {
    const end = JSON.stringify({ event: "task.end", task_id: task, content: { status: ELSEWHERE } });
    for (const [other, names] of this.#ports) if (names.delete(task) && other !== port) this.#to(other, end);
    this.#ports.get(port)?.add(task);
  }

  /** A task is watched no more. Or the last tab that held a session has gone: its hold is given up, so that another device need not take it over. */
  #leave(port: string, id: string): void {
    if (!this.#sessions.has(id)) return this.#socket?.send(JSON.stringify({ event: "user.unwatch_task", task_id: id }));
    const session = this.#session(id);
    const held = session.holders.delete(port);
    if (!held || session.holders.size > 0) return;
    const content = { mode: "observe", last_seq: session.lastSeq, resume_token: session.resumeToken ?? undefined };
    session.greetings.push(null);
    this.#socket?.send(JSON.stringify({ event: "user.reconnect", session_id: id, content }));
  }

  #receive(data: unknown): void {
    const frame = readFrame(data);
    if (frame === null) return;
    const text = data as string;
    const id = frame.session_id;
    if (frame.event === "system.connected") this.#hello = text;
    const task = frame.task_id ?? refusedTask(frame);
    if (task !== undefined) return this.#toSession(task, text);
    if (frame.seq !== undefined) return this.#event(frame, text);
    if (frame.event === "agent.state_restored" || (frame.event === "agent.session_created" && frame.metadata?.["reconnected"] !== true)) {
      return this.#named(frame, text);
    }
    const refused = frame.event === "system.error" || frame.event === "error.recovery_failed" || frame.event === "agent.error";
    if (id === undefined) {
      if (refused && this.#unnamed.length > 0) return this.#answerUnnamed(text);
      return this.#toAll(text);
    }
    const session = this.#session(id);
    if (frame.event === "agent.session_created") return this.#greeted(session, frame, text);
    if (refused) {
      const to = session.greetings.length > 0 ? session.greetings.shift() : session.asker;
      return this.#to(to ?? null, text);
    }
    if (word(frame, "action") === "replay") {
      const to = session.replaying;
      session.replaying = null;
      return this.#to(to, text);
    }
    // A heartbeat is a sign of life for everyone.
    if (frame.event === "system.heartbeat") return this.#toAll(text);
    this.#toSession(id, text);
  }

  #event(frame: Frame, text: string): void {
    const id = frame.session_id ?? "";
    // A session that every tab has left is still known, and no tab has it.
    if (this.#sessions.has(id)) {
      this.#session(id).lastSeq = Math.max(this.#session(id).lastSeq, frame.seq ?? 0);
      return this.#toSession(id, text);
    }
    // An older name of a session that is being replayed: only who is replayed to can make sense of it.
    for (const session of this.#sessions.values()) {
      if (session.replaying === null) continue;
      session.lastSeq = Math.max(session.lastSeq, frame.seq ?? 0);
      this.#to(session.replaying, text);
    }
  }

  #greeted(session: Shared, frame: Frame, text: string): void {
    const resume = frame.metadata?.["resume"];
    const from = isObject(resume) ? resume["from_seq"] : undefined;
    const last = frame.metadata?.["last_seq"];
    session.lastSeq = typeof from === "number" ? from - 1 : typeof last === "number" ? last : 0;
    session.replaying = session.greetings.shift() ?? null;
    this.#to(session.replaying, text);
    this.#renewToken(session, frame);
  }

  /** A new session, or one under a new name, for the port that asked. */
  #named(frame: Frame, text: string): void {
    const port = this.#unnamed[0]?.port;
    const names = [frame.session_id, word(frame, "original_session_id")].filter((name) => name !== undefined);
    if (port !== undefined && this.#ports.has(port)) {
      for (const name of names) {
        this.#ports.get(port)?.add(name);
        this.#session(name).holders.add(port);
      }
      const session = this.#session(frame.session_id ?? "");
      if (frame.event === "agent.state_restored") session.replaying = port;
      this.#renewToken(session, frame);
    }
    this.#answerUnnamed(text);
  }

  #answerUnnamed(text: string): void {
    const [answered, next] = this.#unnamed;
    this.#unnamed = this.#unnamed.slice(1);
    this.#to(answered?.port ?? null, text);
    if (next !== undefined) this.#socket?.send(next.text);
  }

  /** All tabs share the newest token: an older one would lock its tab out. */
  #renewToken(session: Shared, frame: Frame): void {
    const token = word(frame, "resume_token");
    const id = frame.session_id;
    if (token === undefined || id === undefined) return;
    session.resumeToken = token;
    const metadata = { action: "resume_token", resume_token: token };
    this.#toSession(id, JSON.stringify({ event: "system.notice", session_id: id, content: "", metadata }));
  }

  #closed(code: number): void {
    const ports = [...this.#ports.keys()];
    this.#socket = null;
    this.#hello = null;
    this.#unnamed = [];
    this.#ports.clear();
    this.#sessions.clear();
    for (const port of ports) this.#tell(port, { say: "closed", code });
  }

  #session(id: string): Shared {
    const known = this.#sessions.get(id);
    if (known !== undefined) return known;
    const made = { greetings: [], replaying: null, lastSeq: 0, asker: null, holders: new Set<string>(), resumeToken: null };
    this.#sessions.set(id, made);
    return made;
  }

  #renamed(request: Request): Request {
    return { ...request, content: { ...request.content, client_id: this.#clientId } };
  }

  #to(port: string | null, text: string): void {
    if (port !== null && this.#ports.has(port)) this.#tell(port, { say: "frame", text });
  }

  #toAll(text: string): void {
    for (const port of this.#ports.keys()) this.#to(port, text);
  }

  #toSession(id: string, text: string): void {
    for (const [port, sessions] of this.#ports) if (sessions.has(id)) this.#to(port, text);
  }
}

/** How far an ack of ours goes. Our clients send `last_event_id`, or `last_seq` before they know the epoch. */
function ackedSeq(request: Request): number {
  const { last_event_id: id, last_seq: seq } = request.content ?? {};
  return typeof id === "string" ? Number(id.slice(id.lastIndexOf("-") + 1)) : Number(seq ?? 0);
}
