//! A message in a session's queue: whether it has its turn yet, and whether it can still get one.

use std::sync::Arc;

use bowline_protocol::{LogId, MessageId, Refusal, Seq};
use bowline_store::{Follower, StoreError, WakeSet};

use crate::decode::decode;
use crate::logs::Logs;
use crate::refusals;
use crate::session::record::{AcceptedMessage, keys};
use crate::session::{Life, SessionRecord};

/// A message that was accepted, with a follower of its session's log, which wakes who waits for the turn.
#[derive(Debug)]
pub struct QueuedMessage {
    message: MessageId,
    follower: Follower,
}

/// What has become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuedFate {
    Waiting,
    /// Its turn begins with this event.
    Begun(Seq),
    /// It gets no turn any more: the session ended before.
    Dropped,
}

impl QueuedMessage {
    /// Follows first, so that a turn that begins before the first [`fate`](QueuedMessage::fate) is found by it, and one that begins
    /// later wakes.
    pub async fn follow(
        logs: &Logs,
        log: &LogId,
        message: MessageId,
        wake: &Arc<WakeSet>,
    ) -> Result<QueuedMessage, StoreError> {
        let epoch = logs.store.extent(log).await?.epoch;
        Ok(QueuedMessage { message, follower: logs.follow(log, (&epoch, Seq::FIRST), wake, 0) })
    }

    pub async fn fate(&self, logs: &Logs) -> Result<QueuedFate, Refusal> {
        if let Some(turn) = self.turn(logs).await? {
            return Ok(QueuedFate::Begun(turn));
        }
        let log = self.follower.log();
        let stored = logs.store.record(log).await.map_err(|error| refusals::of_store(&error))?;
        let record = stored.and_then(|stored| SessionRecord::decode(&stored.body).ok());
        if record.is_some_and(|record| record.life == Life::Active) {
            // Also if nothing is known of it: a store that has lost it may get it again under the same id.
            return Ok(QueuedFate::Waiting);
        }
        // Its turn may have begun, and the session ended, between the two looks.
        Ok(self.turn(logs).await?.map_or(QueuedFate::Dropped, QueuedFate::Begun))
    }

    /// The event with which its turn begins, once it has one.
    async fn turn(&self, logs: &Logs) -> Result<Option<Seq>, Refusal> {
        let (log, key) = (self.follower.log(), keys::idempotency(&self.message));
        let item = logs.store.item(log, &key).await.map_err(|error| refusals::of_store(&error))?;
        let accepted: Option<AcceptedMessage> = decode(log, &key, item)?;
        Ok(accepted.and_then(|accepted| accepted.seq).and_then(Seq::new))
    }

    pub fn follower(&self) -> &Follower {
        &self.follower
    }

    /// The follower, for who reads on from here.
    pub fn into_follower(self) -> Follower {
        self.follower
    }
}
