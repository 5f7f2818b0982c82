// Asks for a token where one is wanted.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { renewToken } from "./session.ts";

export function TokenForm({ why }: { why: string }): VNode {
  const typed = useSignal("");
  const use = (event: Event) => {
    event.preventDefault();
    if (typed.value !== "") renewToken(typed.value);
  };
  return (
    <form class="token card" onSubmit={use}>
      <p>{why}</p>
      <div class="row">
        <label for="token">Token</label>
        <input id="token" type="password" autoComplete="off" value={typed.value} onInput={({ currentTarget }) => (typed.value = currentTarget.value)} />
        <button class="primary">Use it</button>
      </div>
      <p class="fine">It is kept in this tab, until you close it.</p>
    </form>
  );
}
