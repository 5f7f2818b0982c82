// The options of a client.

import { BACKOFF_SECONDS } from "./backoff.ts";
import type { KeyValueStore } from "./keeping.ts";
import type { Policy } from "./link/state.ts";
import type { Position } from "./position.ts";
import type { Dial, WebSocketClass } from "./socket.ts";

export interface BowlineOptions {
  /** `wss://host/ws`, `https://host`, or a path of the page's own origin. */
  readonly url: string;
  /** A token, or where to get one. It is asked for at each dial and when the server says that it expires. */
  readonly token?: string | (() => string | null | Promise<string | null>);
  /** Which configured agent a new session gets; the server's default if left out. */
  readonly agent?: string;
  /** `config` of a new session. */
  readonly config?: Readonly<Record<string, unknown>>;
  readonly appVersion?: string;
  /** Whether the server should push sealed states to be kept. Default `true`. */
  readonly checkpoints?: boolean;
  /** Under which name things are kept. Give each session of a page its own. Default `bowline`. */
  readonly name?: string;
  /** Where things are kept. Default `localStorage`, or memory where there is none. */
  readonly storage?: KeyValueStore;
  /**
   * Where a new client begins to read a kept session. `"start"` (default): from the first event, because a reloaded page
   * has lost what it showed. `"kept"`: after the kept position. Or the position that the application itself kept.
   */
  readonly resumeFrom?: "start" | "kept" | Position;
  /** One name per tab or device. Default: kept over reloads of a tab. */
  readonly clientId?: string;
  /** When another live connection holds the session. Default `"ask"`: stop, and let a person decide. */
  readonly whenHeld?: Policy["whenHeld"];
  /** When the session is gone and no state is left. Default `"create"`. */
  readonly whenGone?: Policy["whenGone"];
  /** Waits before the second, third, … attempt to return; the first is immediate. */
  readonly backoffSeconds?: readonly number[];
  /** Attempts in a row before it gives up. Default: it does not. */
  readonly attemptsMax?: number;
  /** Whether tabs share one connection, where the browser allows it. Default `true`. */
  readonly shared?: boolean;
  /** For places without a global `WebSocket`, as Node 20: `import { WebSocket } from "ws"`. */
  readonly webSocket?: WebSocketClass;
  /** Another way to open a wire. Takes the place of `shared` and `webSocket`. */
  readonly dial?: Dial;
  /** Chance, in [0, 1). For tests. */
  readonly random?: () => number;
}

export function policyFrom(options: BowlineOptions, clientId: string): Policy {
  const { agent, config, appVersion, checkpoints = true } = options;
  const wanted = checkpoints ? { ...config, checkpoints: true } : config;
  return {
    clientId,
    create: {
      agent,
      config: wanted,
      app_version: appVersion,
    },
    whenHeld: options.whenHeld ?? "ask",
    whenGone: options.whenGone ?? "create",
    backoffSeconds: options.backoffSeconds ?? BACKOFF_SECONDS,
    attemptsMax: options.attemptsMax ?? Infinity,
  };
}
