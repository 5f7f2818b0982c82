//! Where everything is: all logs, in shards, so that readers of one log seldom meet the writer of another.
//!
//! Only the writer changes the index, by applying frames to it in the order in which they lie on disk.
//! Recovery applies the same frames in the same order, and so arrives at the same index.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::PoisonError;

use bowline_protocol::{LogId, Principal};

use super::frame::{FrameFlags, Meta};
use super::log::{Applied, IndexedLog};
use super::recency::{ListedAs, Recency};
use super::space::Space;
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::{Fence, LogKind};

/// Enough that a reader seldom waits; few enough that walking them all is cheap.
pub const SHARDS: usize = 64;

/// How many logs are looked up at once in the order of their last touch.
const PAGE: usize = 64;

/// Logs are boxed, since up to half of a map is empty.
type Shard = HashMap<LogId, Box<IndexedLog>>;

pub struct LogIndex {
    shards: Vec<RwLock<Shard>>,
    recency: Recency,
}

impl LogIndex {
    pub fn new() -> LogIndex {
        LogIndex { shards: (0..SHARDS).map(|_| RwLock::default()).collect(), recency: Recency::default() }
    }

    /// A checksum is enough: an attacker who chooses names that collide only makes readers wait for each other.
    fn shard_of(log: &LogId) -> usize {
        crc32fast::hash(log.as_str().as_bytes()) as usize % SHARDS
    }

    /// Looks at one log; nothing in `look` may wait.
    pub fn read<T>(&self, log: &LogId, look: impl FnOnce(&IndexedLog) -> T) -> Option<T> {
        self.shard(LogIndex::shard_of(log)).get(log).map(|log| look(log))
    }

    /// Changes one log. For the writer and recovery only.
    pub fn change<T>(&self, log: &LogId, change: impl FnOnce(&mut IndexedLog) -> T) -> Option<T> {
        let mut shard = self.shard_mut(LogIndex::shard_of(log));
        let found = shard.get_mut(log)?;
        let kept = self.recency.is_kept();
        let before = kept.then(|| ListedAs::of(found)).flatten();
        let changed = change(found);
        let after = kept.then(|| ListedAs::of(found)).flatten();
        drop(shard);
        self.recency.moved(log, before, after);
        Some(changed)
    }

    /// A sound way to hold a poisoned lock: a panic cannot happen between two steps of one change here.
    pub fn shard(&self, shard: usize) -> RwLockReadGuard<'_, Shard> {
        self.shards[shard].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_mut(&self, shard: usize) -> RwLockWriteGuard<'_, Shard> {
        self.shards[shard].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that `pick` makes something of, over all logs.
    pub fn collect<T>(&self, mut pick: impl FnMut(&LogId, &IndexedLog) -> Option<T>) -> Vec<T> {
        let mut picked = Vec::new();
        for shard in 0..SHARDS {
            let logs = self.shard(shard);
            picked.extend(logs.iter().filter_map(|(id, log)| pick(id, log)));
        }
        picked
    }

    /// Shuts out every fence below `floor`, on all logs that are there now.
    pub fn raise_fences(&self, floor: Fence) {
        for shard in 0..SHARDS {
            for log in self.shard_mut(shard).values_mut() {
                log.fence = log.fence.max(floor);
            }
        }
    }

    pub fn len(&self) -> usize {
        (0..SHARDS).map(|shard| self.shard(shard).len()).sum()
    }

    /// Makes the log what it is after this frame. Returns its newest frame before this one, if it was there.
    pub fn apply(&self, meta: &Meta, applied: Applied<'_>, space: &mut Space) -> Option<u64> {
        let mut shard = self.shard_mut(LogIndex::shard_of(&meta.log));
        // Looked at under the lock of the shard: who makes the lists says so first, and then walks the shards.
        let ends_or_begins = [FrameFlags::CREATE, FrameFlags::RELEASE_LOG, FrameFlags::QUARANTINED]
            .iter()
            .any(|flag| meta.flags.has(*flag));
        let kept = self.recency.is_kept() && (meta.record.is_some() || ends_or_begins);
        let listed = |shard: &Shard| kept.then(|| shard.get(&meta.log).and_then(|log| ListedAs::of(log))).flatten();
        let listed_before = listed(&shard);
        if meta.flags.has(FrameFlags::CREATE)
            && let Some(mut old) = shard.remove(&meta.log)
        {
            old.forget(space);
        }
        let before = match shard.get_mut(&meta.log) {
            Some(log) => {
                let last_lsn = log.last_lsn;
                log.apply(meta, applied, space);
                Some(last_lsn)
            }
            None => {
                let mut log = Box::new(IndexedLog::new(meta, applied.place, space));
                log.apply(meta, applied, space);
                shard.insert(meta.log.clone(), log);
                None
            }
        };
        if meta.flags.has(FrameFlags::RELEASE_LOG)
            && let Some(mut log) = shard.remove(&meta.log)
        {
            log.forget(space);
        }
        let listed_after = listed(&shard);
        drop(shard);
        self.recency.moved(&meta.log, listed_before, listed_after);
        before
    }

    /// Visits logs with a record of this kind, of one owner or of all, the most recently touched first, until `visit` says
    /// that it has seen enough.
    pub fn newest(
        &self,
        kind: LogKind,
        owner: Option<&Principal>,
        mut visit: impl FnMut(&LogId, &IndexedLog) -> ControlFlow<()>,
    ) {
        let mut before = None;
        loop {
            let page = self.recency.page((kind, owner), before, PAGE, || self.listed());
            let Some((last, _)) = page.last() else { return };
            before = Some(*last);
            for (_, id) in &page {
                if let Some(ControlFlow::Break(())) = self.read(id, |log| visit(id, log)) {
                    return;
                }
            }
        }
    }

    /// How many logs have a record of this kind, of one owner or of all.
    pub fn count(&self, kind: LogKind, owner: Option<&Principal>) -> usize {
        self.recency.count(kind, owner, || self.listed())
    }

    fn listed(&self) -> Vec<(LogId, ListedAs)> {
        self.collect(|id, log| Some((id.clone(), ListedAs::of(log)?)))
    }
}

impl fmt::Debug for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogIndex({} logs)", self.len())
    }
}
