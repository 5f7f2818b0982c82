//! The newest events in memory: which groups are held there, oldest first, and when they must go.

use std::collections::VecDeque;

use bowline_protocol::{LogId, Seq};

use super::index::Index;

/// Owned by the writer thread. The events hang in the index; a group's bytes are freed when its last event is let go.
#[derive(Debug)]
pub struct Hot {
    bytes_max: usize,
    bytes: usize,
    groups: VecDeque<(usize, Vec<(LogId, Seq)>)>,
}

impl Hot {
    pub fn new(bytes_max: usize) -> Hot {
        Hot { bytes_max, bytes: 0, groups: VecDeque::new() }
    }

    /// Takes in what a group published, and lets the oldest groups go cold if that is too much.
    pub fn push(&mut self, bytes: usize, frames: Vec<(LogId, Seq)>, index: &Index) {
        if frames.is_empty() {
            return;
        }
        self.bytes += bytes;
        self.groups.push_back((bytes, frames));
        while self.bytes > self.bytes_max
            && let Some((bytes, frames)) = self.groups.pop_front()
        {
            self.bytes -= bytes;
            for (id, base) in frames {
                index.change(&id, |log| {
                    let at = log.entry_from(base);
                    if let Some(entry) = log.entries.get_mut(at).filter(|entry| entry.base == base) {
                        entry.hot = None;
                    }
                });
            }
        }
    }
}
