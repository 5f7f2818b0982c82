//! The store without a disk: for tests, demos and throw-away servers. Loses everything when the process ends.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_protocol::{Epoch, Extent, LogId, Principal, Recorded, Seq};
use bytes::Bytes;

use crate::follow::Tails;
use crate::sync::{Mutex, lock};
use crate::{
    Batch, Claim, Commit, Committed, Directory, EventLog, Fence, Health, Holder, Leased, LogKind, ReadLimit, Record,
    Release, Retentions, StoreError, TailGuard, Trimmed, WakeSet,
};

pub struct MemoryStore {
    retention: Retentions,
    logs: Mutex<HashMap<LogId, Log>>,
    tails: Arc<Tails>,
}

struct Log {
    epoch: Epoch,
    epoch_first: Seq,
    first: Seq,
    fence: Fence,
    holder: Option<Holder>,
    /// Events `first ..`, each with its time.
    events: VecDeque<(u64, Bytes)>,
    record: Option<Record>,
    items: BTreeMap<String, Bytes>,
}

impl Log {
    fn next(&self) -> Seq {
        self.first.plus(self.events.len() as u64)
    }

    fn kind(&self) -> Option<LogKind> {
        self.record.as_ref().map(|record| record.kind)
    }

    fn extent(&self) -> Extent {
        Extent { epoch: self.epoch.clone(), epoch_first: self.epoch_first, first: self.first, next: self.next() }
    }

    /// Drops events from the front while `too_old` says so.
    fn trim(&mut self, log: &LogId, mut too_old: impl FnMut(&Log) -> bool) -> Option<Trimmed> {
        let from = self.first;
        while !self.events.is_empty() && too_old(self) {
            self.events.pop_front();
            self.first = self.first.next();
        }
        (from < self.first).then(|| Trimmed { log: log.clone(), from, to: self.first })
    }
}

impl MemoryStore {
    pub fn new(retention: impl Into<Retentions>) -> MemoryStore {
        MemoryStore { retention: retention.into(), logs: Mutex::default(), tails: Arc::default() }
    }

    fn with<T>(&self, log: &LogId, act: impl FnOnce(&Log) -> T) -> Result<T, StoreError> {
        lock(&self.logs).get(log).map(act).ok_or(StoreError::NoSuchLog)
    }

    fn apply(&self, commit: Commit) -> Result<Committed, StoreError> {
        let mut logs = lock(&self.logs);
        match (&commit.create, logs.get(&commit.log)) {
            (Some(_), Some(_)) => return Err(StoreError::Exists),
            (None, None) => return Err(StoreError::NoSuchLog),
            (None, Some(log)) if commit.fence < log.fence => {
                return Err(StoreError::StaleFence { given: commit.fence, current: log.fence });
            }
            _ => {}
        }
        if let Some(start) = commit.create {
            let first = start.after.next();
            let log = Log {
                epoch: start.epoch,
                epoch_first: first,
                first,
                fence: commit.fence,
                holder: None,
                events: VecDeque::new(),
                record: None,
                items: BTreeMap::new(),
            };
            logs.insert(commit.log.clone(), log);
        }
        let log = logs.get_mut(&commit.log).ok_or(StoreError::NoSuchLog)?;
        if log.fence != commit.fence {
            (log.fence, log.holder) = (commit.fence, None);
        }
        let first = log.next();
        for event in &commit.events {
            let bytes = event.number(&log.epoch, log.next());
            log.events.push_back((commit.at_ms, bytes));
        }
        if let Some(record) = commit.record {
            log.record = Some(record);
        }
        for item in commit.items {
            match item.value {
                Some(value) => log.items.insert(item.key, value),
                None => log.items.remove(&item.key),
            };
        }
        let events_max = self.retention.of(log.kind()).events_max;
        let trimmed = log.trim(&commit.log, |log| log.events.len() as u64 > events_max);
        let committed = Committed { epoch: log.epoch.clone(), first, next: log.next(), trimmed };
        match commit.release {
            None => {}
            Some(Release::Contents) => {
                log.items.clear();
                log.trim(&commit.log, |_| true);
            }
            Some(Release::Log) => drop(logs.remove(&commit.log)),
        }
        Ok(committed)
    }
}

#[async_trait]
impl EventLog for MemoryStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let log = commit.log.clone();
        let committed = self.apply(commit)?;
        self.tails.wake(&log);
        Ok(committed)
    }

    async fn read(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        self.with(log, |log| {
            let start = from.max(log.first);
            let skip = log.first.until(start) as usize;
            let (mut seq, mut bytes_left, mut events) = (start, limit.bytes, Vec::new());
            for (_, bytes) in log.events.iter().skip(skip).take(limit.events) {
                if !events.is_empty() && bytes.len() > bytes_left {
                    break;
                }
                bytes_left = bytes_left.saturating_sub(bytes.len());
                events.push(Recorded { seq, bytes: bytes.clone() });
                seq = seq.next();
            }
            Batch { events, epoch: log.epoch.clone(), first: log.first, next: log.next() }
        })
    }

    async fn extent(&self, log: &LogId) -> Result<Extent, StoreError> {
        self.with(log, Log::extent)
    }

    fn tail(&self, log: &LogId, wake: &Arc<WakeSet>, token: u64) -> TailGuard {
        self.tails.subscribe(log, wake, token)
    }

    async fn is_awaited(&self, log: &LogId) -> Result<bool, StoreError> {
        Ok(self.tails.has(log))
    }

    async fn close(&self) {}
}

#[async_trait]
impl Directory for MemoryStore {
    async fn record(&self, log: &LogId) -> Result<Option<Record>, StoreError> {
        Ok(lock(&self.logs).get(log).and_then(|log| log.record.clone()))
    }

    async fn item(&self, log: &LogId, key: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(lock(&self.logs).get(log).and_then(|log| log.items.get(key).cloned()))
    }

    async fn items(&self, log: &LogId, prefix: &str) -> Result<Vec<(String, Bytes)>, StoreError> {
        self.with(log, |log| {
            let from = log.items.range(prefix.to_owned()..);
            from.take_while(|(key, _)| key.starts_with(prefix))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        })
    }

    async fn items_at(&self, log: &LogId, keys: &[String]) -> Result<Vec<(String, Bytes)>, StoreError> {
        let logs = lock(&self.logs);
        let Some(log) = logs.get(log) else { return Ok(Vec::new()) };
        Ok(keys.iter().filter_map(|key| log.items.get(key).map(|value| (key.clone(), value.clone()))).collect())
    }

    async fn list(&self, kind: LogKind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError> {
        let logs = lock(&self.logs);
        let records = logs.iter().filter_map(|(id, log)| log.record.as_ref().map(|record| (id, record)));
        let wanted =
            records.filter(|(_, record)| record.kind == kind && owner.is_none_or(|owner| *owner == record.owner));
        Ok(wanted.map(|(id, record)| (id.clone(), record.clone())).collect())
    }

    async fn count(&self, kind: LogKind, owner: Option<&Principal>) -> Result<usize, StoreError> {
        let logs = lock(&self.logs);
        let records = logs.values().filter_map(|log| log.record.as_ref());
        Ok(records.filter(|record| record.kind == kind && owner.is_none_or(|owner| *owner == record.owner)).count())
    }

    async fn lease(&self, log: &LogId, claim: &Claim) -> Result<Leased, StoreError> {
        let mut logs = lock(&self.logs);
        let log = logs.get_mut(log).ok_or(StoreError::NoSuchLog)?;
        if let Some(holder) = log.holder.as_ref().filter(|holder| !claim.beats(Some(holder))) {
            return Ok(Leased::Held(holder.clone()));
        }
        log.fence = Fence(log.fence.0 + 1);
        log.holder = Some(claim.by.clone());
        Ok(Leased::Granted(log.fence))
    }

    async fn give_back(&self, log: &LogId, by: &Holder, fence: Fence) -> Result<(), StoreError> {
        let mut logs = lock(&self.logs);
        if let Some(log) = logs.get_mut(log).filter(|log| log.fence == fence && log.holder.as_ref() == Some(by)) {
            log.holder = None;
        }
        Ok(())
    }

    async fn holder(&self, log: &LogId) -> Result<Option<Holder>, StoreError> {
        Ok(lock(&self.logs).get(log).and_then(|log| log.holder.clone()))
    }

    async fn sweep(&self, now_ms: u64) -> Result<Vec<Trimmed>, StoreError> {
        let mut logs = lock(&self.logs);
        let trim = |(id, log): (&LogId, &mut Log)| {
            let oldest = now_ms.saturating_sub(self.retention.of(log.kind()).age_max_ms);
            log.trim(id, |log| log.events.front().is_some_and(|(at, _)| *at < oldest))
        };
        Ok(logs.iter_mut().filter_map(trim).collect())
    }

    fn health(&self) -> Health {
        let logs = lock(&self.logs);
        let bytes = logs.values().flat_map(|log| log.events.iter()).map(|(_, bytes)| bytes.len() as u64).sum();
        Health {
            writable: true,
            problems: Vec::new(),
            loss_window: "memory only: everything is lost when this process ends".into(),
            quarantined: Vec::new(),
            bytes,
            logs: logs.len() as u64,
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryStore({} logs)", lock(&self.logs).len())
    }
}
