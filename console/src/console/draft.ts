// A new MCP server as it is typed, and as the admin API takes it.

export interface Draft {
  readonly name: string;
  readonly kind: "address" | "program";
  readonly url: string;
  /** One `Name: value` per line. */
  readonly headers: string;
  readonly command: string;
  /** One per line. */
  readonly args: string;
  /** One `NAME=value` per line. */
  readonly env: string;
  readonly cwd: string;
}

export const EMPTY: Draft = { name: "", kind: "address", url: "", headers: "", command: "", args: "", env: "", cwd: "" };

export interface Entry {
  readonly name: string;
  readonly url?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly command?: string;
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
}

/** What was typed cannot be read. Names the line and never what it says, which may be a secret. */
export class Unreadable extends Error {}

/** Only what was typed for the chosen kind is in it. */
export function entry(draft: Draft): Entry {
  const name = draft.name.trim();
  if (draft.kind === "address") {
    const headers = pairs(draft.headers, ":", "headers", "Name: value");
    return { name, url: draft.url.trim(), ...(headers === null ? {} : { headers }) };
  }
  const args = draft.args.split("\n").filter((line) => line !== "");
  const env = pairs(draft.env, "=", "environment", "NAME=value");
  const cwd = draft.cwd.trim();
  return { name, command: draft.command.trim(), ...(args.length === 0 ? {} : { args }), ...(env === null ? {} : { env }), ...(cwd === "" ? {} : { cwd }) };
}

function pairs(text: string, mark: ":" | "=", where: string, shape: string): Record<string, string> | null {
  const found = new Map<string, string>();
  text.split("\n").forEach((line, n) => {
    if (line.trim() === "") return;
    const at = line.indexOf(mark);
    const name = line.slice(0, at).trim();
    if (at < 0 || name === "") throw new Unreadable(`Line ${n + 1} of the ${where} is not “${shape}”.`);
    if (found.has(name)) throw new Unreadable(`Line ${n + 1} of the ${where} has a name that was there before.`);
    // A blank behind a colon is how headers are written; behind an equals sign it is part of the value.
    const value = line.slice(at + 1);
    found.set(name, mark === ":" ? value.trim() : value);
  });
  return found.size === 0 ? null : Object.fromEntries(found);
}
