// The link's vocabulary: what it knows (`Link`), what can happen to it (`Input`) and what it wants done (`Effect`).

import type { Refusal } from "../failure.ts";
import type { ClientFrame, Frame, LoggedEvent, Resume, RunState, StreamChunk } from "../frame.ts";
import type { Position } from "../position.ts";
import type { Sealed } from "../sealed.ts";
import type { Ask, Answer, History } from "./ask.ts";
import type { Watch } from "./watching.ts";

/** Time and chance, which a pure machine is given. `random` is in [0, 1). */
export interface Moment {
  readonly nowMs: number;
  readonly random: number;
}

/** The states that an application can watch. */
export type ConnectionState = "disconnected" | "connecting" | "connected" | "connection_lost" | "reconnecting";

/** What is shown while a link is being made or mended. A probe of a link that is believed sound stays `connected`. */
export type Shown = "connecting" | "reconnecting" | "connected";

/** How the link asks for its session. */
export type Way =
  | { readonly by: "create" }
  /** `user.reconnect`. `followed`: the id is already the successor that the server named. */
  | { readonly by: "quick"; readonly takeOver: boolean; readonly followed: boolean }
  /** `user.reconnect_with_state`. `only`: a person chose this state, so nothing else may take its place. */
  | { readonly by: "state"; readonly takeOver: boolean; readonly only: boolean };

export type Phase =
  | { readonly at: "disconnected"; readonly cause: Refusal | null }
  | { readonly at: "waiting"; readonly attempt: number; readonly retryAtMs: number; readonly cause: Refusal | null }
  | { readonly at: "dialing"; readonly attempt: number; readonly shown: Shown }
  | { readonly at: "authenticating"; readonly attempt: number; readonly shown: Shown }
  | { readonly at: "attaching"; readonly attempt: number; readonly shown: Shown; readonly way: Way }
  | { readonly at: "replaying"; readonly attempt: number; readonly shown: Shown; readonly toSeq: number }
  | { readonly at: "live" };

/** A session by all the names it has had: after a restore its older events keep the older name. */
export interface Session {
  readonly id: string;
  readonly ids: readonly string[];
  readonly resumeToken: string | null;
}

export type AttachMode = "hold" | "observe";

/** What does not change while a link lives. */
export interface Policy {
  readonly clientId: string;
  readonly create: Readonly<Record<string, unknown>>;
  /** What to do when another live connection holds the session. */
  readonly whenHeld: "ask" | "take_over" | "observe";
  /** What to do when the session is gone and no state is left to restore. */
  readonly whenGone: "create" | "stop";
  readonly backoffSeconds: readonly number[];
  /** Attempts in a row before the link gives up; `Infinity` by default. */
  readonly attemptsMax: number;
}

export interface Link {
  readonly policy: Policy;
  readonly phase: Phase;
  /** The way to take once the socket is open. */
  readonly way: Way;
  readonly mode: AttachMode;
  readonly session: Session | null;
  /** `null`: no cursor is sent, and the server decides where reading starts. */
  readonly position: Position | null;
  readonly run: RunState;
  readonly sealed: Sealed | null;
  /** What was asked and is not answered yet. Only the first is ever under way, so that each answer has one owner. */
  readonly asks: readonly Ask[];
  /** Whether the first of `asks` was sent on this connection. */
  readonly asking: boolean;
  readonly watches: readonly Watch[];
  readonly heartbeatMs: number;
  readonly heardAtMs: number;
  /** Events since the last ack. */
  readonly unacked: number;
  readonly gapSeen: boolean;
  /** Re-attachments since the last event; a link that cannot be mended in place is dropped. */
  readonly heals: number;
  /** Where we stood when a heartbeat said that the log has more. */
  readonly behindAtSeq: number | null;
  /** Attempts in a row that failed. */
  readonly failures: number;
  /** When the link was last live; and how many in a row were lost soon after that. */
  readonly liveAtMs: number;
  readonly hasty: number;
  /** Closings with 4203 in a row. */
  readonly refusals: number;
  /** How long the server asked us to wait before we return. */
  readonly drainMs: number | null;
}

/** What an application can ask a link to attach to. */
export type Intent =
  /** Whatever is known: the session, else the sealed state, else a new session. */
  | { readonly to: "resume" }
  /** `agent` and the like, if others than before. */
  | { readonly to: "create"; readonly create?: Readonly<Record<string, unknown>> }
  | {
      readonly to: "attach";
      readonly sessionId?: string;
      readonly mode: AttachMode;
      readonly takeOver: boolean;
      /** Left out: as it is known. */
      readonly position?: Position | null;
      readonly resumeToken?: string;
    }
  | { readonly to: "restore"; readonly sealed: Sealed };

export type TimerName = "retry" | "patience" | "silence" | "ack" | "behind" | "resend" | "watch";

export type Input =
  | { readonly on: "start"; readonly intent: Intent }
  | { readonly on: "stop" }
  /** The application or a test cuts the wire. */
  | { readonly on: "cut" }
  | { readonly on: "frame"; readonly frame: Frame }
  | { readonly on: "closed"; readonly code: number }
  | { readonly on: "timer"; readonly name: TimerName }
  /** The page woke up, or the network came back: what we believe about the wire may be stale. */
  | { readonly on: "wake" }
  /** The answer to `fetch_token`. */
  | { readonly on: "token"; readonly token: string | null }
  | { readonly on: "ask"; readonly ask: Ask }
  | { readonly on: "watch"; readonly watch: Watch }
  | { readonly on: "unwatch"; readonly key: number };

/** News for the application that is no logged event. */
export type Told =
  /** Events `fromSeq … toSeq` are gone; comes before any later event. */
  | { readonly kind: "gap"; readonly fromSeq: number; readonly toSeq: number; readonly lost: number }
  /** What was shown so far is not what the log holds: show it anew. */
  | { readonly kind: "reset"; readonly why: "other_epoch" | "ahead_of_log" | "new_session" }
  /** What was said, from the session's state: it fills a gap as far as it can be filled. */
  | ({ readonly kind: "history" } & History)
  | { readonly kind: "resumed"; readonly resume: Resume }
  | { readonly kind: "replayed"; readonly count: number; readonly fromSeq: number; readonly toSeq: number }
  | {
      readonly kind: "restored";
      readonly source: string;
      readonly originalSessionId: string;
      readonly warnings: readonly string[];
    }
  | { readonly kind: "checkpoint"; readonly sealed: Sealed }
  | { readonly kind: "notice"; readonly frame: Frame }
  | { readonly kind: "refused"; readonly refusal: Refusal };

export type Effect =
  | { readonly do: "dial" }
  | { readonly do: "hang_up"; readonly code: number }
  | { readonly do: "send"; readonly frame: ClientFrame }
  | { readonly do: "deliver"; readonly event: LoggedEvent }
  | { readonly do: "tell"; readonly told: Told }
  | { readonly do: "answer"; readonly key: number; readonly answer: Answer }
  | { readonly do: "chunk"; readonly key: number; readonly chunk: StreamChunk }
  | { readonly do: "fail"; readonly key: number; readonly refusal: Refusal }
  /** Session, position and token are to be kept. */
  | { readonly do: "keep" }
  /** The sealed state is to be kept, or forgotten. */
  | { readonly do: "keep_state" }
  | { readonly do: "timer"; readonly name: TimerName; readonly inMs: number }
  | { readonly do: "stop_timers"; readonly names: readonly TimerName[] }
  | { readonly do: "fetch_token" };

export function newLink(policy: Policy, known: Partial<Pick<Link, "session" | "position" | "sealed">> = {}): Link {
  return {
    policy,
    phase: { at: "disconnected", cause: null },
    way: { by: "create" },
    mode: "hold",
    session: known.session ?? null,
    position: known.position ?? null,
    run: "idle",
    sealed: known.sealed ?? null,
    asks: [],
    asking: false,
    watches: [],
    heartbeatMs: 30_000,
    heardAtMs: 0,
    unacked: 0,
    gapSeen: false,
    heals: 0,
    behindAtSeq: null,
    failures: 0,
    liveAtMs: 0,
    hasty: 0,
    refusals: 0,
    drainMs: null,
  };
}

/** What an application sees of the phase. */
export function connectionState(phase: Phase): ConnectionState {
  switch (phase.at) {
    case "disconnected":
      return "disconnected";
    case "waiting":
      return "connection_lost";
    case "live":
      return "connected";
    default:
      return phase.shown;
  }
}
