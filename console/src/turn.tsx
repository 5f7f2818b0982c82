// One turn: what was asked, how it was worked on, what was answered.

import { Component, type VNode } from "preact";
import { Markdown } from "./markdown.tsx";
import { QuestionCard } from "./question.tsx";
import { attempt, client } from "./session.ts";
import { OperationView } from "./operation.tsx";
import { type Item, type Task, type Tool, type Turn, isOpen } from "./transcript.ts";

/** Drawn anew only if its item has changed: a replay of thousands does not redraw the turns that are done. */
export class ItemView extends Component<{ item: Item }> {
  override shouldComponentUpdate(next: { item: Item }): boolean {
    return next.item !== this.props.item;
  }

  override render(): VNode {
    return draw(this.props.item);
  }
}

function draw(item: Item): VNode {
  if (item.kind === "gap") {
    const filled = item.filled ? "What was said was filled in from the session's state." : "The conversation is not lost: it is in the session's state.";
    return <p class={item.filled ? "note" : "note warning"}>Events {item.fromSeq} to {item.toSeq} are no longer retained. {filled}</p>;
  }
  return item.kind === "note" ? <p class="note">{item.text}</p> : <TurnView turn={item} />;
}

function TurnView({ turn }: { turn: Turn }): VNode {
  const { asked, thoughts, plan, tools, questions, answer, end, error } = turn;
  const running = end === null;
  const waits = running && questions.some((question) => question.answer === null);
  return (
    <article class="turn" aria-busy={running}>
      {asked === null ? null : <p class="asked"><span class="sr-only">You: </span>{asked}</p>}
      {thoughts.length === 0 ? null : <Thoughts thoughts={thoughts} running={running && answer === ""} />}
      {plan === null ? null : <Plan plan={plan} running={running} />}
      {tools.map((tool, n) => <ToolView key={n} tool={tool} />)}
      {questions.map((question) => <QuestionCard key={question.stepId} question={question} open={running} />)}
      {answer === "" ? null : <div class="answer"><span class="sr-only">Agent: </span><Markdown source={answer} /></div>}
      {running && !waits ? <p class="working" aria-hidden="true"><span /><span /><span /></p> : null}
      {end === "failed" || end === "cancelled" ? <p class={`note ${end}`}>{end === "failed" ? "Failed: " : "Stopped: "}{error}</p> : null}
    </article>
  );
}

function Thoughts({ thoughts, running }: { thoughts: readonly string[]; running: boolean }): VNode {
  return (
    <details class="thoughts">
      <summary>{running ? <>Thinking: <em>{thoughts.at(-1)}</em></> : `Thinking (${thoughts.length})`}</summary>
      <ul>{thoughts.map((thought, n) => <li key={n}>{thought}</li>)}</ul>
    </details>
  );
}

const MARKS = { open: "○", running: "◐", done: "●", failed: "✕", cancelled: "–", success: "●", unknown: "?" } as const;

function Plan({ plan, running }: { plan: NonNullable<Turn["plan"]>; running: boolean }): VNode {
  return (
    <section class="plan card" aria-label="Plan">
      <p class="summary"><strong>Plan</strong> {plan.summary === "" ? "in the making …" : plan.summary}</p>
      <ul>{plan.tasks.map((task) => <TaskView key={task.id} task={task} running={running} />)}</ul>
    </section>
  );
}

function TaskView({ task, running }: { task: Task; running: boolean }): VNode {
  const change = (action: "cancel_task" | "restart_task") => void attempt(() => client.plan(action, { task_id: task.id }));
  const open = isOpen(task);
  return (
    <li class={task.status}>
      <div class="row">
        <span class="glyph" aria-hidden="true">{MARKS[task.status]}</span>
        <span class="title">{task.title}</span>
        <span class="status">{task.status === "running" ? `${task.percent} %` : task.status}</span>
        {running && open ? <button class="small" onClick={() => change("cancel_task")} aria-label={`Cancel ${task.title}`}>Cancel</button> : null}
        {running && task.status === "cancelled" ? <button class="small" onClick={() => change("restart_task")} aria-label={`Restart ${task.title}`}>Restart</button> : null}
      </div>
      {running && open ? <progress max={100} value={task.percent} aria-label={`Progress of ${task.title}`} /> : null}
      {task.result === "" ? (task.description === "" ? null : <p class="result">{task.description}</p>) : <p class="result">{task.result}</p>}
    </li>
  );
}

function ToolView({ tool }: { tool: Tool }): VNode {
  return (
    <details class={`tool card ${tool.status}`}>
      <summary>
        <span class="glyph" aria-hidden="true">{MARKS[tool.status]}</span>
        <code>{tool.name}</code> <span class="status">{tool.status === "unknown" ? "outcome unknown" : tool.status}{tool.durationMs === null ? "" : `, ${tool.durationMs} ms`}</span>
        {tool.taskId !== null && tool.status === "running" ? <OperationView taskId={tool.taskId} name={tool.name} /> : null}
      </summary>
      <p class="result">{tool.text}</p>
      {tool.args === undefined || tool.args === null ? null : <pre tabIndex={0} aria-label="Arguments">{JSON.stringify(tool.args, null, 2)}</pre>}
    </details>
  );
}
