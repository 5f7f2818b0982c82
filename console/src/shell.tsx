// What stands around every page: the name, the ways to the others, and how the connection is.

import type { ComponentChildren, VNode } from "preact";
import { PAGES, route } from "./route.ts";

const TITLES = { chat: "Chat", sessions: "Sessions", tasks: "Tasks", backends: "Backends", node: "Node", settings: "Settings" } as const;

export function Shell({ status, tools, children }: { status: ComponentChildren; tools?: ComponentChildren; children: ComponentChildren }): VNode {
  const { page } = route.value;
  document.title = `${TITLES[page]} · Bowline`;
  return (
    <div class={`shell ${page === "chat" ? "narrow" : ""}`}>
      <header>
        <a class="skip" href="#content" onClick={skip}>To the content</a>
        <h1><Mark />Bowline</h1>
        <nav aria-label="Pages">
          {PAGES.map((name) => <a key={name} href={`#${name}`} aria-current={name === page ? "page" : undefined}>{TITLES[name]}</a>)}
        </nav>
        <div class="status">{status}</div>
        {tools}
      </header>
      {children}
    </div>
  );
}

/** The address behind the `#` names the page, so the content is found by hand. */
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function Mark(): VNode {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <path d="M16 2.500v6.500M16 13c6.500 0 9.500 3.600 9.500 8s-4 8.500-9.500 8.500-9.500-4-9.500-8.500c0-3.400 1.800-6 5-7.200" />
      <path d="M20.500 17.500V9.800a4.500 4.500 0 0 0-9 0v7.700" />
    </svg>
  );
}
