// An agent made with the AI SDK, as a chat route is written with it. Prints its URL, then serves until it is killed.
import { createServer } from "node:http";
import { Readable } from "node:stream";
import {
  convertToModelMessages,
  createUIMessageStream,
  createUIMessageStreamResponse,
  simulateReadableStream,
  stepCountIs,
  streamText,
  tool,
  validateUIMessages,
} from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { z } from "zod";

const usage = {
  inputTokens: { total: 3, noCache: 3, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 10, text: 10, reasoning: 0 },
};
const finish = (unified) => ({ type: "finish", finishReason: { unified, raw: unified }, usage });
const said = (id, words) => [
  { type: "text-start", id },
  ...words.map((delta) => ({ type: "text-delta", id, delta })),
  { type: "text-end", id },
];
const texts = (message) => message.content.map((part) => part.text ?? "").join("");

let observed = "";

/** What the model streams, by what it was asked. */
function answer(prompt) {
  const last = prompt.at(-1);
  if (last.role === "tool") return { chunks: [...said("t", ["It ", "rains."]), finish("stop")] };
  const asked = texts(prompt.findLast((message) => message.role === "user"));
  if (asked.includes("weather")) {
    const call = { type: "tool-call", toolCallId: "c1", toolName: "weather", input: JSON.stringify({ city: "Hamburg" }) };
    return { chunks: [call, finish("tool-calls")] };
  }
  if (asked.includes("recall")) {
    return { chunks: [...said("t", [prompt.map((message) => `${message.role}:${texts(message)}`).join("|")]), finish("stop")] };
  }
  if (asked.includes("fail")) return { chunks: [...said("t", ["Half an answer"]), { type: "error", error: "overloaded" }] };
  if (asked.includes("slow")) return { chunks: said("t", Array(1000).fill("word ")), chunkDelayInMs: 20 };
  const thought = [
    { type: "reasoning-start", id: "r" },
    { type: "reasoning-delta", id: "r", delta: "Who is that?" },
    { type: "reasoning-end", id: "r" },
  ];
  return { chunks: [...thought, ...said("t", ["Hello ", "from ", "the SDK."]), finish("stop")] };
}

const model = new MockLanguageModelV3({
  doStream: async ({ prompt }) => {
    const { chunks, chunkDelayInMs = null } = answer(prompt);
    const all = [{ type: "stream-start", warnings: [] }, ...chunks];
    return { stream: simulateReadableStream({ chunks: all, initialDelayInMs: null, chunkDelayInMs }) };
  },
});

const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => ({ city, rain: true }) });

async function chat(request, signal) {
  const messages = await validateUIMessages({ messages: request.messages });
  if (messages.at(-1).parts[0].text === "parts") return parts(messages);
  const result = streamText({
    model,
    messages: await convertToModelMessages(messages),
    tools: { weather },
    stopWhen: stepCountIs(5),
    abortSignal: signal,
    onError: () => {},
  });
  return result.toUIMessageStreamResponse({
    sendReasoning: true,
    messageMetadata: ({ part }) => (part.type === "finish" ? { tokens: part.totalUsage.outputTokens } : undefined),
    onError: String,
  });
}

/** Answers with what each message consists of. */
function parts(messages) {
  const text = messages.map(({ id, parts }) => `${id}:${parts.map((part) => part.type)}`).join("|");
  const stream = createUIMessageStream({
    execute: ({ writer }) => {
      writer.write({ type: "text-start", id: "p" });
      writer.write({ type: "text-delta", id: "p", delta: text });
      writer.write({ type: "text-end", id: "p" });
    },
  });
  return createUIMessageStreamResponse({ stream });
}

const server = createServer(async (request, response) => {
  if (request.url === "/observed") return response.end(observed);
  const body = JSON.parse(Buffer.concat(await request.toArray()).toString());
  const aborted = new AbortController();
  response.on("close", () => {
    if (!response.writableFinished) {
      observed = "closed by the other side";
      aborted.abort();
    }
  });
  const answered = await chat(body, aborted.signal);
  response.writeHead(answered.status, Object.fromEntries(answered.headers));
  Readable.fromWeb(answered.body).on("error", () => {}).pipe(response);
});
server.listen(0, "127.0.0.1", () => console.log(`serving at http://127.0.0.1:${server.address().port}/api/chat`));
