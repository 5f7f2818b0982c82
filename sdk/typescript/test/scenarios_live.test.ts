// The scenarios, played by the client itself against a live server. What a step sends, the client is asked to do, or does unasked.

import { afterEach, expect, test } from "vitest";
import { closeClients, makeClient, next, nextEvent } from "./support/clients.ts";
import { Player } from "./support/player.ts";
import { type FlowStep, type LinkScenario, Names, flowScenarios, linkScenarios } from "./support/scenarios.ts";
import { Server } from "./support/server.ts";
import type { BowlineClient } from "../src/index.ts";

let server: Server;

afterEach(async () => {
  closeClients();
  await server.stop();
});

const LOSSES: Record<string, string> = { REPLAY_GAP: "gap", EPOCH_MISMATCH: "other_epoch", CURSOR_AHEAD: "ahead_of_log" };

/** An observer, and all that it was told. */
class Reader {
  readonly client = makeClient({ url: server.url });
  verdict: string | undefined;
  gap: { lost: number; toSeq: number } | undefined;
  readonly losses: string[] = [];
  readonly seqs: number[] = [];
  read = 0;

  constructor() {
    this.client.on("resumed", ({ verdict }) => (this.verdict = verdict));
    this.client.on("gap", (gap) => {
      this.gap = gap;
      this.losses.push("gap");
    });
    this.client.on("reset", ({ why }) => this.losses.push(why));
    this.client.on("event", ({ seq }) => this.seqs.push(seq));
  }

  async next(): Promise<number | undefined> {
    if (this.read === this.seqs.length) await next(this.client, "event");
    return this.seqs[this.read++];
  }
}

async function append(writer: BowlineClient, count: number): Promise<void> {
  for (let n = 0; n < count / 2; n++) {
    const answered = nextEvent(writer, "agent.final_answer");
    await writer.message("/echo x");
    await answered;
  }
}

async function readLink(scenario: LinkScenario): Promise<void> {
  server = await Server.start({ BOWLINE_BUFFER__EVENTS_MAX: String(scenario.keep ?? 100_000) });
  const writer = makeClient({ url: server.url, checkpoints: false });
  const { id, epoch } = await writer.connect();
  let reader = new Reader();
  for (const step of scenario.steps) {
    if (step.append !== undefined) await append(writer, step.append);
    else if (step.attach !== undefined) {
      const { seq, epoch: asked } = step.attach;
      reader = new Reader();
      await reader.client.observe(id, seq === undefined ? null : { seq, epoch: asked === "current" ? epoch : (asked ?? null) });
    } else if (step.verdict !== undefined) {
      expect(reader.verdict).toBe(step.verdict);
      if (step.lost !== undefined) expect(reader.gap).toMatchObject({ lost: step.lost, toSeq: (step.first ?? 0) - 1 });
    } else if (step.events !== undefined) {
      for (let n = step.events[0]; n <= step.events[1]; n++) expect(await reader.next()).toBe(n);
    } else if (step.replayed !== undefined) {
      expect(reader.client.connection).toMatchObject({ state: "connected", replayed: step.replayed });
      expect(reader.losses).toEqual(step.code === undefined ? [] : [LOSSES[step.code]]);
    } else if (step.quiet) {
      // Whatever else were owed would come before the answer to this.
      await reader.client.observe();
      expect(reader.seqs).toHaveLength(reader.read);
    } else if (step.cut) reader.client.close();
    else throw new Error(`no such step: ${JSON.stringify(step)}`);
  }
}

test.each(linkScenarios().map((scenario) => [scenario.name, scenario] as const))("the client holds %s", async (_name, scenario) => {
  await readLink(scenario);
});

/** Flows with frames that a player does not send. */
const FOREIGN = ["refusals.json", "background_operation.json"];
const KEY = { BOWLINE_STATE__KEYS: '["k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]' };

async function playFlow(steps: readonly FlowStep[]): Promise<void> {
  server = await Server.start(KEY);
  const players = new Map<string, Player>();
  const names = new Names();
  let latest: Player | null = null;
  for (const step of steps) {
    if (step.restart || step.wipe) {
      for (const player of players.values()) player.vanish();
      await (step.restart ? server.restart() : server.wipe());
      continue;
    }
    const on = step.on ?? "";
    const player = players.get(on);
    if (step.connect) players.set(on, (latest = new Player(server.url, latest)));
    else if (player === undefined) throw new Error(`there is no ${on}`);
    else if (step.drop) player.vanish();
    else if (step.send !== undefined) player.perform(names.fill(step.send) as Record<string, unknown>);
    else if (step.expect !== undefined) await player.expect(step.expect, names);
    else if (step.await !== undefined) await player.until(step.await, names);
    else throw new Error(`no such step: ${JSON.stringify(step)}`);
  }
}

const flows = flowScenarios().filter(({ name }) => !FOREIGN.includes(name));

test.each(flows.map(({ name, steps }) => [name, steps] as const))("the client plays %s", async (_name, steps) => {
  await playFlow(steps);
});
