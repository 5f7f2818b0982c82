//! Drives one task's actor: commands, what its work says, and time.

use std::sync::Arc;
use std::time::Instant;

use bowline_protocol::ErrorCode;

use super::session::{DOUBT_RETRY, sleep_until};
use crate::agent::AgentError;
use crate::node::Shared;
use crate::session::actor::Unbegun;
use crate::session::run::EMISSIONS_MAX;
use crate::task::actor::TaskActor;
use crate::task::work::{Said, Work};
use crate::task::{Command, Commands, Tasks};

/// Commands that are looked at together.
const COMMANDS_AT_ONCE: usize = 64;

enum Happened {
    Commands(Vec<Command>),
    Said(Said),
    Time,
}

pub async fn drive(shared: Arc<Shared>, mut actor: Box<TaskActor>, mut commands: Commands) {
    if let Err(unbegun) = Box::pin(actor.begin()).await {
        return turn_away(&shared, &actor, &mut commands, &unbegun);
    }
    loop {
        if actor.may_leave(Instant::now()) && shared.tasks.retire(actor.id(), &commands) {
            return Box::pin(actor.give_back()).await;
        }
        let deadline = actor.poll_timeout();
        let mut asked = Vec::new();
        let happened = tokio::select! {
            count = commands.recv_many(&mut asked, COMMANDS_AT_ONCE) => match count {
                0 => return,
                _ => Happened::Commands(asked),
            },
            said = next(actor.live_work()) => Happened::Said(said),
            () = sleep_until(deadline) => Happened::Time,
        };
        match happened {
            Happened::Commands(asked) => Box::pin(actor.handle(asked)).await,
            Happened::Said(said) => Box::pin(actor.handle_said(said)).await,
            Happened::Time => Box::pin(actor.handle_timeout(Instant::now())).await,
        }
        while actor.is_in_doubt() {
            let Err(unbegun) = Box::pin(actor.begin_again()).await else { continue };
            if is_final(&unbegun) {
                return turn_away(&shared, &actor, &mut commands, &unbegun);
            }
            // The store is away, and nobody is kept waiting for it.
            while let (Ok(command), Unbegun::Refused(refusal)) = (commands.try_recv(), &unbegun) {
                command.refuse(refusal);
            }
            tokio::time::sleep(DOUBT_RETRY).await;
            actor.doubt();
        }
    }
}

/// Whether there is nothing here to try again.
fn is_final(unbegun: &Unbegun) -> bool {
    match unbegun {
        Unbegun::Elsewhere(_) => true,
        Unbegun::Refused(refusal) => matches!(refusal.code, ErrorCode::TaskNotFound | ErrorCode::TaskExpired),
    }
}

/// The task could not be taken up: everybody who asks until the door is shut is told so. If another node has it, they are
/// passed on.
fn turn_away(shared: &Shared, actor: &TaskActor, commands: &mut Commands, unbegun: &Unbegun) {
    tracing::debug!(task = %actor.id(), ?unbegun, "a task could not be taken up");
    loop {
        while let Ok(command) = commands.try_recv() {
            match unbegun {
                Unbegun::Refused(refusal) => command.refuse(refusal),
                Unbegun::Elsewhere(node) => {
                    let passed = Tasks::pass_on(shared, node, actor.id(), actor.owner(), command, 0);
                    if let Err((command, refusal)) = passed {
                        command.refuse(&refusal);
                    }
                }
            }
        }
        if shared.tasks.retire(actor.id(), commands) {
            return;
        }
    }
}

/// The next thing the work says: everything it emitted before its end. Cancel-safe; without work it waits for ever.
async fn next(work: Option<&mut Work>) -> Said {
    let Some(work) = work else { return std::future::pending().await };
    let mut said = Vec::new();
    loop {
        if work.result.is_some() {
            if work.emissions.recv_many(&mut said, EMISSIONS_MAX).await > 0 {
                return Said::Emissions(said);
            }
            if let Some(result) = work.result.take() {
                return Said::Ended(Box::new(result));
            }
        }
        tokio::select! {
            biased;
            heard = work.emissions.recv_many(&mut said, EMISSIONS_MAX), if !work.emissions.is_closed() || !work.emissions.is_empty() => {
                if heard > 0 {
                    return Said::Emissions(said);
                }
            }
            result = &mut work.process => {
                work.result = Some(result.unwrap_or_else(|_died| Err(AgentError::failed("The agent crashed."))));
                work.emissions.close();
            }
        }
    }
}
