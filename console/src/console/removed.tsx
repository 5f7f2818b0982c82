// The servers of the servers file that were removed, each with the way back.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import type { RemovedBackend } from "../../../sdk/typescript/src/generated/answers.ts";
import { Refused, ask } from "../admin.ts";
import { now } from "./clock.ts";
import { ago } from "./words.ts";

export function RemovedBackends({ removed, restored }: { removed: readonly RemovedBackend[]; restored: (name: string) => void }): VNode | null {
  if (removed.length === 0) return null;
  return (
    <section aria-labelledby="removed">
      <h3 id="removed">Removed</h3>
      <p class="fine">They are still in the servers file. They return when their entry there changes, or with the button.</p>
      <ul class="backends">
        {removed.map((one) => <RemovedCard key={one.name} removed={one} restored={() => restored(one.name)} />)}
      </ul>
    </section>
  );
}

function RemovedCard({ removed: { name, url, command, removedAt }, restored }: { removed: RemovedBackend; restored: () => void }): VNode {
  const busy = useSignal(false);
  const said = useSignal("");
  const restore = async () => {
    if (busy.value) return;
    busy.value = true;
    said.value = "";
    try {
      await ask(`backends/${encodeURIComponent(name)}/restore`, "POST");
      restored();
    } catch (error) {
      said.value = error instanceof Refused ? error.message : String(error);
    }
    busy.value = false;
  };
  return (
    <li class="card backend" aria-label={`${name}, removed`}>
      <div class="row spread">
        <h4>{name}</h4>
        <div class="row">
          <span class="said" role="alert">{said.value}</span>
          <button class="small" aria-disabled={busy.value} onClick={() => void restore()}>{busy.value ? "Restoring …" : "Restore"}<span class="sr-only"> {name}</span></button>
        </div>
      </div>
      <p class="id long">{url ?? command ?? ""}</p>
      <p class="fine">Removed {ago(removedAt, now.value)}</p>
    </li>
  );
}
