// The page's beginning: the chat, or the overview if the address says so.

import { signal } from "@preact/signals";
import { type ComponentType, render } from "preact";
import { Chat } from "./chat.tsx";
import { loadAgents, start } from "./session.ts";

/** Loaded when it is first looked at, with its charts. */
const overview = signal<ComponentType | null>(null);
const hash = signal(location.hash);

addEventListener("hashchange", () => (hash.value = location.hash));

function App() {
  if (hash.value !== "#overview") return <Chat />;
  const Overview = overview.value;
  if (Overview !== null) return <Overview />;
  void import("./overview.tsx").then((loaded) => (overview.value = loaded.Overview));
  return <p role="status">Loading …</p>;
}

const root = document.getElementById("app");
if (root !== null) render(<App />, root);
void start();
void loadAgents();
