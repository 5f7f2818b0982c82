//! Other nodes on the same store. A session of the hub is changed on one node; what reaches another is carried there whole.

use std::fmt;

use async_trait::async_trait;
use bowline_protocol::LogId;
use bowline_store::{Holder, Leased, StoreError};
use tokio_util::sync::CancellationToken;

use crate::fields::Raw;

/// The way to the other nodes, which the server around the hub has.
#[async_trait]
pub trait Neighbours: Send + Sync {
    /// This node.
    fn name(&self) -> &Holder;

    /// The right to write to a log; a dead node's is taken.
    async fn take_up(&self, log: &LogId) -> Result<Leased, StoreError>;

    /// The other node that holds a log, if it lives.
    async fn elsewhere(&self, log: &LogId) -> Result<Option<Holder>, StoreError>;

    /// Whether this is a node that is gone.
    fn is_dead(&self, node: &Holder) -> bool;

    /// Asks another node something that may be answered in many parts. Dropping the talk ends it there too.
    fn talk(&self, to: &Holder, ask: Raw) -> Box<dyn Talk>;
}

/// One thing asked of another node.
#[async_trait]
pub trait Talk: Send {
    async fn next(&mut self) -> Heard;
}

#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    Part(String),
    /// That was all.
    Ended,
    /// The other node is gone, and nobody knows how far it came.
    Lost,
}

/// Who asked, on the other side of a talk. Dropping it says that this was all.
#[async_trait]
pub trait Asker: Send + Sync {
    /// Waits while too much is under way. False if nobody wants to hear it any more.
    async fn say(&self, part: String) -> bool;

    /// Fires when the asker has left.
    fn left(&self) -> &CancellationToken;
}

impl fmt::Debug for dyn Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Neighbours({})", self.name())
    }
}
