//! Which logs were touched last, by kind and by owner, so that the first page of a list is found without walking all logs.
//!
//! It is made when it is first asked for, and kept up to date from then on. A server that lists nothing pays nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_protocol::{LogId, Principal};

use super::log::IndexedLog;
use crate::LogKind;

/// When a log was touched; of two that were touched in the same millisecond, the one written later is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TouchOrder {
    at_ms: u64,
    segment: u32,
    offset: u32,
}

/// In which lists a log stands, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedAs {
    kind: LogKind,
    owner: Principal,
    touched: TouchOrder,
}

impl ListedAs {
    /// `None` if the log has no record, or is set aside.
    pub fn of(log: &IndexedLog) -> Option<ListedAs> {
        let kept = log.sound().ok()?.record.as_ref()?;
        let record = kept.record.as_ref()?;
        let touched = TouchOrder { at_ms: record.touched_ms, segment: kept.place.segment, offset: kept.place.offset };
        Some(ListedAs { kind: record.kind, owner: record.owner.clone(), touched })
    }
}

type List = BTreeMap<TouchOrder, LogId>;

#[derive(Default)]
struct Lists {
    by_kind: HashMap<LogKind, List>,
    by_owner: HashMap<(LogKind, Principal), List>,
}

impl Lists {
    fn enter(&mut self, log: &LogId, listed: ListedAs) {
        let ListedAs { kind, owner, touched } = listed;
        self.by_kind.entry(kind).or_default().insert(touched, log.clone());
        self.by_owner.entry((kind, owner)).or_default().insert(touched, log.clone());
    }

    fn leave(&mut self, listed: ListedAs) {
        let ListedAs { kind, owner, touched } = listed;
        if let Some(list) = self.by_kind.get_mut(&kind) {
            list.remove(&touched);
        }
        let key = (kind, owner);
        if let Some(list) = self.by_owner.get_mut(&key) {
            list.remove(&touched);
            if list.is_empty() {
                self.by_owner.remove(&key);
            }
        }
    }

    fn list(&self, kind: LogKind, owner: Option<&Principal>) -> Option<&List> {
        match owner {
            Some(owner) => self.by_owner.get(&(kind, owner.clone())),
            None => self.by_kind.get(&kind),
        }
    }
}

#[derive(Default)]
pub struct Recency {
    /// Spares the writer the lock, and the comparison, as long as there are no lists.
    made: AtomicBool,
    lists: Mutex<Option<Lists>>,
}

impl Recency {
    /// Whether changes have to be [moved](Recency::moved).
    pub fn is_kept(&self) -> bool {
        self.made.load(Ordering::SeqCst)
    }

    /// A log's record changed. The log must show its new record already: lists that are being made meanwhile then have it.
    pub fn moved(&self, log: &LogId, from: Option<ListedAs>, to: Option<ListedAs>) {
        if from == to {
            return;
        }
        if let Some(lists) = self.lock().as_mut() {
            if let Some(from) = from {
                lists.leave(from);
            }
            if let Some(to) = to {
                lists.enter(log, to);
            }
        }
    }

    /// Up to `most` logs that were touched before `before`, the newest first; `all` walks all logs, for the first who asks.
    pub fn page<I>(
        &self,
        (kind, owner): (LogKind, Option<&Principal>),
        before: Option<TouchOrder>,
        most: usize,
        all: impl FnOnce() -> I,
    ) -> Vec<(TouchOrder, LogId)>
    where
        I: IntoIterator<Item = (LogId, ListedAs)>,
    {
        self.with(all, |lists| {
            let Some(list) = lists.list(kind, owner) else { return Vec::new() };
            let copy = |(touched, log): (&TouchOrder, &LogId)| (*touched, log.clone());
            match before {
                Some(before) => list.range(..before).rev().take(most).map(copy).collect(),
                None => list.iter().rev().take(most).map(copy).collect(),
            }
        })
    }

    pub fn count<I>(&self, kind: LogKind, owner: Option<&Principal>, all: impl FnOnce() -> I) -> usize
    where
        I: IntoIterator<Item = (LogId, ListedAs)>,
    {
        self.with(all, |lists| lists.list(kind, owner).map_or(0, BTreeMap::len))
    }

    fn with<I, T>(&self, all: impl FnOnce() -> I, look: impl FnOnce(&Lists) -> T) -> T
    where
        I: IntoIterator<Item = (LogId, ListedAs)>,
    {
        let mut lists = self.lock();
        let lists = lists.get_or_insert_with(|| {
            // From here on the writer waits for the lock with each change. A change that it made before this, and that
            // `all` has seen, is moved a second time, which changes nothing.
            self.made.store(true, Ordering::SeqCst);
            let mut lists = Lists::default();
            for (log, listed) in all() {
                lists.enter(&log, listed);
            }
            lists
        });
        look(lists)
    }

    /// A poisoned lock is sound here: a panic cannot happen between two steps of one change.
    fn lock(&self) -> MutexGuard<'_, Option<Lists>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recency(kept: {})", self.is_kept())
    }
}
