//! Drives one actor: its commands, the process that works for it, time, and the wish of its node to leave.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bowline_env::{clock, timer};
use bowline_protocol::Principal;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{ActorDirectory, ActorHost as _};
use crate::{ActivationError, Actor};

/// How often an actor whose last commit is in doubt looks whether the store can tell.
const DOUBT_RETRY: Duration = Duration::from_millis(250);
/// How long a process that was cancelled may take before it is aborted.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// How often a store that cannot take an emission is asked again.
const RETRY_EVERY: Duration = Duration::from_millis(250);
/// Emissions that are heard together, and that may wait to be heard. More makes larger commits, less holds the process
/// back sooner.
pub const EMISSIONS_MAX: usize = 512;

enum ActorEvent<A: Actor> {
    Commands(Vec<A::Command>),
    RunEvent(RunEvent<A::Emission, A::Ending>),
    Time,
    Draining,
}

/// Runs an actor from its activation until it leaves. What is rare is boxed, because a task keeps room for all that lives
/// across a wait, and most actors are idle.
pub async fn drive<A: Actor>(mut actor: Box<A>, mut inbox: mpsc::Receiver<A::Command>) {
    let host = actor.host().clone();
    let draining = host.draining();
    if let Err(error) = Box::pin(actor.activate()).await {
        return turn_away(&*actor, &mut inbox, &error);
    }
    let mut drains = Box::pin(draining.cancelled());
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    loop {
        let is_draining = draining.is_cancelled();
        if is_draining {
            actor.handle_draining();
        }
        if actor.may_leave(clock::now()) && host.directory().retire(actor.id(), &mut inbox) {
            return Box::pin(leave(actor, inbox)).await;
        }
        let deadline = actor.poll_timeout();
        let mut commands = Vec::new();
        let happened = tokio::select! {
            count = inbox.recv_many(&mut commands, A::COMMANDS_AT_ONCE) => match count {
                // The directory holds a sender for as long as the actor is in it.
                0 => return,
                _ => ActorEvent::<A>::Commands(commands),
            },
            event = next_event(actor.process()) => ActorEvent::RunEvent(event),
            () = timer::until(timer.as_mut(), deadline) => ActorEvent::Time,
            () = &mut drains, if !is_draining => ActorEvent::Draining,
        };
        match happened {
            ActorEvent::Commands(commands) => Box::pin(actor.handle(commands)).await,
            ActorEvent::RunEvent(event) => Box::pin(actor.handle_run_event(event)).await,
            ActorEvent::Time => Box::pin(actor.handle_timeout(clock::now())).await,
            ActorEvent::Draining => {}
        }
        if actor.is_in_doubt()
            && let Err(error) = Box::pin(reactivate(&mut *actor, &mut inbox)).await
        {
            return turn_away(&*actor, &mut inbox, &error);
        }
    }
}

/// The actor has left the directory: it gives its log back, and what was written to it at the last moment goes to the
/// actor that takes its place.
async fn leave<A: Actor>(mut actor: Box<A>, mut inbox: mpsc::Receiver<A::Command>) {
    actor.give_back().await;
    let (host, id, owner) = (actor.host().clone(), actor.id().clone(), actor.owner().clone());
    drop(actor);
    while let Some(command) = inbox.recv().await {
        send_again::<A>(host.clone(), id.clone(), owner.clone(), command);
    }
}

/// A function of its own that waits for nothing: sending may activate an actor, whose task would otherwise hold itself.
fn send_again<A: Actor>(host: Arc<A::Host>, id: A::Id, owner: Principal, command: A::Command) {
    let sending: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        if let Err((command, refusal)) = ActorDirectory::<A>::send(&host, &id, &owner, command).await {
            A::refuse(&id, command, &refusal);
        }
    });
    tokio::spawn(sending);
}

/// Reactivates an actor, as often as it takes. Fails if there is nothing here to activate any more.
async fn reactivate<A: Actor>(
    actor: &mut A,
    inbox: &mut mpsc::Receiver<A::Command>,
) -> Result<(), ActivationError<A::Refusal>> {
    loop {
        match actor.reactivate().await {
            Ok(()) if actor.is_in_doubt() => {}
            Ok(()) => return Ok(()),
            Err(ActivationError::Refused(refusal)) if !A::is_final(&refusal) => {
                // The store is away: callers are refused rather than kept waiting.
                refuse_waiting(actor, inbox, &refusal);
                tokio::time::sleep(DOUBT_RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn refuse_waiting<A: Actor>(actor: &A, inbox: &mut mpsc::Receiver<A::Command>, refusal: &A::Refusal) {
    while let Ok(command) = inbox.try_recv() {
        A::refuse(actor.id(), command, refusal);
    }
}

/// The actor could not be activated: all commands that come until it has left the directory are refused, or passed on if
/// another node has it.
fn turn_away<A: Actor>(actor: &A, inbox: &mut mpsc::Receiver<A::Command>, error: &ActivationError<A::Refusal>) {
    tracing::debug!(id = %actor.id(), ?error, "an actor could not be activated");
    let mut has_left = false;
    loop {
        match error {
            ActivationError::Refused(refusal) => refuse_waiting(actor, inbox, refusal),
            ActivationError::Elsewhere(node) => {
                while let Ok(command) = inbox.try_recv() {
                    let passed = actor.host().router().forward(node, actor.id(), actor.owner(), command);
                    if let Err((command, refusal)) = passed {
                        A::refuse(actor.id(), command, &refusal);
                    }
                }
            }
        }
        if has_left {
            return;
        }
        has_left = actor.host().directory().retire(actor.id(), inbox);
    }
}

/// The next thing that is heard of a process: everything it emitted before its ending. Cancel-safe; without a process it
/// waits for ever.
async fn next_event<E, R: Send + 'static>(process: Option<&mut Process<E, R>>) -> RunEvent<E, R> {
    let Some(process) = process.filter(|process| !process.is_stuck()) else { return std::future::pending().await };
    let mut emitted = Vec::new();
    loop {
        if process.ending.is_some() {
            if process.emissions.recv_many(&mut emitted, EMISSIONS_MAX).await > 0 {
                return RunEvent::Emissions(emitted);
            }
            if let Some(ending) = process.ending.take() {
                return RunEvent::Ended(ending);
            }
        }
        let may_emit = !process.emissions.is_closed() || !process.emissions.is_empty();
        tokio::select! {
            biased;
            count = process.emissions.recv_many(&mut emitted, EMISSIONS_MAX), if may_emit => {
                if count > 0 {
                    return RunEvent::Emissions(emitted);
                }
            }
            returned = &mut process.task => process.handle_returned(returned),
        }
    }
}

/// The task of a process: it ends with that, or never if there is none. As a type it takes no more room than a handle in what an
/// idle actor waits in.
struct Task<R>(Option<JoinHandle<R>>);

impl<R> Future for Task<R> {
    type Output = Result<R, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().map_or(Poll::Pending, |task| Pin::new(task).poll(context))
    }
}

/// A process that an actor has: what it emits, how it ends, and what of that the store has not taken yet.
pub struct Process<E, R> {
    pub cancel: CancellationToken,
    emissions: mpsc::Receiver<E>,
    task: Task<R>,
    /// How it ended, once it has; heard after everything that it emitted.
    ending: Option<R>,
    /// What its ending is if it did not return.
    died: Option<fn(&JoinError) -> R>,
    stuck: Option<Stuck<E>>,
}

/// Emissions that the store would not take.
struct Stuck<E> {
    emissions: Vec<E>,
    since: Instant,
    retry_at: Instant,
}

/// What is heard of a process.
#[derive(Debug)]
pub enum RunEvent<E, R> {
    Emissions(Vec<E>),
    Ended(R),
}

impl<E, R: Send + 'static> Process<E, R> {
    pub fn new(
        cancel: CancellationToken,
        emissions: mpsc::Receiver<E>,
        task: JoinHandle<R>,
        died: fn(&JoinError) -> R,
    ) -> Process<E, R> {
        Process { cancel, emissions, task: Task(Some(task)), ending: None, died: Some(died), stuck: None }
    }

    /// Others that speak to the actor for as long as it is awake.
    pub fn without_end(emissions: mpsc::Receiver<E>) -> Process<E, R> {
        Process { cancel: CancellationToken::new(), emissions, task: Task(None), ending: None, died: None, stuck: None }
    }

    fn handle_returned(&mut self, returned: Result<R, JoinError>) {
        self.ending = match (returned, self.died) {
            (Ok(ending), _) => Some(ending),
            (Err(error), died) => died.map(|died| died(&error)),
        };
        // Emitters that the process left behind are not heard from here on.
        self.emissions.close();
    }

    /// Keeps what the store would not take; until then nothing more is heard. False once patience has run out.
    pub fn stick(&mut self, emissions: Vec<E>, patience: Duration) -> bool {
        let now = clock::now();
        let since = self.stuck.as_ref().map_or(now, |stuck| stuck.since);
        self.stuck = Some(Stuck { emissions, since, retry_at: now + RETRY_EVERY });
        now.duration_since(since) < patience
    }

    /// The store would not take the ending either; it is heard again in a while.
    pub fn put_back(&mut self, ending: R) {
        self.ending = Some(ending);
        let now = clock::now();
        self.stuck = Some(Stuck { emissions: Vec::new(), since: now, retry_at: now + RETRY_EVERY });
    }

    /// Aborts the process: what it emitted is not heard, and this is its ending.
    pub fn give_up(&mut self, ending: R) {
        self.cancel.cancel();
        if let Some(task) = &self.task.0 {
            task.abort();
        }
        self.emissions.close();
        while self.emissions.try_recv().is_ok() {}
        self.put_back(ending);
    }

    /// Takes what was stuck, to try it again. Patience runs on until [`unstick`](Process::unstick).
    pub fn stuck_emissions(&mut self) -> Vec<E> {
        self.stuck.as_mut().map(|stuck| std::mem::take(&mut stuck.emissions)).unwrap_or_default()
    }

    pub fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    pub fn unstick(&mut self) {
        self.stuck = None;
    }

    pub fn retry_at(&self) -> Option<Instant> {
        self.stuck.as_ref().map(|stuck| stuck.retry_at)
    }

    /// Cancels the process, and aborts it after a moment. Nothing it emits from now on is heard.
    pub fn stop(self) {
        self.cancel.cancel();
        drop(self.emissions);
        let Some(task) = self.task.0.filter(|task| !task.is_finished()) else { return };
        tokio::spawn(async move {
            let abort = task.abort_handle();
            if tokio::time::timeout(STOP_GRACE, task).await.is_err() {
                abort.abort();
            }
        });
    }
}

impl<E, R> fmt::Debug for Process<E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_finished = self.task.0.as_ref().is_some_and(JoinHandle::is_finished);
        write!(f, "Process({}running)", if is_finished { "not " } else { "" })
    }
}
