// The queue of what was asked: sent one at a time, settled by its answer, sent again after a loss, run once.

import { type Refusal, refusal } from "../failure.ts";
import type { Frame, LoggedEvent } from "../frame.ts";
import { type Answer, type Ask, type Exported, answerInControl, answerInEvent, askFrame, historyIn } from "./ask.ts";
import type { Turn } from "./turn.ts";

/** A request that the server could not take for the moment is sent again this often. */
const TRIES_MAX = 5;
const RETRY_MS = 1_000;

/** The link's own: no caller waits for the answer. */
const FILL: Ask = { key: 0, question: { kind: "export", content: {} }, wasSent: false, tries: 0 };

export function ask(turn: Turn, asked: Ask): void {
  if (turn.link.phase.at === "disconnected") {
    turn.do({ do: "fail", key: asked.key, refusal: turn.link.phase.cause ?? refusal("CLOSED", "The client is not connected.") });
    return;
  }
  turn.set({ asks: [...turn.link.asks, asked] });
  askNext(turn);
}

/** Events are gone, but what was said is not: the state has it. Only who holds the session may ask for that. */
export function fillGap(turn: Turn): void {
  const { asks, mode } = turn.link;
  if (mode === "observe" || asks.some(({ key }) => key === FILL.key)) return;
  turn.set({ asks: [...asks, FILL] });
  askNext(turn);
}

/** Sends the first that waits, if the link is live and none is under way. */
export function askNext(turn: Turn): void {
  const { link } = turn;
  const [first, ...rest] = link.asks;
  if (link.phase.at !== "live" || link.asking || first === undefined || link.session === null) return;
  turn.send(askFrame(first.question, link.session.id));
  turn.set({ asks: [{ ...first, wasSent: true, tries: first.tries + 1 }, ...rest], asking: true });
}

export function settleByEvent(turn: Turn, event: LoggedEvent): void {
  settle(turn, (first) => answerInEvent(first.question, event));
}

/** Whether the frame was an answer. */
export function settleByControl(turn: Turn, frame: Frame): boolean {
  return settle(turn, (first) => answerInControl(first.question, frame));
}

function settle(turn: Turn, read: (first: Ask) => Answer | null): boolean {
  const [first, ...rest] = turn.link.asks;
  // What was never sent cannot be answered: an event that looks like it is another client's.
  const answer = first === undefined || !first.wasSent ? null : read(first);
  if (first === undefined || answer === null) return false;
  if (first.key !== FILL.key) turn.do({ do: "answer", key: first.key, answer });
  else if (answer.kind === "export") tellHistory(turn, answer.exported);
  turn.set({ asks: rest, asking: false });
  turn.stopTimers("resend");
  askNext(turn);
  return true;
}

/** A state that only the server can read fills nothing; then the gap stays as it was reported. */
function tellHistory(turn: Turn, exported: Exported): void {
  const history = historyIn(exported);
  if (history !== null) turn.tell({ kind: "history", ...history });
}

/** The server refused the request under way. Returns false if there is none. */
export function refuseAsk(turn: Turn, refused: Refusal): boolean {
  const [first, ...rest] = turn.link.asks;
  if (first === undefined || !turn.link.asking) return false;
  if (refused.code === "SERVER_DRAINING") {
    // It is sent again where we come back to.
    return true;
  }
  const later = refused.action === "retry_later" && refused.code !== "AGENT_BUSY" && refused.code !== "TOO_MANY_SESSIONS";
  if (later && first.tries < TRIES_MAX) {
    turn.timer("resend", refused.retryAfterMs ?? RETRY_MS);
    return true;
  }
  turn.do({ do: "fail", key: first.key, refusal: refused });
  turn.set({ asks: rest, asking: false });
  askNext(turn);
  return true;
}

export function resend(turn: Turn): void {
  turn.set({ asking: false });
  askNext(turn);
}

/** The wire is gone: what has a key of its own is sent again later, what has none may have been done already. */
export function loseAsks(turn: Turn): void {
  failWhere(turn, ({ wasSent, question }) => wasSent && question.kind === "plan", {
    ...refusal("OUTCOME_UNKNOWN", "The connection was lost before an answer."),
  });
}

/** The session is gone: what it may have taken must not be run again in another. */
export function forsakeAsks(turn: Turn, cause: Refusal): void {
  failWhere(turn, ({ wasSent }) => wasSent, cause);
}

export function failAsks(turn: Turn, cause: Refusal): void {
  failWhere(turn, () => true, cause);
}

function failWhere(turn: Turn, which: (ask: Ask) => boolean, cause: Refusal): void {
  for (const { key } of turn.link.asks.filter(which)) turn.do({ do: "fail", key, refusal: cause });
  turn.set({ asks: turn.link.asks.filter((ask) => !which(ask)), asking: false });
}
