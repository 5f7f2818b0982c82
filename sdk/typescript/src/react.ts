// A session in a React component: events, connection and the calls, kept in step with the client.

import { useEffect, useState, useSyncExternalStore } from "react";
import { BowlineClient, type Connection, type SessionInfo } from "./client.ts";
import type { LoggedEvent } from "./frame.ts";
import type { History } from "./link/ask.ts";
import type { BowlineOptions } from "./options.ts";

export interface BowlineSession {
  readonly client: BowlineClient;
  readonly connection: Connection;
  readonly session: SessionInfo | null;
  /** Every event so far, each once, in order. */
  readonly events: readonly LoggedEvent[];
  /** What was said, if events of it are gone (`connection.gap`); `null` if none are, or the server does not know. */
  readonly history: History | null;
}

/** Changes are gathered for one frame, so that a replay of thousands renders a few times. */
const FRAME_MS = 16;

class SessionStore {
  readonly client: BowlineClient;
  readonly #listeners = new Set<() => void>();
  #events: LoggedEvent[] = [];
  #history: History | null = null;
  #snapshot: BowlineSession;
  #due: ReturnType<typeof setTimeout> | null = null;

  constructor(client: BowlineClient) {
    this.client = client;
    this.#snapshot = this.#look();
    client.on("event", (event) => {
      this.#events.push(event);
      this.#changed();
    });
    client.on("reset", () => {
      this.#events = [];
      this.#history = null;
      this.#changed();
    });
    client.on("history", (history) => {
      this.#history = history;
      this.#changed();
    });
    client.on("connection", () => this.#changed());
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  };

  readonly snapshot = (): BowlineSession => this.#snapshot;

  #changed(): void {
    this.#due ??= setTimeout(() => {
      this.#due = null;
      this.#snapshot = this.#look();
      for (const listener of this.#listeners) listener();
    }, FRAME_MS);
  }

  #look(): BowlineSession {
    const { client } = this;
    return { client, connection: client.connection, session: client.session, events: this.#events.slice(), history: this.#history };
  }
}

const stores = new WeakMap<BowlineClient, SessionStore>();

function storeOf(client: BowlineClient): SessionStore {
  const known = stores.get(client) ?? new SessionStore(client);
  stores.set(client, known);
  return known;
}

/**
 * Connects when the component is first shown and lets go when it is removed. Pass options, which are read once, or a client
 * that several components share: then who made it also closes it.
 */
export function useBowlineSession(source: BowlineOptions | BowlineClient): BowlineSession {
  const [client] = useState(() => (source instanceof BowlineClient ? source : new BowlineClient(source)));
  const [store] = useState(() => storeOf(client));
  const ours = !(source instanceof BowlineClient);
  useEffect(() => {
    // Why it failed stands in `connection.cause`.
    if (client.connection.state === "disconnected") client.connect().catch(() => {});
    return () => {
      if (ours) client.close();
    };
  }, [client, ours]);
  return useSyncExternalStore(store.subscribe, store.snapshot, store.snapshot);
}
