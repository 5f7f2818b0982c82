// The status of the connection: its state, the attempt, the next one, what was replayed and what is gone.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { connection } from "./session.ts";

const WORDS = {
  disconnected: "Not connected",
  connecting: "Connecting …",
  connected: "Connected",
  connection_lost: "Connection lost",
  reconnecting: "Reconnecting …",
} as const;

export function Pill(): VNode {
  const { state, attempt, retryAtMs, cause, replayed, gap, mode } = connection.value;
  const facts = [
    mode === "observe" && state === "connected" ? "watching" : "",
    attempt > 0 ? `attempt ${attempt}` : "",
    state === "connected" && replayed !== null && replayed > 0 ? `${replayed} replayed` : "",
    gap !== null ? `${gap.lost} lost` : "",
    state === "disconnected" && cause !== null ? cause.message : "",
  ].filter((fact) => fact !== "");
  return (
    <p class={`pill ${state}`} data-state={state}>
      <span role="status">{[WORDS[state], ...facts].join(" · ")}</span>
      {retryAtMs === null ? null : <Countdown untilMs={retryAtMs} />}
    </p>
  );
}

/** Outside the live region: a screen reader need not count along. */
function Countdown({ untilMs }: { untilMs: number }): VNode {
  const left = useSignal(0);
  useEffect(() => {
    const look = () => (left.value = Math.max(0, Math.ceil((untilMs - Date.now()) / 1000)));
    look();
    const timer = setInterval(look, 250);
    return () => clearInterval(timer);
  }, [untilMs, left]);
  return <span aria-hidden="true"> · next in {left.value} s</span>;
}
