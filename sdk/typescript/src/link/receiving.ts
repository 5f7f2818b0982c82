// What comes in over an open socket: numbered events, each once and in order, and control frames, which have no number.

import { refusal, refusalIn } from "../failure.ts";
import { type Frame, type LoggedEvent, figure, isLogged, runStateAfter, word } from "../frame.ts";
import { cursorFields } from "../position.ts";
import { sealedIn } from "../sealed.ts";
import { fillGap, refuseAsk, settleByControl, settleByEvent } from "./asking.ts";
import { ACK_MS, attach, bestWay, created, follow, greeted, heal, probe, refused, replayed } from "./attaching.ts";
import { stop } from "./loss.ts";
import type { Turn } from "./turn.ts";
import { refuseWatch, refusedTask, watched } from "./watching.ts";

/** A heartbeat may overtake events that are on their way; they have this long to arrive. */
const BEHIND_MS = 2_000;

export function receive(turn: Turn, frame: Frame): void {
  turn.set({ heardAtMs: turn.moment.nowMs });
  const { phase } = turn.link;
  if (phase.at === "disconnected" || phase.at === "waiting") return;
  if (frame.event === "system.connected") return connected(turn, frame);
  if (phase.at === "dialing") return;
  if (isLogged(frame)) return numbered(turn, frame);
  control(turn, frame);
}

function connected(turn: Turn, frame: Frame): void {
  const { phase, way } = turn.link;
  if (phase.at !== "dialing") return;
  const heartbeatMs = figure(frame, "heartbeat_interval_ms") ?? turn.link.heartbeatMs;
  turn.set({ heartbeatMs });
  // Silence for two intervals is loss.
  turn.timer("silence", 2 * heartbeatMs);
  if (frame.metadata?.["authenticated"] === false) {
    turn.set({ phase: { ...phase, at: "authenticating" } });
    turn.do({ do: "fetch_token" });
    return;
  }
  attach(turn, way, phase.shown);
}

/** A logged event: the next one is handed over, an older one is dropped, and a hole is never stepped over. */
function numbered(turn: Turn, event: LoggedEvent): void {
  const { link } = turn;
  if (link.position === null) return;
  const next = link.position.seq + 1;
  if (!isOurs(turn, event) && !isOlderName(turn, event, next)) return;
  if (event.seq < next) return;
  if (event.seq > next) {
    // While we attach anew, the rest of what was on its way may still come in; it will come again.
    if (link.phase.at !== "attaching") heal(turn);
    return;
  }
  const { unacked } = link;
  const run = runStateAfter(event, link.run);
  turn.set({ position: { ...link.position, seq: event.seq }, run, unacked: unacked + 1, heals: 0 });
  turn.do({ do: "deliver", event });
  if (unacked === 0) turn.timer("ack", ACK_MS);
  settleByEvent(turn, event);
  if (event.event === "agent.session_end") end(turn, event);
}

function control(turn: Turn, frame: Frame): void {
  const { phase } = turn.link;
  const refusalOf = refusalIn(frame);
  if (refusalOf !== null) return refuse(turn, frame);
  switch (frame.event) {
    case "agent.session_created":
    case "agent.state_restored":
      if (phase.at === "attaching") answered(turn, frame);
      return;
    case "agent.state_exported":
      return exported(turn, frame);
    case "agent.session_end":
      if (isOurs(turn, frame)) end(turn, frame);
      return;
    case "system.heartbeat":
      return heartbeat(turn, frame);
    case "system.notice":
      return notice(turn, frame);
    case "task.chunk":
    case "task.end":
      return watched(turn, frame);
    default:
      turn.tell({ kind: "notice", frame });
  }
}

/** The answer to our attachment. */
function answered(turn: Turn, frame: Frame): void {
  const { phase, session } = turn.link;
  if (phase.at !== "attaching") return;
  const returned = frame.metadata?.["reconnected"] === true;
  const { by } = phase.way;
  if (by === "create" && frame.event === "agent.session_created" && !returned) return created(turn, frame);
  if (by === "quick" && returned && frame.session_id === session?.id) return greeted(turn, frame, phase.shown);
  if (by === "state" && frame.event === "agent.state_restored") return greeted(turn, frame, phase.shown);
}

function refuse(turn: Turn, frame: Frame): void {
  const cause = refusalIn(frame);
  const { phase } = turn.link;
  if (cause === null) return;
  const task = refusedTask(frame);
  if (task !== undefined) return refuseWatch(turn, task, cause);
  // What was asked before we attached anew is answered first, and these are no answers to an attachment.
  const ofAsk = turn.link.asking && (cause.action === "fix_request" || cause.code === "AGENT_BUSY");
  if (phase.at === "attaching" && !ofAsk) {
    const about = frame.session_id;
    if (about === undefined || phase.way.by !== "quick" || about === turn.link.session?.id) refused(turn, phase.way, phase.shown, cause);
    return;
  }
  if (frame.session_id !== undefined && !isOurs(turn, frame)) return;
  // An ack that the server finds ahead of what it sent means that we disagree about where we stand.
  if (cause.code === "CURSOR_AHEAD") return probe(turn);
  if (!refuseAsk(turn, cause)) turn.tell({ kind: "refused", refusal: cause });
}

function exported(turn: Turn, frame: Frame): void {
  const sealed = sealedIn(frame);
  if (!isOurs(turn, frame) || sealed === null) return;
  turn.set({ sealed });
  turn.do({ do: "keep_state" });
  if (!settleByControl(turn, frame)) turn.tell({ kind: "checkpoint", sealed });
}

function heartbeat(turn: Turn, frame: Frame): void {
  const { link } = turn;
  // Over a shared wire the heartbeats of other tabs' sessions come by, too; theirs is to answer them.
  if (!isOurs(turn, frame)) return;
  sendAck(turn);
  const logSeq = figure(frame, "seq");
  if (link.position === null || logSeq === undefined || frame.session_id === undefined) return;
  const behind = link.phase.at === "replaying" || (link.phase.at === "live" && logSeq > link.position.seq);
  if (!behind) return;
  turn.set({ behindAtSeq: link.position.seq });
  turn.timer("behind", BEHIND_MS);
}

/** The time in which events could have come after all is over. */
export function stillBehind(turn: Turn): void {
  const { behindAtSeq, phase, position } = turn.link;
  turn.set({ behindAtSeq: null });
  const attached = phase.at === "live" || phase.at === "replaying";
  if (attached && behindAtSeq !== null && position?.seq === behindAtSeq) heal(turn);
}

function notice(turn: Turn, frame: Frame): void {
  const { link } = turn;
  const code = word(frame, "code");
  const action = word(frame, "action");
  if (action === "authenticated" && link.phase.at === "authenticating") return attach(turn, link.way, link.phase.shown);
  if (action === "token_expiring") turn.do({ do: "fetch_token" });
  if (code === "SERVER_DRAINING") turn.set({ drainMs: figure(frame, "retry_after_ms") ?? null });
  if (isOurs(turn, frame)) {
    if (action === "replay") return replayed(turn, frame);
    if (code === "SESSION_TAKEN_OVER") return stop(turn, refusal(code, sentence(frame)));
    if (code === "REPLAY_GAP") return skipped(turn, frame);
    if (action === "resume_token") return tokenRenewed(turn, frame);
    if (settleByControl(turn, frame)) return;
  }
  turn.tell({ kind: "notice", frame });
}

/** Events were let go before we read them. That is reported before the next one. */
function skipped(turn: Turn, frame: Frame): void {
  const { position } = turn.link;
  const first = figure(frame, "first_retained_seq");
  if (position === null || first === undefined || first <= position.seq + 1) return;
  const [fromSeq, toSeq] = [position.seq + 1, first - 1];
  turn.set({ position: { ...position, seq: toSeq } });
  turn.tell({ kind: "gap", fromSeq, toSeq, lost: first - fromSeq });
  fillGap(turn);
  turn.do({ do: "keep" });
}

/** Another tab came back over the connection that we share; the server never sends this one. */
function tokenRenewed(turn: Turn, frame: Frame): void {
  const { session } = turn.link;
  const resumeToken = word(frame, "resume_token");
  if (session === null || resumeToken === undefined) return;
  turn.set({ session: { ...session, resumeToken } });
  turn.do({ do: "keep" });
}

/** `agent.session_end`, numbered or not. */
function end(turn: Turn, frame: Frame): void {
  const successor = word(frame, "superseded_by");
  if (word(frame, "reason") === "superseded" && successor !== undefined) {
    follow(turn, successor);
    // An observer goes on observing; a holder lost the session to the client that restored it.
    if (turn.link.mode === "observe") return attach(turn, bestWay(turn.link), "reconnecting");
    return stop(turn, { ...refusal("SESSION_INACTIVE", sentence(frame), "create_new_session"), details: { superseded_by: successor } });
  }
  settleByControl(turn, frame);
  turn.set({ session: null, position: null, sealed: null, run: "idle" });
  turn.do({ do: "keep_state" });
  stop(turn, refusal("SESSION_INACTIVE", sentence(frame), "create_new_session"));
}

export function sendAck(turn: Turn): void {
  const { link } = turn;
  turn.stopTimers("ack");
  if (link.session === null || link.position === null || (link.phase.at !== "live" && link.phase.at !== "replaying")) return;
  const content = { ...cursorFields(link.position), received_count: link.unacked, gap_detected: link.gapSeen || undefined };
  turn.send({ event: "user.ack", session_id: link.session.id, content });
  turn.set({ unacked: 0, gapSeen: false });
  turn.do({ do: "keep" });
}

/**
 * A session that was restored has events under its older names, which a newcomer has never heard of. They come while it
 * replays, and fit without a hole.
 */
function isOlderName(turn: Turn, event: LoggedEvent, next: number): boolean {
  const { phase, session } = turn.link;
  if (phase.at !== "replaying" || session === null || event.session_id === undefined || event.seq !== next) return false;
  turn.set({ session: { ...session, ids: [...session.ids, event.session_id] } });
  return true;
}

/** A frame without a session is about the connection, which is ours. */
function isOurs(turn: Turn, frame: Frame): boolean {
  const { session } = turn.link;
  return frame.session_id === undefined ? frame.seq === undefined : session !== null && session.ids.includes(frame.session_id);
}

function sentence(frame: Frame): string {
  return typeof frame.content === "string" ? frame.content : "";
}
