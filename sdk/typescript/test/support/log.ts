// A log and the server's side of one link, as PROTOCOL.md describes them, for trying the reducer without a server.

import type { ClientFrame, Frame } from "../../src/frame.ts";

export const SESSION = "sess_test";

/** What the server does with a log: numbers, keeps the newest, answers cursors. */
export class Log {
  epoch = "current";
  first = 1;
  next = 1;
  keep: number;
  readonly contents = new Map<number, Frame>();

  constructor(keep = Infinity) {
    this.keep = keep;
  }

  get last(): number {
    return this.next - 1;
  }

  append(frame: Partial<Frame> = {}): Frame {
    const seq = this.next++;
    const event = { event: "agent.thinking", session_id: SESSION, content: `event ${seq}`, ...frame, seq, event_id: `${this.epoch}-${seq}` };
    this.contents.set(seq, event);
    this.trim(Math.max(this.first, this.next - this.keep));
    return event;
  }

  trim(first: number): void {
    for (; this.first < first; this.first++) this.contents.delete(this.first);
  }

  /** The five verdicts, with their figures. */
  verdict(content: Record<string, unknown>): { resume: Record<string, unknown>; start: number } {
    const { epoch, seq } = cursorOf(content);
    const from = (start: number) => (start < this.next ? { from_seq: start, to_seq: this.last } : {});
    if (seq === null) {
      const verdict = this.first < this.next ? "replay" : "caught_up";
      return { resume: { verdict, ...from(this.first) }, start: this.first };
    }
    if (epoch !== null && epoch !== this.epoch) {
      return { resume: { verdict: "other_epoch", first_retained_seq: this.first, ...from(this.first) }, start: this.first };
    }
    if (seq > this.last) return { resume: { verdict: "ahead_of_log" }, start: this.next };
    if (seq === this.last) return { resume: { verdict: "caught_up" }, start: this.next };
    if (seq + 1 < this.first) {
      const figures = { first_retained_seq: this.first, lost: this.first - seq - 1 };
      return { resume: { verdict: "gap", ...figures, ...from(this.first) }, start: this.first };
    }
    return { resume: { verdict: "replay", ...from(seq + 1) }, start: seq + 1 };
  }

  /** Everything the server sends in answer to `user.reconnect`, in order. */
  answer(request: ClientFrame): Frame[] {
    const { resume, start } = this.verdict((request["content"] ?? {}) as Record<string, unknown>);
    const codes: Record<string, string> = { gap: "REPLAY_GAP", other_epoch: "EPOCH_MISMATCH", ahead_of_log: "CURSOR_AHEAD" };
    const code = codes[String(resume["verdict"])];
    const owed = [...this.contents.values()].filter(({ seq }) => (seq ?? 0) >= start);
    return [
      {
        event: "agent.session_created",
        session_id: SESSION,
        content: "Session reconnected successfully",
        metadata: { reconnected: true, resume, epoch: this.epoch, last_seq: this.last, session_state: "idle" },
      },
      ...owed,
      {
        event: "system.notice",
        session_id: SESSION,
        metadata: { action: "replay", replayed: owed.length, from_seq: start, to_seq: this.last, ...(code === undefined ? {} : { code }) },
      },
    ];
  }
}

export const HELLO: Frame = { event: "system.connected", metadata: { heartbeat_interval_ms: 30_000, authenticated: true } };

function cursorOf(content: Record<string, unknown>): { epoch: string | null; seq: number | null } {
  const id = content["last_event_id"];
  if (typeof id === "string") {
    const dash = id.lastIndexOf("-");
    return { epoch: id.slice(0, dash), seq: Number(id.slice(dash + 1)) };
  }
  const seq = content["last_seq"];
  return { epoch: null, seq: typeof seq === "number" ? seq : null };
}
