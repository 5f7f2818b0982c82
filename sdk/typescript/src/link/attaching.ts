// The ways to a session: quick, with state, or anew; and what the server's answer to each means for our position.

import { type Refusal, refusal } from "../failure.ts";
import { type Frame, type Resume, type RunState, figure, isObject, word } from "../frame.ts";
import { type Position, cursorFields } from "../position.ts";
import { isUsable } from "../sealed.ts";
import { askNext, fillGap, forsakeAsks } from "./asking.ts";
import { PATIENCE_MS, lose, postpone, stop } from "./loss.ts";
import type { Link, Session, Shown, Way } from "./state.ts";
import type { Turn } from "./turn.ts";
import { askWatches } from "./watching.ts";

/** Acks are gathered for this long. */
export const ACK_MS = 200;

/** Re-attachments in place before the wire itself is given up. */
const HEALS_MAX = 2;

const QUICK: Way = { by: "quick", takeOver: false, followed: false };

/** The best way back from what is known: quick → with state → a new session. */
export function bestWay(link: Link): Way {
  if (link.session !== null) return QUICK;
  return link.sealed !== null ? { by: "state", takeOver: false, only: false } : { by: "create" };
}

/** A sealed state that the server would refuse by its age is not kept any longer. */
export function dropExpired(turn: Turn): void {
  if (turn.link.sealed !== null && !isUsable(turn.link.sealed, turn.moment.nowMs)) forget(turn);
}

function forget(turn: Turn): void {
  turn.set({ sealed: null });
  turn.do({ do: "keep_state" });
}

/** What is left of a way if its session or state has gone meanwhile. */
function possible(link: Link, way: Way): Way {
  const missing = way.by === "quick" ? link.session === null : way.by === "state" && link.sealed === null;
  return missing ? { by: "create" } : way;
}

/** Asks for the session over an open socket. */
export function attach(turn: Turn, wanted: Way, shown: Shown): void {
  const { link } = turn;
  const way = possible(link, wanted);
  const { clientId, create } = link.policy;
  const common = { client_id: clientId, take_over: (way.by !== "create" && way.takeOver) || undefined };
  if (way.by === "quick" && link.session !== null) {
    const { id, resumeToken } = link.session;
    const back = { ...cursorFields(link.position), ...common, resume_token: resumeToken ?? undefined };
    turn.send({ event: "user.reconnect", session_id: id, content: { ...back, mode: link.mode === "observe" ? "observe" : undefined } });
  } else if (way.by === "state" && link.sealed !== null) {
    // A bare number: a session rebuilt from the state counts on from it, in an epoch that no cursor can name yet.
    const back = { ...common, last_seq: link.position?.seq };
    turn.send({ event: "user.reconnect_with_state", signed_state: link.sealed.signedState, content: back });
  } else {
    turn.send({ event: "user.create_session", content: { ...create, client_id: clientId } });
  }
  turn.set({ phase: { at: "attaching", attempt: link.failures, shown, way }, way, behindAtSeq: null });
  turn.timer("patience", PATIENCE_MS);
}

/** Something is missing: asks again from where we stand, over the same socket. */
export function heal(turn: Turn): void {
  if (turn.link.heals >= HEALS_MAX) return lose(turn, refusal("REPLAY_GAP", "Events are missing.", "reconnect"));
  turn.set({ heals: turn.link.heals + 1, gapSeen: true });
  attach(turn, QUICK, "reconnecting");
}

/** The same, when nothing is known to be wrong: it costs one round trip and proves the wire. */
export function probe(turn: Turn): void {
  attach(turn, QUICK, "connected");
}

/** `agent.session_created` of a new session. */
export function created(turn: Turn, frame: Frame): void {
  const id = frame.session_id;
  if (id === undefined) return;
  turn.set({
    session: { id, ids: [id], resumeToken: word(frame, "resume_token") ?? null },
    position: { epoch: word(frame, "epoch") ?? null, seq: figure(frame, "last_seq") ?? 0 },
    run: "idle",
  });
  turn.do({ do: "keep" });
  goLive(turn);
}

/** `agent.session_created` of a return, or `agent.state_restored`: the verdict on our cursor. */
export function greeted(turn: Turn, frame: Frame, shown: Shown): void {
  const { link } = turn;
  const epoch = word(frame, "epoch") ?? null;
  turn.set({ session: renamed(link.session, frame), run: (word(frame, "session_state") ?? "idle") as RunState });
  if (frame.event === "agent.state_restored") {
    restored(turn, frame);
    const before = link.position;
    if (word(frame, "source") === "live" && before?.epoch != null && before.epoch !== epoch) {
      // The log goes on, but in another epoch: only the full cursor says what that means.
      return attach(turn, QUICK, shown);
    }
  }
  const resume = resumeIn(frame);
  const toSeq = figure(frame, "last_seq") ?? 0;
  turn.set({ position: place(turn, { epoch, seq: toSeq }, resume), phase: { at: "replaying", attempt: link.failures, shown, toSeq } });
  turn.stopTimers("patience");
  turn.tell({ kind: "resumed", resume });
  turn.do({ do: "keep" });
  // What came before the greeting could not be acknowledged yet.
  if (turn.link.unacked > 0) turn.timer("ack", ACK_MS);
}

/** Where reading starts by this verdict; reports what is lost. */
function place(turn: Turn, log: Position, resume: Resume): Position {
  const before = turn.link.position;
  const first = resume.first_retained_seq ?? resume.from_seq ?? log.seq + 1;
  switch (resume.verdict) {
    case "caught_up":
    case "replay":
      return { epoch: log.epoch, seq: before?.seq ?? (resume.from_seq ?? log.seq + 1) - 1 };
    case "gap": {
      // By our own count: the answer to an older cursor must not take back what we have.
      const fromSeq = before === null ? first - (resume.lost ?? 0) : before.seq + 1;
      if (fromSeq >= first) return { epoch: log.epoch, seq: fromSeq - 1 };
      turn.tell({ kind: "gap", fromSeq, toSeq: first - 1, lost: first - fromSeq });
      fillGap(turn);
      return { epoch: log.epoch, seq: first - 1 };
    }
    case "other_epoch":
      turn.tell({ kind: "reset", why: "other_epoch" });
      if (first > 1) fillGap(turn);
      return { epoch: log.epoch, seq: first - 1 };
    case "ahead_of_log":
      turn.tell({ kind: "reset", why: "ahead_of_log" });
      fillGap(turn);
      return log;
  }
}

/** All that was owed has come. */
export function replayed(turn: Turn, frame: Frame): void {
  const { phase, position } = turn.link;
  if (phase.at !== "replaying") return;
  const toSeq = figure(frame, "to_seq") ?? phase.toSeq;
  if (position === null || position.seq < Math.min(toSeq, phase.toSeq)) return heal(turn);
  turn.tell({ kind: "replayed", count: figure(frame, "replayed") ?? 0, fromSeq: figure(frame, "from_seq") ?? 0, toSeq });
  goLive(turn);
}

function goLive(turn: Turn): void {
  // A take-over or a chosen state is meant for one attempt; from here the way back is the quick one.
  turn.set({ phase: { at: "live" }, way: QUICK, failures: 0, refusals: 0, liveAtMs: turn.moment.nowMs });
  turn.stopTimers("patience");
  askNext(turn);
  askWatches(turn);
}

function restored(turn: Turn, frame: Frame): void {
  const warnings = frame.metadata?.["warnings"];
  forget(turn);
  turn.tell({
    kind: "restored",
    source: word(frame, "source") ?? "",
    originalSessionId: word(frame, "original_session_id") ?? "",
    warnings: Array.isArray(warnings) ? warnings.filter((warning) => typeof warning === "string") : [],
  });
}

function renamed(session: Session | null, frame: Frame): Session | null {
  const id = frame.session_id ?? session?.id;
  if (id === undefined) return session;
  const original = word(frame, "original_session_id");
  const names = [id, ...(session?.ids ?? []), ...(original === undefined ? [] : [original])];
  return { id, ids: [...new Set(names)], resumeToken: word(frame, "resume_token") ?? session?.resumeToken ?? null };
}

function resumeIn(frame: Frame): Resume {
  const resume = frame.metadata?.["resume"];
  return isObject(resume) ? (resume as unknown as Resume) : { verdict: "caught_up" };
}

/** The server refused the way we took. Takes the next one, waits, or stops. */
export function refused(turn: Turn, way: Way, shown: Shown, cause: Refusal): void {
  const successor = cause.details?.["superseded_by"];
  if (way.by === "quick" && !way.followed && typeof successor === "string") {
    follow(turn, successor);
    return attach(turn, { ...way, followed: true }, shown);
  }
  switch (cause.action) {
    case "take_over":
      return held(turn, way, shown, cause);
    case "create_new_session":
    case "export_state_again":
      return gone(turn, way, shown, cause);
    case "retry_later":
      return postpone(turn, cause);
    case "authenticate":
      // The server closes with 4203, and that says the rest.
      return;
    default:
      return stop(turn, cause);
  }
}

/** Another live connection has the session. */
function held(turn: Turn, way: Way, shown: Shown, cause: Refusal): void {
  const { link } = turn;
  const id = link.session?.id ?? link.sealed?.sessionId ?? null;
  if (id !== null && link.session === null) turn.set({ session: { id, ids: [id], resumeToken: null } });
  const asked = way.by !== "create" && way.takeOver;
  if (link.policy.whenHeld === "ask" || asked || id === null) return stop(turn, cause);
  if (link.policy.whenHeld === "observe") turn.set({ mode: "observe" });
  attach(turn, { by: "quick", takeOver: link.policy.whenHeld === "take_over", followed: false }, shown);
}

/** The session, or the state of it, cannot be had any more. */
function gone(turn: Turn, way: Way, shown: Shown, cause: Refusal): void {
  const { link } = turn;
  // What the server would not take, or no longer.
  if (way.by === "state") forget(turn);
  else dropExpired(turn);
  if (way.by === "create" || (way.by === "state" && way.only) || link.mode === "observe") return stop(turn, cause);
  if (way.by === "quick" && turn.link.sealed !== null) {
    return attach(turn, { by: "state", takeOver: false, only: false }, shown);
  }
  if (link.policy.whenGone === "stop") {
    turn.set({ session: null, position: null });
    return stop(turn, cause);
  }
  forsakeAsks(turn, cause);
  turn.set({ session: null, position: null });
  turn.tell({ kind: "reset", why: "new_session" });
  attach(turn, { by: "create" }, shown);
}

/** The session goes on under another id. */
export function follow(turn: Turn, id: string): void {
  const { session } = turn.link;
  turn.set({ session: { id, ids: [id, ...(session?.ids ?? [])], resumeToken: session?.resumeToken ?? null } });
  turn.do({ do: "keep" });
}
