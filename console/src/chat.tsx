// The chat page.

import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Composer } from "./composer.tsx";
import { Pill } from "./pill.tsx";
import { agent, agents, attempt, client, connection, done, session, transcript, trouble } from "./session.ts";
import { Shell } from "./shell.tsx";
import { TokenForm } from "./token.tsx";
import { Toolbar } from "./toolbar.tsx";
import type { Transcript } from "./transcript.ts";
import { ItemView } from "./turn.tsx";

export function Chat(): VNode {
  const { cause, state } = connection.value;
  const wanted = cause?.action === "authenticate" && state === "disconnected";
  return (
    <Shell status={<Pill />} tools={<Toolbar />}>
      <main id="content" tabIndex={-1}>
        {wanted ? <TokenForm why={cause.message} /> : null}
        <Conversation />
      </main>
      <footer>
        <p class="said" role="alert">{trouble.value}</p>
        <p class="said" aria-live="polite">{done.value}</p>
        <p class="sr-only" aria-live="polite">{heard(transcript.value)}</p>
        <Composer />
        <p class="fine">{session.value === null ? "" : `${session.value.id} · event ${session.value.lastSeq} · ${session.value.run}`}</p>
      </footer>
    </Shell>
  );
}

/** How near to the end the reader has to be to follow the answer, in pixels. */
const FOLLOWS_WITHIN = 300;

function Conversation(): VNode {
  const items = transcript.value;
  const follows = useRef(true);
  // Follows the answer, unless the reader has scrolled up.
  const follow = () => {
    if (follows.current) scrollTo(0, document.documentElement.scrollHeight);
  };
  useEffect(follow, [items]);
  useEffect(() => {
    const look = () => (follows.current = document.documentElement.scrollHeight - scrollY - innerHeight < FOLLOWS_WITHIN);
    addEventListener("scroll", look, { passive: true });
    // A keyboard on the screen takes half of it.
    addEventListener("resize", follow);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", follow);
    };
  }, []);
  return (
    <section aria-label="Conversation">
      {items.length === 0 ? <Welcome /> : items.map((item) => <ItemView key={item.key} item={item} />)}
    </section>
  );
}

const TRIES = [
  ["/long 300 30", "A long answer, to be cut in the middle"],
  ["/plan a small garden", "A plan, three tasks, two at a time"],
  ["/confirm the launch", "A question that waits for you, also through a restart"],
  ["/op index 20 500", "Work in the background"],
] as const;

function Welcome(): VNode {
  const live = connection.value.state === "connected";
  const isDemo = agent.value === "demo" || (agent.value === "" && agents.value.includes("demo"));
  return (
    <div class="welcome">
      <p class="lead">Say something. Then drop the connection.</p>
      <p class="quiet">Whatever breaks, this conversation stays whole: reload the page, drop the connection, kill the server. The status above shows what happens.</p>
      {isDemo ? (
        <ul class="tries" aria-label="Things to try">
          {TRIES.map(([text, about]) => (
            <li key={text}>
              <button disabled={!live} onClick={() => void attempt(() => client.message(text))}><code>{text}</code> <span>{about}</span></button>
            </li>
          ))}
        </ul>
      ) : null}
    </div>
  );
}

/** What a screen reader hears of the conversation: how the last turn stands, and not every word as it comes. */
function heard(items: Transcript): string {
  const last = items.at(-1);
  if (last?.kind !== "turn") return "";
  const open = last.questions.find(({ answer }) => answer === null);
  if (last.end === null) return open === undefined ? "The agent is at work." : `The agent asks: ${open.text}`;
  return last.end === "done" ? "The agent has answered." : last.end === "failed" ? "The agent has failed." : "The agent was stopped.";
}
