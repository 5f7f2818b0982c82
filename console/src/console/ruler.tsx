// A log as a ruler: what was let go, what is retained, and up to where it was acknowledged.

import type { VNode } from "preact";
import { figure } from "./words.ts";

export interface Marks {
  readonly first: number;
  readonly last: number;
  readonly acked: number;
}

function told({ first, last, acked }: Marks): string {
  const kept = last >= first ? `events ${figure(first)} to ${figure(last)} retained` : `none of ${figure(last)} events retained`;
  const gone = first > 1 ? `, ${figure(Math.min(first - 1, last))} let go` : "";
  return `${kept}${gone}, acknowledged up to ${figure(acked)}`;
}

function Bar({ first, last, acked }: Marks): VNode {
  const at = (seq: number) => `${(100 * Math.min(Math.max(seq, 0), last)) / last}%`;
  const known = Math.max(acked, first - 1);
  return (
    <span class="bar" role="img" aria-label={told({ first, last, acked })}>
      <span class="retained" style={{ left: at(first - 1) }} />
      <span class="acked" style={{ left: at(first - 1), width: `calc(${at(known)} - ${at(first - 1)})` }} />
      {acked > 0 ? <span class="here" style={{ left: at(acked) }} /> : null}
    </span>
  );
}

/** For a row of a table. */
export function Ruler(marks: Marks): VNode {
  const { first, last, acked } = marks;
  if (last === 0) return <span class="quiet">no events yet</span>;
  return (
    <span class="ruler">
      <Bar {...marks} />
      <span class="ends" aria-hidden="true">
        <span>{last >= first ? `${figure(first)} – ${figure(last)}` : `none of ${figure(last)}`}</span>
        <span>{acked < last ? `acked ${figure(acked)}` : "all acked"}</span>
      </span>
    </span>
  );
}

/** Wide, with what its parts mean. */
export function LongRuler(marks: Marks): VNode {
  const { first, last, acked } = marks;
  if (last === 0) return <p class="quiet">No events yet.</p>;
  const known = Math.min(Math.max(acked, first - 1), last);
  const parts = [
    ["gone", first - 1, "let go"],
    ["acked", known - first + 1, "acknowledged"],
    ["retained", last - known, "not acknowledged"],
  ] as const;
  return (
    <div class="ruler long">
      <Bar {...marks} />
      <div class="ends" aria-hidden="true"><span>1</span><span>{figure(last)}</span></div>
      <ul class="legend">{parts.map(([part, count, words]) => (count > 0 ? <li key={part} class={part}>{figure(count)} {words}</li> : null))}</ul>
    </div>
  );
}
