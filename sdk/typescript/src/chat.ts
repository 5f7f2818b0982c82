// Task streams: the entry `bowline/chat`.

export { type ActiveTask, type ActiveTaskInfo, ACTIVE_TASKS_KEY } from "./chat/active.ts";
export { type ChatStore, type ChatStoreOptions, type ReconnectOptions, type TaskOutcome, createChatStore } from "./chat/store.ts";
export type { StreamChunk } from "./frame.ts";
