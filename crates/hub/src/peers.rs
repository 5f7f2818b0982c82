//! Other nodes on the same store. A session of the hub is changed on one node; what reaches another is carried there whole.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_protocol::LogId;
use bowline_store::{Holder, Leased, Lessor, SharedLessor, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::fields::Raw;

/// The way to the other nodes, which the server around the hub has.
#[async_trait]
pub trait PeerNodes: Send + Sync {
    /// This node.
    fn name(&self) -> &Holder;

    /// The right to write to a log; a dead node's is taken.
    async fn take_up(&self, log: &LogId) -> Result<Leased, StoreError>;

    /// The other node that holds a log, if it lives.
    async fn elsewhere(&self, log: &LogId) -> Result<Option<Holder>, StoreError>;

    /// Whether this is a node that is gone.
    fn is_dead(&self, node: &Holder) -> bool;

    /// Asks another node something that may be answered in many parts. Dropping the stream ends it there too.
    fn open_stream(&self, to: &Holder, ask: Raw) -> Box<dyn PeerStream>;
}

/// Where the hub's leases come from: the way to the other nodes, if there are any.
pub fn lessor(store: &Arc<dyn Store>, peers: Option<&Arc<dyn PeerNodes>>) -> Arc<dyn Lessor> {
    match peers {
        Some(peers) => Arc::new(AmongNeighbours(peers.clone())),
        None => Arc::new(SharedLessor(store.clone())),
    }
}

struct AmongNeighbours(Arc<dyn PeerNodes>);

#[async_trait]
impl Lessor for AmongNeighbours {
    async fn lease(&self, log: &LogId) -> Result<Leased, StoreError> {
        self.0.take_up(log).await
    }
}

/// One thing asked of another node.
#[async_trait]
pub trait PeerStream: Send {
    async fn next(&mut self) -> PeerStreamItem;
}

#[derive(Debug, PartialEq, Eq)]
pub enum PeerStreamItem {
    Part(String),
    /// That was all.
    Ended,
    /// The other node is gone, and it is not known how far it came.
    Lost,
}

/// Who asked, on the other side of an open stream. Dropping it says that this was all.
#[async_trait]
pub trait PeerResponder: Send + Sync {
    /// Waits while too much is under way. False if the requester has left.
    async fn say(&self, part: String) -> bool;

    /// Fires when the asker has left.
    fn left(&self) -> &CancellationToken;
}

impl fmt::Debug for dyn PeerNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Neighbours({})", self.name())
    }
}
