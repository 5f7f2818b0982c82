//! Following one log in one epoch: subscribe, look where it ends, read up to there, wait to be woken, look again.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::{Epoch, LogId, Seq};

use crate::{Batch, ReadLimit, Store, StoreError, TailGuard, WakeSet};

/// A subscription to one log for a reader that counts in one epoch.
///
/// It subscribes when it is made. Look ([`end`](Follower::end)) once after that and once after each wake-up: an event
/// between the subscription and the look is seen by one of the two. The caller waits on the [`WakeSet`], which it may
/// share between many followers. A gap shows in the [`Batch`]: it begins behind what was asked for.
pub struct Follower {
    store: Arc<dyn Store>,
    log: LogId,
    epoch: Epoch,
    _tail: TailGuard,
}

/// Why a log cannot be followed any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The reader's numbers mean something else now. It must compare its cursor with the log anew.
    #[error("the log goes on in another epoch")]
    EpochChanged,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Follower {
    pub fn new(store: &Arc<dyn Store>, log: &LogId, epoch: &Epoch, wake: &Arc<WakeSet>, token: u64) -> Follower {
        let tail = store.tail(log, wake, token);
        Follower { store: store.clone(), log: log.clone(), epoch: epoch.clone(), _tail: tail }
    }

    pub fn log(&self) -> &LogId {
        &self.log
    }

    /// The epoch that the reader counts in.
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// The reader has compared its position with this epoch, and counts in it from now on.
    pub fn enter(&mut self, epoch: &Epoch) {
        self.epoch.clone_from(epoch);
    }

    /// Where the log ends: the number that its next event will get.
    pub async fn end(&self) -> Result<Seq, FollowError> {
        let mut extent = self.store.glance(&self.log).await?;
        if extent.epoch != self.epoch {
            // What all followers share may be older than what this reader was told, so the store itself must say.
            extent = self.store.extent(&self.log).await?;
        }
        if extent.epoch == self.epoch { Ok(extent.next) } else { Err(FollowError::EpochChanged) }
    }

    pub async fn read(&self, from: Seq, limit: ReadLimit) -> Result<Batch, FollowError> {
        let mut batch = self.store.follow(&self.log, from, limit).await?;
        if batch.epoch != self.epoch {
            batch = self.store.read(&self.log, from, limit).await?;
        }
        if batch.epoch == self.epoch { Ok(batch) } else { Err(FollowError::EpochChanged) }
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Follower({} in {})", self.log, self.epoch)
    }
}
