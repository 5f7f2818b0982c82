// What outlives the page: which session, where we stood in it, and the sealed state.

import type { Link, Session } from "./link/state.ts";
import type { Position } from "./position.ts";
import { type Sealed, sealedFrom } from "./sealed.ts";
import { isObject } from "./frame.ts";

/** `localStorage` and its like; also asynchronous ones. */
export interface KeyValueStore {
  getItem(key: string): string | null | undefined | Promise<string | null | undefined>;
  setItem(key: string, value: string): unknown;
  removeItem(key: string): unknown;
}

export interface Kept {
  readonly session: Session | null;
  readonly position: Position | null;
  readonly clientId: string | null;
  readonly sealed: Sealed | null;
}

export class MemoryStore implements KeyValueStore {
  readonly #values = new Map<string, string>();

  getItem(key: string): string | null {
    return this.#values.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    this.#values.set(key, value);
  }

  removeItem(key: string): void {
    this.#values.delete(key);
  }
}

/** The page's own storage where there is one that works, else memory. */
export function defaultStore(name: "localStorage" | "sessionStorage" = "localStorage"): KeyValueStore {
  try {
    // Merely reading the property throws where storage is forbidden. Node's own, without a file, is no storage.
    const store = typeof document === "undefined" ? undefined : (globalThis as { [name: string]: unknown })[name];
    if (store !== undefined && store !== null) return store as KeyValueStore;
  } catch {
    // Then memory it is.
  }
  return new MemoryStore();
}

export class Keeping {
  readonly #store: KeyValueStore;
  readonly #name: string;
  readonly #onFailure: (error: unknown) => void;

  constructor(store: KeyValueStore, name: string, onFailure: (error: unknown) => void) {
    this.#store = store;
    this.#name = name;
    this.#onFailure = onFailure;
  }

  async load(): Promise<Kept> {
    const record = await this.#read(this.#name);
    const state = await this.#read(`${this.#name}:state`);
    const id = text(record["sessionId"]);
    const ids = Array.isArray(record["ids"]) ? record["ids"].filter((name) => typeof name === "string") : [];
    const seq = record["lastSeq"];
    return {
      session: id === null ? null : { id, ids: [...new Set([id, ...ids])], resumeToken: text(record["resumeToken"]) },
      position: typeof seq === "number" ? { epoch: text(record["epoch"]), seq } : null,
      clientId: text(record["clientId"]),
      sealed: "signedState" in state ? sealedFrom(state) : null,
    };
  }

  keep({ session, position, policy: { clientId } }: Link): void {
    const record = session && {
      sessionId: session.id,
      ids: session.ids,
      epoch: position?.epoch ?? null,
      lastSeq: position?.seq ?? 0,
      resumeToken: session.resumeToken,
      clientId,
    };
    this.#write(this.#name, record);
  }

  keepState(sealed: Sealed | null): void {
    this.#write(`${this.#name}:state`, sealed);
  }

  async #read(key: string): Promise<Record<string, unknown>> {
    try {
      const value: unknown = JSON.parse((await this.#store.getItem(key)) ?? "{}");
      return isObject(value) ? value : {};
    } catch (error) {
      // What cannot be read is as good as lost; the server still has the session.
      this.#onFailure(error);
      return {};
    }
  }

  #write(key: string, value: unknown): void {
    try {
      const done = value === null ? this.#store.removeItem(key) : this.#store.setItem(key, JSON.stringify(value));
      if (done instanceof Promise) done.catch(this.#onFailure);
    } catch (error) {
      this.#onFailure(error);
    }
  }
}

function text(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}
