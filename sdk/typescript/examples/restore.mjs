// Takes a session along in a file, and comes back with it: also to a server that has forgotten everything but its key.
//
//     node examples/restore.mjs save ws://127.0.0.1:8080/ws session.json
//     node examples/restore.mjs load ws://127.0.0.1:8080/ws session.json
import { readFile, writeFile } from "node:fs/promises";
import { BowlineClient } from "bowline";
import { WebSocket } from "ws";

const [what, url, file] = process.argv.slice(2);
const client = new BowlineClient({ url, webSocket: WebSocket });
const answer = () => new Promise((resolve) => client.on("event", ({ event, content }) => event === "agent.final_answer" && resolve(content)));

if (what === "save") {
  await client.create();
  const said = answer();
  await client.message("/echo remember me");
  console.log(await said);
  await writeFile(file, JSON.stringify(await client.requestState()));
} else {
  client.on("restored", ({ source, warnings }) => console.log(`restored from ${source}`, ...warnings));
  await client.restore(JSON.parse(await readFile(file, "utf8")));
  const said = answer();
  await client.message("/recall");
  console.log(await said);
}
client.close();
