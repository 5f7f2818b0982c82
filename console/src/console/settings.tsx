// The settings in force, each with where it came from. Secrets are hidden by the server.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import type { Settings } from "../../../sdk/typescript/src/generated/answers.ts";
import { ask, usePolled } from "../admin.ts";
import { Frame } from "./frame.tsx";
import { type Column, Table } from "./table.tsx";

type Row = readonly [string, Settings["settings"][string]];

const COLUMNS: readonly Column<Row>[] = [
  { title: "Setting", wide: true, show: ([key]) => <code>{key}</code> },
  { title: "Value", wide: true, show: ([, { value }]) => <span class="id long">{written(value)}</span> },
  { title: "From", show: ([, { source }]) => <span class={source === "default" ? "quiet" : "strong"}>{source}</span> },
];

function written(value: unknown): string {
  if (value === null) return "not set";
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function Settings(): VNode {
  const polled = usePolled("config", () => ask<Settings>("config"), 30_000);
  const wanted = useSignal("");
  const changed = useSignal(false);
  const fits = ([key, { source }]: Row) => key.includes(wanted.value.trim().toLowerCase()) && (!changed.value || source !== "default");
  return (
    <Frame
      title="Settings"
      polled={polled}
      show={({ file, settings }) => {
        const rows = Object.entries(settings).filter(fits);
        return (
          <>
            <p class="quiet">{file === null ? "No file was read." : <>From <code>{file}</code>, the environment and the command line.</>} Secrets are hidden.</p>
            <div class="row filter">
              <label for="wanted">Find</label>
              <input id="wanted" type="search" value={wanted.value} onInput={({ currentTarget }) => (wanted.value = currentTarget.value)} />
              <label class="check"><input type="checkbox" checked={changed.value} onChange={({ currentTarget }) => (changed.value = currentTarget.checked)} /> Only what was set</label>
            </div>
            {rows.length === 0 ? <p class="empty card">No setting fits.</p> : <Table label="Settings" columns={COLUMNS} rows={rows} id={([key]) => key} />}
          </>
        );
      }}
    />
  );
}
