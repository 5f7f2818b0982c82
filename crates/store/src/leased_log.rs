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
        LeasedLog { store, lessor, log, fence: None }
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
