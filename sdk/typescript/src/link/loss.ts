// How a link ends: lost, to be tried again, or stopped until the caller asks for it.

import { backoffMs } from "../backoff.ts";
import { type Refusal, refusal } from "../failure.ts";
import { failAsks, loseAsks } from "./asking.ts";
import type { Shown } from "./state.ts";
import type { Turn } from "./turn.ts";
import { failWatches, loseWatches } from "./watching.ts";

/** How long a dial, a greeting or the answer to an attachment may take. */
export const PATIENCE_MS = 10_000;

/** With this code we hang up on a wire that we believe dead; with it a shared connection is dropped for all tabs. */
export const WIRE_DEAD = 3000;

/** A link that was live for so long was sound. */
const STEADY_MS = 5_000;

/** Links in a row that were lost sooner, before even the first attempt to return has to wait. */
const HASTY_MAX = 5;

const ALL_TIMERS = ["retry", "patience", "silence", "ack", "behind", "resend", "watch"] as const;

export function dial(turn: Turn, shown: Shown): void {
  turn.set({ phase: { at: "dialing", attempt: turn.link.failures, shown }, drainMs: null, behindAtSeq: null, heals: 0 });
  loseWatches(turn);
  turn.stopTimers(...ALL_TIMERS);
  turn.do({ do: "dial" });
  turn.timer("patience", PATIENCE_MS);
}

/** The wire is gone. We come back by ourselves. */
export function lose(turn: Turn, cause: Refusal | null): void {
  retire(turn, cause, WIRE_DEAD);
}

/** The server cannot take us now. The wire is sound, so others who share it keep it. */
export function postpone(turn: Turn, cause: Refusal): void {
  retire(turn, cause, 1000, cause.retryAfterMs);
}

function retire(turn: Turn, cause: Refusal | null, code: number, afterMs?: number): void {
  const { link, moment } = turn;
  const attempt = link.failures + 1;
  loseAsks(turn);
  turn.stopTimers(...ALL_TIMERS);
  turn.do({ do: "hang_up", code });
  if (attempt > link.policy.attemptsMax) {
    stop(turn, refusal("GAVE_UP", `The server did not answer ${link.policy.attemptsMax} attempts.`, "reconnect"));
    return;
  }
  const hasty = attempt > 1 ? link.hasty : moment.nowMs - link.liveAtMs < STEADY_MS ? link.hasty + 1 : 0;
  const counted = attempt + Math.max(0, hasty - HASTY_MAX);
  const waitMs = afterMs ?? link.drainMs ?? backoffMs(counted, moment.random, link.policy.backoffSeconds);
  turn.set({ failures: attempt, hasty, phase: { at: "waiting", attempt, retryAtMs: moment.nowMs + waitMs, cause } });
  turn.timer("retry", waitMs);
}

/** The link stays away until the caller starts it again. */
export function stop(turn: Turn, cause: Refusal | null): void {
  const told = cause ?? refusal("CLOSED", "The client was closed.");
  failAsks(turn, told);
  failWatches(turn, told);
  turn.set({ phase: { at: "disconnected", cause }, failures: 0, refusals: 0, drainMs: null });
  turn.stopTimers(...ALL_TIMERS);
  turn.do({ do: "hang_up", code: 1000 });
  turn.do({ do: "keep" });
}

/** The hundreds of a close code carry the advice: 40xx come back, 41xx start anew, 42xx stay away. */
export function closed(turn: Turn, code: number): void {
  const { link } = turn;
  const { phase } = link;
  if (phase.at === "disconnected" || phase.at === "waiting") return;
  if (code === 1009) failSent(turn);
  if (code === 4203) {
    const refused = refusal("UNAUTHORIZED", "The server wants a valid token.", "authenticate");
    // The first time it may only have expired; a fresh one is fetched for each dial.
    if (link.refusals > 0) return stop(turn, refused);
    turn.set({ refusals: 1 });
    return lose(turn, refused);
  }
  if (code === 4201) return stop(turn, refusal("SESSION_TAKEN_OVER", "Another connection holds the session now."));
  if (code >= 4200 && code < 4300) return stop(turn, refusal("CLOSED", `The server closed with ${code}.`, "fix_request"));
  if (code >= 4100 && code < 4200) turn.set({ session: null, position: null, way: { by: "create" } });
  lose(turn, refusal("CLOSED", `The connection closed with ${code}.`, "reconnect"));
}

/** What is too large for the server would be too large again. */
function failSent(turn: Turn): void {
  const [first, ...rest] = turn.link.asks;
  if (first === undefined || !turn.link.asking) return;
  turn.do({ do: "fail", key: first.key, refusal: refusal("MESSAGE_TOO_LARGE", "The frame is too large.", "fix_request") });
  turn.set({ asks: rest, asking: false });
}
