// Task streams: the entry `bowline/chat`.

export { type ActiveTask, type ActiveTaskInfo, ACTIVE_TASKS_KEY } from "./chat/active.ts";
export { type ChatStore, type ChatStoreOptions, type CreatedSession, type ReconnectOptions, createChatStore } from "./chat/store.ts";
export type { TaskEnding, TaskError, TaskInfo, TaskOutcome, TaskStatus } from "./chat/task.ts";
export { RESUME_TOKENS_KEY, type ResumeTokenSource } from "./chat/tokens.ts";
export { BowlineError } from "./failure.ts";
export type { StreamChunk } from "./frame.ts";
export type { ActiveStream, Session, UIMessage } from "./generated/answers.ts";
