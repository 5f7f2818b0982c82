// The tasks that are under way, per session, as they outlive the page.

import { isObject } from "../frame.ts";
import { type KeyValueStore, defaultStore } from "../keeping.ts";

/** Under this key of `localStorage`. */
export const ACTIVE_TASKS_KEY = "chat_active_tasks";

export interface ActiveTask {
  readonly taskId: string;
  readonly operationId: string;
  readonly toolName: string;
  /** The id of the last chunk; `"0"` before any. */
  readonly lastMessageId: string;
}

export type ActiveTaskInfo = ActiveTask;

interface Entry extends ActiveTask {
  readonly touchedAtMs: number;
}

/**
 * After seven days without a sign the server no longer knows that there was such a task. Before that, only the server can
 * tell: a task may run for longer than any lifetime that we could assume.
 */
export const EXPIRE_AFTER_MS = 7 * 24 * 3600 * 1000;

export class ActiveTasks {
  readonly #store: KeyValueStore;
  readonly #expireAfterMs: number;
  readonly #now: () => number;
  #entries: Record<string, Entry> = {};
  /** Resolves once what was kept has been read. At once, if the store is synchronous. */
  readonly ready: Promise<void>;

  constructor(store: KeyValueStore = defaultStore(), expireAfterMs = EXPIRE_AFTER_MS, now: () => number = Date.now) {
    this.#store = store;
    this.#expireAfterMs = expireAfterMs;
    this.#now = now;
    const kept = store.getItem(ACTIVE_TASKS_KEY);
    if (kept instanceof Promise) {
      this.ready = kept.then((text) => this.#read(text ?? null), () => {});
    } else {
      this.#read(kept ?? null);
      this.ready = Promise.resolve();
    }
  }

  get(sessionId: string): ActiveTask | null {
    const entry = this.#entries[sessionId];
    if (entry === undefined) return null;
    if (this.#isExpired(entry)) {
      this.remove(sessionId);
      return null;
    }
    const { taskId, operationId, toolName, lastMessageId } = entry;
    return { taskId, operationId, toolName, lastMessageId };
  }

  all(): Record<string, ActiveTask> {
    const live = Object.keys(this.#entries).map((id) => [id, this.get(id)] as const);
    return Object.fromEntries(live.filter((pair): pair is [string, ActiveTask] => pair[1] !== null));
  }

  set(sessionId: string, task: ActiveTask): void {
    this.#entries = { ...this.#entries, [sessionId]: { ...task, touchedAtMs: this.#now() } };
    this.#write();
  }

  remove(sessionId: string): void {
    const { [sessionId]: gone, ...rest } = this.#entries;
    if (gone === undefined) return;
    this.#entries = rest;
    this.#write();
  }

  #read(text: string | null): void {
    try {
      const kept: unknown = JSON.parse(text ?? "{}");
      if (!isObject(kept)) return;
      for (const [id, value] of Object.entries(kept)) {
        const entry = readEntry(value, this.#now());
        // What was set while we read is newer.
        if (entry !== null && !this.#isExpired(entry)) this.#entries = { [id]: entry, ...this.#entries };
      }
    } catch {
      // Something else wrote there. The server still knows what runs.
    }
  }

  #isExpired(entry: Entry): boolean {
    return entry.touchedAtMs + this.#expireAfterMs <= this.#now();
  }

  #write(): void {
    try {
      const done = this.#store.setItem(ACTIVE_TASKS_KEY, JSON.stringify(this.#entries));
      if (done instanceof Promise) done.catch(() => {});
    } catch {
      // A full storage costs the position after a restart, and nothing now.
    }
  }
}

function readEntry(value: unknown, nowMs: number): Entry | null {
  if (!isObject(value) || typeof value["taskId"] !== "string") return null;
  const text = (name: string, otherwise: string) => (typeof value[name] === "string" ? (value[name] as string) : otherwise);
  return {
    taskId: value["taskId"],
    operationId: text("operationId", ""),
    toolName: text("toolName", ""),
    lastMessageId: text("lastMessageId", "0"),
    touchedAtMs: typeof value["touchedAtMs"] === "number" ? value["touchedAtMs"] : nowMs,
  };
}
