//! What this process remembers of logs: where they are listed and whose fence is burnt, to spare questions; and the last
//! commit under each lease, by which it is noticed that Redis has lost one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_protocol::{LogId, Principal};

use crate::sync::{Mutex, lock};
use crate::{Fence, LogKind};

/// More than this is forgotten, all at once; finding out again costs one round trip for each.
const LOGS_MAX: usize = 200_000;

/// Where a log is listed: by kind and owner, or among those without a record.
pub type Listed = Option<(LogKind, Principal)>;

#[derive(Debug, Default)]
pub struct LocalCache {
    listed: Mutex<HashMap<LogId, Listed>>,
    burnt: Mutex<HashMap<LogId, Fence>>,
    /// The newest commit that the holder of a lease knows of. There are as many as there are leases.
    commits: Mutex<HashMap<LogId, LastCommit>>,
    /// Before this moment a log holds nothing that is too old.
    due: Mutex<HashMap<LogId, u64>>,
    /// How many changes of servers this takes into account.
    changes: AtomicU64,
}

#[derive(Debug)]
struct LastCommit {
    fence: Fence,
    /// Those of this process are counted; the one that was there before has none.
    nth: Option<u64>,
    id: String,
}

impl LocalCache {
    /// A server that has changed may have lost what was written, so what is known of it counts no more.
    pub fn note_changes(&self, changes: u64) {
        if self.changes.swap(changes, Ordering::AcqRel) != changes {
            lock(&self.listed).clear();
        }
    }

    pub fn is_listed(&self, log: &LogId, wanted: &Listed) -> bool {
        lock(&self.listed).get(log) == Some(wanted)
    }

    pub fn note_listed(&self, log: &LogId, listed: Listed) {
        put(&self.listed, log, listed);
    }

    pub fn forget(&self, log: &LogId) {
        lock(&self.listed).remove(log);
        lock(&self.due).remove(log);
    }

    /// A commit under this fence may still take effect, so nothing else may be committed under it. What is written to
    /// a log without a lease allows several writers and late commits (see [`Fence::OPEN`]), and burns nothing.
    pub fn burn(&self, log: &LogId, fence: Fence) {
        if fence == Fence::OPEN {
            return;
        }
        self.forget_commits(log);
        let mut burnt = lock(&self.burnt);
        let known = burnt.entry(log.clone()).or_insert(fence);
        *known = fence.max(*known);
    }

    pub fn is_burnt(&self, log: &LogId, fence: Fence) -> bool {
        lock(&self.burnt).get(log).is_some_and(|burnt| fence <= *burnt)
    }

    /// A new grant shuts the burnt fence out for good. `last` is the newest commit as of then.
    pub fn note_lease(&self, log: &LogId, fence: Fence, last: Option<String>) {
        lock(&self.burnt).remove(log);
        let mut commits = lock(&self.commits);
        match last.filter(|id| !id.is_empty()) {
            Some(id) => drop(commits.insert(log.clone(), LastCommit { fence, nth: None, id })),
            None => drop(commits.remove(log)),
        }
    }

    /// The newest commit that the writer under this fence knows of.
    pub fn last_commit(&self, log: &LogId, fence: Fence) -> Option<String> {
        lock(&self.commits).get(log).filter(|last| last.fence == fence).map(|last| last.id.clone())
    }

    /// A commit was done. Answers may be heard in another order than commits were made in.
    pub fn note_commit(&self, log: &LogId, fence: Fence, nth: u64, id: &str) {
        if fence == Fence::OPEN {
            return;
        }
        let mut commits = lock(&self.commits);
        if commits.get(log).is_none_or(|last| (last.fence, last.nth) < (fence, Some(nth))) {
            commits.insert(log.clone(), LastCommit { fence, nth: Some(nth), id: id.to_owned() });
        }
    }

    /// The lease is over, or has to be asked for again.
    pub fn forget_commits(&self, log: &LogId) {
        lock(&self.commits).remove(log);
    }

    pub fn is_due(&self, log: &LogId, now_ms: u64) -> bool {
        lock(&self.due).get(log).is_none_or(|due| *due <= now_ms)
    }

    pub fn note_due(&self, log: &LogId, due_ms: u64) {
        put(&self.due, log, due_ms);
    }
}

fn put<T>(map: &Mutex<HashMap<LogId, T>>, log: &LogId, value: T) {
    let mut map = lock(map);
    if map.len() >= LOGS_MAX && !map.contains_key(log) {
        map.clear();
    }
    map.insert(log.clone(), value);
}
