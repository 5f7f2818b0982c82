// Dialing through the tab that leads, where the browser has what that takes; else directly.

import type { Dial } from "../socket.ts";
import { type Channel, Tab, type TabTools } from "./tab.ts";

const tabs = new Map<string, Tab>();

/** All clients of a page that dial the same address share its tab. */
export function sharedDial(direct: Dial, tools: TabTools | null = browserTools()): Dial {
  if (tools === null) return direct;
  return (url, protocols) => {
    const tab = tabs.get(url) ?? new Tab(tools, url, direct);
    tabs.set(url, tab);
    return tab.dial(protocols);
  };
}

function browserTools(): TabTools | null {
  if (typeof document === "undefined" || typeof BroadcastChannel === "undefined" || navigator.locks === undefined) return null;
  const { locks } = navigator;
  return {
    locks: { request: (name, hold) => locks.request(name, hold) },
    channel: (name) => new BroadcastChannel(name) as Channel,
  };
}
