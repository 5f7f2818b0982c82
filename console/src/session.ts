// The page's one client, as signals: what the components show, and nothing they would have to work out.

import { BowlineClient, BowlineError, type Connection, type Sealed, type SessionInfo } from "bowline";
import { batch, signal } from "@preact/signals";
import { foldHistory } from "./history.ts";
import { type Transcript, fold, foldGap } from "./transcript.ts";

const TOKEN_KEY = "bowline:token";

export const client = new BowlineClient({
  url: "/ws",
  // Kept for this tab only: a token in localStorage would outlive the person who typed it.
  token: () => sessionStorage.getItem(TOKEN_KEY),
});

export const connection = signal<Connection>(client.connection);
export const session = signal<SessionInfo | null>(null);
export const transcript = signal<Transcript>([]);
/** The last thing that went wrong, for people. */
export const trouble = signal<string>("");
/** What was done, for people. */
export const done = signal<string>("");
export const agents = signal<readonly string[]>([]);
export const agent = signal<string>("");

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

export function start(): Promise<void> {
  // Why it failed stands in the pill.
  return client.connect().then(show, show);
}

export function useToken(token: string): Promise<void> {
  sessionStorage.setItem(TOKEN_KEY, token);
  return start();
}

/** A new session, with the agent that was picked. */
export function renew(): Promise<void> {
  return attempt(async () => {
    folded = [];
    await client.create(agent.value === "" ? {} : { agent: agent.value });
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
    done.value = "The state was saved. With it you can come back, even to a server that has forgotten you.";
  });
}

export function restore(file: File): Promise<void> {
  return attempt(async () => {
    const state = JSON.parse(await file.text()) as Sealed;
    folded = [];
    await client.restore(state);
  });
}

/** Which agents there are to pick from. Without the right to ask, there is no choice. */
export async function loadAgents(): Promise<void> {
  const node = await admin<{ agents?: string[]; default_agent?: string }>("node").catch(() => null);
  if (node === null) return;
  agents.value = node.agents ?? [];
  agent.value = node.default_agent ?? "";
}

/** Asks the admin API; what it refuses is thrown as a sentence. */
export async function admin<Answer>(path: string): Promise<Answer> {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const answer = await fetch(`/api/admin/${path}`, token === null ? {} : { headers: { authorization: `Bearer ${token}` } });
  const body = (await answer.json()) as Answer & { message?: string };
  if (!answer.ok) throw new Error(body.message ?? `HTTP ${answer.status}`);
  return body;
}
