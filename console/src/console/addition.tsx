// The form that adds an MCP server for all clients.

import { useSignal } from "@preact/signals";
import type { ComponentChildren, VNode } from "preact";
import type { Backend } from "../../../sdk/typescript/src/generated/answers.ts";
import { useEffect, useRef } from "preact/hooks";
import { Refused, ask } from "../admin.ts";
import { type Draft, Unreadable, entry } from "./draft.ts";

type Field = Exclude<keyof Draft, "kind">;

interface AdditionProps {
  readonly draft: Draft;
  readonly change: (typed: Partial<Draft>) => void;
  readonly added: (name: string) => void;
  readonly cancel: () => void;
}

export function Addition({ draft, change, added, cancel }: AdditionProps): VNode {
  const said = useSignal("");
  const busy = useSignal(false);
  const first = useRef<HTMLInputElement>(null);
  const closed = useRef(false);
  useEffect(() => {
    first.current?.focus();
    return () => void (closed.current = true);
  }, []);
  const send = async (event: Event) => {
    event.preventDefault();
    if (busy.value) return;
    busy.value = true;
    said.value = "";
    try {
      const { name } = await ask<Backend>("backends", "POST", entry(draft));
      // An operator who has closed the form meanwhile finds the server in the list.
      if (!closed.current) added(name);
    } catch (error) {
      said.value = error instanceof Refused ? `Not added: ${error.message}` : error instanceof Unreadable ? error.message : String(error);
    }
    busy.value = false;
  };
  const type = (field: Field) => ({
    id: `new-${field}`,
    value: draft[field],
    autoComplete: "off",
    spellcheck: false,
    onInput: ({ currentTarget }: { currentTarget: { value: string } }) => change({ [field]: currentTarget.value }),
  });
  const choose = (kind: Draft["kind"]) => ({ type: "radio", name: "new-kind", checked: draft.kind === kind, onChange: () => change({ kind }) });
  return (
    <form id="addition" class="addition card" aria-label="Add a server" onSubmit={(event) => void send(event)}>
      <div class="fields">
        <Labelled of="name" label="Name" hint="Letters, digits, “_”, “-” and “.”. It goes before the names of its tools.">
          <input ref={first} {...type("name")} required maxLength={64} aria-describedby="new-name-hint" />
        </Labelled>
        <fieldset>
          <legend>Reached by</legend>
          <div class="row">
            <label class="check"><input {...choose("address")} /> Address</label>
            <label class="check"><input {...choose("program")} /> Program</label>
          </div>
        </fieldset>
        {draft.kind === "address" ? (
          <>
            <Labelled of="url" label="URL" wide>
              <input {...type("url")} type="url" required placeholder="https://search.example/mcp" />
            </Labelled>
            <Labelled of="headers" label="Headers" wide hint="One “Name: value” per line. Values are sent to the server and never shown again.">
              <textarea {...type("headers")} rows={2} aria-describedby="new-headers-hint" />
            </Labelled>
          </>
        ) : (
          <>
            <Labelled of="command" label="Command">
              <input {...type("command")} required placeholder="npx" />
            </Labelled>
            <Labelled of="cwd" label="Working directory">
              <input {...type("cwd")} />
            </Labelled>
            <Labelled of="args" label="Arguments" hint="One per line.">
              <textarea {...type("args")} rows={3} aria-describedby="new-args-hint" />
            </Labelled>
            <Labelled of="env" label="Environment" hint="One “NAME=value” per line. Values are never shown again.">
              <textarea {...type("env")} rows={3} aria-describedby="new-env-hint" />
            </Labelled>
          </>
        )}
      </div>
      <p class="said" role="alert">{said.value}</p>
      <div class="row">
        {/* Not `disabled`: that would take the focus away. */}
        <button class="primary" aria-disabled={busy.value}>{busy.value ? "Adding …" : "Add"}</button>
        <button type="button" onClick={cancel}>Cancel</button>
      </div>
    </form>
  );
}

function Labelled({ of, label, hint, wide, children }: { of: Field; label: string; hint?: string; wide?: boolean; children: ComponentChildren }): VNode {
  return (
    <div class={wide ? "wide" : ""}>
      <label for={`new-${of}`}>{label}</label>
      {children}
      {hint === undefined ? null : <p id={`new-${of}-hint`} class="fine">{hint}</p>}
    </div>
  );
}
