// The MCP servers behind this one: where each stands, when it is tried next, and a button that does not wait for that.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { Refused, ask, usePolled } from "../admin.ts";
import { Badge } from "./badge.tsx";
import { now } from "./clock.ts";
import { Frame } from "./frame.tsx";
import { ago, counted } from "./words.ts";

export interface Backend {
  readonly name: string;
  readonly owner: string | null;
  readonly url?: string;
  readonly command?: string;
  readonly status: "connecting" | "connected" | "reconnecting" | "disconnected" | "error";
  readonly connectedAt?: string;
  readonly lastError?: string;
  readonly reconnectAttempt?: number;
  readonly nextRetryMs?: number;
  readonly healthStatus?: string;
  readonly consecutiveHealthFailures?: number;
  readonly protocolVersion?: string;
  readonly serverInfo?: { readonly name?: string; readonly version?: string } | null;
  readonly tools: number;
}

/** The states of a backend's life, in the order in which it meets them. */
const LIFE = ["connecting", "connected", "reconnecting"] as const;

export function Backends(): VNode {
  const polled = usePolled("backends", () => ask<{ backends: readonly Backend[] }>("backends"), 1_000);
  return (
    <Frame
      title="Backends"
      polled={polled}
      show={({ backends }) =>
        backends.length === 0 ? (
          <p class="empty card">There are no MCP servers. <code>hub.servers_file</code> names a file that lists them, in the shape that other MCP clients use.</p>
        ) : (
          <ul class="backends">{backends.map((one) => <Card key={`${one.owner ?? ""}/${one.name}`} backend={one} atMs={polled.value.atMs} />)}</ul>
        )
      }
    />
  );
}

function Card({ backend, atMs }: { backend: Backend; atMs: number }): VNode {
  const { name, owner, status, serverInfo, protocolVersion } = backend;
  return (
    <li class="card backend" aria-label={name} data-status={status}>
      <div class="row spread">
        <h3>{name} {owner === null ? null : <span class="quiet">of {owner}</span>}</h3>
        <Reconnect backend={backend} />
      </div>
      <p class="id long">{backend.url ?? backend.command ?? ""}</p>
      <ol class="life" aria-label="State">
        {LIFE.map((state) => <li key={state} class={state === status ? `now ${state}` : ""} aria-current={state === status ? "step" : undefined}>{state}</li>)}
        {status === "disconnected" || status === "error" ? <li class={`now ${status}`} aria-current="step">{status}</li> : null}
      </ol>
      <p class="standing"><Standing backend={backend} atMs={atMs} /></p>
      {backend.lastError === undefined || status === "connected" ? null : <p class="note failed">{backend.lastError}</p>}
      <p class="fine">
        {[counted(backend.tools, "tool"), serverInfo?.name && `${serverInfo.name} ${serverInfo.version ?? ""}`, protocolVersion && `MCP ${protocolVersion}`].filter(Boolean).join(" · ")}
      </p>
    </li>
  );
}

function Standing({ backend, atMs }: { backend: Backend; atMs: number }): VNode {
  const { status, reconnectAttempt = 0, nextRetryMs = 0, connectedAt, healthStatus, consecutiveHealthFailures = 0 } = backend;
  if (status === "reconnecting") {
    const left = Math.max(0, Math.ceil((atMs + nextRetryMs - now.value) / 1000));
    return <>Attempt {reconnectAttempt} · {left === 0 ? "trying now" : `next in ${left} s`}</>;
  }
  if (status !== "connected") return <>{status === "connecting" ? "First attempt under way" : "Not tried by itself; the next call or the button does"}</>;
  const failures = consecutiveHealthFailures > 0 ? `, ${counted(consecutiveHealthFailures, "check")} failed in a row` : "";
  return <>Since {ago(connectedAt, now.value).replace(" ago", "")} · <Badge state={healthStatus ?? "unknown"} />{failures}</>;
}

function Reconnect({ backend: { name, owner } }: { backend: Backend }): VNode {
  const said = useSignal("");
  const busy = useSignal(false);
  const dial = async () => {
    busy.value = true;
    said.value = "";
    const whose = owner === null ? "" : `?owner=${encodeURIComponent(owner)}`;
    try {
      const { success } = await ask<{ success: boolean }>(`backends/${encodeURIComponent(name)}/reconnect${whose}`, "POST");
      said.value = success ? "It is back." : "It did not answer.";
    } catch (error) {
      said.value = error instanceof Refused ? error.message : String(error);
    }
    busy.value = false;
  };
  return (
    <div class="row">
      <span class="fine" role="status">{said.value}</span>
      <button disabled={busy.value} onClick={() => void dial()}>{busy.value ? "Dialling …" : "Reconnect"}<span class="sr-only"> {name}</span></button>
    </div>
  );
}
