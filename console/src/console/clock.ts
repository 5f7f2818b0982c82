// The time, as often as people look at it.

import { signal } from "@preact/signals";

export const now = signal(Date.now());

setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 250);
