//! What is on the wire: frames, events, cursors and error codes, as types. No I/O, no clock, no randomness, no rules.
//!
//! | module | has |
//! |---|---|
//! | [`event`] | logged events, before and after they have a number |
//! | [`frame`] | frames on the WebSocket: what clients send, and the control frames of the server |
//! | [`position`] | sequence numbers, epochs, cursors, and the extent of what is retained |
//! | [`error`] | error codes, each with one recovery action, and close codes |
//! | [`id`] | names of sessions, runs, tasks, steps and owners, each a type of its own |
//! | [`state`] | signed states |
//! | [`chunk`] | chunks of the AI SDK's UI message stream |
//! | [`json`] | JSON without trees, for paths where speed counts |

pub mod chunk;
mod control_names;
pub mod error;
pub mod event;
pub mod frame;
pub mod id;
pub mod json;
pub mod position;
pub mod state;

pub use chunk::{Chunk, ChunkKind};
pub use error::{CloseCode, ErrorCode, RecoveryAction, Refusal};
pub use event::{Draft, EventName, EventView, LoggedEvent, Recorded, Unnumbered};
pub use id::{
    ClientId, ConnectionId, LogId, MessageId, OperationId, Principal, ProducerId, RunId, SessionId, StepId, TaskId,
};
pub use position::{ChunkPosition, Cursor, Epoch, Extent, NotACursor, Seq, StreamCursor};
pub use state::{SignedState, State};
