//! A real store with a shutter before it: what a test says is refused, or waits until the test lets it go.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bowline_protocol::{Extent, LogId, Principal, Seq};
use bowline_store::memory::MemoryStore;
use bowline_store::{
    Batch, Claim, Commit, Committed, Directory, EventLog, Fence, Health, Holder, Leased, LogKind, ReadLimit, Record,
    Retention, StoreError, TailGuard, Trimmed, WakeSet,
};
use bytes::Bytes;
use tokio::sync::watch;

use super::until;

/// What is asked of the store.
pub enum Act<'a> {
    Commit(&'a Commit),
    Read,
    Lease(&'a LogId),
}

/// What becomes of it.
pub enum Verdict {
    Pass,
    Refuse(StoreError),
    /// It waits until the shutter is open.
    Hold,
}

type Rule = Box<dyn Fn(&Act<'_>) -> Verdict + Send + Sync>;

pub struct Shutter {
    behind: MemoryStore,
    rule: Mutex<Option<Rule>>,
    /// How many acts did not pass. It changes when the shutter opens, too.
    caught: watch::Sender<usize>,
}

impl Shutter {
    pub fn new() -> Arc<Shutter> {
        let behind = MemoryStore::new(Retention { events_max: 100_000, age_max_ms: u64::MAX });
        Arc::new(Shutter { behind, rule: Mutex::default(), caught: watch::Sender::new(0) })
    }

    pub fn shut(&self, rule: impl Fn(&Act<'_>) -> Verdict + Send + Sync + 'static) {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(rule));
    }

    /// Refuses every commit to this log.
    pub fn shut_commits(&self, log: &str, error: StoreError) {
        let log = log.to_owned();
        self.shut(move |act| match act {
            Act::Commit(commit) if commit.log.as_str() == log => Verdict::Refuse(error.clone()),
            _ => Verdict::Pass,
        });
    }

    pub fn open(&self) {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.caught.send_modify(|_| ());
    }

    pub fn caught(&self) -> usize {
        *self.caught.borrow()
    }

    /// Waits until something did not pass.
    pub async fn has_caught(&self) {
        until("the store did not do something", || self.caught() > 0).await;
    }

    async fn ask(&self, act: Act<'_>) -> Result<(), StoreError> {
        let (mut changes, mut counted) = (self.caught.subscribe(), false);
        loop {
            let verdict = {
                let rule = self.rule.lock().unwrap_or_else(PoisonError::into_inner);
                rule.as_ref().map_or(Verdict::Pass, |rule| rule(&act))
            };
            if !counted && !matches!(verdict, Verdict::Pass) {
                counted = true;
                self.caught.send_modify(|count| *count += 1);
                changes.mark_unchanged();
            }
            match verdict {
                Verdict::Pass => return Ok(()),
                Verdict::Refuse(error) => return Err(error),
                Verdict::Hold => drop(changes.changed().await),
            }
        }
    }
}

#[async_trait]
impl EventLog for Shutter {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.ask(Act::Commit(&commit)).await?;
        self.behind.commit(commit).await
    }

    async fn read(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        self.ask(Act::Read).await?;
        self.behind.read(log, from, limit).await
    }

    async fn extent(&self, log: &LogId) -> Result<Extent, StoreError> {
        self.behind.extent(log).await
    }

    fn tail(&self, log: &LogId, wake: &Arc<WakeSet>, token: u64) -> TailGuard {
        self.behind.tail(log, wake, token)
    }

    async fn is_awaited(&self, log: &LogId) -> Result<bool, StoreError> {
        self.behind.is_awaited(log).await
    }

    async fn close(&self) {
        self.behind.close().await;
    }
}

#[async_trait]
impl Directory for Shutter {
    async fn record(&self, log: &LogId) -> Result<Option<Record>, StoreError> {
        self.behind.record(log).await
    }

    async fn item(&self, log: &LogId, key: &str) -> Result<Option<Bytes>, StoreError> {
        self.behind.item(log, key).await
    }

    async fn items(&self, log: &LogId, prefix: &str) -> Result<Vec<(String, Bytes)>, StoreError> {
        self.behind.items(log, prefix).await
    }

    async fn items_at(&self, log: &LogId, keys: &[String]) -> Result<Vec<(String, Bytes)>, StoreError> {
        self.behind.items_at(log, keys).await
    }

    async fn list(&self, kind: LogKind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError> {
        self.behind.list(kind, owner).await
    }

    async fn count(&self, kind: LogKind, owner: Option<&Principal>) -> Result<usize, StoreError> {
        self.behind.count(kind, owner).await
    }

    async fn lease(&self, log: &LogId, claim: &Claim) -> Result<Leased, StoreError> {
        self.ask(Act::Lease(log)).await?;
        self.behind.lease(log, claim).await
    }

    async fn give_back(&self, log: &LogId, by: &Holder, fence: Fence) -> Result<(), StoreError> {
        self.behind.give_back(log, by, fence).await
    }

    async fn holder(&self, log: &LogId) -> Result<Option<Holder>, StoreError> {
        self.behind.holder(log).await
    }

    async fn sweep(&self, now_ms: u64) -> Result<Vec<Trimmed>, StoreError> {
        self.behind.sweep(now_ms).await
    }

    fn health(&self) -> Health {
        self.behind.health()
    }
}
