// What a conversation looks like: logged events, folded into turns. Pure.

import type { LoggedEvent } from "bowline";

export interface Tool {
  readonly stepId: string;
  readonly name: string;
  readonly args: unknown;
  readonly status: "running" | "success" | "failed" | "cancelled" | "unknown";
  readonly text: string;
  readonly durationMs: number | null;
  /** Of work in the background: the task whose stream says how far it is. */
  readonly taskId: string | null;
}

export interface Task {
  readonly id: string;
  readonly title: string;
  readonly description: string;
  readonly status: "open" | "running" | "done" | "failed" | "cancelled";
  readonly percent: number;
  readonly result: string;
}

export interface Question {
  readonly stepId: string;
  readonly text: string;
  readonly toolName: string | null;
  readonly toolArgs: unknown;
  readonly tasks: readonly Task[] | null;
  readonly answer: { readonly confirmed: boolean; readonly reason: string } | null;
}

export type End = "done" | "failed" | "cancelled";

export interface Turn {
  readonly kind: "turn";
  readonly key: string;
  /** `null` if the beginning is no longer in the log. */
  readonly asked: string | null;
  readonly thoughts: readonly string[];
  readonly plan: { readonly summary: string; readonly tasks: readonly Task[] } | null;
  readonly tools: readonly Tool[];
  readonly questions: readonly Question[];
  readonly answer: string;
  readonly end: End | null;
  readonly error: string;
}

export type Item =
  | Turn
  | { readonly kind: "gap"; readonly key: string; readonly fromSeq: number; readonly toSeq: number; readonly filled: boolean }
  | { readonly kind: "note"; readonly key: string; readonly text: string };

export type Transcript = readonly Item[];

export function foldGap(items: Transcript, gap: { fromSeq: number; toSeq: number }): Transcript {
  return [...items, { kind: "gap", key: `gap-${gap.fromSeq}`, fromSeq: gap.fromSeq, toSeq: gap.toSeq, filled: false }];
}

export function fold(items: Transcript, event: LoggedEvent): Transcript {
  if (event.event === "user.message") return [...items, { ...emptyTurn(event), asked: messageText(event.content) }];
  if (event.event === "agent.session_end") {
    return [...items, { kind: "note", key: `end-${event.seq}`, text: textOf(event.content) || "The session has ended." }];
  }
  if (event.event === "agent.operation_completed") return foldCompleted(items, event);
  const last = items.at(-1);
  const open = last?.kind === "turn" && last.end === null ? last : null;
  const turn = foldTurn(open ?? emptyTurn(event), event);
  return open === null ? [...items, turn] : [...items.slice(0, -1), turn];
}

/** Work in the background may end long after the turn that began it. */
function foldCompleted(items: Transcript, { content }: LoggedEvent): Transcript {
  const facts = isObject(content) ? content : {};
  const status = facts["status"] === "completed" ? "success" : facts["status"] === "cancelled" ? "cancelled" : "failed";
  const error = isObject(facts["error"]) ? textOf(facts["error"]["message"]) : "";
  const change = (tool: Tool): Tool => (tool.stepId === facts["operation_id"] ? { ...tool, status, text: error || tool.text } : tool);
  return items.map((item) => (item.kind === "turn" && item.tools.some((tool) => tool.stepId === facts["operation_id"]) ? { ...item, tools: item.tools.map(change) } : item));
}

function emptyTurn(event: LoggedEvent): Turn {
  const nothing = { thoughts: [], plan: null, tools: [], questions: [], answer: "", end: null, error: "" };
  return { kind: "turn", key: `turn-${event.seq}`, asked: null, ...nothing };
}

function foldTurn(turn: Turn, event: LoggedEvent): Turn {
  const { event: name, content, metadata = {} } = event;
  const facts = isObject(content) ? content : {};
  if (name.startsWith("solver.") || name.startsWith("plan.")) return { ...turn, plan: foldPlan(turn.plan, name, facts) };
  switch (name) {
    case "agent.thinking":
      // Without a number, or with the first one, it is a thought of its own; with a later one, the next piece of the last.
      return Number(metadata["index"] ?? 0) > 0
        ? { ...turn, thoughts: [...turn.thoughts.slice(0, -1), (turn.thoughts.at(-1) ?? "") + textOf(content)] }
        : { ...turn, thoughts: [...turn.thoughts, textOf(content)] };
    case "agent.partial_answer":
      return { ...turn, answer: turn.answer + textOf(content) };
    case "agent.final_answer":
      return { ...turn, answer: textOf(content), end: "done" };
    case "agent.error":
      return { ...turn, end: "failed", error: textOf(content) };
    case "agent.cancelled":
      return { ...turn, end: "cancelled", error: textOf(content) };
    case "agent.tool_call": {
      const tool = { name: textOf(metadata["tool"]) || "tool", args: metadata["args"], status: "running", text: textOf(content), durationMs: null, taskId: null } as const;
      return { ...turn, tools: [...turn.tools, { stepId: event.step_id ?? "", ...tool }] };
    }
    case "agent.tool_result":
      return { ...turn, tools: turn.tools.map((tool) => (tool.stepId === event.step_id ? finished(tool, event) : tool)) };
    case "agent.operation_started": {
      const tool = { name: textOf(facts["tool_name"]), args: metadata["args"], status: "running", text: textOf(facts["message"]), durationMs: null } as const;
      return { ...turn, tools: [...turn.tools, { stepId: textOf(facts["operation_id"]), taskId: textOf(facts["task_id"]), ...tool }] };
    }
    case "agent.user_confirm":
      return { ...turn, questions: [...turn.questions, questionIn(event)] };
    case "user.response": {
      const answer = { confirmed: facts["confirmed"] === true, reason: textOf(facts["reason"]) };
      return { ...turn, questions: turn.questions.map((one) => (one.stepId === event.step_id ? { ...one, answer } : one)) };
    }
    default:
      return turn;
  }
}

function finished(tool: Tool, event: LoggedEvent): Tool {
  const { status, duration_ms } = event.metadata ?? {};
  return {
    ...tool,
    status: status === "success" || status === "unknown" ? status : "failed",
    text: textOf(event.content) || tool.text,
    durationMs: typeof duration_ms === "number" ? duration_ms : null,
  };
}

function questionIn({ content, metadata = {}, step_id }: LoggedEvent): Question {
  return {
    stepId: step_id ?? "",
    text: textOf(content),
    toolName: textOf(metadata["tool_name"]) || null,
    toolArgs: metadata["tool_args"],
    tasks: Array.isArray(metadata["tasks"]) ? metadata["tasks"].map(taskIn) : null,
    answer: null,
  };
}

function foldPlan(plan: Turn["plan"], name: string, facts: Record<string, unknown>): Turn["plan"] {
  const before = plan ?? { summary: "", tasks: [] };
  if (name === "plan.start") return { summary: "", tasks: [] };
  if (name === "plan.completed") {
    const tasks = Array.isArray(facts["tasks"]) ? facts["tasks"].map(taskIn) : [];
    return { summary: textOf(facts["plan_summary"]), tasks };
  }
  if (name === "plan.cancelled") return { ...before, tasks: before.tasks.map((task) => (isOpen(task) ? { ...task, status: "cancelled" } : task)) };
  const task = isObject(facts["task"]) ? facts["task"] : {};
  const id = textOf(facts["task_id"] ?? task["id"]);
  const change = taskChange(name, facts);
  return { ...before, tasks: before.tasks.map((one) => (one.id === id ? { ...one, ...change } : one)) };
}

function taskChange(name: string, facts: Record<string, unknown>): Partial<Task> {
  const result = isObject(facts["result"]) ? facts["result"] : {};
  switch (name) {
    case "solver.start":
    case "solver.restarted":
      return { status: "running", percent: 0, result: "" };
    case "solver.progress":
      return { status: "running", percent: Number(facts["progress_percent"]) || 0 };
    case "solver.completed":
      return { status: "done", percent: 100, result: textOf(result["summary"]) || textOf(result["output"]) };
    case "solver.step_failed":
      return { status: "failed", result: textOf(facts["error"]) };
    case "solver.cancelled":
      return { status: "cancelled" };
    default:
      return {};
  }
}

function taskIn(value: unknown): Task {
  const { id, title, description } = isObject(value) ? value : {};
  return { id: textOf(id), title: textOf(title) || textOf(id), description: textOf(description), status: "open", percent: 0, result: "" };
}

export function isOpen(task: Task): boolean {
  return task.status === "open" || task.status === "running";
}

function messageText(content: unknown): string {
  return isObject(content) ? textOf(content["text"]) : textOf(content);
}

export function textOf(value: unknown): string {
  if (typeof value === "string") return value;
  return value === undefined || value === null ? "" : JSON.stringify(value);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
