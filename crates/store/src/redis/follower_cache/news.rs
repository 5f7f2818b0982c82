//! What is said of a change: by Redis, with each wake-up, and by the commits of this node themselves.

use std::sync::Arc;

use bowline_protocol::{Epoch, Extent, LogId, Seq};

use super::FollowerCache;
use crate::follow::Tails;
use crate::sync::lock;
use crate::{Commit, Committed};

/// How far a log is said to have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub epoch: Epoch,
    pub first: Seq,
    pub next: Seq,
}

impl News {
    /// As a commit says it, with its id: `ID EPOCH FIRST NEXT`.
    pub fn parse(text: &str) -> Option<(&str, News)> {
        let mut parts = text.split(' ');
        let (id, epoch) = (parts.next()?, Epoch::parse(parts.next()?)?);
        let mut seq = || parts.next()?.parse().ok().and_then(Seq::new);
        Some((id, News { epoch, first: seq()?, next: seq()? }))
    }
}

impl From<&Extent> for News {
    fn from(extent: &Extent) -> News {
        News { epoch: extent.epoch.clone(), first: extent.first, next: extent.next }
    }
}

/// A commit that is under way. Dropped without a word, it may still be done.
pub struct Expected {
    cache: Arc<FollowerCache>,
    tails: Arc<Tails>,
    id: String,
    log: LogId,
    settled: bool,
}

impl Expected {
    /// Until what is returned is dropped, what Redis announces of this commit is ignored.
    pub fn begin(cache: &Arc<FollowerCache>, tails: &Arc<Tails>, log: &LogId, id: &str) -> Expected {
        lock(&cache.own).insert(id.to_owned());
        Expected { cache: cache.clone(), tails: tails.clone(), id: id.to_owned(), log: log.clone(), settled: false }
    }

    pub fn note_done(mut self, commit: &Commit, done: &Committed) {
        self.cache.note_commit(commit, done);
        self.settled = true;
        self.tails.wake(&self.log);
    }

    /// It was refused, or its outcome is unknown. If it was done all the same, the next look finds it. No reader is woken: while Redis
    /// is away readers would only learn that they cannot read.
    pub fn note_failed(mut self) {
        self.cache.note_change(&self.log, None);
        self.settled = true;
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        lock(&self.cache.own).remove(&self.id);
        if !self.settled {
            // What Redis said of it may have been passed over.
            self.cache.note_change(&self.log, None);
            self.tails.wake(&self.log);
        }
    }
}
