// The node at a glance: facts, two curves, and the sessions.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { Chart, type Sample } from "./chart.tsx";
import { admin } from "./session.ts";

interface Node {
  readonly version: string;
  readonly uptime_seconds: number;
  readonly ready: boolean;
  readonly draining: boolean;
  readonly connections: number;
  readonly runs_active: number;
  readonly events_appended: number;
  readonly sessions: Readonly<Record<"idle" | "running" | "waiting" | "ended" | "held", number>>;
  readonly store: { readonly url: string; readonly writable: boolean; readonly loss_window: string; readonly troubles: readonly string[]; readonly bytes: number };
}

interface Listed {
  readonly id: string;
  readonly agent?: string;
  readonly state?: string;
  readonly held: boolean;
  readonly observers: number;
  readonly last_seq: number | null;
  readonly acked_seq: number | null;
  readonly title?: string | null;
  readonly last_active_at?: string;
}

const EVERY_MS = 2_000;
/** Ten minutes of samples. */
const SAMPLES_MAX = 300;
const SHOWN_MAX = 50;

export function Overview(): VNode {
  const node = useSignal<Node | null>(null);
  const listed = useSignal<{ readonly sessions: readonly Listed[]; readonly total: number }>({ sessions: [], total: 0 });
  const samples = useSignal<readonly Sample[]>([]);
  const trouble = useSignal("");
  useEffect(() => {
    let stopped = false;
    let before: { atMs: number; events: number } | null = null;
    const look = async () => {
      try {
        const [now, all] = await Promise.all([admin<Node>("node"), admin<typeof listed.value>(`sessions?limit=${SHOWN_MAX}`)]);
        const atMs = Date.now();
        // A server that was restarted counts from 0 again.
        const added = before === null ? 0 : Math.max(0, now.events_appended - before.events);
        const perSecond = before === null ? 0 : (added * 1000) / Math.max(1, atMs - before.atMs);
        before = { atMs, events: now.events_appended };
        node.value = now;
        listed.value = all;
        samples.value = [...samples.value, { atMs, perSecond, connections: now.connections }].slice(-SAMPLES_MAX);
        trouble.value = "";
      } catch (error) {
        trouble.value = error instanceof Error ? error.message : String(error);
      }
      if (!stopped) timer = setTimeout(() => void look(), EVERY_MS);
    };
    let timer = setTimeout(() => void look(), 0);
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [node, listed, samples, trouble]);
  return (
    <>
      <header>
        <h1>Bowline</h1>
        <a href="#chat">Chat</a>
      </header>
      <main>
        <p class="said" role="alert">{trouble.value}</p>
        {node.value === null ? null : <Facts node={node.value} />}
        <h2>Events per second, and connections</h2>
        <Chart samples={samples.value} />
        <Sessions listed={listed.value} />
      </main>
    </>
  );
}

function Facts({ node }: { node: Node }): VNode {
  const { sessions, store } = node;
  const facts: readonly (readonly [string, string | number])[] = [
    ["Version", node.version],
    ["Up for", duration(node.uptime_seconds)],
    ["State", node.draining ? "draining" : node.ready ? "ready" : "starting"],
    ["Connections", node.connections],
    ["Sessions", `${sessions.idle + sessions.running + sessions.waiting} (${sessions.held} held)`],
    ["Runs", `${node.runs_active} active, ${sessions.waiting} waiting`],
    ["Events", node.events_appended],
    ["Store", store.writable ? `${store.url.split(":")[0]}, ${(store.bytes / 1e6).toFixed(1)} MB` : "read only"],
  ];
  return (
    <>
      <dl class="facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
      <p class="fine">{store.loss_window}</p>
      {store.troubles.map((trouble) => <p key={trouble} class="note warning">{trouble}</p>)}
    </>
  );
}

function Sessions({ listed: { sessions, total } }: { listed: { readonly sessions: readonly Listed[]; readonly total: number } }): VNode {
  return (
    <>
      <h2>Sessions{total > sessions.length ? `, the newest ${sessions.length} of ${total}` : ` (${total})`}</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Sessions">
        <table>
          <thead>
            <tr><th scope="col">Session</th><th scope="col">State</th><th scope="col">Agent</th><th scope="col">Seen by</th><th scope="col">Event</th><th scope="col">Acked</th><th scope="col">Title</th></tr>
          </thead>
          <tbody>
            {sessions.map((one) => (
              <tr key={one.id}>
                <td class="name">{one.id.slice(0, 13)}…</td>
                <td>{one.state ?? "unreadable"}</td>
                <td>{one.agent ?? ""}</td>
                <td>{one.held ? "holder" : "nobody"}{one.observers > 0 ? ` + ${one.observers}` : ""}</td>
                <td>{one.last_seq ?? ""}</td>
                <td>{one.acked_seq ?? ""}</td>
                <td>{(one.title ?? "").slice(0, 40)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function duration(seconds: number): string {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7_200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3_600)} h` : `${Math.floor(seconds / 86_400)} d`;
}
