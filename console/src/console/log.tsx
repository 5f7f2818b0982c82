// A log, live: each event a line that opens.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type Following, type Logged, follow } from "../admin.ts";
import { TokenForm } from "../token.tsx";
import { counted, figure } from "./words.ts";

/** More lines than these are more than a person reads, and than a browser likes. */
const LINES_MAX = 500;

export function Log({ path, from, first }: { path: string; from: number; first: number }): VNode {
  const lines = useSignal<readonly Logged[]>([]);
  const now = useSignal<Following>({ is: "lost", attempt: 0, why: "" });
  const start = useSignal(from);
  const following = useSignal(true);
  const box = useRef<HTMLOListElement>(null);
  useEffect(() => {
    let fresh: readonly Logged[] = [];
    let due = 0;
    const take = (events: readonly Logged[]) => {
      fresh = [...fresh, ...events].slice(-LINES_MAX);
      due ||= requestAnimationFrame(() => {
        due = 0;
        lines.value = fresh;
      });
    };
    lines.value = [];
    const stop = follow(path, String(start.value), take, (state) => (now.value = state));
    return () => {
      stop();
      cancelAnimationFrame(due);
    };
  }, [path, start.value]);
  useEffect(() => {
    if (following.value) box.current?.scrollTo(0, box.current.scrollHeight);
  }, [lines.value, following.value]);
  const shown = lines.value;
  return (
    <section aria-label="Log">
      <div class="row spread">
        <h3>Log <State now={now.value} /></h3>
        <div class="row">
          {start.value >= first && shown.length < LINES_MAX ? <button class="small" onClick={() => (start.value = first - 1)}>From the first event</button> : null}
          <label class="check"><input type="checkbox" checked={following.value} onChange={({ currentTarget }) => (following.value = currentTarget.checked)} /> Follow</label>
        </div>
      </div>
      {now.value.is === "refused" && now.value.refused.wantsToken ? <TokenForm why={now.value.refused.message} /> : null}
      {shown.length === 0 ? <p class="empty card">Nothing is in the log yet. What comes appears here at once.</p> : null}
      <ol class="log" ref={box} tabIndex={0} aria-label="Events">
        {shown.map((event) => <Line key={event.seq} event={event} />)}
      </ol>
      {shown.length === 0 ? null : <p class="fine">{counted(shown.length, "event")}, {figure(shown[0]?.seq ?? 0)} to {figure(shown.at(-1)?.seq ?? 0)}</p>}
    </section>
  );
}

function State({ now }: { now: Following }): VNode {
  switch (now.is) {
    case "live":
      return <span class="badge good">live</span>;
    case "over":
      return <span class="badge plain">over</span>;
    case "refused":
      return <span class="badge bad">{now.refused.message}</span>;
    case "lost":
      return <span class="badge warn">{now.attempt === 0 ? "opening" : `cut, attempt ${now.attempt}`}</span>;
  }
}

function Line({ event }: { event: Logged }): VNode {
  const { seq, event: name, timestamp, content } = event;
  const text = typeof content === "string" ? content : content === undefined ? "" : JSON.stringify(content);
  return (
    <li>
      <details>
        <summary>
          <span class="seq">{seq}</span>
          <span class="at">{timestamp?.slice(11, 23) ?? ""}</span>
          <span class={`event ${name.split(".")[0] ?? ""}`}>{name}</span>
          <span class="text">{text.slice(0, 200)}</span>
        </summary>
        <pre>{JSON.stringify(event, null, 2)}</pre>
      </details>
    </li>
  );
}
