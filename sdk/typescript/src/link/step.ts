// The link's one entrance: a link and something that happened give the next link and what is to be done.

import { refusal } from "../failure.ts";
import { ask, failAsks, resend } from "./asking.ts";
import { attach, bestWay, dropExpired, probe } from "./attaching.ts";
import { closed, dial, lose, stop } from "./loss.ts";
import { receive, sendAck, stillBehind } from "./receiving.ts";
import type { Effect, Input, Intent, Link, Moment, TimerName } from "./state.ts";
import { Turn } from "./turn.ts";
import { askWatches, unwatch, watch } from "./watching.ts";

/** A link that was heard of so recently needs no proof. */
const FRESH_MS = 1_000;

/** Pure: no clock, no dice, no socket. The same arguments give the same result. */
export function step(link: Link, input: Input, moment: Moment): [Link, readonly Effect[]] {
  const turn = new Turn(link, moment);
  happen(turn, input);
  return [turn.link, turn.effects];
}

function happen(turn: Turn, input: Input): void {
  switch (input.on) {
    case "start":
      return start(turn, input.intent);
    case "stop":
      return stop(turn, null);
    case "cut":
      if (isOpen(turn.link)) lose(turn, refusal("CLOSED", "The connection was cut.", "reconnect"));
      return;
    case "frame":
      return receive(turn, input.frame);
    case "closed":
      return closed(turn, input.code);
    case "timer":
      return timer(turn, input.name);
    case "wake":
      return wake(turn);
    case "token":
      return token(turn, input.token);
    case "ask":
      return ask(turn, input.ask);
    case "watch":
      return watch(turn, input.watch);
    case "unwatch":
      return unwatch(turn, input.key);
  }
}

function start(turn: Turn, intent: Intent): void {
  const { link } = turn;
  switch (intent.to) {
    case "resume":
      if (link.phase.at !== "disconnected") return;
      dropExpired(turn);
      turn.set({ way: bestWay(turn.link) });
      break;
    case "create":
      turn.set({ session: null, position: null, sealed: null, mode: "hold", way: { by: "create" } });
      turn.set({ policy: { ...link.policy, create: { ...link.policy.create, ...intent.create } } });
      turn.do({ do: "keep_state" });
      break;
    case "attach": {
      const id = intent.sessionId ?? link.session?.id;
      if (id === undefined) return stop(turn, refusal("SESSION_NOT_FOUND", "There is no session.", "create_new_session"));
      const session = id === link.session?.id ? link.session : { id, ids: [id], resumeToken: null };
      const position = intent.position !== undefined ? intent.position : session === link.session ? link.position : null;
      turn.set({
        session: { ...session, resumeToken: intent.resumeToken ?? session.resumeToken },
        position,
        mode: intent.mode,
        way: { by: "quick", takeOver: intent.takeOver, followed: false },
      });
      break;
    }
    case "restore": {
      const { sealed } = intent;
      const known = link.session !== null && sealed.sessionId !== null && link.session.ids.includes(sealed.sessionId);
      // A session that we know nothing of is read from its first event, as far as there still are any.
      if (!known) turn.set({ session: null, position: { epoch: null, seq: 0 } });
      turn.set({ sealed, mode: "hold", way: { by: "state", takeOver: false, only: true } });
    }
  }
  reach(turn, link);
}

/** Over the open wire if it is about the same session; another session gets a wire of its own, so that none hears the other's. */
function reach(turn: Turn, before: Link): void {
  const { way, session } = turn.link;
  if (way.by === "quick" && session?.id === before.session?.id) {
    const { at } = before.phase;
    if (at === "attaching" || at === "replaying" || at === "live") return attach(turn, way, "connecting");
  } else {
    failAsks(turn, refusal("CLOSED", "Another session was begun."));
  }
  if (before.phase.at === "dialing") return;
  if (isOpen(before)) turn.do({ do: "hang_up", code: 1000 });
  dial(turn, "connecting");
}

function timer(turn: Turn, name: TimerName): void {
  const { link, moment } = turn;
  switch (name) {
    case "retry":
      if (link.phase.at === "waiting") dial(turn, "reconnecting");
      return;
    case "patience":
      if (isOpen(link) && link.phase.at !== "live") lose(turn, refusal("CLOSED", "The server did not answer in time.", "reconnect"));
      return;
    case "silence": {
      if (!isOpen(link)) return;
      const leftMs = link.heardAtMs + 2 * link.heartbeatMs - moment.nowMs;
      if (leftMs > 0) return turn.timer("silence", leftMs);
      return lose(turn, refusal("CLOSED", "Silence for two heartbeat intervals.", "reconnect"));
    }
    case "ack":
      return sendAck(turn);
    case "behind":
      return stillBehind(turn);
    case "resend":
      return resend(turn);
    case "watch":
      return askWatches(turn);
  }
}

/** Waiting is over; or, if the link seems sound, it is asked to prove it: a half-open socket gives no sign of its own. */
function wake(turn: Turn): void {
  const { phase, heardAtMs } = turn.link;
  if (phase.at === "waiting") return dial(turn, "reconnecting");
  if (phase.at === "live" && turn.moment.nowMs - heardAtMs >= FRESH_MS) probe(turn);
}

function token(turn: Turn, value: string | null): void {
  const { phase } = turn.link;
  if (value !== null) {
    if (isOpen(turn.link) && phase.at !== "dialing") turn.send({ event: "user.authenticate", content: { token: value } });
  } else if (phase.at === "authenticating") {
    stop(turn, refusal("UNAUTHORIZED", "The server wants a valid token.", "authenticate"));
  }
}

function isOpen({ phase }: Link): boolean {
  return phase.at !== "disconnected" && phase.at !== "waiting";
}
