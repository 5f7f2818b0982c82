// What an application asks of its session, as frames, and which server frame answers it.

import { type ClientFrame, type Frame, type LoggedEvent, endsRun, figure, isObject, word } from "../frame.ts";
import { type Sealed, sealedIn } from "../sealed.ts";

/** What is asked. */
export type Question =
  | { readonly kind: "message"; readonly messageId: string; readonly content: unknown }
  | { readonly kind: "response"; readonly stepId: string; readonly content: unknown }
  | { readonly kind: "cancel"; readonly reason: string | null }
  | { readonly kind: "export"; readonly content: Readonly<Record<string, unknown>> }
  | { readonly kind: "plan"; readonly action: PlanAction; readonly fields: Readonly<Record<string, unknown>> }
  | { readonly kind: "end" };

export type PlanAction = "cancel_task" | "restart_task" | "cancel_plan" | "replan" | "solve_tasks";

export interface Ask {
  /** By which the driver finds who waits. */
  readonly key: number;
  readonly question: Question;
  /** Whether it was ever sent: then it may have been accepted, also if no answer came. */
  readonly wasSent: boolean;
  readonly tries: number;
}

export type Answer =
  /** In the log as `seq`, or `null` while it is queued. `duplicate`: it had been accepted before. */
  | { readonly kind: "message"; readonly messageId: string; readonly seq: number | null; readonly duplicate: boolean }
  | { readonly kind: "response"; readonly seq: number }
  | { readonly kind: "cancel"; readonly cancelled: boolean }
  | { readonly kind: "export"; readonly exported: Exported }
  | { readonly kind: "plan"; readonly ok: boolean }
  | { readonly kind: "end" }
  /** A watched task is over: `completed`, `failed`, `cancelled`, `expired`; or `elsewhere`: it is watched by another tab now. */
  | { readonly kind: "watch"; readonly status: string; readonly lastMessageId: string };

/** A sealed state with the facts that came with it. */
export interface Exported extends Sealed {
  readonly metadata: Readonly<Record<string, unknown>>;
}

/** What was said, as an exported state has it. */
export interface History {
  /** Oldest first. */
  readonly messages: readonly { readonly role: string; readonly content: unknown }[];
  /** How many messages the person has sent in all; `messages` may lack the oldest. */
  readonly steps: number;
  /** The last event that is part of it. */
  readonly lastSeq: number;
}

/** `null` if the state is sealed so that only the server can read it. */
export function historyIn({ signedState }: Sealed): History | null {
  const state = isObject(signedState) ? signedState["state"] : null;
  if (!isObject(state) || !Array.isArray(state["memory_snapshot"])) return null;
  return { messages: state["memory_snapshot"], steps: Number(state["current_step"]), lastSeq: Number(state["last_seq"]) };
}

export function askFrame(question: Question, sessionId: string): ClientFrame {
  const about = { session_id: sessionId };
  switch (question.kind) {
    case "message":
      return { event: "user.message", ...about, message_id: question.messageId, content: question.content };
    case "response":
      return { event: "user.response", ...about, step_id: question.stepId, content: question.content };
    case "cancel":
      return { event: "user.cancel", ...about, reason: question.reason ?? undefined };
    case "export":
      return { event: "user.request_state", ...about, content: question.content };
    case "plan":
      return { event: `user.${question.action}`, ...about, ...question.fields };
    case "end":
      return { event: "user.end_session", ...about };
  }
}

/** What a logged event says to `question`, or `null`. */
export function answerInEvent(question: Question, event: LoggedEvent): Answer | null {
  const { event: name, seq } = event;
  switch (question.kind) {
    case "message": {
      const { messageId } = question;
      const same = name === "user.message" && word(event, "message_id") === messageId;
      return same ? { kind: "message", messageId, seq, duplicate: false } : null;
    }
    case "response":
      return name === "user.response" && event.step_id === question.stepId ? { kind: "response", seq } : null;
    case "cancel":
      return endsRun(event) ? { kind: "cancel", cancelled: name === "agent.cancelled" } : null;
    case "end":
      return name === "agent.session_end" ? { kind: "end" } : null;
    default:
      return null;
  }
}

/** What a control frame says to `question`, or `null`. */
export function answerInControl(question: Question, frame: Frame): Answer | null {
  const action = word(frame, "action");
  switch (question.kind) {
    case "message": {
      const { messageId } = question;
      if (word(frame, "message_id") !== messageId) return null;
      if (action === "queued") return { kind: "message", messageId, seq: null, duplicate: false };
      const duplicate = action === "duplicate_message";
      return duplicate ? { kind: "message", messageId, seq: figure(frame, "seq") ?? null, duplicate } : null;
    }
    case "cancel":
      return action === "cancel" ? { kind: "cancel", cancelled: false } : null;
    case "plan":
      return action === question.action ? { kind: "plan", ok: frame.metadata?.["ok"] === true } : null;
    case "export": {
      const sealed = frame.event === "agent.state_exported" ? sealedIn(frame) : null;
      // A checkpoint that was pushed meanwhile is no answer to a caller that asked for the other form.
      const wrongForm = question.content["format"] === "token" && typeof sealed?.signedState !== "string";
      return sealed === null || wrongForm ? null : { kind: "export", exported: { ...sealed, metadata: frame.metadata ?? {} } };
    }
    case "end":
      return frame.event === "agent.session_end" ? { kind: "end" } : null;
    default:
      return null;
  }
}
