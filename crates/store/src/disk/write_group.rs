//! A group of frames that reach the disk together: one write, one sync, and then all of it is visible.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::sync::Arc;

use bowline_protocol::LogId;
use bytes::Bytes;

use super::cached_frame::CachedFrame;
use super::frame::{FrameFlags, HEADER_BYTES, Header, Meta, RecordHead, encode_frame};
use super::index::LogIndex;
use super::log::Applied;
use super::log_head::LogHead;
use super::segment::FramePlace;
use super::segment_writer::WrittenAt;
use super::space::Space;
use crate::{Claim, Commit, Committed, Fence, Holder, Leased, Release, Retentions, StoreError};

/// The largest commit that is taken; a frame is read in one piece, so this bounds what one read may need.
pub const COMMIT_BYTES_MAX: usize = 64 << 20;

/// A group is made with room for what the last one held, but no more than this: it may have to wait long for its first frame.
const BYTES_EXPECTED_MAX: usize = 256 << 10;
const FRAMES_EXPECTED_MAX: usize = 1024;

#[derive(Debug, Default)]
pub struct WriteGroup {
    pub buffer: Vec<u8>,
    pub events: usize,
    frames: Vec<GroupFrame>,
    /// Logs as this group will leave them.
    heads: Arc<Heads>,
    /// Logs as the group before will leave them, while that is not in the index.
    below: Option<Arc<Heads>>,
    /// Logs whose fence or holder changed without a frame that says so.
    leased: Vec<LogId>,
    next_lsn: u64,
}

/// `None` for a log that will be gone.
type Heads = HashMap<LogId, Option<LogHead>>;

#[derive(Debug)]
struct GroupFrame {
    meta: Meta,
    header: Header,
    start: usize,
}

/// Old things that are carried forward.
#[derive(Debug, Default)]
pub struct Copied {
    pub meta_items: Vec<(String, Option<u32>)>,
    pub record: Option<RecordHead>,
    pub events: Vec<u32>,
    pub base: Option<bowline_protocol::Seq>,
    pub at_ms: u64,
    pub body: Vec<u8>,
}

impl WriteGroup {
    pub fn new(next_lsn: u64) -> WriteGroup {
        WriteGroup { next_lsn, ..WriteGroup::default() }
    }

    /// An empty group that stands on this one, which is about to be written. It will likely be as large.
    pub fn next(&self) -> WriteGroup {
        let frames = self.frames.len().min(FRAMES_EXPECTED_MAX);
        WriteGroup {
            buffer: Vec::with_capacity(self.buffer.len().min(BYTES_EXPECTED_MAX)),
            frames: Vec::with_capacity(frames),
            heads: Arc::new(Heads::with_capacity(frames)),
            below: Some(self.heads.clone()),
            ..WriteGroup::new(self.next_lsn)
        }
    }

    /// The group before is in the index.
    pub fn stand_on_the_index(&mut self) {
        self.below = None;
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The log as this group will leave it. An [`Arc`] is shared only once the group is complete, so this copies none.
    fn head(&mut self, log: &LogId, index: &LogIndex) -> Result<&mut Option<LogHead>, StoreError> {
        match Arc::make_mut(&mut self.heads).entry(log.clone()) {
            MapEntry::Occupied(entry) => Ok(entry.into_mut()),
            MapEntry::Vacant(entry) => {
                let head = match self.below.as_ref().and_then(|below| below.get(log)) {
                    Some(head) => head.clone(),
                    None => index.read(log, |log| log.sound().map(LogHead::of)).transpose()?,
                };
                Ok(entry.insert(head))
            }
        }
    }

    /// What can be said about a commit without knowing its log.
    pub fn check(commit: &Commit) -> Result<(), StoreError> {
        let (bytes, max) = (commit.len_hint(), COMMIT_BYTES_MAX);
        if bytes > max {
            return Err(StoreError::TooLarge { bytes, max });
        }
        commit.check_names()
    }

    /// Numbers and encodes a commit.
    pub fn commit(
        &mut self,
        commit: &Commit,
        retention: &Retentions,
        index: &LogIndex,
    ) -> Result<Committed, StoreError> {
        let lsn = self.next_lsn;
        let is_released = commit.release == Some(Release::Log);
        let (mut meta, committed) = match self.head(&commit.log, index) {
            Ok(slot) => {
                LogHead::admits(slot.as_ref(), commit)?;
                let (head, meta, committed) = LogHead::after(slot.take(), commit, retention, index, lsn)?;
                *slot = (!is_released).then_some(head);
                (meta, committed)
            }
            // Letting go of everything needs nothing of what is damaged.
            Err(StoreError::Quarantined(_)) if is_released => {
                let head = index.read(&commit.log, LogHead::of);
                LogHead::admits(head.as_ref(), commit)?;
                let (_, meta, committed) = LogHead::after(head, commit, retention, index, lsn)?;
                Arc::make_mut(&mut self.heads).insert(commit.log.clone(), None);
                (meta, committed)
            }
            Err(error) => return Err(error),
        };
        let numbered = || commit.events.iter().zip((0..).map(|nth| committed.first.plus(nth)));
        meta.events.extend(numbered().map(|(event, seq)| event.numbered_len(&committed.epoch, seq) as u32));
        meta.record = commit.record.as_ref().map(|record| RecordHead {
            kind: record.kind,
            owner: record.owner.clone(),
            touched_ms: record.touched_ms,
            len: record.body.len() as u32,
        });
        meta.items.extend(commit.items.iter().map(|item| {
            let len = item.value.as_ref().map(|value| value.len() as u32);
            (item.key.clone(), len)
        }));
        self.events += commit.events.len();
        self.push(meta, |out| {
            for (event, seq) in numbered() {
                event.number_into(out, &committed.epoch, seq);
            }
            out.extend_from_slice(commit.record.as_ref().map_or(&[], |record| &record.body));
            for item in &commit.items {
                out.extend_from_slice(item.value.as_deref().unwrap_or_default());
            }
        });
        Ok(committed)
    }

    /// Grants the right to write, or says who has it.
    pub fn lease(&mut self, log: &LogId, claim: &Claim, index: &LogIndex) -> Result<Leased, StoreError> {
        let head = self.head(log, index)?.as_mut().ok_or(StoreError::NoSuchLog)?;
        if let Some(holder) = head.holder.as_ref().filter(|holder| !claim.beats(Some(holder))) {
            return Ok(Leased::Held(holder.clone()));
        }
        head.fence = Fence(head.fence.0.saturating_add(1));
        head.holder = Some(claim.by.clone());
        let fence = head.fence;
        self.leased.push(log.clone());
        Ok(Leased::Granted(fence))
    }

    /// The log has no holder any more, if this one held it.
    pub fn give_back(&mut self, log: &LogId, by: &Holder, fence: Fence, index: &LogIndex) -> Result<(), StoreError> {
        let head = self.head(log, index)?.as_mut();
        if let Some(head) = head.filter(|head| head.fence == fence && head.holder.as_ref() == Some(by)) {
            head.holder = None;
            self.leased.push(log.clone());
        }
        Ok(())
    }

    /// Writes down where a log stands, after `change` moved it.
    pub fn amend(&mut self, log: &LogId, flags: FrameFlags, index: &LogIndex, change: impl FnOnce(&mut LogHead)) {
        self.carry(log, flags, index, Copied::default(), change);
    }

    /// Carries old things of a log forward.
    pub fn carry(
        &mut self,
        log: &LogId,
        flags: FrameFlags,
        index: &LogIndex,
        copied: Copied,
        change: impl FnOnce(&mut LogHead),
    ) {
        let lsn = self.next_lsn;
        let head = match Arc::make_mut(&mut self.heads).entry(log.clone()) {
            MapEntry::Occupied(entry) => entry.into_mut(),
            MapEntry::Vacant(entry) => entry.insert(index.read(log, LogHead::of)),
        };
        let Some(head) = head else { return };
        change(head);
        let mut meta = head.meta(log, flags);
        meta.base = copied.base.unwrap_or(meta.base);
        meta.at_ms = copied.at_ms;
        meta.events = copied.events;
        meta.record = copied.record;
        meta.items = copied.meta_items;
        head.written(lsn, meta.has_facts());
        self.push(meta, |out| out.extend_from_slice(&copied.body));
    }

    fn push(&mut self, meta: Meta, push_body: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        let header = encode_frame(&mut self.buffer, &meta, push_body, self.next_lsn);
        debug_assert_eq!(meta.body_len(), u64::from(header.body_len), "a body is as long as its frame says");
        self.frames.push(GroupFrame { meta, header, start });
        self.next_lsn += 1;
    }

    pub fn headers(&self) -> Vec<(usize, Header)> {
        self.frames.iter().map(|frame| (frame.start, frame.header)).collect()
    }

    /// Makes everything visible, and tells where the new events are in memory.
    pub fn publish(mut self, written: Option<WrittenAt>, index: &LogIndex, space: &mut Space) -> Published {
        // It stays in memory for a while, so it must not be much larger than what it holds.
        if self.buffer.capacity() > 2 * self.buffer.len() {
            self.buffer.shrink_to_fit();
        }
        let buffer = Arc::new(Bytes::from(self.buffer));
        let mut published = Published { bytes: buffer.len(), logs: self.heads, cached: Vec::new() };
        for frame in self.frames {
            let Some(written) = written else { break };
            let place = FramePlace {
                segment: written.segment,
                offset: (written.offset as usize + frame.start) as u32,
                len: frame.header.frame_len() as u32,
            };
            let body_at = frame.start + HEADER_BYTES + frame.header.meta_len as usize;
            let body = &buffer[body_at..body_at + frame.header.body_len as usize];
            let is_new = !frame.meta.flags.has(FrameFlags::COPY) && !frame.meta.events.is_empty();
            let applied = Applied {
                lsn: frame.header.lsn,
                place,
                meta_len: frame.header.meta_len,
                body: Some(body),
                cached: is_new.then(|| CachedFrame::new(&buffer, frame.start)),
            };
            index.apply(&frame.meta, applied, space);
            if is_new {
                published.cached.push((frame.meta.log, frame.meta.base));
            }
        }
        for id in &self.leased {
            if let Some(Some(head)) = published.logs.get(id) {
                index.change(id, |log| (log.fence, log.holder) = (head.fence, head.holder.clone()));
            }
        }
        published
    }
}

/// What a group changed.
#[derive(Debug)]
pub struct Published {
    logs: Arc<Heads>,
    /// New events in memory: the log, and the first number of the frame.
    pub cached: Vec<(LogId, bowline_protocol::Seq)>,
    pub bytes: usize,
}

impl Published {
    pub fn logs(&self) -> impl Iterator<Item = &LogId> {
        self.logs.keys()
    }
}
