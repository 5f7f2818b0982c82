// The console's pages by their names. Loaded when one is first looked at, with the charts.

import type { VNode } from "preact";
import type { PageName } from "../route.ts";
import { Backends } from "./backends.tsx";
import { NodePage } from "./node.tsx";
import { OneSession } from "./session.tsx";
import { Sessions } from "./sessions.tsx";
import { Settings } from "./settings.tsx";
import { OneTask, Tasks } from "./tasks.tsx";

export function ConsolePage({ page, id }: { page: Exclude<PageName, "chat">; id: string | null }): VNode {
  switch (page) {
    case "sessions":
      return id === null ? <Sessions /> : <OneSession key={id} id={id} />;
    case "tasks":
      return id === null ? <Tasks /> : <OneTask key={id} id={id} />;
    case "backends":
      return <Backends />;
    case "node":
      return <NodePage />;
    case "settings":
      return <Settings />;
  }
}
