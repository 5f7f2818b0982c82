//! What the hub's two kinds of actor have in common, its sessions and its tasks.

use bowline_actor::{ActivationError, Actor, Router};
use bowline_protocol::Principal;
use bowline_store::{Holder, StoreError};

/// Why an actor of the hub does not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActorRefusal {
    /// It does not exist, or is another principal's: both look the same.
    NotFound,
    Store(StoreError),
}

impl ActorRefusal {
    pub fn unreachable() -> ActorRefusal {
        ActorRefusal::Store(StoreError::Unavailable("it was let go again and again before it could be reached".into()))
    }

    /// What it means that the store could not.
    pub fn of_store(error: &StoreError) -> ActorRefusal {
        match error {
            StoreError::NoSuchLog => ActorRefusal::NotFound,
            error => ActorRefusal::Store(error.clone()),
        }
    }
}

/// Why an actor could not be activated, as its sender gets it.
pub fn refusal_of(error: &ActivationError<ActorRefusal>) -> ActorRefusal {
    match error {
        ActivationError::Refused(refusal) => refusal.clone(),
        ActivationError::Elsewhere(node) => ActorRefusal::Store(StoreError::Held(node.clone())),
    }
}

/// Between nodes a client's whole request travels to the node that has its session, so commands do not: the sender of one gets
/// the name of that node.
#[derive(Clone, Copy, Debug)]
pub struct NoForwarding;

impl<A: Actor<Refusal = ActorRefusal>> Router<A> for NoForwarding {
    fn route(&self, _id: &A::Id, _asker: &Principal) -> Option<Holder> {
        None
    }

    fn forward(
        &self,
        node: &Holder,
        _id: &A::Id,
        _asker: &Principal,
        command: A::Command,
    ) -> Result<(), (A::Command, ActorRefusal)> {
        Err((command, ActorRefusal::Store(StoreError::Held(node.clone()))))
    }

    fn pass_on_work(&self, _id: &A::Id, _owner: &Principal) {}
}
