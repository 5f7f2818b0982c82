//! Something that only one may do at a time, on all nodes: a log that only one can create.

use std::time::Duration;

use bowline_protocol::{Epoch, LogId, Refusal, Seq};
use bowline_store::{Commit, Fence, Holder, Kind, Record, Release, Start, StoreError};

use super::{Cluster, unreachable};
use crate::{dice, node};

const TRY_EVERY: Duration = Duration::from_millis(20);
const TRIES: u32 = 500;

impl Cluster {
    /// Waits until nobody else is at it. Must be followed by [`unlock`](Cluster::unlock); a node that dies in between is
    /// noticed.
    pub(crate) async fn lock(&self, name: &LogId) -> Result<(), Refusal> {
        let refuse = |error: StoreError| node::store_refusal(&error);
        for _ in 0..TRIES {
            let now_ms = self.clock.now_ms();
            let mut commit = Commit::to(name.clone(), Fence::default(), now_ms);
            commit.create = Some(Start { epoch: Epoch::from_random(dice::u64()), after: Seq::ZERO });
            let body = self.name.as_str().as_bytes().to_vec().into();
            commit.record = Some(Record { kind: Kind::Restored, owner: self.owner.clone(), touched_ms: now_ms, body });
            match self.store.commit(commit).await {
                Ok(_) => return Ok(()),
                Err(StoreError::Exists) => {}
                Err(error) => return Err(refuse(error)),
            }
            let held = self.store.record(name).await.map_err(refuse)?;
            let by = held.and_then(|record| Holder::parse(std::str::from_utf8(&record.body).ok()?));
            if by.is_some_and(|by| self.is_dead(&by)) {
                self.unlock(name).await;
            } else {
                tokio::time::sleep(TRY_EVERY).await;
            }
        }
        Err(unreachable())
    }

    pub(crate) async fn unlock(&self, name: &LogId) {
        let mut commit = Commit::to(name.clone(), Fence::default(), 0);
        commit.release = Some(Release::Log);
        if let Err(error) = self.store.commit(commit).await {
            // It goes with the marks of its kind, or with this node.
            tracing::warn!(%name, %error, "a lock could not be let go");
        }
    }
}
