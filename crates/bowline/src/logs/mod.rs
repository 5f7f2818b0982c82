//! Access to logs, measured: commits, reads, and which node may write to them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_actor::{Actor, Router};
use bowline_env::{Clock, clock};
use bowline_protocol::{Epoch, LogId, Principal, Refusal, Seq};
use bowline_store::{
    Claim, Commit, Committed, Followed, Follower, Holder, Leased, LeasedLog, Lessor, ReadLimit, Store, StoreError,
    Trimmed, WakeSet,
};
use sha2::{Digest, Sha256};

use crate::metrics::Metrics;
use crate::refusals;

/// A log that another node writes just now is asked for again after this time.
const HELD_RETRY: Duration = Duration::from_millis(20);
const HELD_TRIES: usize = 50;

/// All logs of this server's store.
pub struct Logs {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    /// Which node writes what.
    pub placement: Arc<dyn Placement>,
    metrics: Arc<Metrics>,
}

impl Logs {
    pub fn new(store: Arc<dyn Store>, clock: Clock, placement: Arc<dyn Placement>, metrics: Arc<Metrics>) -> Logs {
        Logs { store, clock, placement, metrics }
    }

    pub async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.measure(self.store.commit(commit)).await
    }

    /// Commits under a lease, measured.
    pub async fn commit_leased(&self, writer: &mut LeasedLog, commit: Commit) -> Result<Committed, StoreError> {
        self.measure(writer.commit_leased(commit)).await
    }

    async fn measure(
        &self,
        commit: impl Future<Output = Result<Committed, StoreError>>,
    ) -> Result<Committed, StoreError> {
        let started = clock::now();
        let committed = commit.await;
        self.metrics.store_commit_seconds.observe(clock::since(started).as_secs_f64());
        committed.inspect_err(|error| self.metrics.store_errors.inc(error_kind(error)))
    }

    /// The one writer of a log, among all nodes.
    pub fn writer(&self, log: &LogId) -> LeasedLog {
        LeasedLog::new(self.store.clone(), self.placement.clone(), log.clone())
    }

    /// Follows a log in one epoch.
    pub fn follow(&self, log: &LogId, from: (&Epoch, Seq), wake: &Arc<WakeSet>, token: u64) -> Follower {
        Follower::new(&self.store, log, from, wake, token)
    }

    /// What follows for a reader of a log, measured.
    pub async fn next(&self, follower: &mut Follower, limit: ReadLimit) -> Result<Followed, StoreError> {
        let started = clock::now();
        let followed = follower.next(limit).await;
        if followed != Ok(Followed::Idle) {
            self.metrics.store_read_seconds.observe(clock::since(started).as_secs_f64());
        }
        followed
    }

    /// Writes once to a log that no node has in hand for long. If another one has it just now, that is waited for.
    pub async fn write_once(&self, commit: Commit) -> Result<Committed, StoreError> {
        let mut writer = self.writer(&commit.log);
        for _ in 0..HELD_TRIES {
            match writer.acquire().await {
                Err(StoreError::Held(_)) => tokio::time::sleep(HELD_RETRY).await,
                leased => {
                    leased?;
                    break;
                }
            }
        }
        writer.acquire().await?;
        let committed = self.commit_leased(&mut writer, commit).await;
        writer.give_back_for_good().await;
        committed
    }

    /// Does something that only one may do at a time, on this node and on all others.
    pub async fn alone<T>(
        &self,
        here: &tokio::sync::Mutex<()>,
        what: &str,
        work: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let _turn = here.lock().await;
        let name = LogId::parse(&format!("lock_{:032x}", digest(what))).ok_or_else(refusals::session_not_found)?;
        let lock = self.placement.lock(&name).await?;
        let done = work.await;
        if let Some(lock) = lock {
            lock.unlock().await;
        }
        done
    }

    /// Counts what retention let go of, by whether the holder had acknowledged it.
    pub fn count_trimmed(&self, trimmed: &Trimmed, acked: Seq) {
        let boundary = acked.next().max(trimmed.from).min(trimmed.to);
        self.metrics.events_trimmed.inc_by("true", trimmed.from.until(boundary));
        self.metrics.events_trimmed.inc_by("false", boundary.until(trimmed.to));
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logs")
    }
}

/// A name for a log that follows from a text.
pub fn digest(text: &str) -> u128 {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// Where a log can be written.
#[derive(Debug)]
pub enum Location {
    Here,
    There(Holder),
}

/// Which node writes what. Leases come from here too.
#[async_trait]
pub trait Placement: Lessor {
    async fn locate(&self, log: &LogId) -> Result<Location, StoreError>;

    /// Waits until no other node does what this name stands for. None where there can be no other.
    async fn lock(&self, name: &LogId) -> Result<Option<Box<dyn PlacementLock>>, Refusal>;

    /// Whether other nodes may use the same store.
    fn is_shared(&self) -> bool;

    /// Whether another node is alive that could serve what this one has.
    fn has_peers(&self) -> bool;
}

/// Something that only this node does now.
#[async_trait]
pub trait PlacementLock: Send {
    async fn unlock(self: Box<Self>);
}

/// A server that is alone with its store.
pub struct SingleNode(pub Arc<dyn Store>);

impl fmt::Debug for SingleNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SingleNode")
    }
}

#[async_trait]
impl Lessor for SingleNode {
    async fn lease(&self, log: &LogId) -> Result<Leased, StoreError> {
        self.0.lease(log, &Claim::alone()).await
    }
}

#[async_trait]
impl Placement for SingleNode {
    async fn locate(&self, _log: &LogId) -> Result<Location, StoreError> {
        Ok(Location::Here)
    }

    async fn lock(&self, _name: &LogId) -> Result<Option<Box<dyn PlacementLock>>, Refusal> {
        Ok(None)
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn has_peers(&self) -> bool {
        false
    }
}

impl<A: Actor> Router<A> for SingleNode {
    fn route(&self, _id: &A::Id, _asker: &Principal) -> Option<Holder> {
        None
    }

    fn forward(
        &self,
        _node: &Holder,
        _id: &A::Id,
        _asker: &Principal,
        command: A::Command,
    ) -> Result<(), (A::Command, A::Refusal)> {
        Err((command, A::unreachable()))
    }

    fn pass_on_work(&self, _id: &A::Id, _owner: &Principal) {}
}

fn error_kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::NoSuchLog => "no_such_log",
        StoreError::Exists => "exists",
        StoreError::StaleFence { .. } => "stale_fence",
        StoreError::Held(_) => "held",
        StoreError::Full(_) => "full",
        StoreError::ReadOnly(_) => "read_only",
        StoreError::Quarantined(_) => "quarantined",
        StoreError::TooLarge { .. } => "too_large",
        StoreError::Unavailable(_) => "unavailable",
        StoreError::InDoubt(_) => "in_doubt",
        StoreError::Closed => "closed",
        StoreError::Io(_) => "io",
    }
}
