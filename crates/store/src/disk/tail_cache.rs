//! The newest events in memory: which groups are held there, oldest first, and when they must go.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bowline_env::clock;
use bowline_protocol::{LogId, Seq};

use super::index::LogIndex;

/// Who follows a log reads its newest events at once, and who comes back soon finds them here. After that they cost more
/// memory than the reads that they spare.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// What a frame and an event of it cost here beside their bytes, about.
const FRAME_OVERHEAD: usize = 128;

/// Owned by the writer thread. The events hang in the index; a group's bytes are freed when its last event is let go.
#[derive(Debug)]
pub struct TailCache {
    bytes_max: usize,
    bytes: usize,
    groups: VecDeque<CachedGroup>,
}

#[derive(Debug)]
struct CachedGroup {
    since: Instant,
    bytes: usize,
    frames: Vec<(LogId, Seq)>,
}

impl TailCache {
    pub fn new(bytes_max: usize) -> TailCache {
        TailCache { bytes_max, bytes: 0, groups: VecDeque::new() }
    }

    /// Takes in what a group published, and lets the oldest groups go if that is too much.
    pub fn push(&mut self, bytes: usize, frames: Vec<(LogId, Seq)>, index: &LogIndex) {
        if frames.is_empty() {
            return;
        }
        let bytes = bytes + frames.len() * FRAME_OVERHEAD;
        self.bytes += bytes;
        self.groups.push_back(CachedGroup { since: clock::now(), bytes, frames });
        while self.bytes > self.bytes_max && self.evict_one(index) {}
    }

    /// Lets go of what has been here for long.
    pub fn evict_old(&mut self, index: &LogIndex) {
        while self.groups.front().is_some_and(|group| clock::since(group.since) >= KEPT_FOR) {
            self.evict_one(index);
        }
        if self.groups.is_empty() {
            self.groups.shrink_to_fit();
        }
    }

    fn evict_one(&mut self, index: &LogIndex) -> bool {
        let Some(CachedGroup { bytes, frames, .. }) = self.groups.pop_front() else { return false };
        self.bytes -= bytes;
        for (id, base) in frames {
            index.change(&id, |log| {
                let at = log.entry_from(base);
                if let Some(entry) = log.entries.get_mut(at).filter(|entry| entry.base == base) {
                    entry.cached = None;
                }
            });
        }
        true
    }
}
