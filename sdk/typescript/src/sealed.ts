// A sealed state: the session as the client keeps it, to come back with after the server has forgotten it.

import { type Frame, isObject, word } from "./frame.ts";

export interface Sealed {
  /** As it was exported: an object or a string. It is handed back unchanged. */
  readonly signedState: unknown;
  readonly sessionId: string | null;
  readonly exportedAt: string | null;
  /** Milliseconds since 1970; `null` if unknown, and then the server decides. */
  readonly validUntilMs: number | null;
}

/** From `agent.state_exported`; `null` if there is none in it. */
export function sealedIn(frame: Frame): Sealed | null {
  const signedState = frame.metadata?.["signed_state"];
  if (typeof signedState !== "string" && !isObject(signedState)) return null;
  const until = Date.parse(word(frame, "valid_until") ?? "");
  return {
    signedState,
    sessionId: word(frame, "session_id") ?? frame.session_id ?? null,
    exportedAt: word(frame, "exported_at") ?? null,
    validUntilMs: Number.isNaN(until) ? null : until,
  };
}

/** From what a person or an application kept: a `Sealed`, or the bare signed state. */
export function sealedFrom(kept: unknown): Sealed {
  if (isObject(kept) && "signedState" in kept) {
    const { signedState, sessionId, exportedAt, validUntilMs } = kept;
    return {
      signedState,
      sessionId: typeof sessionId === "string" ? sessionId : null,
      exportedAt: typeof exportedAt === "string" ? exportedAt : null,
      validUntilMs: typeof validUntilMs === "number" ? validUntilMs : null,
    };
  }
  const state = isObject(kept) && isObject(kept["state"]) ? kept["state"] : {};
  const sessionId = state["session_id"];
  return { signedState: kept, sessionId: typeof sessionId === "string" ? sessionId : null, exportedAt: null, validUntilMs: null };
}

export function isUsable(sealed: Sealed | null, nowMs: number): sealed is Sealed {
  return sealed !== null && (sealed.validUntilMs === null || sealed.validUntilMs > nowMs);
}
