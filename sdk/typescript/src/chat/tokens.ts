// Resume tokens: what proves that a session is ours, where a server asks for that (`session.ownership = "token"`).

import { isObject } from "../frame.ts";
import type { KeyValueStore } from "../keeping.ts";
import { type Codec, Shared, type SharedTools } from "./shared.ts";

/** Under this key of `localStorage`: for each session its newest token. */
export const RESUME_TOKENS_KEY = "chat_resume_tokens";

/** A session whose token is forgotten cannot be reached any more, so that is many; the oldest go first. */
const TOKENS_MAX = 1000;

/** A token for all sessions, or one for each by its id. Asked before each request, so that a new one counts at once. */
export type ResumeTokenSource = string | ((sessionId: string) => string | null | undefined | Promise<string | null | undefined>);

interface Held {
  readonly token: string;
  readonly atMs: number;
}

type Tokens = Readonly<Record<string, Held>>;

const CODEC: Codec<Tokens> = {
  empty: {},
  merge: (one, other) => {
    const merged: Record<string, Held> = { ...one };
    for (const [id, held] of Object.entries(other)) {
      const known = merged[id];
      if (known === undefined || known.atMs < held.atMs || (known.atMs === held.atMs && known.token < held.token)) merged[id] = held;
    }
    return merged;
  },
  parse: (text) => {
    const tokens: Record<string, Held> = {};
    try {
      const kept: unknown = JSON.parse(text);
      for (const [id, value] of Object.entries(isObject(kept) ? kept : {})) {
        if (isObject(value) && typeof value["token"] === "string") tokens[id] = { token: value["token"], atMs: Number(value["atMs"]) || 0 };
      }
    } catch {
      // Something else wrote there.
    }
    return tokens;
  },
  print: (tokens) => {
    const all = Object.entries(tokens).sort(([a, x], [b, y]) => x.atMs - y.atMs || (a < b ? -1 : 1));
    return JSON.stringify(Object.fromEntries(all.slice(-TOKENS_MAX)));
  },
};

export class ResumeTokens {
  readonly #kept: Shared<Tokens>;
  readonly #given: ResumeTokenSource | undefined;
  readonly ready: Promise<void>;

  constructor(store: KeyValueStore, given: ResumeTokenSource | undefined, tools: SharedTools = {}) {
    this.#kept = new Shared(RESUME_TOKENS_KEY, store, CODEC, tools, () => {});
    this.#given = given;
    this.ready = this.#kept.ready;
  }

  /** This one counts from now on; or did when it was sent, unless a newer one was named since. */
  keep(sessionId: string, token: string, sentAtMs?: number): void {
    const known = this.#kept.value[sessionId];
    if (known?.token === token || (sentAtMs !== undefined && known !== undefined && known.atMs > sentAtMs)) return;
    const atMs = Math.max(sentAtMs ?? Date.now(), (known?.atMs ?? 0) + 1);
    this.#kept.change((tokens) => ({ ...tokens, [sessionId]: { token, atMs } }));
  }

  kept(sessionId: string): string | null {
    return this.#kept.value[sessionId]?.token || null;
  }

  forget(sessionId: string): void {
    // A token that opens nothing any more; an empty one takes its place, so that no other tab brings it back.
    if (this.#kept.value[sessionId] !== undefined) this.keep(sessionId, "");
  }

  /** What may prove the session to be ours, the likeliest first. Of one that is not known, only what was given for all. */
  async candidates(sessionId: string | null): Promise<string[]> {
    await this.ready;
    const given = typeof this.#given !== "function" ? this.#given : sessionId === null ? null : await this.#given(sessionId);
    const kept = sessionId === null ? null : this.kept(sessionId);
    // A function knows what is newest. A text was true when the store was made; what the server named since is newer.
    const order = typeof this.#given === "function" ? [given, kept] : [kept, given];
    return [...new Set(order.filter((token): token is string => typeof token === "string" && token !== ""))];
  }
}
