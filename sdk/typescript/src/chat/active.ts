// The tasks that are under way, per session, as they outlive the page and as all tabs know them.

import { isObject } from "../frame.ts";
import type { KeyValueStore } from "../keeping.ts";
import { type Codec, Shared, type SharedTools } from "./shared.ts";

/** Under this key of `localStorage`: for each session its newest task, and the others as `others` in it. */
export const ACTIVE_TASKS_KEY = "chat_active_tasks";

/** Under this one, tasks that were seen to end, so that a tab which does not know yet cannot bring one back. */
export const ENDED_TASKS_KEY = "chat_ended_tasks";

export interface ActiveTask {
  readonly taskId: string;
  readonly operationId: string;
  readonly toolName: string;
  /** The id of the last chunk; `"0"` before any. */
  readonly lastMessageId: string;
}

export type ActiveTaskInfo = ActiveTask;

/**
 * After seven days without a sign the server no longer knows that there was such a task. Before that, only the server can
 * tell: a task may run for longer than any lifetime that we could assume.
 */
export const EXPIRE_AFTER_MS = 7 * 24 * 3600 * 1000;

/** A tab that slept through this has long read the storage anew. */
const ENDED_KEPT_MS = 24 * 3600 * 1000;
const ENDED_KEPT_MAX = 200;
/** More than any page shows; the oldest go first. */
const TASKS_PER_SESSION_MAX = 64;

interface Entry extends ActiveTask {
  readonly sessionId: string;
  readonly setAtMs: number;
  readonly touchedAtMs: number;
}

interface Ended {
  readonly sessionId: string;
  readonly atMs: number;
}

/** By task. */
export type Entries = Readonly<Record<string, Entry>>;
export type Endings = Readonly<Record<string, Ended>>;

/** Tasks as a storage has them. Of two that speak of one task, the later counts. */
export function entriesCodec(isLive: (entry: Entry) => boolean, now: () => number): Codec<Entries> {
  return {
    empty: {},
    merge: (one, other) => {
      const merged: Record<string, Entry> = { ...one };
      for (const [id, entry] of Object.entries(other)) merged[id] = later(merged[id], entry);
      return merged;
    },
    parse: (text) => {
      const entries: Record<string, Entry> = {};
      for (const [sessionId, value] of Object.entries(readObject(text))) {
        const others = isObject(value) && Array.isArray(value["others"]) ? value["others"] : [];
        for (const each of [value, ...others]) {
          const entry = readEntry(sessionId, each, now());
          if (entry !== null) entries[entry.taskId] = later(entries[entry.taskId], entry);
        }
      }
      return entries;
    },
    print: (entries) => {
      const sessions: Record<string, object> = {};
      const live = Object.values(entries).filter(isLive);
      for (const sessionId of [...new Set(live.map((entry) => entry.sessionId))].sort()) {
        const own = live.filter((entry) => entry.sessionId === sessionId).sort(bySetting).slice(-TASKS_PER_SESSION_MAX);
        const [newest, ...others] = own.reverse().map(({ sessionId: _session, ...rest }) => rest);
        sessions[sessionId] = { ...newest, ...(others.length === 0 ? {} : { others }) };
      }
      return JSON.stringify(sessions);
    },
  };
}

export function endingsCodec(now: () => number): Codec<Endings> {
  return {
    empty: {},
    merge: (one, other) => {
      const merged: Record<string, Ended> = { ...one };
      for (const [id, ended] of Object.entries(other)) {
        const known = merged[id];
        if (known === undefined || compare([known.atMs, known.sessionId], [ended.atMs, ended.sessionId]) < 0) merged[id] = ended;
      }
      return merged;
    },
    parse: (text) => {
      const endings: Record<string, Ended> = {};
      for (const [id, value] of Object.entries(readObject(text))) {
        if (!isObject(value) || typeof value["atMs"] !== "number") continue;
        endings[id] = { sessionId: String(value["sessionId"] ?? ""), atMs: value["atMs"] };
      }
      return endings;
    },
    print: (endings) => {
      const kept = Object.entries(endings).filter(([, { atMs }]) => atMs + ENDED_KEPT_MS > now());
      kept.sort(([a, x], [b, y]) => compare([x.atMs, a], [y.atMs, b]));
      return JSON.stringify(Object.fromEntries(kept.slice(-ENDED_KEPT_MAX)));
    },
  };
}

export class ActiveTasks {
  readonly #entries: Shared<Entries>;
  readonly #endings: Shared<Endings>;
  readonly #expireAfterMs: number;
  readonly #now: () => number;
  readonly #onChange: () => void;
  readonly ready: Promise<void>;

  constructor(
    store: KeyValueStore,
    options: { readonly expireAfterMs?: number; readonly now?: () => number; readonly tools?: SharedTools; readonly onChange?: () => void } = {},
  ) {
    this.#expireAfterMs = options.expireAfterMs ?? EXPIRE_AFTER_MS;
    this.#now = options.now ?? Date.now;
    this.#onChange = options.onChange ?? (() => {});
    const { tools = {} } = options;
    this.#endings = new Shared(ENDED_TASKS_KEY, store, endingsCodec(this.#now), tools, this.#onChange);
    const codec = entriesCodec((entry) => this.#isLive(entry), this.#now);
    this.#entries = new Shared(ACTIVE_TASKS_KEY, store, codec, tools, this.#onChange);
    this.ready = Promise.all([this.#entries.ready, this.#endings.ready]).then(() => {});
  }

  /** The session's newest. */
  get(sessionId: string): ActiveTask | null {
    return this.of(sessionId).at(-1) ?? null;
  }

  /** All of a session, the oldest first. */
  of(sessionId: string): ActiveTask[] {
    return this.#live().filter((entry) => entry.sessionId === sessionId).map(shown);
  }

  all(): Record<string, ActiveTask> {
    // Of a session with several, the newest comes last and stays.
    return Object.fromEntries(this.#live().map((entry) => [entry.sessionId, shown(entry)]));
  }

  /** Whose task this is, as far as it was ever known here. */
  sessionOf(taskId: string): string | null {
    return this.#entries.value[taskId]?.sessionId ?? this.#endings.value[taskId]?.sessionId ?? null;
  }

  set(sessionId: string, task: ActiveTask): void {
    const { taskId, operationId, toolName, lastMessageId } = task;
    const newest = Math.max(0, ...Object.values(this.#entries.value).map(({ setAtMs }) => setAtMs + 1));
    // Also if the clock was set back: it is set after all that is known, and after it was last seen to end.
    const setAtMs = Math.max(this.#now(), newest, (this.#endings.value[taskId]?.atMs ?? 0) + 1);
    const entry = { sessionId, taskId, operationId, toolName, lastMessageId, setAtMs, touchedAtMs: this.#now() };
    this.#entries.change((entries) => ({ ...entries, [taskId]: entry }));
    this.#onChange();
  }

  /** Moves the position of a task that is known and has not ended, in whichever tab. */
  move(sessionId: string, taskId: string, lastMessageId: string): void {
    const entry = this.#entries.value[taskId];
    if (entry === undefined || entry.sessionId !== sessionId || !this.#isLive(entry)) return;
    const touchedAtMs = Math.max(this.#now(), entry.touchedAtMs);
    this.#entries.change((entries) => ({ ...entries, [taskId]: { ...entry, lastMessageId, touchedAtMs } }));
  }

  /** One task of a session, or all of them. */
  remove(sessionId: string, taskId?: string): void {
    const over = this.#live().filter((entry) => entry.sessionId === sessionId && (taskId === undefined || entry.taskId === taskId));
    if (over.length === 0) return;
    const nowMs = this.#now();
    const ended = over.map((entry) => [entry.taskId, { sessionId, atMs: Math.max(nowMs, entry.setAtMs) }] as const);
    this.#endings.change((endings) => ({ ...endings, ...Object.fromEntries(ended) }));
    // What has ended or expired is not kept in memory either.
    this.#entries.change((entries) => Object.fromEntries(Object.entries(entries).filter(([, entry]) => this.#isLive(entry))));
    this.#onChange();
  }

  #live(): Entry[] {
    return Object.values(this.#entries.value).filter((entry) => this.#isLive(entry)).sort(bySetting);
  }

  #isLive(entry: Entry): boolean {
    const ended = this.#endings.value[entry.taskId];
    return entry.touchedAtMs + this.#expireAfterMs > this.#now() && (ended === undefined || ended.atMs < entry.setAtMs);
  }
}

function shown({ taskId, operationId, toolName, lastMessageId }: Entry): ActiveTask {
  return { taskId, operationId, toolName, lastMessageId };
}

function bySetting(a: Entry, b: Entry): number {
  return compare([a.setAtMs, a.taskId], [b.setAtMs, b.taskId]);
}

function later(known: Entry | undefined, entry: Entry): Entry {
  if (known === undefined) return entry;
  const order = compare([known.setAtMs, known.touchedAtMs], [entry.setAtMs, entry.touchedAtMs]);
  // Of two in the same instant either will do, as long as all tabs choose the same.
  const tie = (one: Entry) => [one.lastMessageId, one.sessionId, one.operationId, one.toolName];
  return (order || compare(tie(known), tie(entry))) < 0 ? entry : known;
}

/** By the first pair that differs. */
function compare(one: readonly (number | string)[], other: readonly (number | string)[]): number {
  for (let n = 0; n < one.length; n++) {
    const [a, b] = [one[n] as number | string, other[n] as number | string];
    if (a !== b) return a < b ? -1 : 1;
  }
  return 0;
}

function readObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : {};
  } catch {
    // Something else wrote there. The server still knows what runs.
    return {};
  }
}

function readEntry(sessionId: string, value: unknown, nowMs: number): Entry | null {
  if (!isObject(value) || typeof value["taskId"] !== "string") return null;
  const text = (name: string, otherwise: string) => (typeof value[name] === "string" ? (value[name] as string) : otherwise);
  const figure = (name: string, otherwise: number) => (typeof value[name] === "number" ? (value[name] as number) : otherwise);
  return {
    sessionId,
    taskId: value["taskId"],
    operationId: text("operationId", ""),
    toolName: text("toolName", ""),
    lastMessageId: text("lastMessageId", "0"),
    setAtMs: figure("setAtMs", 0),
    touchedAtMs: figure("touchedAtMs", nowMs),
  };
}
