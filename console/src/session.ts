// The page's one client, as signals: what the components show, and nothing they would have to work out.

import { BowlineClient, BowlineError, type Connection, type Sealed, type SessionInfo } from "bowline";
import { batch, signal } from "@preact/signals";
import { keepToken, token } from "./admin.ts";
import { foldHistory } from "./history.ts";
import { type Transcript, fold, foldGap } from "./transcript.ts";

/** Which agent the session was begun with. Beside the session itself, which is kept in the same place. */
const AGENT_KEY = "bowline:agent";

export const client = new BowlineClient({ url: "/ws", token });

export const connection = signal<Connection>(client.connection);
export const session = signal<SessionInfo | null>(null);
export const transcript = signal<Transcript>([]);
/** The last thing that went wrong, for people. */
export const trouble = signal<string>("");
/** What was done, for people. */
export const done = signal<string>("");
export const agents = signal<readonly string[]>([]);
export const agent = signal<string>(localStorage.getItem(AGENT_KEY) ?? "");

let folded: Transcript = [];
let due = false;

/** Shows what has come, at most once a frame. */
function show(): void {
  if (due) return;
  due = true;
  const now = () => {
    due = false;
    batch(() => {
      transcript.value = folded;
      session.value = client.session;
      connection.value = client.connection;
    });
  };
  // A hidden tab draws no frames; what it shows when it is looked at must be there all the same.
  if (document.hidden) setTimeout(now, 100);
  else requestAnimationFrame(now);
}

client.on("event", (event) => {
  folded = fold(folded, event);
  show();
});
client.on("gap", (gap) => {
  folded = foldGap(folded, gap);
  show();
});
client.on("history", (history) => {
  folded = foldHistory(folded, history);
  show();
});
client.on("reset", () => {
  folded = [];
  show();
});
client.on("restored", ({ source, warnings }) => {
  done.value = [source === "live" ? "The session goes on under a new name." : "The session was rebuilt from the saved state.", ...warnings].join(" ");
});
client.on("connection", show);
client.on("error", (error) => (trouble.value = error.message));

/** Does something that may fail, and says so where it can be seen. */
export async function attempt(what: () => Promise<unknown>): Promise<void> {
  trouble.value = "";
  done.value = "";
  try {
    await what();
  } catch (error) {
    trouble.value = error instanceof BowlineError ? error.message : String(error);
  }
  show();
}

let started = false;

/** Begins the conversation, or goes on with it. Once begun it stays, whichever page is looked at. */
export function start(): void {
  if (started) return;
  started = true;
  connect();
  void loadAgents();
}

/** Back to the session, now. */
export function connect(): void {
  // The status shows why it failed.
  void client.connect().then(show, show);
}

/** Tries again with another token: the chat, if it was sent away, and what the console asked for. */
export function renewToken(value: string): void {
  keepToken(value);
  if (started && connection.value.state !== "connected") connect();
}

/** A new session, with the agent that was picked. */
export function renew(picked: string): Promise<void> {
  agent.value = picked;
  if (picked === "") localStorage.removeItem(AGENT_KEY);
  else localStorage.setItem(AGENT_KEY, picked);
  return attempt(async () => {
    folded = [];
    await client.create(picked === "" ? {} : { agent: picked });
  });
}

export function save(): Promise<void> {
  return attempt(async () => {
    const state = await client.requestState();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(state, null, 2)], { type: "application/json" }));
    link.download = `${client.session?.id ?? "session"}.json`;
    link.click();
    URL.revokeObjectURL(link.href);
    done.value = "The state was saved. With it you can restore this session, even on a server that has lost it.";
  });
}

export function restore(file: File): Promise<void> {
  return attempt(async () => {
    const state = JSON.parse(await file.text()) as Sealed;
    folded = [];
    await client.restore(state);
  });
}

/** Which agents there are to pick from. The server's own description names them, without a token. */
async function loadAgents(): Promise<void> {
  const described = (await fetch("/openapi.json").then((answer) => answer.json(), () => null)) as Described | null;
  const named = described?.components?.schemas?.NewSession?.properties?.agent?.enum ?? [];
  agents.value = named.filter((name) => name !== null);
  if (!agents.value.includes(agent.value)) agent.value = "";
}

interface Described {
  readonly components?: { readonly schemas?: { readonly NewSession?: { readonly properties?: { readonly agent?: { readonly enum?: readonly (string | null)[] } } } } };
}
