//! One writer of one log under a lease, which goes on by itself after a commit in doubt.
//!
//! A commit whose answer was lost burns its fence: only a new lease tells what the log holds, because it shuts out
//! whatever is still under way. That is the same for every writer of a log under a lease, so it is done here.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_mutant::mutant;
use bowline_protocol::LogId;

use crate::{Claim, Commit, Committed, Fence, Leased, Store, StoreError};

/// Others may change the same log at the same time; each time one of them succeeds.
const TRIES: usize = 50;

/// Where leases come from.
#[async_trait]
pub trait Lessor: Send + Sync {
    /// The right to write to a log, if it can be had.
    async fn lease(&self, log: &LogId) -> Result<Leased, StoreError>;

    /// Lets others have a log that this writer does not need any more. Nothing where all claim it under the same name.
    async fn give_back(&self, _log: &LogId, _fence: Fence) {}
}

/// For those who share a log by taking it from each other: all claim it under the same name.
pub struct SharedLessor(pub Arc<dyn Store>);

impl fmt::Debug for SharedLessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedLessor")
    }
}

#[async_trait]
impl Lessor for SharedLessor {
    async fn lease(&self, log: &LogId) -> Result<Leased, StoreError> {
        self.0.lease(log, &Claim::alone()).await
    }
}

/// A log and the right to write to it.
#[derive(Clone)]
pub struct LeasedLog {
    store: Arc<dyn Store>,
    lessor: Arc<dyn Lessor>,
    log: LogId,
    /// None before the first lease, and after a commit in doubt or under a stale fence.
    fence: Option<Fence>,
    /// The fence of a commit in doubt, until there is a new lease.
    in_doubt: Option<Fence>,
}

/// What a [`change`](LeasedLog::change) came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is in the log now.
    Made,
    /// There was nothing to change.
    Unneeded,
}

impl LeasedLog {
    /// The lease is taken with the first commit.
    pub fn new(store: Arc<dyn Store>, lessor: Arc<dyn Lessor>, log: LogId) -> LeasedLog {
        LeasedLog { store, lessor, log, fence: None, in_doubt: None }
    }

    /// A log that this writer has just made, and that is open ([`Fence::OPEN`]) until a lease is taken: for a writer
    /// that has the store to itself. It saves the lease, which the first commit in doubt brings.
    pub fn made(store: Arc<dyn Store>, lessor: Arc<dyn Lessor>, log: LogId) -> LeasedLog {
        LeasedLog { fence: Some(Fence::OPEN), ..LeasedLog::new(store, lessor, log) }
    }

    pub fn id(&self) -> &LogId {
        &self.log
    }

    /// Takes the lease, unless it has one that may still be good. `Held` if another has it.
    pub async fn acquire(&mut self) -> Result<Fence, StoreError> {
        if let Some(fence) = self.fence {
            return Ok(fence);
        }
        let fence = self.lessor.lease(&self.log).await?.fence()?;
        self.fence = Some(fence);
        self.in_doubt = None;
        Ok(fence)
    }

    /// Commits under the lease, which is taken first if there is none. After `InDoubt` the next commit takes a new one:
    /// what the log holds until then must be looked at, or be written again to the same effect. `StaleFence` and
    /// `Held` say that another writes this log now.
    pub async fn commit(&mut self, commit: Commit) -> Result<Committed, StoreError> {
        let fence = self.acquire().await?;
        let committed = self.store.commit(Commit { fence, ..commit }).await;
        let is_over = match &committed {
            Err(StoreError::InDoubt(_)) => !mutant("keep-a-lease-in-doubt"),
            Err(StoreError::StaleFence { .. }) => !mutant("keep-a-stale-lease"),
            _ => false,
        };
        if is_over {
            self.fence = None;
            self.in_doubt = matches!(committed, Err(StoreError::InDoubt(_))).then_some(fence);
        }
        committed
    }

    /// Whether it has a lease that may still be good.
    pub fn is_leased(&self) -> bool {
        self.fence.is_some()
    }

    /// Commits under the lease that it has, and takes no other: for a writer that believes what it has read under that
    /// lease. Without one it has to look again, under a new one.
    pub async fn commit_leased(&mut self, commit: Commit) -> Result<Committed, StoreError> {
        if self.fence.is_none() {
            return Err(StoreError::Unavailable("the lease of this log is in doubt".into()));
        }
        self.commit(commit).await
    }

    /// Believes in its lease no longer; the next one shuts out what may be under way.
    pub fn reset(&mut self) {
        self.fence = None;
    }

    /// Lets others have the log. Nothing if it has no lease.
    pub async fn give_back(&mut self) {
        if let Some(fence) = self.fence.take() {
            self.lessor.give_back(&self.log, fence).await;
        }
    }

    /// Lets others have the log, also after a commit in doubt: under a new lease, which shuts out what may be under way; or if none is
    /// to be had, under the doubtful one, which the next lease voids.
    pub async fn give_back_for_good(&mut self) {
        if let Some(doubtful) = self.in_doubt.take()
            && self.acquire().await.is_err()
        {
            self.fence = Some(doubtful);
        }
        self.give_back().await;
    }

    /// Looks at the log and changes it, until it is certain that the change is made: in doubt, or when another was
    /// faster, it takes a new lease and looks again. `decide` says what there is to commit, or that there is nothing; it
    /// hears whether an earlier attempt may have been kept.
    pub async fn change<F, Deciding>(&mut self, mut decide: F) -> Result<Changed, StoreError>
    where
        F: FnMut(bool) -> Deciding,
        Deciding: Future<Output = Result<Option<Commit>, StoreError>>,
    {
        let mut doubt = None;
        for _ in 0..TRIES {
            if let Err(error) = self.acquire().await {
                // The earlier attempt may stand, which is worse than that the store is away.
                return Err(doubt.unwrap_or(error));
            }
            let decided = match decide(doubt.is_some()).await {
                Err(error @ StoreError::Unavailable(_)) => return Err(doubt.unwrap_or(error)),
                decided => decided?,
            };
            let Some(commit) = decided else {
                return Ok(if doubt.is_some() { Changed::Made } else { Changed::Unneeded });
            };
            match self.commit(commit).await {
                Ok(_) => return Ok(Changed::Made),
                Err(error @ StoreError::InDoubt(_)) => doubt = Some(error),
                Err(StoreError::StaleFence { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(doubt.unwrap_or_else(|| StoreError::Unavailable("others are changing the same log".into())))
    }
}

impl fmt::Debug for LeasedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeasedLog({}, {:?})", self.log, self.fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Retention;
    use crate::memory::MemoryStore;
    use crate::sync::{Mutex, lock};

    /// Grants one fence, if it has one left, and keeps what comes back.
    #[derive(Default)]
    struct OneFence {
        left: Mutex<Option<Fence>>,
        given_back: Mutex<Vec<Fence>>,
    }

    #[async_trait]
    impl Lessor for OneFence {
        async fn lease(&self, _log: &LogId) -> Result<Leased, StoreError> {
            lock(&self.left).take().map(Leased::Granted).ok_or(StoreError::Unavailable("away".into()))
        }

        async fn give_back(&self, _log: &LogId, fence: Fence) {
            lock(&self.given_back).push(fence);
        }
    }

    #[tokio::test]
    async fn a_log_in_doubt_is_given_back_under_a_new_lease_or_else_under_the_doubtful_one() {
        for (left, expected) in [(Some(Fence(4)), Fence(4)), (None, Fence(3))] {
            let lessor = Arc::new(OneFence { left: Mutex::new(left), ..OneFence::default() });
            let store = Arc::new(MemoryStore::new(Retention { events_max: 10, age_max_ms: u64::MAX }));
            let log = LogId::parse("log").unwrap();
            let doubtful = LeasedLog::new(store, lessor.clone(), log);
            let mut log = LeasedLog { in_doubt: Some(Fence(3)), ..doubtful };
            log.give_back_for_good().await;
            log.give_back_for_good().await;
            assert_eq!(*lock(&lessor.given_back), [expected]);
        }
    }
}
