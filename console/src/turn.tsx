// One turn: what was asked, how it was worked on, what was answered.

import { Component, type VNode } from "preact";
import { Markdown } from "./markdown.tsx";
import { QuestionCard } from "./question.tsx";
import { attempt, client } from "./session.ts";
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
  return (
    <article class="turn" aria-busy={end === null}>
      {asked === null ? null : <p class="asked"><span class="sr-only">You: </span>{asked}</p>}
      {thoughts.length === 0 ? null : (
        <details class="thoughts">
          <summary>Thinking ({thoughts.length})</summary>
          <ul>{thoughts.map((thought, n) => <li key={n}>{thought}</li>)}</ul>
        </details>
      )}
      {plan === null ? null : <Plan plan={plan} running={end === null} />}
      {tools.map((tool, n) => <ToolView key={n} tool={tool} />)}
      {questions.map((question) => <QuestionCard key={question.stepId} question={question} open={end === null} />)}
      {answer === "" ? null : <div class="answer"><span class="sr-only">Agent: </span><Markdown source={answer} /></div>}
      {end === "failed" || end === "cancelled" ? <p class={`note ${end}`}>{end === "failed" ? "Failed: " : "Stopped: "}{error}</p> : null}
    </article>
  );
}

const MARKS = { open: "○", running: "◐", done: "●", failed: "✕", cancelled: "–", success: "●", unknown: "?" } as const;

function Plan({ plan, running }: { plan: NonNullable<Turn["plan"]>; running: boolean }): VNode {
  return (
    <section class="plan" aria-label="Plan">
      {plan.summary === "" ? <p>Planning …</p> : <p>{plan.summary}</p>}
      <ul>{plan.tasks.map((task) => <TaskView key={task.id} task={task} running={running} />)}</ul>
    </section>
  );
}

function TaskView({ task, running }: { task: Task; running: boolean }): VNode {
  const cancel = () => attempt(() => client.plan("cancel_task", { task_id: task.id }));
  return (
    <li class={task.status}>
      <span aria-hidden="true">{MARKS[task.status]} </span>
      {task.title} <span class="status">{task.status === "running" ? `${task.percent} %` : task.status}</span>
      {running && isOpen(task) ? <button class="small" onClick={() => void cancel()} aria-label={`Cancel ${task.title}`}>Cancel</button> : null}
      {task.result === "" ? null : <p class="result">{task.result}</p>}
    </li>
  );
}

function ToolView({ tool }: { tool: Tool }): VNode {
  return (
    <details class={`tool ${tool.status}`}>
      <summary>
        <span aria-hidden="true">{MARKS[tool.status]} </span>
        {tool.name} <span class="status">{tool.status}{tool.durationMs === null ? "" : `, ${tool.durationMs} ms`}</span>
      </summary>
      <p>{tool.text}</p>
      {tool.args === undefined || tool.args === null ? null : <pre tabIndex={0} aria-label="Arguments">{JSON.stringify(tool.args, null, 2)}</pre>}
    </details>
  );
}
