//! A frame that is still in memory: the bytes of the group that it was written with, and where in them it begins.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::frame::{HEADER_BYTES, Header, Meta};

#[derive(Clone)]
pub struct CachedFrame {
    /// Shared by all frames of the group, and freed when the last of them is let go.
    group: Arc<Bytes>,
    at: u32,
}

impl CachedFrame {
    pub fn new(group: &Arc<Bytes>, at: usize) -> CachedFrame {
        CachedFrame { group: group.clone(), at: at as u32 }
    }

    /// Its events, sharing the group's bytes.
    pub fn events(&self) -> impl Iterator<Item = Bytes> + '_ {
        let frame = self.group.get(self.at as usize..).unwrap_or_default();
        let meta_end = HEADER_BYTES + Header::meta_len_of(frame) as usize;
        let mut at = self.at as usize + meta_end;
        let lens = Meta::event_lens(frame.get(HEADER_BYTES..meta_end).unwrap_or_default());
        lens.map_while(move |len| {
            let start = at;
            at += len as usize;
            (at <= self.group.len()).then(|| self.group.slice(start..at))
        })
    }
}

impl fmt::Debug for CachedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedFrame(at {})", self.at)
    }
}
