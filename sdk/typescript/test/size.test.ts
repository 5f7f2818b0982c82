// What a page pays: the built core with everything it pulls in.

import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";

/** The files that an entry needs, itself included. */
function closure(entry: string, found = new Set<string>()): Set<string> {
  if (found.has(entry)) return found;
  found.add(entry);
  const source = readFileSync(new URL(`../dist/${entry}`, import.meta.url), "utf8");
  for (const [, imported] of source.matchAll(/(?:from|import)\s*["'`]\.\/([\w.-]+)["'`]/g)) closure(imported ?? "", found);
  // Anything else that is imported would be a dependency at run time.
  const foreign = [...source.matchAll(/(?:from|import)\s*["'`]([^."'`][^"'`]*)["'`]/g)].map(([, name]) => name);
  expect(foreign).toEqual(entry === "react.js" ? ["react"] : []);
  return found;
}

function gzipped(files: Iterable<string>): number {
  return gzipSync(Buffer.concat([...files].map((file) => readFileSync(new URL(`../dist/${file}`, import.meta.url)))), { level: 9 }).length;
}

test("the core is under 12 KB gzipped and depends on nothing", () => {
  const bytes = gzipped(closure("index.js"));
  console.log(`core: ${bytes} bytes gzipped`);
  expect(bytes).toBeLessThan(12 * 1024);
});

test("so is the chat store, with what it pulls in; and the React binding adds next to nothing to the core", () => {
  const [core, chat, react] = ["index.js", "chat.js", "react.js"].map((entry) => gzipped(closure(entry)));
  console.log(`chat: ${chat} bytes gzipped; core and React binding: ${react}`);
  expect(chat).toBeLessThan(12 * 1024);
  expect(react).toBeLessThan((core ?? 0) + 512);
});
