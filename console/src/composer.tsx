// Where a person writes: send, or stop what runs.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { attempt, client, connection, session } from "./session.ts";

export function Composer(): VNode {
  const text = useSignal("");
  const running = session.value !== null && session.value.run !== "idle";
  const away = connection.value.state === "disconnected";
  const send = async () => {
    const said = text.value.trim();
    if (said === "" || running) return;
    text.value = "";
    // Sent again after a loss, under the same key; so nothing is lost by clearing the field.
    await attempt(() => client.message(said));
  };
  const keys = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    void send();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <label class="sr-only" for="message">Message. Enter sends it, Shift and Enter begins a new line.</label>
      <textarea
        id="message"
        rows={2}
        value={text.value}
        placeholder="Ask something, or try /plan, /long 100, /confirm …"
        disabled={away}
        onInput={({ currentTarget }) => (text.value = currentTarget.value)}
        onKeyDown={keys}
      />
      {running ? (
        <button type="button" class="stop" onClick={() => void attempt(() => client.cancel())}>Stop</button>
      ) : (
        <button class="primary" disabled={away || text.value.trim() === ""}>Send</button>
      )}
    </form>
  );
}
