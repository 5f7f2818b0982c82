// Follows a background operation to its end, from wherever this page was closed the last time.
//
//     node examples/task.mjs http://127.0.0.1:8080 sess_…
import { createChatStore } from "bowline/chat";

const [baseUrl, sessionId] = process.argv.slice(2);
const store = createChatStore({ baseUrl });
const { getActiveTask, reconnectToTask, startOperation } = store.getState();

// In a browser the task is found again after a restart; here there is none yet.
const task = getActiveTask(sessionId) ?? (await startOperation(sessionId, "demo", { steps: 3 }));
const outcome = await reconnectToTask(sessionId, task.taskId, task.lastMessageId, (chunk) => console.log(chunk.idx ?? "-", chunk.type));
console.log(`${outcome.status}${outcome.via === "stream" ? "" : `, without the rest of its stream (${outcome.reason})`}`, outcome.result ?? outcome.error ?? "");
