//! A group of frames that reach the disk together: one write, one sync, and then all of it is visible.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::sync::Arc;

use bowline_protocol::LogId;
use bytes::Bytes;

use super::frame::{Flags, HEADER_BYTES, Header, Meta, RecordHead, encode_frame};
use super::head::Head;
use super::index::Index;
use super::log::Applied;
use super::pen::Written;
use super::segment::Place;
use super::space::Space;
use crate::{Claim, Commit, Committed, Fence, Holder, Leased, Release, Retentions, StoreError};

/// The largest commit that is taken; a frame is read in one piece, so this bounds what one read may need.
pub const COMMIT_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub struct Group {
    pub buffer: Vec<u8>,
    pub events: usize,
    frames: Vec<Frame>,
    /// Logs as they will be; `None` once they are gone.
    heads: HashMap<LogId, Option<Head>>,
    /// Logs whose fence or holder changed without a frame that says so.
    leased: Vec<LogId>,
    next_lsn: u64,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Frame {
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

impl Group {
    pub fn new(next_lsn: u64) -> Group {
        Group {
            buffer: Vec::new(),
            events: 0,
            frames: Vec::new(),
            heads: HashMap::new(),
            leased: Vec::new(),
            next_lsn,
            scratch: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The log as this group will leave it.
    fn head(&mut self, log: &LogId, index: &Index) -> Result<&mut Option<Head>, StoreError> {
        match self.heads.entry(log.clone()) {
            MapEntry::Occupied(entry) => Ok(entry.into_mut()),
            MapEntry::Vacant(entry) => {
                let head = index.read(log, |log| log.sound().map(Head::of));
                Ok(entry.insert(head.transpose()?))
            }
        }
    }

    /// Numbers and encodes a commit.
    pub fn commit(&mut self, commit: &Commit, retention: &Retentions, index: &Index) -> Result<Committed, StoreError> {
        let bytes = commit.len_hint();
        if bytes > COMMIT_BYTES_MAX {
            let max = COMMIT_BYTES_MAX;
            return Err(StoreError::TooLarge { bytes, max });
        }
        commit.check_names()?;
        let lsn = self.next_lsn;
        let before = match self.head(&commit.log, index) {
            Ok(head) => {
                Head::admits(head.as_ref(), commit)?;
                head.take()
            }
            // Letting go of everything needs nothing of what is damaged.
            Err(StoreError::Quarantined(_)) if commit.release == Some(Release::Log) => {
                let head = index.read(&commit.log, Head::of);
                Head::admits(head.as_ref(), commit)?;
                head
            }
            Err(error) => return Err(error),
        };
        let (head, mut meta, committed) = Head::after(before, commit, retention, index, lsn)?;
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        let mut seq = committed.first;
        for event in &commit.events {
            let start = body.len();
            event.number_into(&mut body, &committed.epoch, seq);
            meta.events.push((body.len() - start) as u32);
            seq = seq.next();
        }
        if let Some(record) = &commit.record {
            body.extend_from_slice(&record.body);
            meta.record = Some(RecordHead {
                kind: record.kind,
                owner: record.owner.clone(),
                touched_ms: record.touched_ms,
                len: record.body.len() as u32,
            });
        }
        for item in &commit.items {
            let value = item.value.as_deref();
            body.extend_from_slice(value.unwrap_or_default());
            meta.items.push((item.key.clone(), value.map(|value| value.len() as u32)));
        }
        self.events += commit.events.len();
        self.push(meta, &body);
        self.scratch = body;
        let after = (commit.release != Some(Release::Log)).then_some(head);
        match self.heads.get_mut(&commit.log) {
            Some(head) => *head = after,
            None => drop(self.heads.insert(commit.log.clone(), after)),
        }
        Ok(committed)
    }

    /// Grants the right to write, or says who has it.
    pub fn lease(&mut self, log: &LogId, claim: &Claim, index: &Index) -> Result<Leased, StoreError> {
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

    /// Nobody holds the log any more, if this one did.
    pub fn give_back(&mut self, log: &LogId, by: &Holder, fence: Fence, index: &Index) -> Result<(), StoreError> {
        let head = self.head(log, index)?.as_mut();
        if let Some(head) = head.filter(|head| head.fence == fence && head.holder.as_ref() == Some(by)) {
            head.holder = None;
            self.leased.push(log.clone());
        }
        Ok(())
    }

    /// Writes down where a log stands, after `change` moved it.
    pub fn amend(&mut self, log: &LogId, flags: Flags, index: &Index, change: impl FnOnce(&mut Head)) {
        self.carry(log, flags, index, Copied::default(), change);
    }

    /// Carries old things of a log forward.
    pub fn carry(&mut self, log: &LogId, flags: Flags, index: &Index, copied: Copied, change: impl FnOnce(&mut Head)) {
        let lsn = self.next_lsn;
        let head = match self.heads.entry(log.clone()) {
            MapEntry::Occupied(entry) => entry.into_mut(),
            MapEntry::Vacant(entry) => entry.insert(index.read(log, Head::of)),
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
        self.push(meta, &copied.body);
    }

    fn push(&mut self, meta: Meta, body: &[u8]) {
        let start = self.buffer.len();
        let header = encode_frame(&mut self.buffer, &meta, body, self.next_lsn);
        self.frames.push(Frame { meta, header, start });
        self.next_lsn += 1;
    }

    pub fn headers(&self) -> Vec<(usize, Header)> {
        self.frames.iter().map(|frame| (frame.start, frame.header)).collect()
    }

    /// Makes everything visible, and tells where the new events are in memory.
    pub fn publish(self, written: Option<Written>, index: &Index, space: &mut Space) -> Published {
        let buffer = Bytes::from(self.buffer);
        let mut published = Published { bytes: buffer.len(), ..Published::default() };
        for frame in &self.frames {
            let Some(written) = written else { break };
            let place = Place {
                segment: written.segment,
                offset: (written.offset as usize + frame.start) as u32,
                len: frame.header.frame_len() as u32,
            };
            let body_at = frame.start + HEADER_BYTES + frame.header.meta_len as usize;
            let body = buffer.slice(body_at..body_at + frame.header.body_len as usize);
            let is_new = !frame.meta.flags.has(Flags::COPY) && !frame.meta.events.is_empty();
            let applied = Applied {
                lsn: frame.header.lsn,
                place,
                meta_len: frame.header.meta_len,
                body: Some(&body),
                hot: is_new.then(|| slices(&body, &frame.meta.events)),
            };
            index.apply(&frame.meta, applied, space);
            if is_new {
                published.hot.push((frame.meta.log.clone(), frame.meta.base));
            }
        }
        for id in &self.leased {
            if let Some(Some(head)) = self.heads.get(id) {
                index.change(id, |log| (log.fence, log.holder) = (head.fence, head.holder.clone()));
            }
        }
        published.logs.extend(self.heads.into_keys());
        published
    }
}

/// What a group changed.
#[derive(Debug, Default)]
pub struct Published {
    pub logs: Vec<LogId>,
    /// New events in memory: the log, and the first number of the frame.
    pub hot: Vec<(LogId, bowline_protocol::Seq)>,
    pub bytes: usize,
}

/// The events of a body, sharing its bytes.
pub fn slices(body: &Bytes, lens: &[u32]) -> Arc<[Bytes]> {
    let mut at = 0;
    lens.iter()
        .map(|len| {
            let start = at;
            at += *len as usize;
            body.slice(start..at)
        })
        .collect()
}
