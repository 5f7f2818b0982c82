// This server: its facts, its throughput over the last minutes, and its reconnects.

import { signal } from "@preact/signals";
import type { VNode } from "preact";
import type { Node } from "../../../sdk/typescript/src/generated/answers.ts";
import { ask, askText, usePolled } from "../admin.ts";
import { Badge } from "./badge.tsx";
import { Chart } from "./chart.tsx";
import { Facts } from "./facts.tsx";
import { Frame } from "./frame.tsx";
import { type Metrics, byLabel, quantile, rate, readMetrics, total } from "./metrics.ts";
import { bytes, counted, duration, figure } from "./words.ts";

/** What the curves are made of, at one moment. */
interface Moment {
  readonly atSeconds: number;
  readonly stored: number;
  readonly sent: number;
  readonly replayed: number;
  /** Of commits since the moment before, in milliseconds; `null` if there was none. */
  readonly median: number | null;
  readonly slowest: number | null;
  readonly connections: number;
  readonly streams: number;
}

const EVERY_MS = 2_000;
/** Ten minutes. */
const MOMENTS_MAX = 300;

/** Kept while the page shows something else; a pause is a gap that the curves span. */
const moments = signal<readonly Moment[]>([]);
let before: { readonly atSeconds: number; readonly metrics: Metrics } | null = null;

async function look(): Promise<{ node: Node; metrics: Metrics }> {
  const [node, text] = await Promise.all([ask<Node>("node"), askText("metrics")]);
  const metrics = readMetrics(text);
  const atSeconds = Date.now() / 1000;
  if (before !== null) moments.value = [...moments.value, between(before, { atSeconds, metrics })].slice(-MOMENTS_MAX);
  before = { atSeconds, metrics };
  return { node, metrics };
}

function between(earlier: NonNullable<typeof before>, now: NonNullable<typeof before>): Moment {
  const perSecond = (name: string) => rate(earlier.metrics, now.metrics, name, now.atSeconds - earlier.atSeconds);
  const commit = (part: number) => {
    const seconds = quantile(earlier.metrics, now.metrics, "bowline_store_commit_seconds", part);
    return seconds === null ? null : seconds * 1000;
  };
  return {
    atSeconds: now.atSeconds,
    stored: perSecond("bowline_events_appended_total"),
    sent: perSecond("bowline_events_sent_total"),
    replayed: perSecond("bowline_events_replayed_total"),
    median: commit(0.5),
    slowest: commit(0.99),
    connections: total(now.metrics, "bowline_connections"),
    streams: total(now.metrics, "bowline_streams"),
  };
}

export function NodePage(): VNode {
  const polled = usePolled("node", look, EVERY_MS);
  return (
    <Frame
      title="Node"
      polled={polled}
      show={({ node, metrics }) => (
        <>
          <About node={node} />
          <Charts />
          <Reconnects metrics={metrics} />
        </>
      )}
    />
  );
}

function About({ node }: { node: Node }): VNode {
  const { sessions, store } = node;
  const alive = sessions.idle + sessions.running + sessions.waiting;
  return (
    <>
      <Facts
        facts={[
          ["State", <Badge state={node.draining ? "draining" : node.ready ? "ready" : "starting"} />],
          ["Up for", duration(node.uptime_seconds)],
          ["Version", node.version],
          ["Listens at", node.listen],
          ["Sessions", `${figure(alive)}, ${figure(sessions.held)} held`],
          ["Runs", `${figure(node.runs_active)} active, ${figure(sessions.waiting)} waiting`],
          ["Events stored", figure(node.events_appended)],
          ["Store", store.writable ? `${store.url.split(":")[0]}, ${bytes(store.bytes)} in ${counted(store.logs, "log")}` : <Badge state="failed" />],
        ]}
      />
      <p class="fine">What a power cut can cost: {store.loss_window}.</p>
      {store.troubles.map((trouble) => <p key={trouble} class="note warning">{trouble}</p>)}
      {store.quarantined.length === 0 ? null : <p class="note failed">Set aside because of damage: {store.quarantined.join(", ")}</p>}
    </>
  );
}

function Charts(): VNode {
  const all = moments.value;
  const atSeconds = all.map((moment) => moment.atSeconds);
  const curve = (label: string, of: (moment: Moment) => number | null) => ({ label, values: all.map(of) });
  return (
    <div class="charts">
      <Chart title="Events" unit="per s" atSeconds={atSeconds} curves={[curve("stored", ({ stored }) => stored), curve("sent", ({ sent }) => sent)]} />
      <Chart title="Commit latency" unit="ms" atSeconds={atSeconds} curves={[curve("median", ({ median }) => median), curve("99 %", ({ slowest }) => slowest)]} />
      <Chart title="Open now" unit="" atSeconds={atSeconds} curves={[curve("connections", ({ connections }) => connections), curve("streams", ({ streams }) => streams)]} />
      <Chart title="Replayed after reconnects" unit="per s" atSeconds={atSeconds} curves={[curve("events", ({ replayed }) => replayed)]} />
    </div>
  );
}

const VERDICTS = [
  ["caught_up", "missed nothing"],
  ["replay", "missed events replayed"],
  ["gap", "gap reported"],
  ["other_epoch", "reset: the log is another one"],
  ["ahead_of_log", "reset: the log had lost its end"],
] as const;

function Reconnects({ metrics }: { metrics: Metrics }): VNode {
  const counts = new Map(byLabel(metrics, "bowline_reconnects_total", "verdict"));
  const refusals = byLabel(metrics, "bowline_reconnect_refusals_total", "code");
  const most = Math.max(1, ...counts.values(), ...refusals.map(([, count]) => count));
  const sum = [...counts.values()].reduce((all, count) => all + count, 0);
  return (
    <section aria-label="Reconnects">
      <h3>Reconnects</h3>
      {sum === 0 && refusals.length === 0 ? <p class="empty card">No client has reconnected yet. In the <a href="#chat">chat</a>, drop the connection.</p> : null}
      <table class="returns" aria-label="Reconnects">
        <thead class="sr-only"><tr><th scope="col">Outcome</th><th scope="col">Clients</th></tr></thead>
        <tbody>
          {VERDICTS.map(([verdict, words]) => <Outcome key={verdict} name={words} count={counts.get(verdict) ?? 0} most={most} tone={verdict === "caught_up" || verdict === "replay" ? "good" : "warn"} />)}
          {refusals.map(([code, count]) => <Outcome key={code} name={`refused: ${code}`} count={count} most={most} tone="bad" />)}
        </tbody>
      </table>
      <p class="fine">
        {figure(total(metrics, "bowline_events_replayed_total"))} events replayed, {figure(total(metrics, "bowline_events_lost_per_reconnect_sum"))} reported as lost,{" "}
        {figure(total(metrics, "bowline_duplicates_avoided_total"))} duplicates avoided, {figure(total(metrics, "bowline_heartbeat_losses_total"))} heartbeat timeouts.
      </p>
    </section>
  );
}

function Outcome({ name, count, most, tone }: { name: string; count: number; most: number; tone: string }): VNode {
  return (
    <tr>
      <th scope="row">{name}</th>
      <td><span class={`beam ${tone}`} style={{ width: `${(100 * count) / most}%` }} /><span class="count">{figure(count)}</span></td>
    </tr>
  );
}
