// Asks a question and prints the answer as it comes, with the wire cut in the middle of it.
//
//     node examples/chat.mjs ws://127.0.0.1:8080/ws "/long 60 20"
import { BowlineClient } from "bowline";
import { WebSocket } from "ws";

const [url = "ws://127.0.0.1:8080/ws", question = "hello"] = process.argv.slice(2);
const client = new BowlineClient({ url, webSocket: WebSocket, backoffSeconds: [0.1, 1, 5] });

let pieces = 0;
client.on("event", ({ event, content }) => {
  if (event === "agent.partial_answer") process.stdout.write(content);
  // Somewhere in the answer, the train enters a tunnel. Nothing has to be done about it.
  if (event === "agent.partial_answer" && ++pieces === 10) client.drop();
});
client.on("connection", ({ state, replayed }) => console.error(`[${state}, replayed ${replayed ?? 0}]`));
client.on("gap", ({ fromSeq, toSeq }) => console.error(`[events ${fromSeq} to ${toSeq} are gone]`));

await client.connect();
const over = new Promise((resolve) => client.on("event", ({ event }) => event === "agent.final_answer" && resolve()));
await client.message(question);
await over;
process.stdout.write("\n");
client.close();
