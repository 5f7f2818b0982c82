// A question that the agent waits for: approve it, decline it, or edit the plan first.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { attempt, client } from "./session.ts";
import type { Question } from "./transcript.ts";

export function QuestionCard({ question, open }: { question: Question; open: boolean }): VNode {
  const { stepId, text, toolName, toolArgs, tasks, answer } = question;
  const titles = useSignal<readonly string[]>(tasks?.map(({ title }) => title) ?? []);
  const reason = useSignal("");
  const sent = useSignal(false);
  const respond = async (confirmed: boolean) => {
    sent.value = true;
    const edited = tasks?.flatMap(({ id, description }, n) => (titles.value[n] ? [{ id, title: titles.value[n], description }] : []));
    const why = reason.value.trim();
    await attempt(() => client.respond(stepId, { confirmed, ...(confirmed && edited ? { tasks: edited } : {}), ...(why === "" ? {} : { reason: why }) }));
    sent.value = false;
  };
  if (answer !== null) return <p class={`note answered ${answer.confirmed ? "yes" : "no"}`}>{text} — {answer.confirmed ? "approved" : "declined"}{answer.reason && `: ${answer.reason}`}</p>;
  return (
    <section class="question card" aria-label="The agent asks">
      <p class="ask">{text}</p>
      {toolName === null ? null : <p><code>{toolName}</code></p>}
      {toolArgs === undefined || toolArgs === null ? null : <pre tabIndex={0} aria-label="Arguments">{JSON.stringify(toolArgs, null, 2)}</pre>}
      {tasks?.map((task, n) => (
        <input
          key={task.id}
          aria-label={`Task ${n + 1}; empty it to leave it out`}
          value={titles.value[n] ?? ""}
          onInput={({ currentTarget }) => (titles.value = titles.value.map((title, at) => (at === n ? currentTarget.value : title)))}
        />
      ))}
      {open ? (
        <div class="row">
          <button class="primary" disabled={sent.value} onClick={() => void respond(true)}>Approve</button>
          <button disabled={sent.value} onClick={() => void respond(false)}>Decline</button>
          <input class="reason" aria-label="Why, if you like" placeholder="Why, if you like" value={reason.value} onInput={({ currentTarget }) => (reason.value = currentTarget.value)} />
        </div>
      ) : null}
    </section>
  );
}
