//! What this process remembers of logs, to spare questions: where they are listed, and whose fence is burnt. Nothing
//! here is needed to be right.

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
    /// Before this moment a log holds nothing that is too old.
    due: Mutex<HashMap<LogId, u64>>,
    /// How many changes of servers this takes into account.
    changes: AtomicU64,
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
        let mut burnt = lock(&self.burnt);
        let known = burnt.entry(log.clone()).or_insert(fence);
        *known = fence.max(*known);
    }

    pub fn is_burnt(&self, log: &LogId, fence: Fence) -> bool {
        lock(&self.burnt).get(log).is_some_and(|burnt| fence <= *burnt)
    }

    /// A new grant shuts the burnt fence out for good.
    pub fn note_lease(&self, log: &LogId) {
        lock(&self.burnt).remove(log);
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
