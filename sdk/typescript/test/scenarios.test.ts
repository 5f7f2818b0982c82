// The link scenarios that the server's machine passes, run against the client's.

import { expect, test } from "vitest";
import { HELLO, Log, SESSION } from "./support/log.ts";
import { Rig } from "./support/rig.ts";
import { type LinkScenario, type LinkStep, linkScenarios } from "./support/scenarios.ts";

/** The codes that come with a replay, as the client tells them. */
const TOLD: Record<string, string> = { REPLAY_GAP: "gap", EPOCH_MISMATCH: "other_epoch", CURSOR_AHEAD: "ahead_of_log" };

class Reader {
  readonly log: Log;
  rig: Rig | null = null;
  seen = 0;

  constructor(scenario: LinkScenario) {
    this.log = new Log(scenario.keep ?? Infinity);
  }

  get open(): Rig {
    if (this.rig === null) throw new Error("the reader is not attached");
    return this.rig;
  }

  step(step: LinkStep): void {
    if (step.append !== undefined) this.append(step.append);
    else if (step.attach !== undefined) this.attach(step.attach);
    else if (step.cut) this.rig = null;
    else if (step.verdict !== undefined) this.verdict(step);
    else if (step.events !== undefined) this.events(...step.events);
    else if (step.replayed !== undefined) this.replayed(step.replayed, step.code);
    else if (step.quiet) expect(this.open.delivered.length, "nothing more came").toBe(this.seen);
    else throw new Error(`no such step: ${JSON.stringify(step)}`);
  }

  append(count: number): void {
    for (let n = 0; n < count; n++) {
      const event = this.log.append();
      this.rig?.frame(event);
    }
  }

  attach({ seq, epoch }: { seq?: number; epoch?: string }): void {
    const position = seq === undefined ? null : { epoch: epoch ?? null, seq };
    const rig = new Rig();
    rig.happen({ on: "start", intent: { to: "attach", sessionId: SESSION, mode: "observe", takeOver: false, position } });
    rig.frame(HELLO);
    const request = rig.lastSent;
    expect(request?.event).toBe("user.reconnect");
    if (request !== undefined) rig.frame(...this.log.answer(request));
    this.rig = rig;
    this.seen = 0;
  }

  verdict({ verdict, lost, first }: LinkStep): void {
    const resumed = this.open.told.find((told) => told.kind === "resumed");
    expect(resumed?.kind === "resumed" && resumed.resume.verdict).toBe(verdict);
    const gap = this.open.told.find((told) => told.kind === "gap");
    if (lost !== undefined) expect(gap).toMatchObject({ lost, toSeq: (first ?? 0) - 1 });
  }

  events(from: number, to: number): void {
    for (let n = from; n <= to; n++) expect(this.open.delivered[this.seen++]?.seq).toBe(n);
  }

  replayed(count: number, code: string | undefined): void {
    const { told, state, hungUpWith } = this.open;
    expect(told.find((news) => news.kind === "replayed")).toMatchObject({ count });
    expect(state).toBe("connected");
    expect(hungUpWith).toEqual([]);
    const losses = told.flatMap((news) => (news.kind === "gap" ? ["gap"] : news.kind === "reset" ? [news.why] : []));
    expect(losses).toEqual(code === undefined ? [] : [TOLD[code]]);
  }
}

test.each(linkScenarios().map((scenario) => [scenario.name, scenario] as const))("the reducer holds %s", (_name, scenario) => {
  const reader = new Reader(scenario);
  for (const step of scenario.steps) reader.step(step);
});
