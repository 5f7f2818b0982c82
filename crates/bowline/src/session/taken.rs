//! The durable memory of restores: which states are used up, and where the questions are that were open in them.

use bowline_core::taken::{Taken, Whereabouts};
use bowline_protocol::{Epoch, ErrorCode, LogId, Principal, Refusal, Seq, SessionId, StepId};
use bowline_store::{Commit, Fence, Kind, Record, Start, StoreError};
use bytes::Bytes;
use serde::Serialize;

use super::restore::Restored;
use crate::decode::decode;
use crate::node::{self, Shared, not_found};
use crate::{clock, dice};

/// With `state.single_use`, whether a state that was exported under this id is used up.
pub async fn is_fresh(shared: &Shared, exported_by: &SessionId, last_seq: Seq) -> Result<(), Refusal> {
    if !shared.config.state.single_use {
        return Ok(());
    }
    let taken = taken(shared, &mark_of(exported_by)?).await?;
    if !taken.is_some_and(|taken| taken.covers(last_seq)) {
        return Ok(());
    }
    shared.metrics.state_refusals.inc("stale");
    let message = "This state, or a later one of its session, was restored before.";
    Err(Refusal::new(ErrorCode::StateStale, message))
}

/// Uses a state up, and with it all older ones: those of its own id, and all of the id before that.
pub async fn take(shared: &Shared, owner: &Principal, restored: &Restored) -> Result<(), Refusal> {
    is_fresh(shared, &restored.original, restored.last_seq).await?;
    mark(shared, owner, &restored.original, Taken::up_to(restored.last_seq)).await?;
    match &restored.before {
        Some(before) => mark(shared, owner, before, Taken::wholly()).await,
        None => Ok(()),
    }
}

/// Settles a question for good: it was answered or called off, so no state may bring it back.
pub async fn settle(shared: &Shared, owner: &Principal, step: &StepId) -> Result<(), Refusal> {
    remember(shared, owner, question_of(step)?, &Whereabouts::Settled).await
}

/// Takes a question from a state to the session that goes on with it. False if the state has lost it before.
pub async fn bring_on(
    shared: &Shared,
    owner: &Principal,
    step: &StepId,
    exported_by: &SessionId,
    to: &SessionId,
) -> Result<bool, Refusal> {
    let known = body(shared, &question_of(step)?).await?;
    // What cannot be read was settled, to be safe.
    let known = known.map(|body| serde_json::from_slice(&body).unwrap_or(Whereabouts::Settled));
    if !Whereabouts::is_open_to(known.as_ref(), exported_by) {
        return Ok(false);
    }
    carry(shared, owner, step, to).await?;
    Ok(true)
}

/// Says which session has a question now.
pub async fn carry(shared: &Shared, owner: &Principal, step: &StepId, to: &SessionId) -> Result<(), Refusal> {
    remember(shared, owner, question_of(step)?, &Whereabouts::With(to.clone())).await
}

async fn mark(shared: &Shared, owner: &Principal, session: &SessionId, fact: Taken) -> Result<(), Refusal> {
    let log = mark_of(session)?;
    let fact = fact.and(taken(shared, &log).await?);
    remember(shared, owner, log, &fact).await
}

fn mark_of(session: &SessionId) -> Result<LogId, Refusal> {
    LogId::parse(&format!("restored_{session}")).ok_or_else(not_found)
}

fn question_of(step: &StepId) -> Result<LogId, Refusal> {
    LogId::parse(&format!("settled_{step}")).ok_or_else(not_found)
}

async fn taken(shared: &Shared, log: &LogId) -> Result<Option<Taken>, Refusal> {
    decode(log, "restored", body(shared, log).await?)
}

async fn body(shared: &Shared, log: &LogId) -> Result<Option<Bytes>, Refusal> {
    let record = shared.store.record(log).await.map_err(|error| node::store_refusal(&error))?;
    Ok(record.map(|record| record.body))
}

/// Writes a mark that outlives the session it is about, for as long as its states could come back.
async fn remember(shared: &Shared, owner: &Principal, log: LogId, fact: &impl Serialize) -> Result<(), Refusal> {
    let refuse = |error: StoreError| node::store_refusal(&error);
    let now_ms = shared.clock.now_ms();
    let known = shared.store.record(&log).await.map_err(refuse)?.is_some();
    let mut commit = Commit::to(log, Fence::default(), now_ms);
    // States expire by the wall clock, which may be ahead of ours.
    let touched_ms = now_ms.max(clock::unix_ms());
    // Our own types have string keys and finite numbers only, so this cannot fail.
    let body = serde_json::to_vec(fact).unwrap_or_default().into();
    commit.record = Some(Record { kind: Kind::Restored, owner: owner.clone(), touched_ms, body });
    if known {
        return shared.write_once(commit).await.map(drop).map_err(refuse);
    }
    commit.create = Some(Start { epoch: Epoch::from_random(dice::u64()), after: Seq::ZERO });
    shared.commit(commit).await.map(drop).map_err(refuse)
}
