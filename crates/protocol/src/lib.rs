//! The words of Bowline: wire types, cursors and error codes. No I/O, no clock, no dice, no rules.

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
pub use position::{Cursor, Epoch, Extent, NotACursor, Place, Seq, StreamCursor};
pub use state::{SignedState, State};
