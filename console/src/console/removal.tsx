// Removes an MCP server, after asking once more in the same place.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Refused, ask, whose } from "../admin.ts";

interface RemovalProps {
  readonly name: string;
  readonly owner: string | null;
  /** Whether it is in the servers file, and so can be brought back. */
  readonly configured: boolean;
  readonly removed: () => void;
}

export function Removal({ name, owner, configured, removed }: RemovalProps): VNode {
  const asking = useSignal(false);
  const busy = useSignal(false);
  const said = useSignal("");
  const keep = useRef<HTMLButtonElement>(null);
  const remove = useRef<HTMLButtonElement>(null);
  const asked = useRef(false);
  useEffect(() => {
    // The button that was pressed is gone, so the focus goes to the one that does no harm, and later back.
    if (asking.value) keep.current?.focus();
    else if (asked.current) remove.current?.focus();
    asked.current = asking.value;
  }, [asking.value]);
  const stay = () => {
    asking.value = false;
    said.value = "";
  };
  const go = async () => {
    if (busy.value) return;
    busy.value = true;
    said.value = "";
    try {
      await ask(`backends/${encodeURIComponent(name)}${whose(owner)}`, "DELETE");
      // Another node shows it a little longer.
      asking.value = asked.current = false;
      removed();
    } catch (error) {
      said.value = error instanceof Refused ? error.message : String(error);
    }
    busy.value = false;
  };
  if (!asking.value) return <button ref={remove} class="small" onClick={() => (asking.value = true)}>Remove<span class="sr-only"> {name}</span></button>;
  return (
    <div class="removal row" role="group" aria-label={`Remove ${name}`} onKeyDown={({ key }) => key === "Escape" && stay()}>
      <span>Remove it for {owner === null ? "all clients" : owner}{configured ? ", until it is restored or its entry in the servers file changes" : ""}?</span>
      <button class="small stop" aria-disabled={busy.value} onClick={() => void go()}>{busy.value ? "Removing …" : "Remove"}<span class="sr-only"> {name}</span></button>
      <button ref={keep} class="small" onClick={stay}>Keep<span class="sr-only"> {name}</span></button>
      <span class="said" role="alert">{said.value}</span>
    </div>
  );
}
