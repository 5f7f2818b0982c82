//! Where everything is: all logs, in shards, so that readers of one log seldom meet the writer of another.
//!
//! Only the writer thread changes the index, by applying frames to it in the order in which they lie on disk.
//! Recovery applies the same frames in the same order, and so arrives at the same index.

use std::collections::HashMap;
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bowline_protocol::LogId;

use super::frame::{FrameFlags, Meta};
use super::log::{Applied, IndexedLog};
use super::space::Space;
use crate::Fence;

/// Enough that a reader seldom waits; few enough that walking them all is cheap.
pub const SHARDS: usize = 64;

/// Logs are boxed, since up to half of a map is empty.
type Shard = HashMap<LogId, Box<IndexedLog>>;

pub struct LogIndex {
    shards: Vec<RwLock<Shard>>,
}

impl LogIndex {
    pub fn new() -> LogIndex {
        LogIndex { shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
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
        self.shard_mut(LogIndex::shard_of(log)).get_mut(log).map(|log| change(log))
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
        before
    }
}

impl fmt::Debug for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} logs)", self.len())
    }
}
