//! One log as the index knows it: where it stands, its record, and where its events and items lie on disk.

use std::collections::{BTreeMap, VecDeque};

use bowline_protocol::{Epoch, Extent, Seq};
use bytes::Bytes;

use super::cached_frame::CachedFrame;
use super::frame::{FrameFlags, HEADER_BYTES, Meta, RecordHead};
use super::segment::FramePlace;
use super::space::Space;
use crate::{Fence, Holder, LogKind, Record, StoreError};

/// Values up to this size are kept in memory: a mark or a key costs less there than a read.
const INLINE_BYTES_MAX: usize = 64;

/// About what a frame takes on disk beside names and content. These weights must not be much too low: if what is alive
/// seemed less than half of what it takes on disk, compaction would never end.
const OVERHEAD_BYTES: u64 = 96;

#[derive(Debug)]
pub struct IndexedLog {
    pub epoch: Epoch,
    pub epoch_first: Seq,
    pub first: Seq,
    pub next: Seq,
    pub fence: Fence,
    /// Who was granted that fence, in this life of the process.
    pub holder: Option<Holder>,
    /// This log's newest frame, and the segment that it lies in.
    pub last_lsn: u64,
    pub anchor: u32,
    /// The newest frame that held the record or items.
    pub facts_lsn: u64,
    pub record: Option<StoredRecord>,
    /// Boxed, since a map has room for eleven of them as soon as it has one, and most logs have few.
    pub items: BTreeMap<Box<str>, Box<ItemSlot>>,
    /// Frames with retained events, in the order of their numbers.
    pub entries: VecDeque<FrameEntry>,
    /// Why it was set aside.
    pub quarantined: Option<Box<str>>,
    /// What the newest frame says there should be; recovery compares.
    pub items_stated: u64,
    pub record_stated: bool,
    /// What its position takes on disk.
    weight: u16,
}

/// The record, in memory, and where it lies on disk.
#[derive(Debug)]
pub struct StoredRecord {
    /// `None` if it was unreadable there.
    pub record: Option<Record>,
    pub place: FramePlace,
}

/// Where an item's value lies: in the body of the frame at `place`.
#[derive(Clone, Debug)]
pub struct ItemSlot {
    pub place: FramePlace,
    pub at: u32,
    pub len: u32,
    pub value: ItemValue,
}

#[derive(Clone, Debug)]
pub enum ItemValue {
    Inline(Bytes),
    OnDisk,
    Damaged,
}

/// Events `base .. base + count`, in one frame.
#[derive(Clone, Debug)]
pub struct FrameEntry {
    pub base: Seq,
    pub at_ms: u64,
    pub place: FramePlace,
    pub count: u32,
    pub events_len: u32,
    /// What the frame says about them.
    pub meta_len: u32,
    /// The events themselves, while they are new.
    pub cached: Option<CachedFrame>,
}

/// A frame as it meets the index.
#[derive(Clone, Debug)]
pub struct Applied<'a> {
    pub lsn: u64,
    pub place: FramePlace,
    pub meta_len: u32,
    /// `None` if it is unreadable.
    pub body: Option<&'a [u8]>,
    pub cached: Option<CachedFrame>,
}

impl FrameEntry {
    pub fn end(&self) -> Seq {
        self.base.plus(u64::from(self.count))
    }

    fn weight(&self) -> u64 {
        u64::from(self.events_len) + u64::from(self.meta_len) + HEADER_BYTES as u64
    }
}

impl IndexedLog {
    pub fn new(meta: &Meta, place: FramePlace, space: &mut Space) -> IndexedLog {
        let weight = (meta.log.as_str().len() + meta.epoch.as_str().len()) as u16 + OVERHEAD_BYTES as u16;
        space.add_live(place.segment, u64::from(weight));
        IndexedLog {
            epoch: meta.epoch.clone(),
            epoch_first: meta.epoch_first,
            first: meta.first,
            next: meta.next,
            fence: Fence(meta.fence),
            holder: None,
            last_lsn: 0,
            anchor: place.segment,
            facts_lsn: meta.facts_lsn,
            record: None,
            items: BTreeMap::new(),
            entries: VecDeque::new(),
            quarantined: None,
            items_stated: 0,
            record_stated: false,
            weight,
        }
    }

    pub fn kind(&self) -> Option<LogKind> {
        self.record.as_ref()?.record.as_ref().map(|record| record.kind)
    }

    pub fn extent(&self) -> Extent {
        Extent { epoch: self.epoch.clone(), epoch_first: self.epoch_first, first: self.first, next: self.next }
    }

    /// Refuses what would rest on damaged ground.
    pub fn sound(&self) -> Result<&IndexedLog, StoreError> {
        match &self.quarantined {
            None => Ok(self),
            Some(why) => Err(StoreError::Quarantined(why.to_string())),
        }
    }

    pub fn apply(&mut self, meta: &Meta, applied: Applied<'_>, space: &mut Space) {
        let Applied { lsn, place, meta_len, body, cached } = applied;
        if self.anchor != place.segment {
            space.sub_live(self.anchor, u64::from(self.weight));
            space.add_live(place.segment, u64::from(self.weight));
            self.anchor = place.segment;
        }
        if self.epoch != meta.epoch {
            // Frames in between are lost, and with them the end of the life that the events here belong to.
            if meta.prev_lsn != self.last_lsn && !meta.flags.has(FrameFlags::EPOCH) {
                self.trim_to(self.next, space);
            }
            self.epoch = meta.epoch.clone();
        }
        self.last_lsn = lsn;
        self.epoch_first = meta.epoch_first;
        self.next = meta.next;
        if self.fence != Fence(meta.fence) {
            (self.fence, self.holder) = (Fence(meta.fence), None);
        }
        self.items_stated = meta.items_total;
        self.record_stated = meta.flags.has(FrameFlags::HAS_RECORD);
        if meta.has_facts() {
            self.facts_lsn = lsn;
        }
        if !meta.events.is_empty() && body.is_some() {
            let entry = FrameEntry {
                base: meta.base,
                at_ms: meta.at_ms,
                place,
                count: meta.events.len() as u32,
                events_len: meta.events_len() as u32,
                meta_len,
                cached,
            };
            self.insert(entry, space);
        }
        if let Some(head) = &meta.record {
            self.keep_record(head, body.and_then(|body| body.get(meta.record_at()..)), place, space);
        }
        for (key, span) in meta.item_spans() {
            self.keep_item(key, span, body, place, space);
        }
        self.trim_to(meta.first, space);
        if meta.flags.has(FrameFlags::RELEASE_CONTENTS) {
            self.drop_items(space);
        }
        if meta.flags.has(FrameFlags::QUARANTINED) {
            self.drop_items(space);
            self.trim_to(meta.next, space);
            if self.record.as_ref().is_some_and(|kept| kept.record.is_none()) {
                self.drop_record(space);
            }
            self.quarantined.get_or_insert_with(|| "a part of it was unreadable".into());
        }
    }

    /// Puts an entry in its place. A copy replaces what it was copied from.
    fn insert(&mut self, mut entry: FrameEntry, space: &mut Space) {
        space.add_live(entry.place.segment, entry.weight());
        if self.entries.back().is_none_or(|last| last.end() <= entry.base) {
            self.entries.push_back(entry);
            return;
        }
        let at = self.entries.partition_point(|old| old.end() <= entry.base);
        while self.entries.get(at).is_some_and(|old| old.base < entry.end()) {
            if let Some(old) = self.entries.remove(at) {
                space.sub_live(old.place.segment, old.weight());
                if (old.base, old.count) == (entry.base, entry.count) {
                    entry.cached = entry.cached.or(old.cached);
                }
            }
        }
        self.entries.insert(at, entry);
    }

    fn keep_record(&mut self, head: &RecordHead, bytes: Option<&[u8]>, place: FramePlace, space: &mut Space) {
        self.drop_record(space);
        space.add_live(place.segment, u64::from(head.len) + OVERHEAD_BYTES);
        let body = bytes.and_then(|bytes| bytes.get(..head.len as usize));
        self.record = Some(StoredRecord {
            record: body.map(|body| Record {
                kind: head.kind,
                owner: head.owner.clone(),
                touched_ms: head.touched_ms,
                body: Bytes::copy_from_slice(body),
            }),
            place: FramePlace { len: head.len, ..place },
        });
    }

    fn keep_item(
        &mut self,
        key: &str,
        span: Option<(usize, usize)>,
        body: Option<&[u8]>,
        place: FramePlace,
        space: &mut Space,
    ) {
        let Some((at, len)) = span else {
            if let Some(old) = self.items.remove(key) {
                space.sub_live(old.place.segment, item_weight(key, old.len));
            }
            return;
        };
        let value = match body.map(|body| body.get(at..at + len)) {
            Some(Some(bytes)) if len <= INLINE_BYTES_MAX => ItemValue::Inline(Bytes::copy_from_slice(bytes)),
            Some(Some(_)) => ItemValue::OnDisk,
            Some(None) | None => ItemValue::Damaged,
        };
        space.add_live(place.segment, item_weight(key, len as u32));
        let slot = ItemSlot { place, at: at as u32, len: len as u32, value };
        match self.items.get_mut(key) {
            // The same few keys are written with every commit of a busy log.
            Some(kept) => {
                let old = std::mem::replace(&mut **kept, slot);
                space.sub_live(old.place.segment, item_weight(key, old.len));
            }
            None => drop(self.items.insert(key.into(), Box::new(slot))),
        }
    }

    /// Lets go of events before `first`.
    pub fn trim_to(&mut self, first: Seq, space: &mut Space) {
        self.first = first;
        while self.entries.front().is_some_and(|entry| entry.end() <= first) {
            if let Some(entry) = self.entries.pop_front() {
                space.sub_live(entry.place.segment, entry.weight());
            }
        }
        // A burst must not keep its room for ever in a log that then falls silent.
        if self.entries.capacity() > 64 && self.entries.capacity() > 4 * self.entries.len() {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }

    fn drop_items(&mut self, space: &mut Space) {
        for (key, slot) in std::mem::take(&mut self.items) {
            space.sub_live(slot.place.segment, item_weight(&key, slot.len));
        }
    }

    fn drop_record(&mut self, space: &mut Space) {
        if let Some(old) = self.record.take() {
            space.sub_live(old.place.segment, u64::from(old.place.len) + OVERHEAD_BYTES);
        }
    }

    /// Gives back the space of everything; the log itself is about to go.
    pub fn forget(&mut self, space: &mut Space) {
        self.drop_items(space);
        self.drop_record(space);
        self.trim_to(self.next, space);
        space.sub_live(self.anchor, u64::from(self.weight));
    }

    /// Whether anything of this log would go with the segment.
    pub fn touches(&self, segment: u32) -> bool {
        self.anchor == segment
            || self.record.as_ref().is_some_and(|kept| kept.place.segment == segment)
            || self.items.values().any(|slot| slot.place.segment == segment)
            || self.entries.iter().any(|entry| entry.place.segment == segment)
    }

    /// The entry that holds `seq`, or the first one after it.
    pub fn entry_from(&self, seq: Seq) -> usize {
        self.entries.partition_point(|entry| entry.end() <= seq)
    }

    /// Where the unbroken run of events up to the end begins.
    pub fn unbroken_from(&self) -> Seq {
        let mut from = self.next;
        for entry in self.entries.iter().rev() {
            if entry.end() != from {
                break;
            }
            from = entry.base;
        }
        from.max(self.first)
    }

    /// Whether a record or an item that is still wanted could not be read, or is not there at all.
    pub fn lacks_facts(&self) -> bool {
        self.record.is_some() != self.record_stated
            || self.record.as_ref().is_some_and(|kept| kept.record.is_none())
            || self.items.len() as u64 != self.items_stated
            || self.items.values().any(|slot| matches!(slot.value, ItemValue::Damaged))
    }
}

fn item_weight(key: &str, len: u32) -> u64 {
    key.len() as u64 + u64::from(len) + OVERHEAD_BYTES / 4
}
