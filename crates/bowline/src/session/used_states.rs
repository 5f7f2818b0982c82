//! The durable memory of restores: which states are used up, and where the questions are that were open in them.

use bowline_core::used_states::{UsedStates, Whereabouts};
use bowline_env::{clock, entropy};
use bowline_protocol::{Epoch, ErrorCode, LogId, Principal, Refusal, Seq, SessionId, StepId};
use bowline_store::{Commit, Fence, LogKind, Record, Start, StoreError};
use bytes::Bytes;
use serde::Serialize;

use super::registry::Sessions;
use super::restore::Restored;
use crate::decode::decode;
use crate::refusals::{self, session_not_found};

/// With `state.single_use`, whether a state that was exported under this id is used up.
pub async fn is_fresh(sessions: &Sessions, exported_by: &SessionId, last_seq: Seq) -> Result<(), Refusal> {
    if !sessions.config.state.single_use {
        return Ok(());
    }
    let taken = taken(sessions, &mark_of(exported_by)?).await?;
    if !taken.is_some_and(|taken| taken.covers(last_seq)) {
        return Ok(());
    }
    sessions.metrics.state_refusals.inc("stale");
    let message = "This state, or a later one of its session, was restored before.";
    Err(Refusal::new(ErrorCode::StateStale, message))
}

/// Uses a state up, and with it all older ones: those of its own id, and all of the id before that.
pub async fn take(sessions: &Sessions, owner: &Principal, restored: &Restored) -> Result<(), Refusal> {
    is_fresh(sessions, &restored.original, restored.last_seq).await?;
    mark(sessions, owner, &restored.original, UsedStates::up_to(restored.last_seq)).await?;
    match &restored.before {
        Some(before) => mark(sessions, owner, before, UsedStates::wholly()).await,
        None => Ok(()),
    }
}

/// Settles a question for good: it was answered or called off, so no state may bring it back.
pub async fn settle(sessions: &Sessions, owner: &Principal, step: &StepId) -> Result<(), Refusal> {
    remember(sessions, owner, question_of(step)?, &Whereabouts::Settled).await
}

/// Takes a question from a state to the session that goes on with it. False if the state has lost it before.
pub async fn bring_on(
    sessions: &Sessions,
    owner: &Principal,
    step: &StepId,
    exported_by: &SessionId,
    to: &SessionId,
) -> Result<bool, Refusal> {
    let known = body(sessions, &question_of(step)?).await?;
    // What cannot be read was settled, to be safe.
    let known = known.map(|body| serde_json::from_slice(&body).unwrap_or(Whereabouts::Settled));
    if !Whereabouts::is_open_to(known.as_ref(), exported_by) {
        return Ok(false);
    }
    carry(sessions, owner, step, to).await?;
    Ok(true)
}

/// Says which session has a question now.
pub async fn carry(sessions: &Sessions, owner: &Principal, step: &StepId, to: &SessionId) -> Result<(), Refusal> {
    remember(sessions, owner, question_of(step)?, &Whereabouts::With(to.clone())).await
}

async fn mark(sessions: &Sessions, owner: &Principal, session: &SessionId, fact: UsedStates) -> Result<(), Refusal> {
    let log = mark_of(session)?;
    let fact = fact.and(taken(sessions, &log).await?);
    remember(sessions, owner, log, &fact).await
}

fn mark_of(session: &SessionId) -> Result<LogId, Refusal> {
    LogId::parse(&format!("restored_{session}")).ok_or_else(session_not_found)
}

fn question_of(step: &StepId) -> Result<LogId, Refusal> {
    LogId::parse(&format!("settled_{step}")).ok_or_else(session_not_found)
}

async fn taken(sessions: &Sessions, log: &LogId) -> Result<Option<UsedStates>, Refusal> {
    decode(log, "restored", body(sessions, log).await?)
}

async fn body(sessions: &Sessions, log: &LogId) -> Result<Option<Bytes>, Refusal> {
    let record = sessions.logs.store.record(log).await.map_err(|error| refusals::of_store(&error))?;
    Ok(record.map(|record| record.body))
}

/// Writes a mark that outlives the session it is about, for as long as its states could come back.
async fn remember(sessions: &Sessions, owner: &Principal, log: LogId, fact: &impl Serialize) -> Result<(), Refusal> {
    let refuse = |error: StoreError| refusals::of_store(&error);
    let now_ms = sessions.logs.clock.now_ms();
    let known = sessions.logs.store.record(&log).await.map_err(refuse)?.is_some();
    let mut commit = Commit::to(log, Fence::default(), now_ms);
    // States expire by the wall clock, which may be ahead of ours.
    let touched_ms = now_ms.max(clock::wall_ms());
    // Our own types have string keys and finite numbers only, so this cannot fail.
    let body = serde_json::to_vec(fact).unwrap_or_default().into();
    commit.record = Some(Record { kind: LogKind::Restored, owner: owner.clone(), touched_ms, body });
    if known {
        return sessions.logs.write_once(commit).await.map(drop).map_err(refuse);
    }
    commit.create = Some(Start { epoch: Epoch::from_random(entropy::u64()), after: Seq::ZERO });
    sessions.logs.commit(commit).await.map(drop).map_err(refuse)
}
