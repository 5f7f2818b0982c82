// What is typed for a new server, as the admin API gets it.

import { expect, test } from "vitest";
import { EMPTY, Unreadable, entry } from "../src/console/draft.ts";

test("an address has its headers, and nothing of what was typed for a program", () => {
  const typed = { ...EMPTY, name: " search ", url: " https://search.example/mcp ", headers: "Authorization: Bearer a:b\n\n  X-Team :tools  \n", command: "npx", args: "-y" };
  expect(entry(typed)).toEqual({ name: "search", url: "https://search.example/mcp", headers: { Authorization: "Bearer a:b", "X-Team": "tools" } });
});

test("a program has its arguments and its environment as they were typed, and nothing of an address", () => {
  const typed = { ...EMPTY, kind: "program" as const, name: "files", url: "https://x.example", command: "npx", args: "-y\n two words \n\n", env: "A= b=c\nB=", cwd: "/srv" };
  expect(entry(typed)).toEqual({ name: "files", command: "npx", args: ["-y", " two words "], env: { A: " b=c", B: "" }, cwd: "/srv" });
});

test("what is left empty is left out", () => {
  expect(entry({ ...EMPTY, name: "a", url: "http://a", headers: "\n " })).toEqual({ name: "a", url: "http://a" });
  expect(entry({ ...EMPTY, kind: "program", name: "a", command: "b" })).toEqual({ name: "a", command: "b" });
});

test("a line that cannot be read is named by its number, and its text is not repeated", () => {
  const refused = (typed: Partial<typeof EMPTY>) => {
    try {
      return entry({ ...EMPTY, ...typed });
    } catch (error) {
      return error instanceof Unreadable ? error.message : error;
    }
  };
  expect(refused({ headers: "A: b\n\nBearer s3cret" })).toBe("Line 3 of the headers is not “Name: value”.");
  expect(refused({ headers: ": s3cret" })).toBe("Line 1 of the headers is not “Name: value”.");
  expect(refused({ kind: "program", env: "s3cret" })).toBe("Line 1 of the environment is not “NAME=value”.");
  expect(refused({ headers: "A: b\nA: s3cret" })).toBe("Line 2 of the headers has a name that was there before.");
});
