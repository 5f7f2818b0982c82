// A state as a word with a colour. The word alone says everything.

import type { VNode } from "preact";

const TONES: Readonly<Record<string, "good" | "busy" | "warn" | "bad">> = {
  running: "busy",
  waiting: "warn",
  completed: "good",
  failed: "bad",
  unreadable: "bad",
  connected: "good",
  connecting: "busy",
  reconnecting: "warn",
  error: "bad",
  healthy: "good",
  degraded: "warn",
  ready: "good",
  draining: "warn",
  starting: "busy",
  holder: "good",
  live: "good",
  lost: "bad",
};

export function Badge({ state }: { state: string }): VNode {
  return <span class={`badge ${TONES[state] ?? "plain"}`}>{state}</span>;
}
