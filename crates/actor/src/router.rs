//! The way to actors on other nodes.

use bowline_protocol::Principal;
use bowline_store::Holder;

use super::Actor;

/// Takes commands to the node that has an actor.
pub trait Router<A: Actor>: Send + Sync {
    /// Where an actor of the asker's was found the last time, if it was elsewhere.
    fn route(&self, id: &A::Id, asker: &Principal) -> Option<Holder>;

    /// Passes a command on to the node that has the actor. If that cannot be, the command comes back.
    fn forward(
        &self,
        node: &Holder,
        id: &A::Id,
        asker: &Principal,
        command: A::Command,
    ) -> Result<(), (A::Command, A::Refusal)>;

    /// Lets another node activate an actor that is free and has work waiting.
    fn pass_on_work(&self, id: &A::Id, owner: &Principal);
}
