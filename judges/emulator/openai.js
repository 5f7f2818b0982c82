// An OpenAI-compatible server with prepared answers. Prints its base URL, then serves until it is killed.
import { LLMock } from "@copilotkit/aimock";

const mock = new LLMock({ port: 0, host: "127.0.0.1" });
const last = (request) => request.messages.at(-1);
const said = (request, text) => last(request)?.role === "user" && String(last(request).content).includes(text);

// The key must arrive, or everything else is refused.
mock.addFixture({
  match: { userMessage: "wrong model" },
  response: { error: { message: "The model `m` does not exist", type: "invalid_request_error" }, status: 404 },
});
mock.addFixture({
  match: { userMessage: "think" },
  response: { reasoning: "First this, then that.", content: "Thought through." },
  chunkSize: 6,
});
mock.addFixture({
  match: { predicate: (request) => said(request, "weather") },
  response: {
    content: "Let me look.",
    toolCalls: [{ id: "call_1", name: "sky__weather", arguments: JSON.stringify({ city: "Hamburg" }) }],
  },
  chunkSize: 5,
});
mock.addFixture({
  match: { predicate: (request) => last(request)?.role === "tool" && String(last(request).content).includes("for ever") },
  response: { toolCalls: [{ name: "sky__weather", arguments: JSON.stringify({ city: "again" }) }] },
});
mock.addFixture({
  match: { predicate: (request) => last(request)?.role === "tool" },
  // The answer repeats what the tool said, so that a test sees that it arrived.
  response: (request) => ({ content: `The tool said: ${last(request).content}` }),
});
mock.addFixture({
  match: { userMessage: "loop" },
  response: { toolCalls: [{ name: "sky__weather", arguments: JSON.stringify({ city: "for ever" }) }] },
});
mock.addFixture({
  match: { userMessage: "recall" },
  response: (request) => ({ content: request.messages.map((message) => `${message.role}:${message.content}`).join("|") }),
});
mock.addFixture({
  match: { userMessage: "cut" },
  response: { content: "This answer is cut short in the middle of it." },
  chunkSize: 5,
  truncateAfterChunks: 4,
});
mock.addFixture({
  match: { userMessage: "story" },
  response: { content: "once upon a time ".repeat(400) },
  chunkSize: 17,
  streamingProfile: { ttft: 0, tps: 20 },
});
mock.addFixture({ match: {}, response: { content: "Hello from the emulator.", usage: { prompt_tokens: 5, completion_tokens: 4, total_tokens: 9 } }, chunkSize: 4 });

await mock.start();
console.log(`serving at ${mock.url}/v1`);
