// Work in the background that is still under way: how far it is.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { client } from "./session.ts";

interface Standing {
  readonly percent: number | null;
  readonly words: string;
}

export function OperationView({ taskId, name }: { taskId: string; name: string }): VNode {
  const standing = useSignal<Standing>({ percent: null, words: "" });
  useEffect(() => {
    const stop = new AbortController();
    const look = (chunk: { readonly type: string; readonly [field: string]: unknown }) => {
      if (chunk.type !== "data-progress") return;
      const { content } = chunk["data"] as { content?: { progress_percent?: number; message?: string } };
      standing.value = { percent: content?.progress_percent ?? null, words: content?.message ?? "" };
    };
    client.watchTask(taskId, "0", look, { signal: stop.signal }).then(
      ({ status }) => status === "elsewhere" && (standing.value = { percent: null, words: "watched in another tab" }),
      // Whether it succeeded stands in the log in any case.
      () => {},
    );
    return () => stop.abort();
  }, [taskId]);
  const { percent, words } = standing.value;
  return (
    <>
      <span class="status">{words}</span>
      {percent === null ? null : <progress max={100} value={percent} aria-label={`Progress of ${name}`} />}
    </>
  );
}
