// The chat page.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { Composer } from "./composer.tsx";
import { Pill } from "./pill.tsx";
import { connection, done, loadAgents, session, transcript, trouble, useToken } from "./session.ts";
import { Toolbar } from "./toolbar.tsx";
import { ItemView } from "./turn.tsx";

export function Chat(): VNode {
  const wanted = connection.value.cause?.action === "authenticate" && connection.value.state === "disconnected";
  return (
    <>
      <header>
        <h1>Bowline</h1>
        <Pill />
        <a href="#overview">Overview</a>
      </header>
      <Toolbar />
      <main>
        {wanted ? <TokenForm /> : null}
        <Conversation />
      </main>
      <footer>
        <p class="said" role="alert">{trouble.value}</p>
        <p class="said" aria-live="polite">{done.value}</p>
        <Composer />
        <p class="fine">{session.value === null ? "" : `${session.value.id} · event ${session.value.lastSeq} · ${session.value.run}`}</p>
      </footer>
    </>
  );
}

function Conversation(): VNode {
  const items = transcript.value;
  useEffect(() => {
    // Follows the answer, unless somebody has scrolled up to read.
    const { scrollHeight } = document.documentElement;
    if (scrollHeight - scrollY - innerHeight < 300) scrollTo(0, scrollHeight);
  }, [items]);
  return (
    <section aria-label="Conversation">
      {items.length === 0 ? <p class="note">Nothing has been said yet.</p> : items.map((item) => <ItemView key={item.key} item={item} />)}
    </section>
  );
}

function TokenForm(): VNode {
  const token = useSignal("");
  return (
    <form
      class="row"
      onSubmit={(event) => {
        event.preventDefault();
        void useToken(token.value).then(loadAgents);
      }}
    >
      <label>
        Token <input type="password" autoComplete="off" value={token.value} onInput={({ currentTarget }) => (token.value = currentTarget.value)} />
      </label>
      <button class="primary">Use it</button>
    </form>
  );
}
