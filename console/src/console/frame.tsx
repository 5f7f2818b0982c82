// The frame of a console page: whether what it shows is fresh, and a token where one is wanted.

import type { Signal } from "@preact/signals";
import type { ComponentChildren, VNode } from "preact";
import type { Polled } from "../admin.ts";
import { Shell } from "../shell.tsx";
import { TokenForm } from "../token.tsx";
import { now } from "./clock.ts";
import { duration } from "./words.ts";

interface FrameProps<Answer> {
  readonly title: ComponentChildren;
  readonly polled: Signal<Polled<Answer>>;
  readonly show: (answer: Answer) => ComponentChildren;
}

export function Frame<Answer>({ title, polled, show }: FrameProps<Answer>): VNode {
  const { answer, refused, atMs } = polled.value;
  const wanted = refused?.wantsToken === true;
  const said = refused === null || wanted ? "" : `${refused.message} ${answer === null ? "" : "What you see is old."}`;
  return (
    <Shell status={<Fresh atMs={atMs} failed={refused !== null} />}>
      <main id="content" tabIndex={-1}>
        <h2>{title}</h2>
        <p class="said" role="alert">{said}</p>
        {wanted ? <TokenForm why={`The console needs the token of an admin. ${refused.message}`} /> : null}
        {answer === null ? (refused === null ? <p class="quiet">Loading …</p> : null) : show(answer)}
      </main>
    </Shell>
  );
}

function Fresh({ atMs, failed }: { atMs: number; failed: boolean }): VNode {
  if (!failed) return <p class={`pill ${atMs === 0 ? "connecting" : "connected"}`} data-state={atMs === 0 ? "asking" : "fresh"}>{atMs === 0 ? "Asking …" : "Live"}</p>;
  const old = atMs === 0 ? "No answer" : `Last answer ${duration((now.value - atMs) / 1000)} ago`;
  return <p class="pill disconnected" data-state="stale">{old}</p>;
}
