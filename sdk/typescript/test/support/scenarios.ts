// The scenarios of `conformance/`, as data.

import { readFileSync, readdirSync } from "node:fs";

export interface LinkStep {
  readonly append?: number;
  readonly attach?: { readonly seq?: number; readonly epoch?: string };
  readonly verdict?: string;
  readonly lost?: number;
  readonly first?: number;
  readonly events?: readonly [number, number];
  readonly replayed?: number;
  readonly code?: string;
  readonly quiet?: true;
  readonly cut?: true;
}

export interface LinkScenario {
  readonly name: string;
  readonly about: string;
  readonly keep?: number;
  readonly steps: readonly LinkStep[];
}

export function linkScenarios(): LinkScenario[] {
  const folder = new URL("../../../../conformance/links/", import.meta.url);
  const names = readdirSync(folder).filter((name) => name.endsWith(".json"));
  if (names.length < 5) throw new Error("the scenarios are not there");
  return names.map((name) => ({ name, ...(JSON.parse(readFileSync(new URL(name, folder), "utf8")) as Omit<LinkScenario, "name">) }));
}
