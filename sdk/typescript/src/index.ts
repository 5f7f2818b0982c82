// The public face of the package.

export { BowlineClient, type BowlineEvents, type Connection, type SessionInfo } from "./client.ts";
export { BowlineError, type RecoveryAction, type Refusal } from "./failure.ts";
export type { ClientFrame, Frame, LoggedEvent, Resume, RunState, StreamChunk, Verdict } from "./frame.ts";
export { type KeyValueStore, MemoryStore } from "./keeping.ts";
export type { Answer, Ask, Exported, History, PlanAction, Question } from "./link/ask.ts";
export {
  type ConnectionState,
  type Effect,
  type Input,
  type Intent,
  type Link,
  type Moment,
  type Phase,
  type Policy,
  type Told,
  connectionState,
  newLink,
} from "./link/state.ts";
export { step } from "./link/step.ts";
export type { Watch } from "./link/watching.ts";
export type { BowlineOptions } from "./options.ts";
export type { Position } from "./position.ts";
export type { Sealed } from "./sealed.ts";
export type { Dial, Socket } from "./socket.ts";
