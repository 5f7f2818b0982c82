// One tab among others: leads if no other tab does, and otherwise speaks through the tab that leads.

import { randomId } from "../random.ts";
import type { Dial, Socket } from "../socket.ts";
import { Mux, type PortNews } from "./mux.ts";

/** What a browser has to offer for tabs to find each other. */
export interface TabTools {
  readonly locks: { request(name: string, hold: () => Promise<unknown>): Promise<unknown> };
  readonly channel: (name: string) => Channel;
}

export interface Channel {
  onmessage: ((event: { data: unknown }) => void) | null;
  postMessage(message: unknown): void;
}

type Message =
  /** A new leader: wires over a former one are gone. */
  | { readonly say: "lead" }
  | { readonly say: "open"; readonly port: string; readonly tab: string; readonly protocols: string[] }
  | { readonly say: "send"; readonly port: string; readonly text: string }
  | { readonly say: "close"; readonly port: string; readonly code: number }
  | { readonly say: "news"; readonly port: string; readonly news: PortNews };

/** One wire of a client in this tab. */
class Port implements Socket {
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  onerror: ((event: unknown) => void) | null = null;
  readonly id = randomId("port_");
  readonly protocols: string[];
  /** Whether a leader has answered: then a new leader knows nothing of us. */
  answered = false;
  readonly #say: (message: Message) => void;

  constructor(protocols: string[], say: (message: Message) => void) {
    this.protocols = protocols;
    this.#say = say;
  }

  send(text: string): void {
    this.#say({ say: "send", port: this.id, text });
  }

  close(code = 1000): void {
    this.#say({ say: "close", port: this.id, code });
  }
}

/** All of a tab's wires to one address. */
export class Tab {
  readonly #id = randomId("tab_");
  readonly #tools: TabTools;
  readonly #name: string;
  readonly #channel: Channel;
  readonly #ports = new Map<string, Port>();
  /** Which tab each port of the leader's belongs to. */
  readonly #owners = new Map<string, string>();
  readonly #dial: (protocols: string[]) => Socket;
  #mux: Mux | null = null;
  /** Whether we hold our own lock. Until then a leader that watches it would get it, and think us gone. */
  #alive = false;

  constructor(tools: TabTools, url: string, direct: Dial) {
    this.#tools = tools;
    this.#name = `bowline ${url}`;
    this.#dial = (protocols) => direct(url, protocols);
    this.#channel = tools.channel(this.#name);
    this.#channel.onmessage = ({ data }) => this.#hear(data as Message);
    // Held as long as the tab lives, so that the leader learns when it is gone, also if it crashed.
    this.#hold(this.#id, () => this.#live());
    this.#hold(this.#name, () => this.#lead());
  }

  /** For good. A page that may have no locks, as in a sandboxed frame, sees no other tab either: it goes on alone. */
  #hold(name: string, then: () => void): void {
    const hold = () => {
      then();
      return new Promise(() => {});
    };
    void this.#tools.locks.request(name, hold).catch(hold);
  }

  dial(protocols: string[]): Socket {
    const port = new Port(protocols, (message) => {
      if (message.say === "close") this.#ports.delete(port.id);
      this.#say(message);
    });
    this.#ports.set(port.id, port);
    this.#open(port);
    return port;
  }

  #live(): void {
    this.#alive = true;
    for (const port of this.#ports.values()) this.#open(port);
  }

  #open(port: Port): void {
    if (!this.#alive) return;
    this.#say({ say: "open", port: port.id, tab: this.#id, protocols: port.protocols });
  }

  #lead(): void {
    this.#mux = new Mux(this.#dial, (port, news) => {
      // Never from within the call that caused it: a real socket would not do so either.
      if (this.#ports.has(port)) queueMicrotask(() => this.#news(port, news));
      else this.#channel.postMessage({ say: "news", port, news });
    });
    this.#channel.postMessage({ say: "lead" });
    this.#moveTo();
  }

  /** Another tab leads now, perhaps this one. */
  #moveTo(): void {
    for (const port of [...this.#ports.values()]) {
      if (port.answered) this.#news(port.id, { say: "closed", code: 1006 });
      else this.#open(port);
    }
  }

  #say(message: Message): void {
    if (this.#mux === null) this.#channel.postMessage(message);
    else this.#hear(message);
  }

  #hear(message: Message): void {
    const mux = this.#mux;
    switch (message.say) {
      case "lead":
        return this.#moveTo();
      case "news":
        return this.#news(message.port, message.news);
      case "open":
        if (mux !== null) this.#watch(message.port, message.tab);
        return mux?.open(message.port, message.protocols);
      case "send":
        return mux?.send(message.port, message.text);
      case "close":
        this.#owners.delete(message.port);
        return mux?.close(message.port, message.code);
    }
  }

  /** The lock of a tab can be had once the tab is gone. */
  #watch(port: string, tab: string): void {
    const watched = [...this.#owners.values()].includes(tab);
    this.#owners.set(port, tab);
    if (watched || tab === this.#id) return;
    void this.#tools.locks.request(tab, async () => {
      for (const [orphan, owner] of [...this.#owners]) {
        if (owner !== tab) continue;
        this.#owners.delete(orphan);
        this.#mux?.close(orphan, 1000);
      }
    });
  }

  #news(id: string, news: PortNews): void {
    const port = this.#ports.get(id);
    if (port === undefined) return;
    port.answered = true;
    if (news.say === "frame") return port.onmessage?.({ data: news.text });
    this.#ports.delete(id);
    port.onclose?.({ code: news.code });
  }
}
