// Reads streams, one per line of standard input, with the real AI SDK of three generations, and says what each made of them.
//
// A line in: {"name", "message_id", "sse"}. A line out: {"name", "results": {"ai5" | "ai6" | "ai7": {...}}}.
// The bytes take the way that they take in a page with `useChat`: DefaultChatTransport, its event parser, the chunk schema, and
// then twice: through `readUIMessageStream`, and through the chat itself.

import { createInterface } from "node:readline";
import * as ai5 from "ai5";
import * as ai6 from "ai6";
import * as ai7 from "ai7";

const generations = { ai5, ai6, ai7 };

/** Sizes of pieces that cut through lines, tokens and characters; the same ones each time. */
function* sizes() {
  for (let n = 7; ; n = (n * 73 + 11) % 1021) yield 1 + n;
}

/** A response as a network would deliver it: in pieces that mean nothing. */
function respond(sse) {
  const bytes = new TextEncoder().encode(sse);
  const pieces = sizes();
  let at = 0;
  const body = new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) return controller.close();
      const end = at + pieces.next().value;
      controller.enqueue(bytes.slice(at, end));
      at = end;
    },
  });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
}

const transport = (ai, sse) => new ai.DefaultChatTransport({ api: "http://judge/api/chat", fetch: async () => respond(sse) });

/** The message that the parser builds, the errors that it reports, and how many chunks passed the schema. */
async function read(ai, { sse, message_id }) {
  const errors = [];
  let chunks = 0;
  // A message with the stream's own id is built on in place, so that also what the parser does not announce is seen.
  const message = { id: message_id, metadata: undefined, role: "assistant", parts: [] };
  const stream = await transport(ai, sse).reconnectToStream({ chatId: "c" });
  const counted = stream.pipeThrough(
    new TransformStream({
      transform(chunk, controller) {
        chunks += 1;
        controller.enqueue(chunk);
      },
    }),
  );
  const onError = (error) => errors.push(error.message);
  for await (const _ of ai.readUIMessageStream({ message, stream: counted, onError }));
  return { message, errors, chunks };
}

/** What a page has at the end. */
async function chat(ai, { sse }) {
  const user = { id: "u1", role: "user", parts: [{ type: "text", text: "hi" }] };
  const state = {
    status: "ready",
    error: undefined,
    messages: [user],
    pushMessage(message) {
      this.messages = [...this.messages, message];
    },
    popMessage() {
      this.messages = this.messages.slice(0, -1);
    },
    replaceMessage(at, message) {
      this.messages = this.messages.with(at, message);
    },
    snapshot: (value) => structuredClone(value),
  };
  class Chat extends ai.AbstractChat {
    constructor() {
      super({ id: "c", state, transport: transport(ai, sse) });
    }
  }
  const page = new Chat();
  await page.resumeStream();
  return { status: page.status, error: page.error?.message, message: page.messages[1] };
}

for await (const line of createInterface({ input: process.stdin })) {
  const input = JSON.parse(line);
  const results = {};
  for (const [name, ai] of Object.entries(generations)) {
    results[name] = { ...(await read(ai, input)), chat: await chat(ai, input) };
  }
  process.stdout.write(`${JSON.stringify({ name: input.name, results })}\n`);
}
