// A chat in one component. The wire may break; what is shown stays whole.

import { type FormEvent, useState } from "react";
import { createRoot } from "react-dom/client";
import { useBowlineSession } from "../src/react.ts";

function Chat({ url }: { url: string }) {
  const { client, connection, session, events } = useBowlineSession({ url });
  const [text, setText] = useState("");
  const answer = events.filter(({ event }) => event === "agent.partial_answer").map(({ content }) => content as string);
  const ask = (event: FormEvent) => {
    event.preventDefault();
    setText("");
    client.message(text).catch((error: Error) => alert(error.message));
  };
  return (
    <main>
      <p role="status">{connection.state}</p>
      <p id="answer">{answer}</p>
      <form onSubmit={ask}>
        <input aria-label="Message" value={text} onChange={({ target }) => setText(target.value)} />
        <button disabled={session?.run === "running"}>Send</button>
        <button type="button" onClick={() => client.drop()}>
          Cut the wire
        </button>
      </form>
    </main>
  );
}

const url = new URLSearchParams(location.search).get("server") ?? "/ws";
createRoot(document.getElementById("root") as HTMLElement).render(<Chat url={url} />);
