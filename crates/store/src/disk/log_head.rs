//! Where a log will stand once the frames that are being prepared have been written: the writer's draft of it, by which its events get their
//! numbers.

use std::collections::HashMap;

use bowline_protocol::{Epoch, LogId, Seq};

use super::frame::{FrameFlags, Meta};
use super::index::LogIndex;
use super::log::IndexedLog;
use crate::{Commit, Committed, Fence, Holder, Item, LogKind, Release, Retentions, StoreError, Trimmed};

/// The next position of one log. Nothing of it is visible before it is on disk.
#[derive(Clone, Debug)]
pub struct LogHead {
    pub epoch: Epoch,
    pub epoch_first: Seq,
    pub first: Seq,
    pub next: Seq,
    pub fence: Fence,
    pub holder: Option<Holder>,
    prev_lsn: u64,
    facts_lsn: u64,
    has_record: bool,
    /// What the record says; nothing if there is none, or if it is unreadable.
    kind: Option<LogKind>,
    items_total: u64,
    /// Keys that were put (`true`) or deleted since the index was looked at.
    keys: HashMap<String, bool>,
    /// The index's own items do not count any more.
    items_released: bool,
}

impl LogHead {
    pub fn of(log: &IndexedLog) -> LogHead {
        LogHead {
            epoch: log.epoch.clone(),
            epoch_first: log.epoch_first,
            first: log.first,
            next: log.next,
            fence: log.fence,
            holder: log.holder.clone(),
            prev_lsn: log.last_lsn,
            facts_lsn: log.facts_lsn,
            has_record: log.record.is_some(),
            kind: log.kind(),
            items_total: log.items.len() as u64,
            keys: HashMap::new(),
            items_released: false,
        }
    }

    fn new(epoch: Epoch, first: Seq, fence: Fence) -> LogHead {
        LogHead {
            epoch,
            epoch_first: first,
            first,
            next: first,
            fence,
            holder: None,
            prev_lsn: 0,
            facts_lsn: 0,
            has_record: false,
            kind: None,
            items_total: 0,
            keys: HashMap::new(),
            items_released: true,
        }
    }

    /// Whether a log that stands like this takes the commit.
    pub fn admits(before: Option<&LogHead>, commit: &Commit) -> Result<(), StoreError> {
        let last = match (&commit.create, before) {
            (Some(_), Some(_)) => return Err(StoreError::Exists),
            (None, None) => return Err(StoreError::NoSuchLog),
            (Some(start), None) => start.after,
            (None, Some(head)) if commit.fence < head.fence => {
                return Err(StoreError::StaleFence { given: commit.fence, current: head.fence });
            }
            (None, Some(head)) => head.next.prev(),
        };
        if last.until(Seq::MAX) <= commit.events.len() as u64 {
            return Err(StoreError::Io("the log has used up its numbers".into()));
        }
        Ok(())
    }

    /// The log after an admitted commit, what the frame will say (but for the lengths), and the caller's answer.
    pub fn after(
        before: Option<LogHead>,
        commit: &Commit,
        retention: &Retentions,
        index: &LogIndex,
        lsn: u64,
    ) -> Result<(LogHead, Meta, Committed), StoreError> {
        let mut head = match (&commit.create, before) {
            (Some(start), _) => LogHead::new(start.epoch.clone(), start.after.next(), commit.fence),
            (None, head) => head.ok_or(StoreError::NoSuchLog)?,
        };
        if head.fence != commit.fence {
            (head.fence, head.holder) = (commit.fence, None);
        }
        let (base, from) = (head.next, head.first);
        head.next = base.plus(commit.events.len() as u64);
        head.kind = commit.record.as_ref().map(|record| record.kind).or(head.kind);
        let events_max = retention.of(head.kind).events_max;
        let oldest = Seq::new(head.next.get().saturating_sub(events_max)).unwrap_or(head.next);
        head.first = head.first.max(oldest);
        let trimmed = (from < head.first).then(|| Trimmed { log: commit.log.clone(), from, to: head.first });
        let committed = Committed { epoch: head.epoch.clone(), first: base, next: head.next, trimmed };
        head.note_items(&commit.log, &commit.items, index);
        head.has_record |= commit.record.is_some();
        if commit.release == Some(Release::Contents) {
            head.release_contents();
        }
        let flags = FrameFlags::default()
            .with(FrameFlags::CREATE, commit.create.is_some())
            .with(FrameFlags::RELEASE_CONTENTS, commit.release == Some(Release::Contents))
            .with(FrameFlags::RELEASE_LOG, commit.release == Some(Release::Log));
        let mut meta = head.meta(&commit.log, flags);
        meta.base = base;
        meta.at_ms = commit.at_ms;
        head.written(lsn, commit.record.is_some() || !commit.items.is_empty());
        Ok((head, meta, committed))
    }

    /// A frame that says where the log stands and nothing else.
    pub fn meta(&self, log: &LogId, flags: FrameFlags) -> Meta {
        Meta {
            log: log.clone(),
            flags: flags.with(FrameFlags::HAS_RECORD, self.has_record),
            prev_lsn: self.prev_lsn,
            facts_lsn: self.facts_lsn,
            fence: self.fence.0,
            epoch: self.epoch.clone(),
            epoch_first: self.epoch_first,
            first: self.first,
            next: self.next,
            base: self.next,
            at_ms: 0,
            items_total: self.items_total,
            events: Vec::new(),
            record: None,
            items: Vec::new(),
        }
    }

    /// Its newest frame is now `lsn`.
    pub fn written(&mut self, lsn: u64, facts: bool) {
        self.prev_lsn = lsn;
        if facts {
            self.facts_lsn = lsn;
        }
    }

    fn note_items(&mut self, log: &LogId, items: &[Item], index: &LogIndex) {
        for item in items {
            let indexed = || index.read(log, |log| log.items.contains_key(item.key.as_str())) == Some(true);
            let was = match self.keys.get(&item.key) {
                Some(there) => *there,
                None => !self.items_released && indexed(),
            };
            let is = item.value.is_some();
            self.items_total = self.items_total + u64::from(is) - u64::from(was);
            self.keys.insert(item.key.clone(), is);
        }
    }

    fn release_contents(&mut self) {
        self.first = self.next;
        self.items_total = 0;
        self.keys.clear();
        self.items_released = true;
    }
}
