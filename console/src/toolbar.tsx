// What can be done to the session and its wire.

import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { agent, agents, attempt, client, connection, renew, restore, save } from "./session.ts";

export function Toolbar(): VNode {
  const file = useRef<HTMLInputElement>(null);
  const live = connection.value.state === "connected";
  const chosen = (input: HTMLInputElement) => {
    const picked = input.files?.[0];
    input.value = "";
    if (picked !== undefined) void restore(picked);
  };
  return (
    <section class="toolbar" aria-label="Session">
      {agents.value.length < 2 ? null : (
        <label>
          Agent{" "}
          <select value={agent.value} onChange={({ currentTarget }) => (agent.value = currentTarget.value)}>
            {agents.value.map((name) => <option key={name}>{name}</option>)}
          </select>
        </label>
      )}
      <button onClick={() => void renew()}>New session</button>
      <button disabled={!live} onClick={() => client.drop()}>Drop the connection</button>
      <button disabled={!live} onClick={() => void save()}>Save state</button>
      <button onClick={() => file.current?.click()}>Restore from file</button>
      <input ref={file} type="file" accept="application/json" hidden aria-label="Saved state" onChange={({ currentTarget }) => chosen(currentTarget)} />
      <button onClick={() => window.open(location.href, "_blank", "noopener")}>Open a second tab</button>
      {connection.value.cause?.action === "take_over" || connection.value.cause?.code === "SESSION_TAKEN_OVER" ? (
        <button class="primary" onClick={() => void attempt(() => client.takeOver())}>Take over here</button>
      ) : null}
    </section>
  );
}
