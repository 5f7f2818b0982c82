//! Drives one session's actor: commands, what its run says, and time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_protocol::ErrorCode;

use crate::node::Shared;
use crate::session::actor::{Actor, Unbegun};
use crate::session::run::{EMISSIONS_MAX, LiveRun, Said, died};
use crate::session::{Command, Commands, Registry};

/// How often a session whose last commit is in doubt looks whether the store can tell.
pub const DOUBT_RETRY: Duration = Duration::from_millis(250);

enum Happened {
    Command(Box<Command>),
    Said(Said),
    Time,
    Draining,
}

/// Boxed, because a task keeps room for its arguments beside what it made of them.
pub async fn drive(shared: Arc<Shared>, mut actor: Box<Actor>, mut commands: Commands) {
    if let Err(unbegun) = Box::pin(actor.begin()).await {
        return turn_away(&shared, &actor, &mut commands, &unbegun);
    }
    // Boxed, because it is one more thing that every idle session waits for.
    let mut draining = Box::pin(shared.draining.cancelled());
    loop {
        let now = Instant::now();
        if actor.has_to_go() {
            actor.send_away();
        }
        if actor.may_leave(now) && shared.registry.retire(actor.id(), &commands) {
            return Box::pin(actor.give_back()).await;
        }
        let deadline = actor.poll_timeout();
        let happened = tokio::select! {
            command = commands.recv() => match command {
                Some(command) => Happened::Command(command),
                // The registry holds a sender for as long as the actor is in it.
                None => return,
            },
            said = next(actor.live_run()) => Happened::Said(said),
            () = sleep_until(deadline) => Happened::Time,
            () = &mut draining, if !shared.is_draining() => Happened::Draining,
        };
        match happened {
            Happened::Command(command) => Box::pin(actor.handle(*command)).await,
            Happened::Said(said) => Box::pin(actor.handle_said(said)).await,
            Happened::Time => Box::pin(actor.handle_timeout(Instant::now())).await,
            // What that means for this session is asked at the top.
            Happened::Draining => {}
        }
        while actor.is_in_doubt() {
            match Box::pin(actor.begin_again()).await {
                Ok(()) => {}
                Err(unbegun) if is_final(&unbegun) => return turn_away(&shared, &actor, &mut commands, &unbegun),
                Err(Unbegun::Elsewhere(_)) => {}
                Err(Unbegun::Refused(refusal)) => {
                    // The store is away. Nobody is kept waiting for it.
                    while let Ok(command) = commands.try_recv() {
                        command.refuse(actor.id(), &refusal);
                    }
                    tokio::time::sleep(DOUBT_RETRY).await;
                    actor.doubt();
                }
            }
        }
    }
}

/// Whether there is nothing here to try again.
fn is_final(unbegun: &Unbegun) -> bool {
    match unbegun {
        Unbegun::Elsewhere(_) => true,
        Unbegun::Refused(refusal) => refusal.code == ErrorCode::SessionNotFound,
    }
}

/// The session could not be taken up: everybody who asks until the door is shut is told so, and may try again. If another
/// node has it, they are passed on.
fn turn_away(shared: &Shared, actor: &Actor, commands: &mut Commands, unbegun: &Unbegun) {
    tracing::debug!(session = %actor.id(), ?unbegun, "a session could not be taken up");
    loop {
        while let Ok(command) = commands.try_recv() {
            match unbegun {
                Unbegun::Refused(refusal) => command.refuse(actor.id(), refusal),
                Unbegun::Elsewhere(node) => {
                    let passed = Registry::pass_on(shared, node, actor.id(), actor.owner(), *command);
                    if let Err((command, refusal)) = passed {
                        command.refuse(actor.id(), &refusal);
                    }
                }
            }
        }
        if shared.registry.retire(actor.id(), commands) {
            return;
        }
    }
}

/// The next thing a run says: everything it emitted before its ending. Cancel-safe; without a run it waits for ever.
async fn next(run: Option<&mut LiveRun>) -> Said {
    let Some(run) = run.filter(|run| !run.is_stuck()) else { return std::future::pending().await };
    let mut said = Vec::new();
    loop {
        if run.ending.is_some() {
            if run.emissions.recv_many(&mut said, EMISSIONS_MAX).await > 0 {
                return Said::Emissions(said);
            }
            if let Some(ending) = run.ending.take() {
                return Said::Ended(ending);
            }
        }
        tokio::select! {
            biased;
            heard = run.emissions.recv_many(&mut said, EMISSIONS_MAX), if !run.emissions.is_closed() || !run.emissions.is_empty() => {
                if heard > 0 {
                    return Said::Emissions(said);
                }
            }
            ending = &mut run.task => {
                run.ending = Some(ending.unwrap_or_else(|error| Err(died(&error))));
                // Emitters that the agent left behind are deaf from here on.
                run.emissions.close();
            }
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
