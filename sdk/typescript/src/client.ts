// One session over one WebSocket: feeds the link what happens, and does what it says. It holds no rule of its own.

import { Emitter, guarded } from "./emitter.ts";
import { BowlineError, type Refusal, refusal } from "./failure.ts";
import { type Frame, type LoggedEvent, type Resume, type RunState, type StreamChunk, readFrame } from "./frame.ts";
import { Keeping, defaultStore } from "./keeping.ts";
import type { Answer, Exported, History, PlanAction, Question } from "./link/ask.ts";
import {
  type ConnectionState,
  type Effect,
  type Input,
  type Intent,
  type Link,
  type AttachMode,
  type TimerName,
  type Told,
  connectionState,
  newLink,
} from "./link/state.ts";
import { step } from "./link/step.ts";
import { type BowlineOptions, policyFrom } from "./options.ts";
import type { Position } from "./position.ts";
import { randomId } from "./random.ts";
import { type Sealed, sealedFrom } from "./sealed.ts";
import { type Dial, type Socket, dialWith, protocolsFor, socketUrl } from "./socket.ts";
import { sharedDial } from "./tabs/dial.ts";
import { onWake } from "./wake.ts";

/** The connection as a page can show it. */
export interface Connection {
  readonly state: ConnectionState;
  /** Attempts in a row that failed. */
  readonly attempt: number;
  /** When the next attempt is due, in milliseconds since 1970; `null` if none is. */
  readonly retryAtMs: number | null;
  /** Why it is not connected. */
  readonly cause: Refusal | null;
  readonly mode: AttachMode;
  /** Events replayed by the last return; `null` before any. */
  readonly replayed: number | null;
  /** What the last return could not replay. */
  readonly gap: { readonly fromSeq: number; readonly toSeq: number; readonly lost: number } | null;
}

export interface SessionInfo {
  readonly id: string;
  readonly epoch: string | null;
  readonly lastSeq: number;
  readonly run: RunState;
  /** What proves that the session is ours, where the server asks for that; a new one after each return. */
  readonly resumeToken: string | null;
}

export interface BowlineEvents {
  /** A logged event: each once, in order. */
  event: LoggedEvent;
  connection: Connection;
  /** Events that are gone; comes before any later event. */
  gap: { readonly fromSeq: number; readonly toSeq: number; readonly lost: number };
  /** What was shown so far is no longer what the log holds: clear it. What the log has follows as events. */
  reset: { readonly why: "other_epoch" | "ahead_of_log" | "new_session" };
  /** After a gap: what was said, from the session's state, as far as the server lets a client read it. */
  history: History;
  resumed: Resume;
  restored: { readonly source: string; readonly originalSessionId: string; readonly warnings: readonly string[] };
  /** A sealed state was pushed, and is kept. */
  checkpoint: Sealed;
  notice: Frame;
  /** A refusal that answers no call of ours. */
  error: BowlineError;
}

interface Waiter {
  resolve(value: never): void;
  reject(error: unknown): void;
  readonly onChunk?: (chunk: StreamChunk) => void;
}

export class BowlineClient {
  readonly #options: BowlineOptions;
  readonly #emitter = new Emitter<BowlineEvents>();
  readonly #keeping: Keeping;
  readonly #dial: Dial;
  readonly #timers = new Map<TimerName, ReturnType<typeof setTimeout>>();
  readonly #waiters = new Map<number, Waiter>();
  #reaching: Waiter[] = [];
  #inputs: Input[] = [];
  #busy = false;
  #link: Link;
  #socket: Socket | null = null;
  /** Counts dials, so that whatever a former one brings is ignored. */
  #dialed = 0;
  #keys = 0;
  /** Counts closings, so that a start that still waits for the storage does not come after one. */
  #closes = 0;
  #loaded: Promise<void> | null = null;
  #connection: Connection;
  #lastReturn: Pick<Connection, "replayed" | "gap"> = { replayed: null, gap: null };
  #unlisten: () => void = () => {};

  constructor(options: BowlineOptions) {
    this.#options = options;
    const failed = (error: unknown) => this.#emitter.emit("error", new BowlineError(refusal("STORAGE_FAILED", String(error))));
    this.#keeping = new Keeping(options.storage ?? defaultStore(), options.name ?? "bowline", failed);
    const direct = dialWith(options.webSocket);
    this.#dial = options.dial ?? (options.shared === false ? direct : sharedDial(direct));
    this.#link = newLink(policyFrom(options, options.clientId ?? ""));
    this.#connection = this.#look();
  }

  get connection(): Connection {
    return this.#connection;
  }

  /** `null` before a session is known. */
  get session(): SessionInfo | null {
    const { session, position, run } = this.#link;
    return session && { id: session.id, epoch: position?.epoch ?? null, lastSeq: position?.seq ?? 0, run, resumeToken: session.resumeToken };
  }

  /** The newest sealed state that is kept. */
  get sealed(): Sealed | null {
    return this.#link.sealed;
  }

  on<Name extends keyof BowlineEvents>(name: Name, listener: (value: BowlineEvents[Name]) => void): () => void {
    return this.#emitter.on(name, listener);
  }

  /** Back to the kept session: quick, else with the kept state, else a new session. Resolves once it is live. */
  connect(): Promise<SessionInfo> {
    return this.#start({ to: "resume" });
  }

  /** A new session, whatever is kept; with another agent, if one is named. */
  create(options: { readonly agent?: string } = {}): Promise<SessionInfo> {
    return this.#start({ to: "create", create: options });
  }

  /** Watches a session without holding it. */
  observe(sessionId?: string, from?: Position | null): Promise<SessionInfo> {
    return this.#attach("observe", false, sessionId, from);
  }

  /** Takes the session from whichever connection holds it. */
  takeOver(sessionId?: string, from?: Position | null): Promise<SessionInfo> {
    return this.#attach("hold", true, sessionId, from);
  }

  /** Without an argument as `connect`. With a sealed state: back with exactly that one, or an error. */
  restore(state?: Sealed | string | object): Promise<SessionInfo> {
    return state === undefined ? this.connect() : this.#start({ to: "restore", sealed: sealedFrom(state) });
  }

  /**
   * Resolves once the message is in the log, or queued. It is sent again after a loss, under the same `messageId`, so that it
   * runs once.
   */
  message(content: unknown, options: { messageId?: string } = {}): Promise<Extract<Answer, { kind: "message" }>> {
    return this.#ask({ kind: "message", messageId: options.messageId ?? randomId("m_"), content });
  }

  /** Answers a question that an `agent.user_confirm` asked. */
  respond(stepId: string, content: { confirmed: boolean; tasks?: unknown; reason?: string }): Promise<Extract<Answer, { kind: "response" }>> {
    return this.#ask({ kind: "response", stepId, content });
  }

  /** Stops the run. `cancelled` is false if there was none, or if it ended by itself. */
  cancel(reason?: string): Promise<Extract<Answer, { kind: "cancel" }>> {
    return this.#ask({ kind: "cancel", reason: reason ?? null });
  }

  /** A sealed state of the session as it is now. It is kept, too. */
  async requestState(
    content: { include_memory?: boolean; include_plan?: boolean; include_work?: boolean; format?: "object" | "token" } = {},
  ): Promise<Exported> {
    const answer: Extract<Answer, { kind: "export" }> = await this.#ask({ kind: "export", content });
    return answer.exported;
  }

  /** One of the five frames about plans; `ok` is false if there was nothing to do. */
  plan(action: PlanAction, fields: Readonly<Record<string, unknown>> = {}): Promise<Extract<Answer, { kind: "plan" }>> {
    return this.#ask({ kind: "plan", action, fields });
  }

  /**
   * Reads a task's stream over this connection, from `lastMessageId` to its end, through any number of cuts; each chunk once,
   * in order. Who watches the same task next, in any tab, takes it over: `status` is then `elsewhere`.
   */
  async watchTask(
    taskId: string,
    lastMessageId: string,
    onChunk: (chunk: StreamChunk) => void,
    { signal }: { readonly signal?: AbortSignal } = {},
  ): Promise<Extract<Answer, { kind: "watch" }>> {
    signal?.throwIfAborted();
    const key = ++this.#keys;
    const stop = () => {
      this.#happen({ on: "unwatch", key });
      this.#settle(key, (waiter) => waiter.reject(signal?.reason));
    };
    signal?.addEventListener("abort", stop);
    const ended = new Promise<Extract<Answer, { kind: "watch" }>>((resolve, reject) => {
      this.#waiters.set(key, { resolve, reject, onChunk });
      this.#happen({ on: "watch", watch: { key, taskId, cursor: lastMessageId, asked: false } });
    });
    return ended.finally(() => signal?.removeEventListener("abort", stop));
  }

  /** Ends the session for good. */
  async end(): Promise<void> {
    await this.#ask({ kind: "end" });
  }

  /** Lets the connection go; the session and its work go on. */
  close(): void {
    this.#closes++;
    this.#happen({ on: "stop" });
    this.#unlisten();
  }

  /** Cuts the wire, as a tunnel would. The client comes back by itself. */
  drop(): void {
    this.#happen({ on: "cut" });
  }

  /** Tells the client that the device woke up; browsers do so by themselves. */
  wake(): void {
    this.#happen({ on: "wake" });
  }

  #attach(mode: AttachMode, takeOver: boolean, sessionId?: string, from?: Position | null): Promise<SessionInfo> {
    const another = sessionId !== undefined && sessionId !== this.#link.session?.id;
    const position = from === undefined ? (another ? { epoch: null, seq: 0 } : undefined) : from;
    return this.#start({
      to: "attach",
      mode,
      takeOver,
      ...(sessionId === undefined ? {} : { sessionId }),
      ...(position === undefined ? {} : { position }),
    });
  }

  async #start(intent: Intent): Promise<SessionInfo> {
    this.#loaded ??= this.#load();
    const closes = this.#closes;
    await this.#loaded;
    if (closes !== this.#closes) throw new BowlineError(refusal("CLOSED", "The client was closed."));
    this.#unlisten();
    this.#unlisten = onWake(() => this.wake(), () => this.#keeping.keep(this.#link));
    const reached = new Promise<SessionInfo>((resolve, reject) => this.#reaching.push({ resolve, reject }));
    this.#happen({ on: "start", intent });
    return reached;
  }

  async #load(): Promise<void> {
    const kept = await this.#keeping.load();
    const { resumeFrom = "start", clientId } = this.#options;
    const from = resumeFrom === "start" ? kept.position && { ...kept.position, seq: 0 } : resumeFrom === "kept" ? kept.position : resumeFrom;
    this.#link = {
      ...this.#link,
      policy: policyFrom(this.#options, clientId ?? (await tabName()) ?? kept.clientId ?? randomId("client_")),
      session: kept.session,
      position: from,
      sealed: kept.sealed,
    };
  }

  #ask<Found extends Answer>(question: Question): Promise<Found> {
    const key = ++this.#keys;
    return new Promise<Found>((resolve, reject) => {
      this.#waiters.set(key, { resolve, reject });
      this.#happen({ on: "ask", ask: { key, question, wasSent: false, tries: 0 } });
    });
  }

  /** One thing at a time, drained fully: what a listener does while it is called waits its turn. */
  #happen(input: Input): void {
    this.#inputs.push(input);
    if (this.#busy) return;
    this.#busy = true;
    for (let next = this.#inputs.shift(); next !== undefined; next = this.#inputs.shift()) {
      const random = (this.#options.random ?? Math.random)();
      const [link, effects] = step(this.#link, next, { nowMs: Date.now(), random });
      this.#link = link;
      for (const effect of effects) this.#do(effect);
      this.#show();
    }
    this.#busy = false;
  }

  #do(effect: Effect): void {
    switch (effect.do) {
      case "dial":
        return void this.#open();
      case "hang_up":
        return this.#hangUp(effect.code);
      case "send":
        return this.#socket?.send(JSON.stringify(effect.frame));
      case "deliver":
        return this.#emitter.emit("event", effect.event);
      case "tell":
        return this.#tell(effect.told);
      case "answer":
        return this.#settle(effect.key, (waiter) => waiter.resolve(effect.answer as never));
      case "chunk":
        return guarded(() => this.#waiters.get(effect.key)?.onChunk?.(effect.chunk));
      case "fail":
        return this.#settle(effect.key, (waiter) => waiter.reject(new BowlineError(effect.refusal)));
      case "keep":
        return this.#keeping.keep(this.#link);
      case "keep_state":
        return this.#keeping.keepState(this.#link.sealed);
      case "timer":
        return this.#timer(effect.name, effect.inMs);
      case "stop_timers":
        for (const name of effect.names) {
          clearTimeout(this.#timers.get(name));
          this.#timers.delete(name);
        }
        return;
      case "fetch_token":
        return void this.#token().then(
          (token) => this.#happen({ on: "token", token }),
          () => this.#happen({ on: "token", token: null }),
        );
    }
  }

  #tell(told: Told): void {
    if (told.kind === "refused") return this.#emitter.emit("error", new BowlineError(told.refusal));
    if (told.kind === "notice") return this.#emitter.emit("notice", told.frame);
    if (told.kind === "checkpoint") return this.#emitter.emit("checkpoint", told.sealed);
    if (told.kind === "gap") {
      const { fromSeq, toSeq, lost } = told;
      this.#lastReturn = { ...this.#lastReturn, gap: { fromSeq, toSeq, lost } };
      return this.#emitter.emit("gap", { fromSeq, toSeq, lost });
    }
    if (told.kind === "replayed") {
      this.#lastReturn = { ...this.#lastReturn, replayed: told.count };
    } else if (told.kind === "resumed") {
      if (told.resume.verdict !== "gap") this.#lastReturn = { ...this.#lastReturn, gap: null };
      this.#emitter.emit("resumed", told.resume);
    } else {
      this.#emitter.emit(told.kind, told as never);
    }
  }

  #timer(name: TimerName, inMs: number): void {
    clearTimeout(this.#timers.get(name));
    this.#timers.set(name, setTimeout(() => this.#happen({ on: "timer", name }), inMs));
  }

  #settle(key: number, how: (waiter: Waiter) => void): void {
    const waiter = this.#waiters.get(key);
    this.#waiters.delete(key);
    if (waiter !== undefined) how(waiter);
  }

  async #open(): Promise<void> {
    const dialed = ++this.#dialed;
    const current = () => dialed === this.#dialed;
    const lost = (code: number) => {
      if (!current()) return;
      this.#socket = null;
      this.#dialed++;
      this.#happen({ on: "closed", code });
    };
    try {
      const token = await this.#token();
      if (!current()) return;
      const socket = this.#dial(socketUrl(this.#options.url), protocolsFor(token));
      this.#socket = socket;
      socket.onmessage = ({ data }) => {
        const frame = current() ? readFrame(data) : null;
        if (frame !== null) this.#happen({ on: "frame", frame });
      };
      socket.onclose = ({ code }) => lost(code);
      // A close always follows, and says what can be said.
      socket.onerror = () => {};
    } catch {
      lost(1006);
    }
  }

  #hangUp(code: number): void {
    const socket = this.#socket;
    this.#socket = null;
    this.#dialed++;
    if (socket === null) return;
    socket.onmessage = null;
    socket.onclose = null;
    try {
      socket.close(code);
    } catch {
      // It was closed already.
    }
  }

  async #token(): Promise<string | null> {
    const { token } = this.#options;
    return (typeof token === "function" ? await token() : token) ?? null;
  }

  #look(): Connection {
    const { phase, mode } = this.#link;
    return {
      state: connectionState(phase),
      attempt: "attempt" in phase ? phase.attempt : 0,
      retryAtMs: phase.at === "waiting" ? phase.retryAtMs : null,
      cause: "cause" in phase ? phase.cause : null,
      mode,
      ...this.#lastReturn,
    };
  }

  /** Reports what has changed to listeners, and to callers that wait for the link to be live. */
  #show(): void {
    const { phase } = this.#link;
    const now = this.#look();
    const before = this.#connection;
    if ((Object.keys(now) as (keyof Connection)[]).some((key) => now[key] !== before[key])) {
      this.#connection = now;
      this.#emitter.emit("connection", now);
    }
    if (phase.at !== "live" && phase.at !== "disconnected") return;
    const waiters = this.#reaching;
    this.#reaching = [];
    for (const waiter of waiters) {
      if (phase.at === "live") waiter.resolve(this.session as never);
      else waiter.reject(new BowlineError(phase.cause ?? refusal("CLOSED", "The client was closed.")));
    }
  }
}

/** A name that a tab keeps over reloads; `null` where there are no tabs. */
async function tabName(): Promise<string | null> {
  if (typeof document === "undefined") return null;
  const store = defaultStore("sessionStorage");
  const known = await store.getItem("bowline:client");
  if (known != null) return known;
  const name = randomId("tab_");
  store.setItem("bowline:client", name);
  return name;
}
