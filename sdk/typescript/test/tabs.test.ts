// Tabs that share one connection: real clients, a real server and real channels; only the locks are a stand-in, which Node 20
// does not have. `test/browser.test.ts` has the real ones.

import { afterEach, beforeEach, expect, test } from "vitest";
import { WebSocket } from "ws";
import { BowlineClient, MemoryStore } from "../src/index.ts";
import { dialWith } from "../src/socket.ts";
import { Tab, type TabTools } from "../src/tabs/tab.ts";
import { closeClients, makeClient, next, nextEvent, record, textOf, words } from "./support/clients.ts";
import { Cutter } from "./support/cutter.ts";
import { Server } from "./support/server.ts";

let server: Server;
let wire: Cutter;
let locks: Locks;
let pages: Page[] = [];

beforeEach(async () => {
  server = await Server.start();
  wire = await Cutter.start(server.port);
  locks = new Locks();
});

afterEach(async () => {
  closeClients();
  for (const page of pages) page.crash();
  pages = [];
  await wire.stop();
  await server.stop();
});

/** Exclusive locks in the order they are asked for; a page that dies lets go of its own. */
class Locks {
  readonly #queues = new Map<string, { page: Page; hold: () => Promise<unknown> }[]>();

  request(page: Page, name: string, hold: () => Promise<unknown>): Promise<unknown> {
    const queue = this.#queues.get(name) ?? [];
    this.#queues.set(name, queue);
    queue.push({ page, hold });
    if (queue.length === 1) this.#grant(name);
    return Promise.resolve();
  }

  drop(page: Page): void {
    for (const [name, queue] of this.#queues) {
      const held = queue[0]?.page === page;
      this.#queues.set(name, queue.filter((entry) => entry.page !== page));
      if (held) this.#grant(name);
    }
  }

  #grant(name: string): void {
    const first = this.#queues.get(name)?.[0];
    if (first === undefined) return;
    queueMicrotask(() => {
      void first.hold().then(() => {
        const queue = this.#queues.get(name) ?? [];
        this.#queues.set(name, queue.filter((entry) => entry !== first));
        this.#grant(name);
      });
    });
  }
}

/** One page with its clients. */
class Page {
  readonly #channels: BroadcastChannel[] = [];
  #dead = false;
  readonly #sockets: WebSocket[] = [];
  readonly #tab: Tab;
  readonly clients: BowlineClient[] = [];

  constructor() {
    pages.push(this);
    const tools: TabTools = {
      locks: { request: (name, hold) => locks.request(this, name, () => (this.#dead ? Promise.resolve() : hold())) },
      channel: (name) => {
        const channel = new BroadcastChannel(name);
        this.#channels.push(channel);
        const post = channel.postMessage.bind(channel);
        channel.postMessage = (message: unknown) => (this.#dead ? undefined : post(message));
        return channel as never;
      },
    };
    const direct = dialWith(WebSocket);
    this.#tab = new Tab(tools, wire.url, (url, protocols) => {
      const socket = direct(url, protocols);
      this.#sockets.push(socket as never);
      return socket;
    });
  }

  get dialed(): number {
    return this.#sockets.length;
  }

  client(storage = new MemoryStore(), options: object = {}): BowlineClient {
    const client = makeClient({ url: wire.url, storage, dial: (_url, protocols) => this.#tab.dial(protocols), ...options });
    this.clients.push(client);
    return client;
  }

  /** Nothing of it is heard any more. */
  crash(): void {
    this.#dead = true;
    for (const channel of this.#channels) {
      channel.onmessage = null;
      channel.close();
    }
    for (const socket of this.#sockets) {
      socket.onclose = null;
      socket.onmessage = null;
      socket.terminate();
    }
    locks.drop(this);
  }
}

test("clients in three tabs share one connection, and each sees its own session alone", async () => {
  const [one, two, three] = [new Page(), new Page(), new Page()];
  const clients = [one.client(), two.client(), three.client(), three.client()];
  const seen = clients.map(record);
  const sessions = await Promise.all(clients.map((client) => client.connect()));
  expect(new Set(sessions.map(({ id }) => id)).size).toBe(4);
  await Promise.all(
    clients.map(async (client, n) => {
      const answered = nextEvent(client, "agent.final_answer");
      await client.message(`/echo tab ${n}`);
      expect((await answered).content).toBe(`tab ${n}`);
    }),
  );
  expect(wire.count).toBe(1);
  expect([one.dialed, two.dialed, three.dialed].sort()).toEqual([0, 0, 1]);
  for (const events of seen) expect(events.map(({ seq }) => seq)).toEqual([1, 2]);
});

test("two tabs on one session both see everything and both may write", async () => {
  const [one, two] = [new Page(), new Page()];
  const storage = new MemoryStore();
  const first = one.client(storage);
  const seenByFirst = record(first);
  const { id } = await first.connect();
  const some = next(first, "event", ({ content }) => content === " tok20");
  await first.message("/long 200 2");
  await some;
  const second = two.client(storage);
  const seenBySecond = record(second);
  expect((await second.connect()).id).toBe(id);
  await Promise.all([first, second].map((client) => nextEvent(client, "agent.final_answer")));
  for (const events of [seenByFirst, seenBySecond]) {
    expect(events.map(({ seq }) => seq)).toEqual(events.map((_, n) => n + 1));
    expect(textOf(events)).toBe(words(200));
  }
  const both = Promise.all([first, second].map((client) => nextEvent(client, "agent.final_answer")));
  await second.message("/echo from the second");
  expect((await both).map(({ content }) => content)).toEqual(["from the second", "from the second"]);
  expect(wire.count).toBe(1);
  expect(first.connection.state).toBe("connected");
});

test("when the leading tab dies another leads, and nothing is missing or doubled", async () => {
  const one = new Page();
  const leader = one.client();
  await leader.connect();
  const [two, three] = [new Page(), new Page()];
  const clients = [two.client(), three.client()];
  const seen = clients.map(record);
  await Promise.all(clients.map((client) => client.connect()));
  expect(wire.count).toBe(1);
  const answers = clients.map((client) => nextEvent(client, "agent.final_answer"));
  const some = clients.map((client) => next(client, "event", ({ content }) => content === " tok20"));
  await Promise.all(clients.map((client) => client.message("/long 300 2")));
  await Promise.all(some);
  one.crash();
  await Promise.all(answers);
  for (const events of seen) {
    expect(events.map(({ seq }) => seq)).toEqual(events.map((_, n) => n + 1));
    expect(textOf(events)).toBe(words(300));
  }
  expect(wire.count).toBe(2);
});

test("a cut of the shared wire is noticed by all, and all come back over one", async () => {
  const clients = [new Page().client(), new Page().client()];
  const seen = clients.map(record);
  await Promise.all(clients.map((client) => client.connect()));
  const answers = clients.map((client) => nextEvent(client, "agent.final_answer"));
  await Promise.all(clients.map((client) => client.message("/long 200 2")));
  const lost = clients.map((client) => next(client, "connection", ({ state }) => state === "connection_lost"));
  wire.cutAll();
  await Promise.all(lost);
  await Promise.all(answers);
  for (const events of seen) expect(textOf(events)).toBe(words(200));
  expect(wire.count).toBe(2);
});

test("a tab that goes gives up its hold, also if it crashed; another device need not take it over", async () => {
  const [one, two] = [new Page(), new Page()];
  const staying = one.client();
  await staying.connect();
  const leaving = two.client();
  const { id } = await leaving.connect();
  two.crash();
  const store = new MemoryStore();
  store.setItem("bowline", JSON.stringify({ sessionId: id, ids: [id], epoch: null, lastSeq: 0 }));
  const elsewhere = makeClient({ url: server.url, storage: store });
  // The news of the crash and this claim race; once the hold is free the claim is granted.
  for (;;) {
    const held = await elsewhere.connect().catch((error: { code: string }) => error);
    if (!("code" in held)) break;
    expect(held.code).toBe("SESSION_ALREADY_ACTIVE");
  }
  expect(elsewhere.session?.id).toBe(id);
  expect(staying.connection.state).toBe("connected");
});

test("all tabs have the newest resume token", async () => {
  await server.stop();
  server = await Server.start({ BOWLINE_SESSION__OWNERSHIP: "token" });
  wire.targetPort = server.port;
  const [one, two] = [new Page(), new Page()];
  const storage = new MemoryStore();
  const [first, second] = [one.client(storage), two.client(storage)];
  const { id } = await first.connect();
  await second.connect();
  for (let n = 0; n < 4; n++) {
    const back = [first, second].map((client) => next(client, "connection", ({ state }) => state === "connected"));
    wire.cutAll();
    await Promise.all(back);
  }
  expect([first.session?.id, second.session?.id]).toEqual([id, id]);
});
