// What can be done to the session and its wire.

import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { agent, agents, attempt, client, connect, connection, renew, restore, save } from "./session.ts";

export function Toolbar(): VNode {
  const file = useRef<HTMLInputElement>(null);
  const { state, cause } = connection.value;
  const live = state === "connected";
  const chosen = (input: HTMLInputElement) => {
    const picked = input.files?.[0];
    input.value = "";
    if (picked !== undefined) void restore(picked);
  };
  return (
    <section class="toolbar" aria-label="Session">
      {agents.value.length === 0 ? null : (
        <label>
          Agent{" "}
          {/* A session has one agent, so another one means another session. */}
          <select value={agent.value} onChange={({ currentTarget }) => void renew(currentTarget.value)} title="Picking another agent begins a new session">
            {agents.value.length === 1 ? null : <option value="">default</option>}
            {agents.value.map((name) => <option key={name} value={agents.value.length === 1 ? "" : name}>{name}</option>)}
          </select>
        </label>
      )}
      <button onClick={() => void renew(agent.value)}>New session</button>
      <button disabled={!live} onClick={() => client.drop()}>Drop the connection</button>
      <button disabled={!live} onClick={() => void save()}>Save state</button>
      <button onClick={() => file.current?.click()}>Restore from file</button>
      <input ref={file} type="file" accept="application/json" hidden aria-label="Saved state" onChange={({ currentTarget }) => chosen(currentTarget)} />
      <button onClick={() => window.open(location.href, "_blank", "noopener")}>Open a second tab</button>
      {cause?.action === "take_over" || cause?.code === "SESSION_TAKEN_OVER" ? (
        <button class="primary" onClick={() => void attempt(() => client.takeOver())}>Take over here</button>
      ) : state === "disconnected" && cause !== null && cause.action !== "authenticate" ? (
        <button class="primary" onClick={connect}>Try again</button>
      ) : null}
    </section>
  );
}
