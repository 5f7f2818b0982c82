// A value that all tabs of an origin share through one key of a storage: read, merged, written; never merely overwritten.
//
// Between the reading and the writing of one tab another may write, and no lock reaches a synchronous write. So the merge is made to
// be repeated (in any order, any number of times, with the same result), and a tab that hears of a write that lacks something of its
// own writes again.

import type { KeyValueStore } from "../keeping.ts";

/** How a value is read, written and merged. */
export interface Codec<Value> {
  readonly empty: Value;
  /** Never throws: what something else wrote there is as good as nothing. */
  parse(text: string): Value;
  /** Equal values give equal texts. */
  print(value: Value): string;
  /** Commutative, associative and idempotent. */
  merge(one: Value, other: Value): Value;
}

/** What a browser gives, and a test can stand in for. */
export interface SharedTools {
  /** Calls back when another tab has written the key; `null` if it was removed. */
  readonly listen?: (key: string, heard: (text: string | null) => void) => void;
  /** Runs alone among all tabs. */
  readonly alone?: (name: string, run: () => void) => void;
}

export class Shared<Value> {
  readonly #key: string;
  readonly #store: KeyValueStore;
  readonly #codec: Codec<Value>;
  readonly #tools: SharedTools;
  readonly #onChange: () => void;
  #value: Value;
  /** What the storage held when we last looked. */
  #text: string | null = null;
  #reconciling = false;
  /** Asynchronous storages are read and written one after the other. */
  #queue: Promise<void> | null = null;
  /** Resolves once what was kept has been read. At once, if the storage is synchronous. */
  readonly ready: Promise<void>;

  constructor(key: string, store: KeyValueStore, codec: Codec<Value>, tools: SharedTools, onChange: () => void) {
    this.#key = key;
    this.#store = store;
    this.#codec = codec;
    this.#tools = tools;
    this.#onChange = onChange;
    this.#value = codec.empty;
    const kept = this.#read();
    if (kept instanceof Promise) {
      this.#queue = kept.then((text) => this.#take(text));
      this.ready = this.#queue;
    } else {
      this.#take(kept);
      this.ready = Promise.resolve();
    }
    tools.listen?.(key, (text) => this.#heard(text));
  }

  /** As it is now, in whichever tab it was changed. */
  get value(): Value {
    if (this.#queue === null) {
      const text = this.#read();
      if (!(text instanceof Promise)) this.#take(text);
    }
    return this.#value;
  }

  /** Changed here at once, and in the storage as soon as that can be. */
  change(change: (value: Value) => Value): void {
    this.#value = change(this.value);
    if (this.#queue === null) {
      this.#write();
      // Whether another tab wrote at the same moment can only be seen where tabs take turns.
      if (this.#tools.alone !== undefined) this.#reconcile();
      return;
    }
    this.#queue = this.#queue.then(() => this.#writeLater()).catch(() => {});
  }

  /** `undefined` where the storage does not answer: then nothing is known of what it holds. */
  #read(): string | null | undefined | Promise<string | null | undefined> {
    try {
      const kept = this.#store.getItem(this.#key);
      return kept instanceof Promise ? kept.then((text) => text ?? null, () => undefined) : (kept ?? null);
    } catch {
      return undefined;
    }
  }

  #take(text: string | null | undefined): void {
    if (text === this.#text || text === undefined) return;
    this.#text = text;
    // What was there and is not any more was cleared on purpose.
    this.#value = text === null ? this.#codec.empty : this.#codec.merge(this.#value, this.#codec.parse(text));
  }

  async #writeLater(): Promise<void> {
    const kept = await this.#read();
    // What changed since it was asked for is newer than a clearing.
    if (kept !== null) this.#take(kept);
    const text = this.#codec.print(this.#value);
    if (text === kept) return;
    await this.#store.setItem(this.#key, text);
    this.#text = text;
  }

  #write(): void {
    const text = this.#codec.print(this.#value);
    if (text === this.#text) return;
    try {
      this.#store.setItem(this.#key, text);
      this.#text = text;
    } catch {
      // A full or forbidden storage costs what would outlive the page, and nothing now.
    }
  }

  #heard(text: string | null): void {
    const before = this.#codec.print(this.#value);
    // The storage may have moved on since; what was written then counts all the same.
    if (text !== null) this.#value = this.#codec.merge(this.#value, this.#codec.parse(text));
    void this.value;
    this.#reconcile();
    if (this.#codec.print(this.#value) !== before) this.#onChange();
  }

  /** Looks once more, alone, whether the storage has all that we have. */
  #reconcile(): void {
    if (this.#reconciling) return;
    this.#reconciling = true;
    const look = () => {
      this.#reconciling = false;
      const { parse, print, merge } = this.#codec;
      const { value } = this;
      if (print(value) === this.#text) return;
      const stored = this.#text === null ? this.#codec.empty : parse(this.#text);
      if (print(merge(stored, value)) !== print(stored)) this.#write();
    };
    if (this.#tools.alone === undefined) look();
    else this.#tools.alone(`bowline:${this.#key}`, look);
  }
}

/** The tools of the page, where the storage is the page's own. */
export function pageTools(store: KeyValueStore): SharedTools {
  if (typeof window === "undefined") return {};
  let local: unknown = null;
  try {
    local = window.localStorage;
  } catch {
    // Forbidden: then nothing is shared either.
  }
  if (store !== local) return {};
  const { locks } = navigator as { readonly locks?: LockManager };
  return {
    listen: (key, heard) =>
      addEventListener("storage", (event) => {
        if (event.storageArea === local && (event.key === key || event.key === null)) heard(event.newValue);
      }),
    ...(locks === undefined ? {} : { alone: (name: string, run: () => void) => void locks.request(name, async () => run()).catch(() => {}) }),
  };
}
