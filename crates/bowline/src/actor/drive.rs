//! Drives one actor: its commands, what its process says, time, and the wish of its node to leave.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_env::clock;
use bowline_protocol::{Principal, Refusal};
use tokio::sync::mpsc;

use super::process::EMISSIONS_MAX;
use super::{ActivationError, Actor, ActorDirectory, Process, RunEvent};

/// How often an actor whose last commit is in doubt looks whether the store can tell.
const DOUBT_RETRY: Duration = Duration::from_millis(250);

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
    let draining = A::draining(&host);
    if let Err(error) = Box::pin(actor.activate()).await {
        return turn_away(&*actor, &mut inbox, &error);
    }
    let mut drains = Box::pin(draining.cancelled());
    loop {
        let is_draining = draining.is_cancelled();
        if is_draining {
            actor.handle_draining();
        }
        if actor.may_leave(clock::now()) && A::directory(&host).retire(actor.id(), &mut inbox) {
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
            () = sleep_until(deadline) => ActorEvent::Time,
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
async fn reactivate<A: Actor>(actor: &mut A, inbox: &mut mpsc::Receiver<A::Command>) -> Result<(), ActivationError> {
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

fn refuse_waiting<A: Actor>(actor: &A, inbox: &mut mpsc::Receiver<A::Command>, refusal: &Refusal) {
    while let Ok(command) = inbox.try_recv() {
        A::refuse(actor.id(), command, refusal);
    }
}

/// The actor could not be activated: all commands that come until it has left the directory are refused, or passed on if
/// another node has it.
fn turn_away<A: Actor>(actor: &A, inbox: &mut mpsc::Receiver<A::Command>, error: &ActivationError) {
    tracing::debug!(id = %actor.id(), ?error, "an actor could not be activated");
    let mut has_left = false;
    loop {
        match error {
            ActivationError::Refused(refusal) => refuse_waiting(actor, inbox, refusal),
            ActivationError::Elsewhere(node) => {
                while let Ok(command) = inbox.try_recv() {
                    let passed = A::router(actor.host()).forward(node, actor.id(), actor.owner(), command);
                    if let Err((command, refusal)) = passed {
                        A::refuse(actor.id(), command, &refusal);
                    }
                }
            }
        }
        if has_left {
            return;
        }
        has_left = A::directory(actor.host()).retire(actor.id(), inbox);
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

/// Waits until then; for ever without a deadline.
pub async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
