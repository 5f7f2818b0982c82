// The chat store: which task runs in which session, and the way back to its stream from wherever it broke.

import { backoffMs } from "../backoff.ts";
import { BowlineError, refusal } from "../failure.ts";
import { type StreamChunk, isObject } from "../frame.ts";
import type { KeyValueStore } from "../keeping.ts";
import { randomId } from "../random.ts";
import { type ActiveTask, type ActiveTaskInfo, ActiveTasks } from "./active.ts";
import { type Reading, readStream, refusedBy } from "./stream.ts";

export type { ActiveTask, ActiveTaskInfo, StreamChunk };

export interface ChatStoreOptions {
  /** The server's origin; the page's own by default. */
  readonly baseUrl?: string;
  readonly token?: string | (() => string | null | Promise<string | null>);
  readonly storage?: KeyValueStore;
  readonly fetch?: typeof fetch;
  /** When a kept task is forgotten without asking the server. Default: seven days after its last chunk. */
  readonly expireAfterMs?: number;
  readonly backoffSeconds?: readonly number[];
  /** Attempts in a row that bring nothing before the session is polled instead. Default 5. */
  readonly attemptsMax?: number;
  /** Silence that counts as loss. Default 30 s, three times what the server lets pass. */
  readonly silenceMs?: number;
  /** Between two looks at the session. Default 2 s. */
  readonly pollMs?: number;
  readonly random?: () => number;
}

/** Names the task of a turn in the answer to its POST. */
const TASK_HEADER = "x-workflow-run-id";

/** How a task was seen to end. */
export type TaskOutcome =
  /** Its stream was read to the end. `terminal` is its last chunk's type: `finish`, `abort`, or `error` before a `finish`. */
  | { readonly via: "stream"; readonly terminal: "finish" | "abort" | "error" }
  /** The stream could not be had (`reason`); this is the session once nothing ran in it any more. */
  | { readonly via: "session"; readonly reason: string; readonly session: Readonly<Record<string, unknown>> }
  /** Neither stream nor session is there any more. */
  | { readonly via: "gone"; readonly reason: string };

export interface ReconnectOptions {
  readonly signal?: AbortSignal;
}

export interface ChatStore {
  /** The store itself, for those used to `useChatStore.getState()`. */
  getState(): ChatStore;
  setActiveTask(sessionId: string, task: ActiveTask): void;
  getActiveTask(sessionId: string): ActiveTask | null;
  getActiveTasks(): Record<string, ActiveTask>;
  clearActiveTask(sessionId: string): void;
  updateTaskLastMessageId(sessionId: string, lastMessageId: string): void;
  /**
   * Reads the task's stream from `lastMessageId` to its end, through any number of cuts; each chunk once, in order. Falls
   * back to polling the session if the stream is gone. The active task is cleared at the end.
   */
  reconnectToTask(
    sessionId: string,
    taskId: string,
    lastMessageId: string,
    onChunk: (chunk: StreamChunk) => void,
    options?: ReconnectOptions,
  ): Promise<TaskOutcome>;
  /**
   * Asks in a session, and reads the turn as `reconnectToTask` reads a task. Under one `messageId` a message runs once, however
   * often it has to be sent.
   */
  streamMessage(
    sessionId: string,
    message: unknown,
    onChunk: (chunk: StreamChunk) => void,
    options?: ReconnectOptions & { readonly messageId?: string },
  ): Promise<TaskOutcome>;
  /** Starts a background operation and makes it the session's active task. */
  startOperation(sessionId: string, toolName: string, args?: unknown, toolCallId?: string): Promise<ActiveTask>;
  /** Stops the task's work. */
  cancelTask(taskId: string): Promise<void>;
  /** Resolves once kept tasks have been read; at once with `localStorage`. */
  readonly ready: Promise<void>;
}

export function createChatStore(options: ChatStoreOptions = {}): ChatStore {
  return new Store(options);
}

class Store implements ChatStore {
  readonly #options: ChatStoreOptions;
  readonly #tasks: ActiveTasks;

  constructor(options: ChatStoreOptions) {
    this.#options = options;
    this.#tasks = new ActiveTasks(options.storage, options.expireAfterMs);
  }

  get ready(): Promise<void> {
    return this.#tasks.ready;
  }

  getState(): ChatStore {
    return this;
  }

  setActiveTask = (sessionId: string, task: ActiveTask): void => this.#tasks.set(sessionId, task);
  getActiveTask = (sessionId: string): ActiveTask | null => this.#tasks.get(sessionId);
  getActiveTasks = (): Record<string, ActiveTask> => this.#tasks.all();
  clearActiveTask = (sessionId: string): void => this.#tasks.remove(sessionId);

  updateTaskLastMessageId = (sessionId: string, lastMessageId: string): void => {
    const task = this.#tasks.get(sessionId);
    if (task !== null) this.#tasks.set(sessionId, { ...task, lastMessageId });
  };

  reconnectToTask = async (
    sessionId: string,
    taskId: string,
    lastMessageId: string,
    onChunk: (chunk: StreamChunk) => void,
    { signal }: ReconnectOptions = {},
  ): Promise<TaskOutcome> => this.#follow(sessionId, taskId, lastMessageId, null, onChunk, signal);

  streamMessage = async (
    sessionId: string,
    message: unknown,
    onChunk: (chunk: StreamChunk) => void,
    { signal, messageId = randomId("m_") }: ReconnectOptions & { readonly messageId?: string } = {},
  ): Promise<TaskOutcome> => this.#follow(sessionId, null, "0", { message, message_id: messageId }, onChunk, signal);

  /** Reads on from the cursor until the end. A turn that has no task yet is asked for with `turn`. */
  async #follow(
    sessionId: string,
    known: string | null,
    lastMessageId: string,
    turn: unknown,
    onChunk: (chunk: StreamChunk) => void,
    signal: AbortSignal | undefined,
  ): Promise<TaskOutcome> {
    const { attemptsMax = 5, silenceMs } = this.#options;
    let taskId = known;
    let cursor = lastMessageId;
    let terminal: "finish" | "abort" | "error" | null = null;
    let failures = 0;
    const take = (chunk: StreamChunk) => {
      failures = 0;
      if (chunk.idx !== undefined) {
        if (chunk.idx === cursor) return;
        cursor = chunk.idx;
        if (taskId !== null && this.#tasks.get(sessionId)?.taskId === taskId) this.updateTaskLastMessageId(sessionId, cursor);
      }
      // An `error` is followed by a `finish`, which does not make it a success.
      if (chunk.type === "error" || chunk.type === "abort") terminal = chunk.type;
      else if (chunk.type === "finish") terminal ??= "finish";
      onChunk(chunk);
    };
    const open = async (wire: AbortSignal): Promise<Response> => {
      if (taskId !== null) {
        const path = `/api/chat/tasks/${encodeURIComponent(taskId)}/stream?last_message_id=${encodeURIComponent(cursor)}`;
        return this.#fetch("GET", path, undefined, wire);
      }
      const response = await this.#fetch("POST", `/api/chat/sessions/${encodeURIComponent(sessionId)}/stream`, turn, wire);
      taskId = response.ok ? response.headers.get(TASK_HEADER) : null;
      if (taskId !== null) this.setActiveTask(sessionId, { taskId, operationId: "", toolName: "", lastMessageId: cursor });
      return response;
    };
    for (;;) {
      const reading: Reading = await readStream(open, take, signal, silenceMs);
      if (signal?.aborted) throw signal.reason;
      if (reading.end === "done" && terminal !== null) return this.#finish(sessionId, taskId, { via: "stream", terminal });
      if (reading.end === "nothing_more") {
        const seen = terminal ?? (await this.#terminalOf(taskId));
        return this.#finish(sessionId, taskId, { via: "stream", terminal: seen });
      }
      if (reading.end === "refused" && reading.status < 500 && reading.status !== 429) {
        if (taskId === null) throw new BowlineError(refusal(reading.code, reading.message, reading.action));
        return this.#poll(sessionId, taskId, reading.code, signal);
      }
      // Without its name the turn could only be read from its start again, which would show it twice.
      if (taskId === null && cursor !== "0") return this.#poll(sessionId, null, "UNREACHABLE", signal);
      failures += 1;
      if (failures > attemptsMax) return this.#poll(sessionId, taskId, "UNREACHABLE", signal);
      await this.#wait(failures, signal);
    }
  }

  startOperation = async (sessionId: string, toolName: string, args: unknown = {}, toolCallId = randomId("call_")): Promise<ActiveTask> => {
    const path = `/api/chat/sessions/${encodeURIComponent(sessionId)}/operations`;
    const body = await this.#json("POST", path, { tool_name: toolName, arguments: args, tool_call_id: toolCallId });
    const text = (name: string) => (typeof body[name] === "string" ? (body[name] as string) : "");
    const task = { taskId: text("task_id"), operationId: text("operation_id"), toolName: text("tool_name") || toolName, lastMessageId: "0" };
    this.setActiveTask(sessionId, task);
    return task;
  };

  cancelTask = async (taskId: string): Promise<void> => {
    await this.#json("POST", `/api/chat/tasks/${encodeURIComponent(taskId)}/cancel`, {});
  };

  /** The session always knows the final state: asked until nothing runs in it any more. */
  async #poll(sessionId: string, taskId: string | null, reason: string, signal: AbortSignal | undefined): Promise<TaskOutcome> {
    const { pollMs = 2_000 } = this.#options;
    for (let failures = 0; ; ) {
      try {
        const response = await this.#fetch("GET", `/api/chat/sessions/${encodeURIComponent(sessionId)}`, undefined, signal);
        if (response.status === 404 || response.status === 410) return this.#finish(sessionId, taskId, { via: "gone", reason });
        if (!response.ok) throw new Error(`HTTP ${response.status}`);
        const session: unknown = await response.json();
        if (isObject(session) && !isRunning(session, taskId)) return this.#finish(sessionId, taskId, { via: "session", reason, session });
        failures = 0;
        await sleep(pollMs, signal);
      } catch {
        if (signal?.aborted) throw signal.reason;
        failures += 1;
        await this.#wait(failures, signal);
      }
    }
  }

  #finish(sessionId: string, taskId: string | null, outcome: TaskOutcome): TaskOutcome {
    if (this.#tasks.get(sessionId)?.taskId === taskId) this.clearActiveTask(sessionId);
    return outcome;
  }

  /** How a task ended whose last chunk was read by somebody before us. */
  async #terminalOf(taskId: string | null): Promise<"finish" | "abort" | "error"> {
    if (taskId === null) return "finish";
    const task = await this.#json("GET", `/api/chat/tasks/${encodeURIComponent(taskId)}`).catch(() => ({}) as Record<string, unknown>);
    return task["status"] === "cancelled" ? "abort" : task["status"] === "failed" ? "error" : "finish";
  }

  async #json(method: string, path: string, body?: unknown): Promise<Record<string, unknown>> {
    const response = await this.#fetch(method, path, body);
    if (!response.ok) {
      const { code, message, action } = await refusedBy(response);
      throw new BowlineError(refusal(code, message || `HTTP ${response.status}`, action));
    }
    const value: unknown = response.status === 204 ? {} : await response.json();
    return isObject(value) ? value : {};
  }

  async #fetch(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    const { baseUrl = "", token: source, fetch: given = globalThis.fetch } = this.#options;
    const token = (typeof source === "function" ? await source() : source) ?? null;
    return given(baseUrl.replace(/\/$/, "") + path, {
      method,
      cache: "no-store",
      headers: {
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    });
  }

  #wait(failures: number, signal: AbortSignal | undefined): Promise<void> {
    const { random = Math.random, backoffSeconds } = this.#options;
    return sleep(backoffMs(failures, random(), backoffSeconds), signal);
  }
}

/** A session may run something newer; what matters is whether this task still does. */
function isRunning(session: Record<string, unknown>, taskId: string | null): boolean {
  if (session["status"] === "idle") return false;
  const active = session["active_stream"];
  return !isObject(active) || taskId === null || active["task_id"] === taskId;
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
