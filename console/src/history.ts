// What was said before events were let go, put where the gap is: from the session's state, which has the words and not how they came.

import type { History } from "bowline";
import { type Item, type Transcript, type Turn, textOf } from "./transcript.ts";

/** A question and its answer. `step` counts the person's messages from 1. */
interface Said {
  readonly step: number;
  readonly asked: string;
  readonly answer: string;
}

export function foldHistory(items: Transcript, history: History): Transcript {
  const at = items.map(({ kind }) => kind).lastIndexOf("gap");
  const [before, gap, after] = [items.slice(0, Math.max(0, at)), items[at], items.slice(at + 1)];
  // Which step is which is unknown behind a gap that stayed open.
  if (before.some((item) => item.kind === "gap" && !item.filled)) return items;
  const said = saidIn(history);
  const known = before.filter(({ kind }) => kind === "turn").length;
  const later = after.filter((item) => item.kind === "turn" && item.asked !== null && seqOf(item) <= history.lastSeq).length;
  // The last step whose beginning is gone, and what came of it after the gap.
  const step = history.steps - later;
  const rest = after[0]?.kind === "turn" && after[0].asked === null ? after[0] : null;
  const ofStep = said.find((one) => one.step === step);
  const joins = rest !== null && ofStep !== undefined && ofStep.answer.endsWith(rest.end === "done" ? rest.answer : "");
  const last = before.at(-1);
  const open = last?.kind === "turn" && last.end === null ? last : null;
  const goesOn = joins && open !== null && step === known;

  const head = open === null ? before : before.slice(0, -1);
  const ended = open === null || goesOn ? [] : [withAnswer(open, said.find((one) => one.step === known))];
  const between = said.filter((one) => one.step > known && (one.step < step || (one.step === step && !joins)));
  const joined = !joins ? [] : [goesOn ? join(open, rest) : { ...rest, asked: ofStep.asked }];
  const complete = (said[0]?.step ?? step + 1) <= known + 1;
  const note = gap?.kind === "gap" ? [{ ...gap, filled: complete }] : [];
  return [...head, ...ended, ...note, ...between.map(turnOf), ...joined, ...(joins ? after.slice(1) : after)];
}

function saidIn({ messages, steps }: History): Said[] {
  const found: { asked: string; answer: string }[] = [];
  for (const { role, content } of messages) {
    const last = found.at(-1);
    if (role === "user") found.push({ asked: words(content), answer: "" });
    else if (role === "assistant" && last !== undefined) last.answer += words(content);
  }
  return found.map((one, n) => ({ step: steps - found.length + n + 1, ...one }));
}

function turnOf({ step, asked, answer }: Said): Item {
  const nothing = { thoughts: [], plan: null, tools: [], questions: [], error: "" };
  return { kind: "turn", key: `said-${step}`, asked, answer, end: "done", ...nothing };
}

/** A turn that we saw begin, and whose end is gone. */
function withAnswer(turn: Turn, said: Said | undefined): Turn {
  return { ...turn, answer: said === undefined || said.answer === "" ? turn.answer : said.answer, end: "done" };
}

/** The gap is in the middle of one turn: its two halves are one again. */
function join(first: Turn, rest: Turn): Turn {
  return {
    ...first,
    thoughts: [...first.thoughts, ...rest.thoughts],
    plan: rest.plan ?? first.plan,
    tools: [...first.tools, ...rest.tools],
    questions: [...first.questions, ...rest.questions],
    answer: rest.end === "done" ? rest.answer : `${first.answer} … ${rest.answer}`,
    end: rest.end,
    error: rest.error,
  };
}

function seqOf({ key }: Turn): number {
  return Number(key.slice(key.indexOf("-") + 1));
}

function words(content: unknown): string {
  return typeof content === "object" && content !== null && "text" in content ? textOf(content.text) : textOf(content);
}
