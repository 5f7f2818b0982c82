// One reading of a task's stream over `fetch`: chunks as they come, and how the reading ended.

import type { RecoveryAction } from "../failure.ts";
import { type StreamChunk, isObject } from "../frame.ts";
import { SSE_START, type SseState, sseStep } from "./sse.ts";

export type Reading =
  /** `[DONE]` came. A body that merely ends was cut, however cleanly. */
  | { readonly end: "done" }
  | { readonly end: "cut" }
  /** 204: the task has ended, and the cursor stands at its end. */
  | { readonly end: "nothing_more" }
  | { readonly end: "refused"; readonly status: number; readonly code: string; readonly message: string; readonly action: RecoveryAction };

/** The server sends a comment after 10 s of silence; after three of these the wire is dead. */
export const SILENCE_MS = 30_000;

export async function readStream(
  request: (signal: AbortSignal) => Promise<Response>,
  onChunk: (chunk: StreamChunk) => void,
  signal: AbortSignal | undefined,
  silenceMs = SILENCE_MS,
): Promise<Reading> {
  const wire = new AbortController();
  const stop = () => wire.abort();
  signal?.addEventListener("abort", stop, { once: true });
  let watch = setTimeout(stop, silenceMs);
  // What the listener throws is the application's, and no fault of the wire.
  let thrown: [unknown] | null = null;
  const hand = (chunk: StreamChunk) => {
    try {
      onChunk(chunk);
    } catch (error) {
      thrown = [error];
      throw error;
    }
  };
  try {
    const response = await request(wire.signal);
    if (response.status === 204) return { end: "nothing_more" };
    if (!response.ok) return await refusedBy(response);
    if (response.body === null) return { end: "cut" };
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let state: SseState = SSE_START;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      clearTimeout(watch);
      watch = setTimeout(stop, silenceMs);
      const [next, events] = sseStep(state, decoder.decode(part.value as Uint8Array, { stream: true }));
      state = next;
      for (const { data, id, hasId } of events) {
        if (data === "[DONE]") return { end: "done" };
        const chunk = readChunk(data);
        if (chunk !== null) hand(hasId && id !== null ? { ...chunk, idx: id } : chunk);
      }
    }
    return { end: "cut" };
  } catch {
    if (thrown !== null) throw thrown[0];
    return { end: "cut" };
  } finally {
    clearTimeout(watch);
    signal?.removeEventListener("abort", stop);
    wire.abort();
  }
}

function readChunk(data: string): StreamChunk | null {
  try {
    const chunk: unknown = JSON.parse(data);
    return isObject(chunk) && typeof chunk["type"] === "string" ? (chunk as StreamChunk) : null;
  } catch {
    return null;
  }
}

export async function refusedBy(response: Response): Promise<Extract<Reading, { end: "refused" }>> {
  const body: unknown = await response.json().catch(() => null);
  const text = (name: string) => (isObject(body) && typeof body[name] === "string" ? (body[name] as string) : "");
  const action = (text("recovery_action") || "none") as RecoveryAction;
  return { end: "refused", status: response.status, code: text("code") || `HTTP_${response.status}`, message: text("message"), action };
}
