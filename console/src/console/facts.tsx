// Facts as tiles: a name and a figure each.

import type { ComponentChildren, VNode } from "preact";

export function Facts({ facts }: { facts: readonly (readonly [string, ComponentChildren])[] }): VNode {
  return <dl class="facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}
