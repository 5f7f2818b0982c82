// Real clients for tests against a real server: all are closed at the end, and can be waited for.

import { WebSocket } from "ws";
import { BowlineClient, type BowlineEvents, type BowlineOptions, type LoggedEvent, MemoryStore } from "../../src/index.ts";

const open = new Set<BowlineClient>();

export function makeClient(options: Partial<BowlineOptions> & { url: string }): BowlineClient {
  const client = new BowlineClient({ webSocket: WebSocket, storage: new MemoryStore(), backoffSeconds: [0.02, 0.05, 0.1], ...options });
  open.add(client);
  return client;
}

export function closeClients(): void {
  for (const client of open) client.close();
  open.clear();
}

/** What a client is given, from now on. */
export function record(client: BowlineClient): LoggedEvent[] {
  const events: LoggedEvent[] = [];
  client.on("event", (event) => events.push(event));
  return events;
}

/** The next of a client's news that fits. Register it before you cause it. */
export function next<Name extends keyof BowlineEvents>(
  client: BowlineClient,
  name: Name,
  fits: (value: BowlineEvents[Name]) => boolean = () => true,
): Promise<BowlineEvents[Name]> {
  return new Promise((resolve) => {
    const off = client.on(name, (value) => {
      if (!fits(value)) return;
      off();
      resolve(value);
    });
  });
}

export const nextEvent = (client: BowlineClient, event: string): Promise<LoggedEvent> => next(client, "event", (value) => value.event === event);

/** The pieces of an answer, put together. */
export function textOf(events: readonly LoggedEvent[]): string {
  return events.filter(({ event }) => event === "agent.partial_answer").map(({ content }) => String(content)).join("");
}

/** What `/long` says. */
export function words(count: number): string {
  return Array.from({ length: count }, (_, n) => `tok${n + 1}`).join(" ");
}
