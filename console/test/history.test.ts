// How what the state says fills the gaps that events have left.

import type { History, LoggedEvent } from "bowline";
import { expect, test } from "vitest";
import { foldHistory } from "../src/history.ts";
import { type Transcript, fold, foldGap } from "../src/transcript.ts";

/** A conversation of questions `q1 …` and answers `a1 …`; two events each, or three with a piece before the answer. */
const MESSAGES = [1, 2, 3, 4].flatMap((n) => [{ role: "user", content: `q${n}` }, { role: "assistant", content: `a${n}` }]);

function history(change: Partial<History> = {}): History {
  return { messages: MESSAGES, steps: 4, lastSeq: 8, ...change };
}

type Part = Partial<LoggedEvent> & { seq: number };
const asks = (n: number, seq = 2 * n - 1): Part => ({ event: "user.message", content: `q${n}`, seq });
const answers = (n: number, seq = 2 * n): Part => ({ event: "agent.final_answer", content: `a${n}`, seq });

function told(...parts: (Part | "gap")[]): Transcript {
  return parts.reduce<Transcript>((items, part) => (part === "gap" ? foldGap(items, { fromSeq: 2, toSeq: 3 }) : fold(items, { event: "", ...part })), []);
}

const shown = (items: Transcript) => items.map((item) => (item.kind === "turn" ? `${item.asked} ${item.answer} ${item.end}` : item.kind === "gap" ? `gap ${item.filled}` : item.kind));
const turns = (...numbers: number[]) => numbers.map((n) => `q${n} a${n} done`);

test("a page that begins after a gap shows all that was said", () => {
  expect(shown(foldHistory(told("gap", asks(4), answers(4)), history()))).toEqual(["gap true", ...turns(1, 2, 3, 4)]);
});

test("turns that are whole stay, and those between are put in", () => {
  expect(shown(foldHistory(told(asks(1), answers(1), "gap", asks(4), answers(4)), history()))).toEqual([...turns(1), "gap true", ...turns(2, 3, 4)]);
});

test("a turn that lost its beginning gets its question, one that lost its end its answer", () => {
  expect(shown(foldHistory(told("gap", answers(3), asks(4), answers(4)), history()))).toEqual(["gap true", ...turns(1, 2, 3, 4)]);
  expect(shown(foldHistory(told(asks(1), "gap", asks(4), answers(4)), history()))).toEqual([...turns(1), "gap true", ...turns(2, 3, 4)]);
});

test("a gap in the middle of one turn leaves it one turn", () => {
  const one = history({ messages: MESSAGES.slice(0, 2), steps: 1 });
  expect(shown(foldHistory(told(asks(1), "gap", answers(1, 8)), one))).toEqual(["gap true", ...turns(1)]);
  const piece = (content: string, seq: number): Part => ({ event: "agent.partial_answer", content, seq });
  const running = { ...one, messages: MESSAGES.slice(0, 1) };
  const items = foldHistory(told(asks(1), piece("begin", 2), "gap", piece("middle", 7)), running);
  expect(shown(items)).toEqual(["gap true", "q1 begin … middle null"]);
  expect(shown(fold(items, { event: "", ...answers(1, 9) }))).toEqual(["gap true", ...turns(1)]);
});

test("what the state has lost as well stays a gap", () => {
  expect(shown(foldHistory(told("gap", asks(4), answers(4)), history({ messages: MESSAGES.slice(4) })))).toEqual(["gap false", ...turns(3, 4)]);
});

test("a question that came after the state was made is not counted twice", () => {
  const items = told("gap", asks(4), answers(4), asks(5, 9));
  expect(shown(foldHistory(items, history()))).toEqual(["gap true", ...turns(1, 2, 3, 4), "q5  null"]);
});

test("a page that was told to begin anew gets what was said before its first event", () => {
  expect(shown(foldHistory(told(asks(4), answers(4)), history()))).toEqual(turns(1, 2, 3, 4));
  expect(shown(foldHistory([], history()))).toEqual(turns(1, 2, 3, 4));
});
