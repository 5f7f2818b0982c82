// One reading of a task's stream over `fetch`: chunks as they come, and how the reading ended.

import { type StreamChunk, isObject } from "../frame.ts";
import { type Refused, refusedBy } from "./api.ts";
import { SSE_START, type SseState, sseStep } from "./sse.ts";

export type Reading =
  /** `[DONE]` came. A body that merely ends was cut, however cleanly. */
  | { readonly end: "done" }
  | { readonly end: "cut" }
  /** 204: the task has ended, and the cursor stands at its end. */
  | { readonly end: "nothing_more" }
  | { readonly end: "refused"; readonly refused: Refused };

export interface Reader {
  /** The answer has begun. */
  opened(headers: Headers): void;
  /** Bytes of the body came, whatever they say. */
  heard(): void;
  chunk(chunk: StreamChunk): void;
}

/** Reads until the end, or until the request's signal is aborted. What the reader throws is thrown. */
export async function readStream(request: () => Promise<Response>, to: Reader): Promise<Reading> {
  let state: SseState = SSE_START;
  const decoder = new TextDecoder();
  const response = await request().catch(() => null);
  if (response === null) return { end: "cut" };
  if (response.status === 204) return { end: "nothing_more" };
  if (!response.ok) return { end: "refused", refused: await refusedBy(response) };
  if (response.body === null) return { end: "cut" };
  to.opened(response.headers);
  const reader = response.body.getReader();
  for (;;) {
    const part = await reader.read().catch(() => null);
    if (part === null || part.done) return { end: "cut" };
    to.heard();
    const [next, events] = sseStep(state, decoder.decode(part.value as Uint8Array, { stream: true }));
    state = next;
    for (const { data, id, hasId } of events) {
      if (data === "[DONE]") return { end: "done" };
      const chunk = readChunk(data);
      if (chunk !== null) to.chunk(hasId && id !== null ? { ...chunk, idx: id } : chunk);
    }
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
