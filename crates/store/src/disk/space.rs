//! How many bytes each segment takes, and how many of those can still be read.

use std::collections::BTreeMap;

/// Every restart begins a segment, and opening costs something for each. So many may be far from full.
const SEGMENTS_SPARE: u64 = 64;

/// Owned by the writer thread. The numbers only decide *when* to compact; what may go is decided by looking.
#[derive(Debug, Default)]
pub struct Space {
    segments: BTreeMap<u32, SegmentSpace>,
    bytes: u64,
    live: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct SegmentSpace {
    bytes: u64,
    live: u64,
}

impl Space {
    pub fn set_bytes(&mut self, segment: u32, bytes: u64) {
        let old = std::mem::replace(&mut self.segments.entry(segment).or_default().bytes, bytes);
        self.bytes = self.bytes - old + bytes;
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
            self.bytes -= space.bytes;
            self.live = self.live.saturating_sub(space.live);
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The oldest segment, if it is time to be rid of it: nothing in it is alive, or more than half of everything is
    /// dead (and that is worth more than two segments), or there are far more segments than it takes to hold everything.
    /// The newest one always stays.
    pub fn due(&self, segment_bytes: u64) -> Option<u32> {
        let (oldest, space) = self.segments.first_key_value()?;
        let wasteful = self.bytes > 2 * self.live + 2 * segment_bytes;
        let crowded = self.segments.len() as u64 > SEGMENTS_SPARE + 2 * (self.bytes / segment_bytes);
        (self.segments.len() > 1 && (space.live == 0 || wasteful || crowded)).then_some(*oldest)
    }
}
