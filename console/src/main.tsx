// The page's beginning: the chat, or a page of the console if the address says so.

import { signal } from "@preact/signals";
import { render } from "preact";
import { Chat } from "./chat.tsx";
import { route } from "./route.ts";
import { start } from "./session.ts";
import { Shell } from "./shell.tsx";

type Pages = typeof import("./console/pages.tsx");

const pages = signal<Pages | "loading" | "failed">("loading");

function load(): void {
  pages.value = "loading";
  import("./console/pages.tsx").then(
    (loaded) => (pages.value = loaded),
    () => (pages.value = "failed"),
  );
}

function App() {
  const { page, id } = route.value;
  if (page === "chat") return <Chat />;
  const loaded = pages.value;
  if (typeof loaded !== "string") return <loaded.ConsolePage page={page} id={id} />;
  return (
    <Shell status={null}>
      <main id="content" tabIndex={-1}>
        {loaded === "loading" ? <p role="status">Loading …</p> : (
          // The server may be gone, or be a newer one that has other files.
          <p role="alert">This page could not be loaded. <button onClick={() => location.reload()}>Try again</button></p>
        )}
      </main>
    </Shell>
  );
}

route.subscribe(({ page }) => {
  // An operator who only looks shall not become a session.
  if (page === "chat") start();
  else if (typeof pages.peek() === "string") load();
});
const root = document.getElementById("app");
if (root !== null) render(<App />, root);
