// A log as a ruler: what was let go, what is retained, and up to where it was acknowledged.

import type { VNode } from "preact";
import { figure } from "./words.ts";

export interface Marks {
  readonly first: number;
  readonly last: number;
  readonly acked: number;
}

export function Ruler({ first, last, acked, scale = false }: Marks & { scale?: boolean }): VNode {
  if (last === 0) return <span class="quiet">no events yet</span>;
  const retained = last >= first;
  const at = (seq: number) => `${(100 * Math.min(seq, last)) / last}%`;
  const kept = retained ? `events ${figure(first)} to ${figure(last)} retained` : `none of ${figure(last)} events retained`;
  const gone = first > 1 ? `, ${figure(Math.min(first - 1, last))} let go` : "";
  return (
    <span class={scale ? "ruler scale" : "ruler"}>
      <span class="bar" role="img" aria-label={`${kept}${gone}, acknowledged up to ${figure(acked)}`}>
        {retained ? <span class="retained" style={{ left: at(first - 1) }} /> : null}
        {retained ? <span class="acked" style={{ left: at(Math.min(first - 1, acked)), width: `calc(${at(acked)} - ${at(Math.min(first - 1, acked))})` }} /> : null}
        <span class="mark" style={{ left: at(acked) }} />
      </span>
      <span class="ends" aria-hidden="true">
        {scale ? <span>1</span> : null}
        {scale && first > 1 ? <span>from {figure(first)}</span> : null}
        <span>{scale ? `acked ${figure(acked)}` : `${figure(first)} – ${figure(last)}`}</span>
        <span>{scale ? figure(last) : acked < last ? `acked ${figure(acked)}` : "all acked"}</span>
      </span>
    </span>
  );
}
