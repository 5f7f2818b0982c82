//! Something that only one may do at a time, on all nodes: a log that only one can create.
//!
//! The store may be lost on the way, and then it is not known whether this node has a lock. It tries on for as long as
//! a caller waits; what is left of it afterwards is found and let go by [`settle_locks`](Cluster::settle_locks).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_env::{clock, entropy};
use bowline_protocol::{Epoch, LogId, Refusal, Seq};
use bowline_store::{Commit, Fence, Holder, LogKind, Record, Release, Start, StoreError};

use super::{Cluster, SETTLED_AT_ONCE, unreachable};
use crate::logs;
use crate::refusals;

const TRY_EVERY: Duration = Duration::from_millis(20);
const TRIES: u32 = 500;

/// A lock that this node has, or tries to get. Dropped without a word, it is let go later.
#[derive(Debug)]
pub struct ClusterLock {
    cluster: Arc<Cluster>,
    name: LogId,
    /// Whether it may have to be let go.
    doubtful: bool,
}

impl ClusterLock {
    /// Lets it go.
    pub async fn unlock(mut self) {
        match self.cluster.let_go(&self.name).await {
            Ok(()) => self.doubtful = false,
            Err(error) => {
                tracing::warn!(name = %self.name, %error, "a lock could not be let go; this node will try again");
            }
        }
    }
}

#[async_trait]
impl logs::PlacementLock for ClusterLock {
    async fn unlock(self: Box<Self>) {
        ClusterLock::unlock(*self).await;
    }
}

impl Drop for ClusterLock {
    fn drop(&mut self) {
        let mut state = self.cluster.state();
        state.locked.remove(&self.name);
        if self.doubtful {
            state.doubted_locks.insert(self.name.clone(), None);
        }
    }
}

impl Cluster {
    /// Waits until the lock is free. A node that dies while it has a lock is noticed.
    pub(crate) async fn lock(self: &Arc<Self>, name: &LogId) -> Result<ClusterLock, Refusal> {
        for _ in 0..TRIES {
            if self.state().locked.insert(name.clone()) {
                let mut lock = ClusterLock { cluster: self.clone(), name: name.clone(), doubtful: true };
                match self.try_lock(name).await {
                    Ok(true) => return Ok(lock),
                    Ok(false) => lock.doubtful = false,
                    // It may be this node's all the same, now or in a moment.
                    Err(error) => return Err(refusals::of_store(&error)),
                }
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
        Err(unreachable())
    }

    /// Whether it is this node's now. No other task of this process may be trying.
    async fn try_lock(&self, name: &LogId) -> Result<bool, StoreError> {
        let now_ms = self.clock.now_ms();
        let mut commit = Commit::to(name.clone(), Fence::OPEN, now_ms);
        commit.create = Some(Start { epoch: Epoch::from_random(entropy::u64()), after: Seq::ZERO });
        let body = self.name.as_str().as_bytes().to_vec().into();
        commit.record = Some(Record { kind: LogKind::Restored, owner: self.owner.clone(), touched_ms: now_ms, body });
        match self.store.commit(commit).await {
            Ok(_) => return Ok(true),
            Err(StoreError::Exists) => {}
            Err(error) => return Err(error),
        }
        match self.lock_holder(name).await? {
            // What is left of an earlier one, since no other task here is trying.
            Some(holder) if holder == self.name => return Ok(true),
            Some(holder) if self.is_dead(&holder) => self.remove_lock(name).await?,
            _ => {}
        }
        Ok(false)
    }

    async fn lock_holder(&self, name: &LogId) -> Result<Option<Holder>, StoreError> {
        let record = self.store.record(name).await?;
        Ok(record.and_then(|record| Holder::parse(std::str::from_utf8(&record.body).ok()?)))
    }

    /// Removes a lock unless it is another node's by now: one that was frozen may have been taken for dead meanwhile.
    async fn let_go(&self, name: &LogId) -> Result<(), StoreError> {
        match self.lock_holder(name).await? {
            Some(holder) if holder == self.name => self.remove_lock(name).await,
            _ => Ok(()),
        }
    }

    async fn remove_lock(&self, name: &LogId) -> Result<(), StoreError> {
        let mut commit = Commit::to(name.clone(), Fence::OPEN, 0);
        commit.release = Some(Release::Log);
        match self.store.commit(commit).await {
            Ok(_) | Err(StoreError::NoSuchLog) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Lets go of locks that this node may have without knowing it. What took effect late is found too: a lock is only
    /// forgotten after it was free for as long as a lease.
    pub(crate) async fn settle_locks(&self) {
        let doubted: Vec<LogId> = self.state().doubted_locks.keys().take(SETTLED_AT_ONCE).cloned().collect();
        for name in doubted {
            if !self.state().locked.insert(name.clone()) {
                // A task here has it, and will release it.
                continue;
            }
            let settled = self.settle_lock(&name).await;
            let mut state = self.state();
            state.locked.remove(&name);
            let free_since = match &settled {
                Ok(true) => state.doubted_locks.get(&name).copied().flatten().or_else(|| Some(clock::now())),
                Ok(false) | Err(_) => None,
            };
            if free_since.is_some_and(|since| clock::since(since) >= self.ttl) {
                state.doubted_locks.remove(&name);
            } else {
                state.doubted_locks.insert(name, free_since);
            }
            if settled.is_err() {
                return;
            }
        }
    }

    /// Whether it is not this node's.
    async fn settle_lock(&self, name: &LogId) -> Result<bool, StoreError> {
        if self.lock_holder(name).await?.as_ref() != Some(&self.name) {
            return Ok(true);
        }
        self.remove_lock(name).await?;
        Ok(false)
    }
}
