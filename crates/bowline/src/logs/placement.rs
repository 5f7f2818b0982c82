//! Which node writes a log: asked by sessions and tasks, answered by the cluster, or by a server that is alone with its store.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_actor::{Actor, Router};
use bowline_protocol::{LogId, Principal, Refusal};
use bowline_store::{Claim, Holder, Leased, Lessor, Store, StoreError};

/// Where a log can be written.
#[derive(Debug)]
pub enum Location {
    Here,
    There(Holder),
}

/// Which node writes what. Leases come from here too.
#[async_trait]
pub trait Placement: Lessor {
    async fn locate(&self, log: &LogId) -> Result<Location, StoreError>;

    /// Waits until no other node does what this name stands for. None where there can be no other.
    async fn lock(&self, name: &LogId) -> Result<Option<Box<dyn PlacementLock>>, Refusal>;

    /// Whether other nodes may use the same store.
    fn is_shared(&self) -> bool;

    /// Whether another node is alive that could serve what this one has.
    fn has_peers(&self) -> bool;
}

/// Something that only this node does now.
#[async_trait]
pub trait PlacementLock: Send {
    async fn unlock(self: Box<Self>);
}

/// A server that is alone with its store.
pub struct SingleNode(pub Arc<dyn Store>);

impl fmt::Debug for SingleNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SingleNode")
    }
}

#[async_trait]
impl Lessor for SingleNode {
    async fn lease(&self, log: &LogId) -> Result<Leased, StoreError> {
        self.0.lease(log, &Claim::alone()).await
    }
}

#[async_trait]
impl Placement for SingleNode {
    async fn locate(&self, _log: &LogId) -> Result<Location, StoreError> {
        Ok(Location::Here)
    }

    async fn lock(&self, _name: &LogId) -> Result<Option<Box<dyn PlacementLock>>, Refusal> {
        Ok(None)
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn has_peers(&self) -> bool {
        false
    }
}

impl<A: Actor> Router<A> for SingleNode {
    fn route(&self, _id: &A::Id, _asker: &Principal) -> Option<Holder> {
        None
    }

    fn forward(
        &self,
        _node: &Holder,
        _id: &A::Id,
        _asker: &Principal,
        command: A::Command,
    ) -> Result<(), (A::Command, A::Refusal)> {
        Err((command, A::unreachable()))
    }

    fn pass_on_work(&self, _id: &A::Id, _owner: &Principal) {}
}
