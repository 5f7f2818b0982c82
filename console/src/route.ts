// Which page the address means. It stands behind the `#`, so that a path which does not exist is never answered with a page.

import { signal } from "@preact/signals";

export const PAGES = ["chat", "sessions", "tasks", "backends", "node", "settings"] as const;

export type PageName = (typeof PAGES)[number];

export interface Route {
  readonly page: PageName;
  /** What of it: a session, or a task. */
  readonly id: string | null;
}

export const route = signal<Route>(read(location.hash));

addEventListener("hashchange", () => (route.value = read(location.hash)));

function read(hash: string): Route {
  const [name = "", id] = hash.slice(1).split("/");
  const page = PAGES.find((known) => known === name) ?? "chat";
  return { page, id: id ? decoded(id) : null };
}

/** An address can be typed; one that means nothing is taken as it is, and found to name nothing. */
function decoded(id: string): string {
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

export function linkTo(page: PageName, id: string): string {
  return `#${page}/${encodeURIComponent(id)}`;
}
