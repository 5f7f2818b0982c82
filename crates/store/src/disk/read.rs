//! Reading back: what is new comes from memory, the rest from the segments, checked against its checksum each time.

use std::collections::HashMap;
use std::fmt;
use std::io;

use bowline_env::files::{ReadableFile, read_start};
use bowline_protocol::{Epoch, Recorded, Seq};
use bytes::Bytes;

use super::cached_frame::CachedFrame;
use super::data_dir::DataDir;
use super::frame::{Meta, decode_frame};
use super::log::{IndexedLog, ItemSlot, ItemValue};
use super::segment::{FramePlace, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentStart, segment_path};
use crate::{Batch, ReadLimit};

/// What a read needs, decided while looking at the log and fetched without holding it.
#[derive(Debug)]
pub struct ReadPlan {
    pieces: Vec<ReadPiece>,
    from: Seq,
    limit: ReadLimit,
    epoch: Epoch,
    first: Seq,
    next: Seq,
}

#[derive(Debug)]
struct ReadPiece {
    base: Seq,
    place: FramePlace,
    cached: Option<CachedFrame>,
}

/// Why something could not be fetched.
#[derive(Debug)]
pub enum FetchError {
    /// The segment is gone: what was in it has moved, so look again.
    Moved,
    /// What stands at this place is not what was written.
    Damaged(FramePlace),
    Io(io::Error),
}

impl ReadPlan {
    pub fn new(log: &IndexedLog, from: Seq, limit: ReadLimit) -> ReadPlan {
        let from = from.max(log.first);
        let (mut events, mut bytes, mut pieces) = (0, 0, Vec::new());
        for entry in log.entries.range(log.entry_from(from)..) {
            if events >= limit.events || (events > 0 && bytes >= limit.bytes) {
                break;
            }
            let skipped = entry.base.until(from);
            events += (u64::from(entry.count) - skipped) as usize;
            // Of a frame that is entered in its middle an unknown part is skipped, so it may not end the plan.
            bytes += if skipped == 0 { entry.events_len as usize } else { 0 };
            pieces.push(ReadPiece { base: entry.base, place: entry.place, cached: entry.cached.clone() });
        }
        ReadPlan { pieces, from, limit, epoch: log.epoch.clone(), first: log.first, next: log.next }
    }

    pub fn is_cached(&self) -> bool {
        self.pieces.iter().all(|piece| piece.cached.is_some())
    }

    /// Carries it out; blocks on the disk unless everything is cached.
    pub fn fetch(self, dir: &DataDir) -> Result<Batch, FetchError> {
        let mut shelf = Shelf::new(dir);
        let mut bytes_left = self.limit.bytes;
        let mut events: Vec<Recorded> = Vec::new();
        for piece in &self.pieces {
            let skip = piece.base.until(self.from) as usize;
            let full = match &piece.cached {
                Some(cached) => self.take(piece, cached.events().enumerate().skip(skip), &mut events, &mut bytes_left),
                None => {
                    let (meta, body) = shelf.frame(piece.place)?;
                    // The frame may have been copied with fewer events than it had, so its own base counts.
                    if meta.base != piece.base {
                        return Err(FetchError::Damaged(piece.place));
                    }
                    let found = slices(&body, &meta.events).enumerate().skip(skip);
                    self.take(piece, found, &mut events, &mut bytes_left)
                }
            };
            if full {
                break;
            }
        }
        Ok(Batch { events, epoch: self.epoch, first: self.first, next: self.next })
    }

    /// Takes events of one piece until the limit is reached, and says whether it is.
    fn take(
        &self,
        piece: &ReadPiece,
        found: impl Iterator<Item = (usize, Bytes)>,
        events: &mut Vec<Recorded>,
        bytes_left: &mut usize,
    ) -> bool {
        for (at, bytes) in found {
            if events.len() >= self.limit.events || (!events.is_empty() && bytes.len() > *bytes_left) {
                return true;
            }
            *bytes_left = bytes_left.saturating_sub(bytes.len());
            // A copy where a part of a frame would hold all of it in memory.
            let is_part = piece.cached.is_none() && *bytes_left < piece.place.len as usize;
            let bytes = if is_part { Bytes::copy_from_slice(&bytes) } else { bytes };
            events.push(Recorded { seq: piece.base.plus(at as u64), bytes });
        }
        false
    }
}

/// The events of a body, sharing its bytes.
fn slices(body: &Bytes, lens: &[u32]) -> impl Iterator<Item = Bytes> {
    let mut at = 0;
    lens.iter().map(move |len| {
        let start = at;
        at += *len as usize;
        body.slice(start..at)
    })
}

/// Items to fetch: their keys, and where their values are.
#[derive(Debug)]
pub struct ItemPlan(Vec<(String, FramePlace, usize, usize, ItemValue)>);

impl ItemPlan {
    pub fn new<'a>(slots: impl Iterator<Item = (&'a Box<str>, &'a Box<ItemSlot>)>) -> ItemPlan {
        ItemPlan(
            slots
                .map(|(key, slot)| {
                    let (at, len) = (slot.at as usize, slot.len as usize);
                    (key.to_string(), slot.place, at, len, slot.value.clone())
                })
                .collect(),
        )
    }

    pub fn is_inline(&self) -> bool {
        self.0.iter().all(|(.., value)| matches!(value, ItemValue::Inline(_)))
    }

    pub fn fetch(self, dir: &DataDir) -> Result<Vec<(String, Bytes)>, FetchError> {
        let mut shelf = Shelf::new(dir);
        let mut last: Option<(FramePlace, Bytes)> = None;
        let fetched = self.0.into_iter().map(|(key, place, at, len, value)| {
            if let ItemValue::Inline(bytes) = value {
                return Ok((key, bytes));
            }
            let body = match &last {
                Some((at, body)) if *at == place => body.clone(),
                _ => shelf.frame(place)?.1,
            };
            last = Some((place, body.clone()));
            let found = body.get(at..at + len).ok_or(FetchError::Damaged(place))?;
            // A copy, so that a small value does not hold a large frame in memory.
            Ok((key, Bytes::copy_from_slice(found)))
        });
        fetched.collect()
    }
}

/// Segments opened for one read.
pub struct Shelf<'a> {
    dir: &'a DataDir,
    /// With the salt of each.
    open: HashMap<u32, (Box<dyn ReadableFile>, u32)>,
}

impl<'a> Shelf<'a> {
    pub fn new(dir: &'a DataDir) -> Shelf<'a> {
        let open = HashMap::new();
        Shelf { dir, open }
    }

    /// The frame at `place`, whole and checked.
    pub fn frame(&mut self, place: FramePlace) -> Result<(Meta, Bytes), FetchError> {
        if !self.open.contains_key(&place.segment) {
            let mut start = Vec::new();
            let opened = self.dir.files.open_to_read(&segment_path(&self.dir.path, place.segment));
            let opened = opened.and_then(|file| {
                read_start(&*file, SEGMENT_HEADER_BYTES, &mut start)?;
                Ok(file)
            });
            let file = opened.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => FetchError::Moved,
                _ => FetchError::Io(error),
            })?;
            let SegmentStart::Ours(header) = SegmentHeader::decode(&start) else {
                return Err(FetchError::Damaged(place));
            };
            self.open.insert(place.segment, (file, header.salt));
        }
        let Some((file, salt)) = self.open.get(&place.segment) else {
            return Err(FetchError::Moved);
        };
        let mut bytes = vec![0; place.len as usize];
        file.read_exact_at(&mut bytes, u64::from(place.offset)).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => FetchError::Damaged(place),
            _ => FetchError::Io(error),
        })?;
        let bytes = Bytes::from(bytes);
        let (meta, body) = decode_frame(&bytes, *salt).ok_or(FetchError::Damaged(place))?;
        let body = bytes.slice_ref(body);
        Ok((meta, body))
    }
}

impl fmt::Debug for Shelf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shelf({} segments)", self.open.len())
    }
}
