// The admin API: asked with the person's token, asked again and again, and followed live.

import { backoffMs } from "../../sdk/typescript/src/backoff.ts";
import { SSE_START, type SseState, sseStep } from "../../sdk/typescript/src/chat/sse.ts";
import { type Signal, signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

const TOKEN_KEY = "bowline:token";
/** The server sends a comment after 10 s of silence; after three of these the wire is dead. */
const SILENCE_MS = 30_000;

/** Counts tokens, so that what was refused is asked again with the new one. */
export const tokens = signal(0);

// Kept for this tab only: a token in localStorage would outlive the person who typed it.
export function token(): string | null {
  return sessionStorage.getItem(TOKEN_KEY);
}

export function keepToken(value: string): void {
  sessionStorage.setItem(TOKEN_KEY, value);
  tokens.value++;
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }

  /** Whether another token may help. */
  get wantsToken(): boolean {
    return this.status === 401 || this.status === 403;
  }
}

async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const known = token();
  const headers = { ...(init.headers as Record<string, string>), ...(known === null ? {} : { authorization: `Bearer ${known}` }) };
  let answer: Response;
  try {
    answer = await fetch(`/api/admin/${path}`, { ...init, headers });
  } catch {
    throw new Refused(0, "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  const { message } = (await answer.json().catch(() => ({}))) as { message?: string };
  throw new Refused(answer.status, message ?? `HTTP ${answer.status}`);
}

/** Tells of everything that was done from this page, so that what it shows is asked for anew at once. */
const deeds = new EventTarget();

export async function ask<Answer>(path: string, method: "GET" | "POST" | "DELETE" = "GET", body?: object): Promise<Answer> {
  const written = body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  const answer = (await (await send(path, { method, ...written })).json()) as Answer;
  if (method !== "GET") deeds.dispatchEvent(new Event("done"));
  return answer;
}

/** The query that says whose MCP server is meant: one principal's own, or else one that all clients share. */
export function whose(owner: string | null): string {
  return owner === null ? "" : `?owner=${encodeURIComponent(owner)}`;
}

export async function askText(path: string): Promise<string> {
  return (await send(path)).text();
}

/** What was answered last, and what went wrong since. */
export interface Polled<Answer> {
  readonly answer: Answer | null;
  readonly atMs: number;
  readonly refused: Refused | null;
}

/** Asks now and every `everyMs` while the page is looked at. `key` says what is asked for: a new one begins anew. */
export function usePolled<Answer>(key: string, look: () => Promise<Answer>, everyMs = 2_000): Signal<Polled<Answer>> {
  const polled = useSignal<Polled<Answer>>({ answer: null, atMs: 0, refused: null });
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let turns = 0;
    const turn = async () => {
      clearTimeout(timer);
      // An answer to an older question may come last, and is not the news.
      const mine = ++turns;
      try {
        const answer = await look();
        if (mine === turns) polled.value = { answer, atMs: Date.now(), refused: null };
      } catch (error) {
        const refused = error instanceof Refused ? error : new Refused(0, String(error));
        if (mine === turns) polled.value = { ...polled.peek(), refused };
      }
      if (mine === turns && !document.hidden) timer = setTimeout(() => void turn(), everyMs);
    };
    const seen = () => document.hidden || void turn();
    document.addEventListener("visibilitychange", seen);
    deeds.addEventListener("done", seen);
    polled.value = { answer: null, atMs: 0, refused: null };
    void turn();
    return () => {
      turns++;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      deeds.removeEventListener("done", seen);
    };
  }, [key, everyMs, tokens.value]);
  return polled;
}

/** One event of a log, as the admin API streams it. */
export interface Logged {
  readonly seq: number;
  readonly event: string;
  readonly timestamp?: string;
  readonly [field: string]: unknown;
}

export type Following =
  | { readonly is: "live" }
  | { readonly is: "lost"; readonly attempt: number; readonly why: string }
  | { readonly is: "refused"; readonly refused: Refused }
  | { readonly is: "over" };

/** Follows a log: after a cut from where it was, until it is over. Returns what stops it. */
export function follow(path: string, from: string | null, take: (events: readonly Logged[]) => void, tell: (now: Following) => void): () => void {
  const stop = new AbortController();
  void (async () => {
    let cursor = from;
    let failures = 0;
    while (!stop.signal.aborted) {
      try {
        for await (const events of read(path, cursor, stop.signal, () => tell({ is: "live" }))) {
          failures = 0;
          cursor = events.at(-1)?.id ?? cursor;
          take(events.flatMap(({ id, data }) => (id === null ? [] : [JSON.parse(data) as Logged])));
          if (events.some(({ id, data }) => id === null && data === "{}")) return tell({ is: "over" });
        }
        throw new Refused(0, "The stream was cut.");
      } catch (error) {
        if (stop.signal.aborted) return;
        const refused = error instanceof Refused ? error : new Refused(0, "The stream was cut.");
        if (refused.status >= 400 && refused.status < 500) return tell({ is: "refused", refused });
        failures += 1;
        tell({ is: "lost", attempt: failures, why: refused.message });
      }
      await new Promise((resolve) => setTimeout(resolve, backoffMs(failures, Math.random())));
    }
  })();
  return () => stop.abort();
}

interface Piece {
  /** `null` for notices and for the end. */
  readonly id: string | null;
  readonly data: string;
}

async function* read(path: string, cursor: string | null, stop: AbortSignal, opened: () => void): AsyncGenerator<readonly Piece[]> {
  const wire = new AbortController();
  const cut = () => wire.abort();
  stop.addEventListener("abort", cut, { once: true });
  let silence = setTimeout(cut, SILENCE_MS);
  try {
    const { body } = await send(cursor === null ? path : `${path}?from=${encodeURIComponent(cursor)}`, { signal: wire.signal });
    if (body === null) return;
    opened();
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let state: SseState = SSE_START;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      clearTimeout(silence);
      silence = setTimeout(cut, SILENCE_MS);
      const [next, events] = sseStep(state, part.value);
      state = next;
      if (events.length > 0) yield events.map(({ id, hasId, data }) => ({ id: hasId ? id : null, data }));
    }
  } finally {
    clearTimeout(silence);
    stop.removeEventListener("abort", cut);
    wire.abort();
  }
}
