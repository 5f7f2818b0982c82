// Server-sent events as text: a pure reader that takes pieces of any size and gives whole events.

export interface SseEvent {
  /** The last id that was seen; `null` before any. */
  readonly id: string | null;
  /** Whether this very event carried the id. */
  readonly hasId: boolean;
  readonly data: string;
}

/** What a reader has of lines and events that are not complete yet. */
export interface SseState {
  readonly rest: string;
  readonly data: readonly string[];
  readonly id: string | null;
  readonly hasId: boolean;
}

export const SSE_START: SseState = { rest: "", data: [], id: null, hasId: false };

export function sseStep(state: SseState, piece: string): [SseState, readonly SseEvent[]] {
  const text = state.rest + piece;
  // A CR at the end may be half of a CRLF: it waits for what follows.
  const whole = text.endsWith("\r") ? text.slice(0, -1) : text;
  const lines = whole.split(/\r\n|\r|\n/);
  const rest = (lines.pop() ?? "") + text.slice(whole.length);
  const events: SseEvent[] = [];
  let { data, id, hasId } = state;
  for (const line of lines) {
    if (line === "") {
      if (data.length > 0) events.push({ id, hasId, data: data.join("\n") });
      data = [];
      hasId = false;
      continue;
    }
    const colon = line.indexOf(":");
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") data = [...data, value];
    if (field === "id" && !value.includes("\0")) [id, hasId] = [value, true];
  }
  return [{ rest, data, id, hasId }, events];
}
