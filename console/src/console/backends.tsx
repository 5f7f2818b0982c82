// The MCP servers behind this one: where each stands, when it is tried next, and a button that does not wait for that. They can be
// added and removed here, and those of the servers file brought back.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import type { Backend, BackendReconnected, Backends as Answer } from "../../../sdk/typescript/src/generated/answers.ts";
import { useRef } from "preact/hooks";
import { Refused, ask, usePolled, whose } from "../admin.ts";
import { Addition } from "./addition.tsx";
import { Badge } from "./badge.tsx";
import { now } from "./clock.ts";
import { type Draft, EMPTY } from "./draft.ts";
import { Frame } from "./frame.tsx";
import { Removal } from "./removal.tsx";
import { RemovedBackends } from "./removed.tsx";
import { ago, counted } from "./words.ts";

/** What an MCP server says of itself; the admin API passes it on as it is. */
type ServerInfo = { readonly name?: string; readonly version?: string } | null;

/** The states of a backend's life, in the order in which it meets them. */
const LIFE = ["connecting", "connected", "reconnecting"] as const;

export function Backends(): VNode {
  const polled = usePolled("backends", () => ask<Answer>("backends"), 1_000);
  /** What was typed into the form, if it is open. It is here so that a question for a token in between does not cost it. */
  const draft = useSignal<Draft | null>(null);
  const said = useSignal("");
  const opener = useRef<HTMLButtonElement>(null);
  const open = draft.value !== null;
  const toggle = () => {
    draft.value = open ? null : EMPTY;
    said.value = "";
  };
  // What had the focus goes away; this button stays, and what was done stands beside it.
  const tell = (done: string) => {
    said.value = done;
    opener.current?.focus();
  };
  const close = (done: string) => {
    draft.value = null;
    tell(done);
  };
  return (
    <Frame
      title="Backends"
      polled={polled}
      show={({ backends, removed = [] }) => (
        <>
          <div class="row adding">
            <button ref={opener} aria-expanded={open} aria-controls="addition" onClick={toggle}>Add a server</button>
            <span class="fine" role="status">{said.value}</span>
          </div>
          {draft.value === null ? null : (
            <Addition draft={draft.value} change={(typed) => draft.value && (draft.value = { ...draft.value, ...typed })} added={(name) => close(`${name} was added.`)} cancel={() => close("")} />
          )}
          {backends.length === 0 ? (
            <p class="empty card">There are no MCP servers. Add one here, or list them in the file that <code>hub.servers_file</code> names, in the shape that other MCP clients use.</p>
          ) : (
            <ul class="backends">
              {backends.map((one) => <Card key={`${one.node ?? ""}/${one.owner ?? ""}/${one.name}`} backend={one} atMs={polled.value.atMs} removed={() => tell(`${one.name} was removed.`)} />)}
            </ul>
          )}
          <RemovedBackends removed={removed} restored={(name) => tell(`${name} was restored.`)} />
        </>
      )}
    />
  );
}

function Card({ backend, atMs, removed }: { backend: Backend; atMs: number; removed: () => void }): VNode {
  const { name, owner, node, configured, status, serverInfo, protocolVersion } = backend as Backend & { readonly serverInfo?: ServerInfo };
  const facts = [counted(backend.tools, "tool"), serverInfo?.name && `${serverInfo.name} ${serverInfo.version ?? ""}`, protocolVersion && `MCP ${protocolVersion}`, configured && "in the servers file"];
  return (
    <li class="card backend" aria-label={name} data-status={status}>
      <div class="row spread">
        <h3>{name} {owner === null ? null : <span class="quiet">of {owner}</span>} {node === undefined ? null : <span class="quiet">on {node}</span>}</h3>
        <Reconnect backend={backend} />
      </div>
      <p class="id long">{backend.url ?? backend.command ?? ""}</p>
      <ol class="life" aria-label="State">
        {LIFE.map((state) => <li key={state} class={state === status ? `now ${state}` : ""} aria-current={state === status ? "step" : undefined}>{state}</li>)}
        {status === "disconnected" || status === "error" ? <li class={`now ${status}`} aria-current="step">{status}</li> : null}
      </ol>
      <p class="standing"><Standing backend={backend} atMs={atMs} /></p>
      {backend.lastError === undefined || status === "connected" ? null : <p class="note failed">{backend.lastError}</p>}
      <div class="row spread">
        <p class="fine">{facts.filter(Boolean).join(" · ")}</p>
        {configured === undefined ? null : <Removal name={name} owner={owner} configured={configured} removed={removed} />}
      </div>
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
    try {
      const { success } = await ask<BackendReconnected>(`backends/${encodeURIComponent(name)}/reconnect${whose(owner)}`, "POST");
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
