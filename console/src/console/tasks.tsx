// Work in the background: all principals' tasks with a log of their own, and one of those logs.

import type { VNode } from "preact";
import type { AllTasks, AnyTask as Task } from "../../../sdk/typescript/src/generated/answers.ts";
import { ask, usePolled } from "../admin.ts";
import { linkTo } from "../route.ts";
import { Badge } from "./badge.tsx";
import { now } from "./clock.ts";
import { Facts } from "./facts.tsx";
import { Frame } from "./frame.tsx";
import { Log } from "./log.tsx";
import { type Column, Table } from "./table.tsx";
import { ago, duration, figure, short } from "./words.ts";

const SHOWN_MAX = 200;
const READ_FIRST = 200;

function lasted({ created_at, finished_at }: Task): string {
  if (created_at === undefined) return "";
  const end = finished_at ? Date.parse(finished_at) : now.value;
  return duration(Math.max(0, (end - Date.parse(created_at)) / 1000));
}

function state(task: Task): string {
  return task.unreadable === undefined ? (task.status ?? "unknown") : "unreadable";
}

const COLUMNS: readonly Column<Task>[] = [
  {
    title: "Task",
    wide: true,
    show: (task) => <a class="named" href={linkTo("tasks", task.task_id)}><span class="name">{task.tool_name ?? "Task"}</span> <span class="id">{short(task.task_id)}</span></a>,
  },
  { title: "State", show: (task) => <Badge state={state(task)} /> },
  { title: "Events", show: (task) => figure(task.last_seq ?? 0) },
  { title: "Took", show: lasted },
  { title: "Begun", show: (task) => ago(task.created_at, now.value) },
  { title: "Session", show: ({ session_id }) => (session_id ? <a class="id" href={linkTo("sessions", session_id)}>{short(session_id)}</a> : <span class="quiet">none</span>) },
];

function load() {
  return ask<AllTasks>(`tasks?limit=${SHOWN_MAX}`);
}

export function Tasks(): VNode {
  const polled = usePolled("tasks", load);
  const total = polled.value.answer?.total ?? 0;
  return (
    <Frame
      title={total > SHOWN_MAX ? `Tasks, the last ${SHOWN_MAX} of ${figure(total)}` : "Tasks"}
      polled={polled}
      show={({ tasks }) =>
        tasks.length === 0 ? (
          <p class="empty card">No background tasks yet. In the <a href="#chat">chat</a>, <code>/op index 20 500</code> starts some with the demo agent.</p>
        ) : (
          <Table label="Tasks" columns={COLUMNS} rows={tasks} id={({ task_id }) => task_id} />
        )
      }
    />
  );
}

export function OneTask({ id }: { id: string }): VNode {
  const polled = usePolled(id, load);
  return (
    <Frame
      title={<><a href="#tasks">Tasks</a> › {short(id)}</>}
      polled={polled}
      show={({ tasks }) => {
        const task = tasks.find(({ task_id }) => task_id === id);
        return (
          <>
            <p class="id long">{id}</p>
            {task === undefined ? null : (
              <Facts
                facts={[
                  ["State", <Badge state={state(task)} />],
                  ["Tool", task.tool_name ?? "none"],
                  ["Took", lasted(task)],
                  ["Owner", task.owner ?? "none"],
                ]}
              />
            )}
            <Log key={id} path={`tasks/${encodeURIComponent(id)}/events`} from={Math.max(0, (task?.last_seq ?? 0) - READ_FIRST)} first={1} />
          </>
        );
      }}
    />
  );
}
