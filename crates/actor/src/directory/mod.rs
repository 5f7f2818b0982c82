//! The actors of one kind that are awake on this node: found, written to, installed and retired. Nothing here is the truth: the store is.

pub mod drive;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_protocol::Principal;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::sync::CancellationToken;

use crate::{Actor, ActorLocation, Router};

/// Commands that may wait for one actor before their senders wait too.
const COMMANDS_MAX: usize = 64;
/// An actor that leaves at the moment in which it is written to is activated again. That cannot go on for long.
const TRIES: usize = 100;

/// What all actors of one kind have in common, and the way to them: the sessions of a node, or its tasks.
pub trait ActorHost: Sized + Send + Sync + 'static {
    type Actor: Actor<Host = Self>;

    fn directory(&self) -> &ActorDirectory<Self::Actor>;

    fn router(&self) -> &dyn Router<Self::Actor>;

    /// Fires when this node wants to leave.
    fn draining(&self) -> &CancellationToken;

    /// Delivers a command to an actor of the asker's own, wherever it lives.
    fn send(
        self: &Arc<Self>,
        id: &ActorId<Self>,
        asker: &Principal,
        command: impl Into<ActorCommand<Self>> + Send,
    ) -> impl Future<Output = Result<(), ActorRefusal<Self>>> + Send {
        let sending = ActorDirectory::<Self::Actor>::send(self, id, asker, command.into());
        async { sending.await.map_err(|(_, refusal)| refusal) }
    }

    /// The same; a refusal goes to the one who waits for the command.
    fn deliver(
        self: &Arc<Self>,
        id: &ActorId<Self>,
        asker: &Principal,
        command: impl Into<ActorCommand<Self>> + Send,
    ) -> impl Future<Output = ()> + Send {
        let sending = ActorDirectory::<Self::Actor>::send(self, id, asker, command.into());
        async {
            if let Err((command, refusal)) = sending.await {
                Self::Actor::refuse(id, command, &refusal);
            }
        }
    }
}

type ActorId<H> = <<H as ActorHost>::Actor as Actor>::Id;
type ActorCommand<H> = <<H as ActorHost>::Actor as Actor>::Command;
type ActorRefusal<H> = <<H as ActorHost>::Actor as Actor>::Refusal;

pub struct ActorDirectory<A: Actor> {
    awake: Mutex<HashMap<A::Id, AwakeActor<A>>>,
}

struct AwakeActor<A: Actor> {
    owner: Principal,
    commands: mpsc::Sender<A::Command>,
    presence: Arc<A::Presence>,
}

impl<A: Actor> AwakeActor<A> {
    /// False for one whose task has died.
    fn is_there(&self) -> bool {
        !self.commands.is_closed()
    }
}

impl<A: Actor> Default for ActorDirectory<A> {
    fn default() -> ActorDirectory<A> {
        ActorDirectory { awake: Mutex::default() }
    }
}

impl<A: Actor> ActorDirectory<A> {
    fn awake(&self) -> MutexGuard<'_, HashMap<A::Id, AwakeActor<A>>> {
        self.awake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may be seen of an actor, if it is awake.
    pub fn presence(&self, id: &A::Id) -> Option<Arc<A::Presence>> {
        self.awake().get(id).filter(|entry| entry.is_there()).map(|entry| entry.presence.clone())
    }

    /// What may be seen of all that are awake.
    pub fn presences(&self) -> Vec<Arc<A::Presence>> {
        self.awake().values().filter(|entry| entry.is_there()).map(|entry| entry.presence.clone()).collect()
    }

    /// The way to an actor that is awake here, for what concerns only such a one.
    pub fn commands(&self, id: &A::Id) -> Option<mpsc::Sender<A::Command>> {
        self.awake().get(id).filter(|entry| entry.is_there()).map(|entry| entry.commands.clone())
    }

    /// How many of those that are awake look like this.
    pub fn count(&self, is: impl Fn(&A::Presence) -> bool) -> usize {
        self.awake().values().filter(|entry| is(&entry.presence)).count()
    }

    /// Puts an actor where others find it, and sets it going.
    pub fn install(actor: A) -> mpsc::Sender<A::Command> {
        ActorDirectory::place(actor, None).0
    }

    /// The same with a command to begin with. It comes back if another actor was faster, with the way to that one.
    fn place(actor: A, first: Option<A::Command>) -> (mpsc::Sender<A::Command>, Option<A::Command>) {
        let host = actor.host().clone();
        let mut awake = host.directory().awake();
        // Two who looked at the same time found it asleep; the first one installed is the one that counts.
        if let Some(entry) = awake.get(actor.id()).filter(|entry| entry.is_there()) {
            return (entry.commands.clone(), first);
        }
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        // Before the actor is at work: one that cannot be activated refuses what is there and leaves, and a sender that comes after
        // that would activate it again, and again.
        let rest = first.and_then(|command| commands.try_send(command).err()).map(TrySendError::into_inner);
        let entry = AwakeActor { owner: actor.owner().clone(), commands: commands.clone(), presence: actor.presence() };
        awake.insert(actor.id().clone(), entry);
        drop(awake);
        tokio::spawn(drive::drive(Box::new(actor), inbox));
        (commands, rest)
    }

    /// The actor leaves, unless a command came meanwhile. A sender that found it here before and has not written yet gets
    /// its command back, and finds the actor again; one that is about to write may still do so, so the actor has to look
    /// once more.
    pub(super) fn retire(&self, id: &A::Id, commands: &mut mpsc::Receiver<A::Command>) -> bool {
        let mut awake = self.awake();
        if !commands.is_empty() {
            return false;
        }
        awake.remove(id);
        // Not before the look above: a closed entry counts as gone, and a second actor would take its place.
        commands.close();
        true
    }

    /// The same actor, under another name. False if another one is awake under that.
    pub fn rename(&self, old: &A::Id, new: &A::Id) -> bool {
        let mut awake = self.awake();
        if awake.get(new).is_some_and(|entry| !entry.commands.is_closed()) {
            return false;
        }
        if let Some(entry) = awake.remove(old) {
            awake.insert(new.clone(), entry);
        }
        true
    }

    /// Offers a command to every actor that is awake. One that is too busy does not get it.
    pub fn offer(&self, command: impl Fn() -> A::Command) {
        for entry in self.awake().values() {
            let _ = entry.commands.try_send(command());
        }
    }

    /// Delivers a command to an actor of the asker's own, wherever it lives. If that cannot be, the command comes back.
    pub(super) async fn send(
        host: &Arc<A::Host>,
        id: &A::Id,
        asker: &Principal,
        mut command: A::Command,
    ) -> Result<(), (A::Command, A::Refusal)> {
        for _ in 0..TRIES {
            let commands = match host.directory().find_awake(id, asker) {
                Some(Ok(commands)) => commands,
                Some(Err(refusal)) => return Err((command, refusal)),
                None => match A::find(host, id, asker, &command).await {
                    Ok(ActorLocation::Here(actor)) => match ActorDirectory::place(actor, Some(command)) {
                        (_, None) => return Ok(()),
                        (commands, Some(returned)) => {
                            command = returned;
                            commands
                        }
                    },
                    Ok(ActorLocation::There(node)) => return host.router().forward(&node, id, asker, command),
                    Err(refusal) => return Err((command, refusal)),
                },
            };
            match commands.send(command).await {
                Ok(()) => return Ok(()),
                Err(returned) => command = returned.0,
            }
            tokio::task::yield_now().await;
        }
        Err((command, A::unreachable()))
    }

    /// An actor that is awake here, if it is the asker's. A closed channel belongs to one that is gone.
    fn find_awake(&self, id: &A::Id, asker: &Principal) -> Option<Result<mpsc::Sender<A::Command>, A::Refusal>> {
        let awake = self.awake();
        let entry = awake.get(id).filter(|entry| entry.is_there())?;
        Some(if entry.owner == *asker { Ok(entry.commands.clone()) } else { Err(A::not_found()) })
    }
}

impl<A: Actor> fmt::Debug for ActorDirectory<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Directory({} awake)", self.awake().len())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use bowline_store::Holder;
    use tokio::sync::oneshot;

    use super::*;
    use crate::{ActivationError, Process, RunEvent};

    /// Actors that can never be activated.
    #[derive(Default)]
    struct Refusing {
        directory: ActorDirectory<Refused>,
        draining: CancellationToken,
        activations: AtomicUsize,
    }

    struct Refused(Arc<Refusing>);

    static OWNER: LazyLock<Principal> = LazyLock::new(|| Principal::parse("alice").unwrap());

    impl ActorHost for Refusing {
        type Actor = Refused;

        fn directory(&self) -> &ActorDirectory<Refused> {
            &self.directory
        }

        fn router(&self) -> &dyn Router<Refused> {
            self
        }

        fn draining(&self) -> &CancellationToken {
            &self.draining
        }
    }

    impl Router<Refused> for Refusing {
        fn route(&self, _id: &u8, _asker: &Principal) -> Option<Holder> {
            None
        }

        fn forward(
            &self,
            _node: &Holder,
            _id: &u8,
            _asker: &Principal,
            command: oneshot::Sender<&'static str>,
        ) -> Result<(), (oneshot::Sender<&'static str>, &'static str)> {
            Err((command, "elsewhere"))
        }

        fn pass_on_work(&self, _id: &u8, _owner: &Principal) {}
    }

    impl Actor for Refused {
        type Id = u8;
        type Command = oneshot::Sender<&'static str>;
        type Emission = Infallible;
        type Ending = Infallible;
        type Presence = ();
        type Refusal = &'static str;
        type Host = Refusing;

        const COMMANDS_AT_ONCE: usize = 1;

        fn not_found() -> &'static str {
            "not found"
        }

        fn unreachable() -> &'static str {
            "unreachable"
        }

        fn is_final(_refusal: &&'static str) -> bool {
            false
        }

        async fn find(
            host: &Arc<Refusing>,
            _id: &u8,
            _asker: &Principal,
            _command: &oneshot::Sender<&'static str>,
        ) -> Result<ActorLocation<Refused>, &'static str> {
            Ok(ActorLocation::Here(Refused(host.clone())))
        }

        fn refuse(_id: &u8, command: oneshot::Sender<&'static str>, refusal: &&'static str) {
            let _ = command.send(refusal);
        }

        fn host(&self) -> &Arc<Refusing> {
            &self.0
        }

        fn id(&self) -> &u8 {
            &1
        }

        fn owner(&self) -> &Principal {
            &OWNER
        }

        fn presence(&self) -> Arc<()> {
            Arc::default()
        }

        async fn activate(&mut self) -> Result<(), ActivationError<&'static str>> {
            self.0.activations.fetch_add(1, Ordering::Relaxed);
            Err(ActivationError::Refused("not now"))
        }

        async fn reactivate(&mut self) -> Result<(), ActivationError<&'static str>> {
            self.activate().await
        }

        fn is_in_doubt(&self) -> bool {
            false
        }

        async fn handle(&mut self, _commands: Vec<oneshot::Sender<&'static str>>) {}

        fn process(&mut self) -> Option<&mut Process<Infallible, Infallible>> {
            None
        }

        async fn handle_run_event(&mut self, _event: RunEvent<Infallible, Infallible>) {}

        fn poll_timeout(&self) -> Option<Instant> {
            None
        }

        async fn handle_timeout(&mut self, _now: Instant) {}

        fn handle_draining(&mut self) {}

        fn may_leave(&self, _now: Instant) -> bool {
            false
        }

        async fn give_back(&mut self) {}
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_actor_that_cannot_be_activated_is_tried_once_for_each_command() {
        let host = Arc::new(Refusing::default());
        for sent in 1..=2000 {
            let (reply, answer) = oneshot::channel();
            assert_eq!(host.send(&1, &OWNER, reply).await, Ok(()));
            assert_eq!(answer.await, Ok("not now"));
            // The one before may still be leaving, and refuses without another try.
            assert!(host.activations.load(Ordering::Relaxed) <= sent);
        }
    }
}
