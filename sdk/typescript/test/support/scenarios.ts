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

export interface FlowScenario {
  readonly name: string;
  readonly about: string;
  readonly steps: readonly FlowStep[];
}

export const linkScenarios = () => read<LinkScenario>("links");
export const flowScenarios = () => read<FlowScenario>("flows");

function read<Scenario extends { name: string }>(kind: string): Scenario[] {
  const folder = new URL(`../../../../conformance/${kind}/`, import.meta.url);
  const names = readdirSync(folder).filter((name) => name.endsWith(".json"));
  if (names.length < 5) throw new Error("the scenarios are not there");
  return names.map((name) => ({ name, ...JSON.parse(readFileSync(new URL(name, folder), "utf8")) }) as Scenario);
}

export interface FlowStep {
  readonly on?: string;
  readonly connect?: true;
  readonly send?: unknown;
  readonly expect?: unknown;
  readonly await?: unknown;
  readonly drop?: true;
  readonly restart?: true;
  readonly wipe?: true;
}

/** What was captured so far. */
export class Names {
  readonly #known = new Map<string, unknown>();

  /** Whether `frame` has everything that `pattern` names. Captures on the way. */
  matches(pattern: unknown, frame: unknown): boolean {
    if (typeof pattern === "string" && pattern.startsWith("$")) {
      if (frame === undefined || frame === null) return false;
      if (pattern === "$any") return true;
      if (!this.#known.has(pattern)) this.#known.set(pattern, frame);
      return JSON.stringify(this.#known.get(pattern)) === JSON.stringify(frame);
    }
    if (typeof pattern === "object" && pattern !== null && !Array.isArray(pattern)) {
      return Object.entries(pattern).every(([key, inner]) => this.matches(inner, (frame as Record<string, unknown> | undefined)?.[key]));
    }
    return JSON.stringify(pattern) === JSON.stringify(frame);
  }

  fill(frame: unknown): unknown {
    if (typeof frame === "string") return this.#known.get(frame) ?? frame;
    if (typeof frame !== "object" || frame === null || Array.isArray(frame)) return frame;
    return Object.fromEntries(Object.entries(frame).map(([key, value]) => [key, this.fill(value)]));
  }
}
