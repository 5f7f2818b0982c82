// When a page wakes up, or finds the network again: what it believes of its wires may be stale. And when it is left.

/** Returns what stops it. */
export function onWake(wake: () => void, leave: () => void = () => {}): () => void {
  if (typeof document === "undefined") return () => {};
  const shown = () => document.visibilityState === "visible" && wake();
  const listening = new AbortController();
  addEventListener("online", wake, listening);
  addEventListener("pageshow", wake, listening);
  addEventListener("pagehide", leave, listening);
  document.addEventListener("visibilitychange", shown, listening);
  return () => listening.abort();
}
