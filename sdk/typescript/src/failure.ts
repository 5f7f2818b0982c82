// What went wrong, with the one thing to do about it.

import { type Frame, figure, isObject, word } from "./frame.ts";
import type { Problem } from "./generated/answers.ts";

/** The server's recovery actions, and `none`. */
export type RecoveryAction = Problem["recovery_action"];

/** A refusal as a value, as the machine handles it. */
export interface Refusal {
  readonly code: string;
  readonly message: string;
  readonly action: RecoveryAction;
  readonly retryAfterMs?: number;
  readonly details?: Readonly<Record<string, unknown>>;
}

/** The same, thrown. `code` is one of PROTOCOL.md's, or `CLOSED`, `GAVE_UP`, `NO_STATE` from this side. */
export class BowlineError extends Error {
  override readonly name = "BowlineError";
  readonly code: string;
  readonly action: RecoveryAction;
  readonly retryAfterMs: number | undefined;
  readonly details: Readonly<Record<string, unknown>> | undefined;

  constructor(refusal: Refusal) {
    super(refusal.message);
    this.code = refusal.code;
    this.action = refusal.action;
    this.retryAfterMs = refusal.retryAfterMs;
    this.details = refusal.details;
  }
}

export function refusal(code: string, message: string, action: RecoveryAction = "none"): Refusal {
  return { code, message, action };
}

const ERRORS = new Set(["agent.error", "system.error", "error.recovery_failed"]);

/** The refusal in a control frame, or `null`. An `agent.error` with a number ends a run and refuses nothing. */
export function refusalIn(frame: Frame): Refusal | null {
  if (!ERRORS.has(frame.event) || frame.seq !== undefined) return null;
  const retryAfterMs = figure(frame, "retry_after_ms");
  const details = frame.metadata?.["details"];
  return {
    code: word(frame, "error_code") ?? "INTERNAL",
    message: typeof frame.content === "string" ? frame.content : "The server refused.",
    action: (word(frame, "recovery_action") ?? "none") as RecoveryAction,
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...(isObject(details) ? { details } : {}),
  };
}
