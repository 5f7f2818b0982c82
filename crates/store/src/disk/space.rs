//! How many bytes each segment takes, and how many of those somebody can still read.

use std::collections::BTreeMap;

/// Owned by the writer thread. The numbers only decide *when* to compact; what may go is decided by looking.
#[derive(Debug, Default)]
pub struct Space {
    segments: BTreeMap<u32, SegmentSpace>,
    live: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct SegmentSpace {
    bytes: u64,
    live: u64,
}

impl Space {
    pub fn set_bytes(&mut self, segment: u32, bytes: u64) {
        self.segments.entry(segment).or_default().bytes = bytes;
    }

    pub fn add_live(&mut self, segment: u32, bytes: u64) {
        self.live += bytes;
        self.segments.entry(segment).or_default().live += bytes;
    }

    pub fn sub_live(&mut self, segment: u32, bytes: u64) {
        self.live = self.live.saturating_sub(bytes);
        if let Some(space) = self.segments.get_mut(&segment) {
            space.live = space.live.saturating_sub(bytes);
        }
    }

    pub fn remove(&mut self, segment: u32) {
        if let Some(space) = self.segments.remove(&segment) {
            self.live = self.live.saturating_sub(space.live);
        }
    }

    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|space| space.bytes).sum()
    }

    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The oldest segment, if it is time to be rid of it: nothing in it is alive, or more than half of everything is
    /// dead (and that is worth more than two segments). The newest one always stays.
    pub fn due(&self, segment_bytes: u64) -> Option<u32> {
        let (oldest, space) = self.segments.first_key_value()?;
        let wasteful = self.bytes() > 2 * self.live + 2 * segment_bytes;
        (self.segments.len() > 1 && (space.live == 0 || wasteful)).then_some(*oldest)
    }
}
