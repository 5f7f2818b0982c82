//! Actors: what alone changes one log. Sessions and tasks are actors, the server's and those of its MCP hub; how one is
//! found, activated, run and retired is the same for all.
//!
//! An actor holds nothing that is not in the store, so it can leave at any time and be activated again.
//!
//! | part | does |
//! |---|---|
//! | [`Actor`] | what one kind of actor does: its commands, its process, its timers |
//! | [`ActorDirectory`], [`ActorHost`] | the actors that are awake on a node: found, written to, installed, retired |
//! | [`drive`] | the loop that every actor runs in, and the [`Process`] that works for one |
//! | [`Router`] | the way to actors on other nodes |

mod directory;
mod router;

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use bowline_protocol::Principal;
use bowline_store::{Holder, StoreError};

pub use directory::drive::{self, EMISSIONS_MAX, Process, RunEvent};
pub use directory::{ActorDirectory, ActorHost};
pub use router::Router;

/// One kind of actor.
pub trait Actor: Sized + Send + 'static {
    type Id: Clone + Eq + Hash + Display + Send + Sync;
    /// A channel keeps room for 32 commands, so a large one is a box.
    type Command: Send;
    /// What its process says while it works, and how that ends.
    type Emission: Send;
    type Ending: Send;
    /// What may be seen of it without asking it.
    type Presence: Send + Sync;
    /// Why a command is not done.
    type Refusal: Debug + Send + Sync;
    type Host: ActorHost<Actor = Self>;

    /// Commands that are handled together.
    const COMMANDS_AT_ONCE: usize;

    /// Unknown and foreign actors are answered alike.
    fn not_found() -> Self::Refusal;

    /// What a sender gets when the actor leaves again and again before it can be reached.
    fn unreachable() -> Self::Refusal;

    /// Whether a refused activation means that there is nothing to activate, now or later.
    fn is_final(refusal: &Self::Refusal) -> bool;

    /// An actor that is not awake here: what the store knows of it, or the node that has it.
    fn find(
        host: &Arc<Self::Host>,
        id: &Self::Id,
        asker: &Principal,
        command: &Self::Command,
    ) -> impl Future<Output = Result<ActorLocation<Self>, Self::Refusal>> + Send;

    /// Answers the one who waits for what comes of a command.
    fn refuse(id: &Self::Id, command: Self::Command, refusal: &Self::Refusal);

    fn host(&self) -> &Arc<Self::Host>;
    fn id(&self) -> &Self::Id;
    fn owner(&self) -> &Principal;
    fn presence(&self) -> Arc<Self::Presence>;

    /// Takes the lease, and settles what an earlier process left behind. Nothing if that is done. Only the actor that the
    /// directory knows may do this: each lease shuts out the one before it.
    fn activate(&mut self) -> impl Future<Output = Result<(), ActivationError<Self::Refusal>>> + Send;

    /// Activates it with what the store knows, as after a crash: a new lease shuts the commit in doubt out, and what it
    /// did or did not do is seen.
    fn reactivate(&mut self) -> impl Future<Output = Result<(), ActivationError<Self::Refusal>>> + Send;

    /// Whether it is unknown what its last commit did. Then it has to be [reactivated](Actor::reactivate) before anything
    /// else.
    fn is_in_doubt(&self) -> bool;

    fn handle(&mut self, commands: Vec<Self::Command>) -> impl Future<Output = ()> + Send;

    /// The process that is at work for it, if that may be listened to.
    fn process(&mut self) -> Option<&mut Process<Self::Emission, Self::Ending>>;

    fn handle_run_event(&mut self, event: RunEvent<Self::Emission, Self::Ending>) -> impl Future<Output = ()> + Send;

    /// When [`handle_timeout`](Actor::handle_timeout) is due.
    fn poll_timeout(&self) -> Option<Instant>;

    fn handle_timeout(&mut self, now: Instant) -> impl Future<Output = ()> + Send;

    /// This node wants to leave. Asked before each wait, because what keeps the actor here may end at any time.
    fn handle_draining(&mut self);

    /// Whether nothing here needs it any more.
    fn may_leave(&self, now: Instant) -> bool;

    /// Lets other nodes have it, now that it has left the directory.
    fn give_back(&mut self) -> impl Future<Output = ()> + Send;
}

/// Where an actor can be had.
#[derive(Debug)]
pub enum ActorLocation<A> {
    /// Here: this one, once it is activated.
    Here(A),
    There(Holder),
}

/// Why an actor could not be activated.
#[derive(Debug)]
pub enum ActivationError<R> {
    Refused(R),
    /// Another node has it.
    Elsewhere(Holder),
}

impl<R> ActivationError<R> {
    /// What it means that the lease was not granted. `refuse` says what any other trouble means to a client.
    pub fn from_lease(error: StoreError, refuse: impl Fn(&StoreError) -> R) -> ActivationError<R> {
        match error {
            StoreError::Held(node) => ActivationError::Elsewhere(node),
            error => ActivationError::Refused(refuse(&error)),
        }
    }
}

impl<R> From<R> for ActivationError<R> {
    fn from(refusal: R) -> ActivationError<R> {
        ActivationError::Refused(refusal)
    }
}
