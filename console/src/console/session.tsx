// One session: its facts, its ruler, and its log as it grows.

import type { VNode } from "preact";
import type { AnySession } from "../../../sdk/typescript/src/generated/answers.ts";
import { ask, usePolled } from "../admin.ts";
import { Badge } from "./badge.tsx";
import { Facts } from "./facts.tsx";
import { Frame } from "./frame.tsx";
import { Log } from "./log.tsx";
import { LongRuler } from "./ruler.tsx";
import { Holder, marks, stateOf } from "./sessions.tsx";
import { duration, figure } from "./words.ts";

/** How much of a long log is read at first. */
const READ_FIRST = 200;

export function OneSession({ id }: { id: string }): VNode {
  const path = `sessions/${encodeURIComponent(id)}`;
  const polled = usePolled(id, () => ask<AnySession>(path));
  const { answer } = polled.value;
  const from = answer === null ? 0 : Math.max((answer.first_retained_seq ?? 1) - 1, (answer.last_seq ?? 0) - READ_FIRST);
  return (
    <Frame
      title={<><a href="#sessions">Sessions</a> › {answer?.title ? answer.title.slice(0, 60) : "Session"}</>}
      polled={polled}
      show={(session) => (
        <>
          <p class="id long">{session.id}</p>
          <Facts
            facts={[
              ["State", <Badge state={stateOf(session)} />],
              ["Seen by", <Holder session={session} />],
              ["Agent", session.agent ?? "unknown"],
              ["Owner", session.owner ?? "none"],
              ["Epoch", <code>{session.epoch}</code>],
              ["Age", duration(session.buffer.session_age_seconds)],
              ["Retained", <>{figure(session.buffer.buffer_size)} <span class="quiet">{session.buffer.buffer_usage_percent.toFixed(1)} % of its room</span></>],
              ["Not acked", figure(session.buffer.unacked_events)],
            ]}
          />
          <h3>Retained events</h3>
          <LongRuler {...marks(session)} />
          <Log key={session.log} path={`${path}/events`} from={from} first={session.first_retained_seq ?? 1} />
        </>
      )}
    />
  );
}
