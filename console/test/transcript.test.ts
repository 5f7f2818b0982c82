// How events become turns, and text becomes blocks.

import type { LoggedEvent } from "bowline";
import { expect, test } from "vitest";
import { blocks } from "../src/markdown.tsx";
import { type Transcript, type Turn, fold, foldGap } from "../src/transcript.ts";

function folded(...events: Partial<LoggedEvent>[]): Transcript {
  return events.reduce<Transcript>((items, event, n) => fold(items, { event: "", ...event, seq: n + 1 }), []);
}

test("pieces make an answer, and the final answer is the truth", () => {
  const [turn] = folded(
    { event: "user.message", content: { text: "hi" } },
    { event: "agent.partial_answer", content: "he" },
    { event: "agent.partial_answer", content: "llo" },
    { event: "agent.final_answer", content: "hello!" },
  ) as [Turn];
  expect(turn).toMatchObject({ asked: "hi", answer: "hello!", end: "done" });
});

test("a tool call whose outcome is unknown is shown as such", () => {
  const [turn] = folded(
    { event: "agent.tool_call", step_id: "s", content: "calls", metadata: { tool: "pay", args: { sum: 1 } } },
    { event: "agent.tool_result", step_id: "s", content: "cut in flight", metadata: { status: "unknown" } },
  ) as [Turn];
  expect(turn.asked).toBeNull();
  expect(turn.tools).toMatchObject([{ name: "pay", status: "unknown", text: "cut in flight" }]);
});

test("tasks go their ways", () => {
  const tasks = [{ id: "a", title: "A" }, { id: "b", title: "B" }, { id: "c", title: "C" }];
  const [turn] = folded(
    { event: "plan.start", content: { question: "q" } },
    { event: "plan.completed", content: { tasks, plan_summary: "three" } },
    { event: "solver.start", content: { task: tasks[0] } },
    { event: "solver.progress", content: { task_id: "a", progress_percent: 50 } },
    { event: "solver.completed", content: { task: tasks[1], result: { output: "o", summary: "s" } } },
    { event: "plan.cancelled", content: { reason: "enough" } },
  ) as [Turn];
  expect(turn.plan?.tasks.map(({ status, percent }) => [status, percent])).toEqual([
    ["cancelled", 50],
    ["done", 100],
    ["cancelled", 0],
  ]);
});

test("a gap is shown where it is, and what follows is a turn without a beginning", () => {
  const items = fold(foldGap([], { fromSeq: 1, toSeq: 9 }), { event: "agent.final_answer", content: "x", seq: 10 });
  expect(items.map(({ kind }) => kind)).toEqual(["gap", "turn"]);
});

test("an open fence is code already, and every line ends up somewhere", () => {
  expect(blocks("# A\ntext\nmore\n- x\n- y\n1. z\n> q\n```js\nlet a").map(({ is }) => is)).toEqual([
    "heading", "text", "list", "list", "quote", "code",
  ]);
  expect(blocks("```js\nlet a\n```\nafter")).toEqual([
    { is: "code", language: "js", text: "let a" },
    { is: "text", text: "after" },
  ]);
});

test("work in the background ends in the turn that began it, and begins no turn of its own", () => {
  const items = folded(
    { event: "user.message", content: "go" },
    { event: "agent.operation_started", content: { operation_id: "op", task_id: "task", tool_name: "index" } },
    { event: "agent.final_answer", content: "It is at work." },
    { event: "agent.operation_completed", content: { operation_id: "op", status: "failed", error: { code: "X", message: "no room" } } },
  );
  expect(items).toHaveLength(1);
  expect(items).toMatchObject([{ end: "done", tools: [{ name: "index", taskId: "task", status: "failed", text: "no room" }] }]);
});

test("a thought that is streamed is one thought", () => {
  const [turn] = folded(
    { event: "agent.thinking", content: "First ", metadata: { index: 0 } },
    { event: "agent.thinking", content: "things.", metadata: { index: 1 } },
    { event: "agent.thinking", content: "Then others." },
  ) as [Turn];
  expect(turn.thoughts).toEqual(["First things.", "Then others."]);
});

test("a table and a rule are seen, also while they are still coming", () => {
  expect(blocks("| a | b |\n|---|:-:|\n| 1 | 2 |\n---\nend").map(({ is }) => is)).toEqual(["table", "rule", "text"]);
  expect(blocks("| a | b |")).toEqual([{ is: "table", rows: [["a", "b"]] }]);
});
