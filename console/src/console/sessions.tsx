// All principals' sessions: whose they are, how they stand, and what is retained of them.

import type { VNode } from "preact";
import type { AllSessions, AnySessionSummary as Session } from "../../../sdk/typescript/src/generated/answers.ts";
import { ask, usePolled } from "../admin.ts";
import { linkTo } from "../route.ts";
import { Badge } from "./badge.tsx";
import { now } from "./clock.ts";
import { Frame } from "./frame.tsx";
import { Ruler } from "./ruler.tsx";
import { type Column, Table } from "./table.tsx";
import { ago, counted, figure, short } from "./words.ts";

const SHOWN_MAX = 100;

export function marks(session: Session) {
  return { first: session.first_retained_seq ?? 1, last: session.last_seq ?? 0, acked: session.acked_seq ?? 0 };
}

export function stateOf(session: Session): string {
  if (session.unreadable !== undefined) return "unreadable";
  const { life = "active", state = "unknown" } = session;
  if (life === "active") return state;
  return typeof life === "string" ? life : "superseded";
}

export function Holder({ session }: { session: Session }): VNode {
  return (
    <>
      {session.held ? <Badge state="holder" /> : <span class="quiet">none</span>}
      {session.observers > 0 ? <span class="quiet"> + {counted(session.observers, "observer")}</span> : null}
    </>
  );
}

const COLUMNS: readonly Column<Session>[] = [
  {
    title: "Session",
    wide: true,
    show: (one) => (
      <a class="named" href={linkTo("sessions", one.id)}>
        <span class="name">{one.title ? one.title.slice(0, 60) : "Without a message"}</span> <span class="id">{short(one.id)}</span>
      </a>
    ),
  },
  { title: "State", show: (one) => <Badge state={stateOf(one)} /> },
  { title: "Seen by", show: (one) => <Holder session={one} /> },
  { title: "Agent", show: ({ agent, owner }) => <>{agent ?? ""}{owner === null || owner === "local" ? "" : <span class="quiet"> for {owner}</span>}</> },
  { title: "Active", show: (one) => ago(one.last_active_at, now.value) },
  { title: "Log", wide: true, show: (one) => <Ruler {...marks(one)} /> },
];

export function Sessions(): VNode {
  const polled = usePolled("sessions", () => ask<AllSessions>(`sessions?limit=${SHOWN_MAX}`));
  const total = polled.value.answer?.total ?? 0;
  const title = total > SHOWN_MAX ? `Sessions, the last ${SHOWN_MAX} of ${figure(total)}` : "Sessions";
  return (
    <Frame
      title={title}
      polled={polled}
      show={({ sessions }) =>
        sessions.length === 0 ? (
          <p class="empty card">There are no sessions yet. <a href="#chat">Begin one</a>.</p>
        ) : (
          <Table label="Sessions" columns={COLUMNS} rows={sessions} id={({ id }) => id} />
        )
      }
    />
  );
}
