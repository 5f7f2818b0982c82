//! Making room: what is still alive in the oldest segment is carried to the head of the log, then the segment goes.
//!
//! Strictly oldest first, and so a delete or a trim in the oldest segment has nothing older to kill and may be dropped.

use bowline_mutant::mutant;
use bowline_protocol::LogId;

use super::data_dir::DataDir;
use super::frame::{FrameFlags, RecordHead};
use super::index::{LogIndex, SHARDS};
use super::log::{FrameEntry, IndexedLog, ItemSlot, ItemValue};
use super::read::{FetchError, Shelf};
use super::segment::FramePlace;
use super::write_group::{Copied, WriteGroup};
use crate::Record;

/// How much is carried between two groups of commits, so that no commit waits long for it.
const STEP_BYTES: usize = 1 << 20;

/// The walk over all logs that frees one segment, in small steps.
#[derive(Debug)]
pub struct Compaction {
    pub segment: u32,
    shard: usize,
    todo: Vec<LogId>,
}

#[derive(Debug)]
pub enum CompactionStep {
    /// Everything that was alive has been put into groups.
    Done,
    More,
    /// A part could not be read; it must be judged before the walk goes on.
    Damaged(LogId, FramePlace),
    Failed(String),
}

/// What of one log lies in the segment.
struct LogInSegment {
    entries: Vec<FrameEntry>,
    first: bowline_protocol::Seq,
    record: Option<Record>,
    items: Vec<(String, ItemSlot)>,
    quarantined: bool,
    complete: bool,
}

impl Compaction {
    pub fn of(segment: u32) -> Compaction {
        Compaction { segment, shard: 0, todo: Vec::new() }
    }

    /// Fills an empty group with what is to be carried next.
    pub fn step(&mut self, index: &LogIndex, dir: &DataDir, group: &mut WriteGroup) -> CompactionStep {
        let mut shelf = Shelf::new(dir);
        loop {
            let Some(id) = self.todo.last() else {
                if self.shard == SHARDS {
                    return CompactionStep::Done;
                }
                let logs = index.shard(self.shard);
                let touched = logs.iter().filter(|(_, log)| log.touches(self.segment));
                self.todo = touched.map(|(id, _)| id.clone()).collect();
                self.shard += 1;
                continue;
            };
            let source = index.read(id, |log| LogInSegment::of(log, self.segment));
            let Some(source) = source else {
                self.todo.pop();
                continue;
            };
            let complete = source.complete;
            match source.carry(id, index, &mut shelf, group) {
                Ok(()) => {}
                Err(FetchError::Damaged(place)) => return CompactionStep::Damaged(id.clone(), place),
                Err(FetchError::Moved) => {
                    return CompactionStep::Failed(format!("segment {} is missing", self.segment));
                }
                Err(FetchError::Io(error)) => return CompactionStep::Failed(error.to_string()),
            }
            // What was left out comes with the next step, when the index knows that the rest has moved.
            if complete {
                self.todo.pop();
            }
            if !complete || group.buffer.len() >= STEP_BYTES {
                return CompactionStep::More;
            }
        }
    }
}

impl LogInSegment {
    fn of(log: &IndexedLog, segment: u32) -> LogInSegment {
        let quarantined = log.quarantined.is_some();
        let mut bytes = 0;
        let mut room = |len: u32| {
            let room = bytes < STEP_BYTES;
            bytes += len as usize;
            room
        };
        let here = |place: &FramePlace| place.segment == segment && !quarantined;
        let entries: Vec<FrameEntry> = log.entries.iter().filter(|entry| here(&entry.place)).cloned().collect();
        let items: Vec<_> = log.items.iter().filter(|(_, slot)| here(&slot.place)).collect();
        let whole = entries.len() + items.len();
        let entries: Vec<FrameEntry> = entries.into_iter().filter(|entry| room(entry.events_len)).collect();
        let items: Vec<_> = items
            .into_iter()
            .filter(|(_, slot)| room(slot.len))
            .map(|(key, slot)| (key.to_string(), ItemSlot::clone(slot)))
            .collect();
        let record = log.record.as_ref().filter(|kept| kept.place.segment == segment);
        LogInSegment {
            complete: entries.len() + items.len() == whole,
            entries,
            first: log.first,
            record: record.and_then(|kept| kept.record.clone()),
            items,
            quarantined,
        }
    }

    fn carry(
        self,
        id: &LogId,
        index: &LogIndex,
        shelf: &mut Shelf<'_>,
        group: &mut WriteGroup,
    ) -> Result<(), FetchError> {
        let flags = FrameFlags::COPY.with(FrameFlags::QUARANTINED, self.quarantined);
        // Read everything before anything is put into the group: a log is carried whole or, for now, not at all.
        let mut copies = Vec::new();
        for entry in &self.entries {
            copies.push(copy_events(entry, self.first, shelf)?);
        }
        let mut facts = Copied::default();
        if let Some(record) = self.record {
            facts.body.extend_from_slice(&record.body);
            facts.record = Some(RecordHead {
                kind: record.kind,
                owner: record.owner,
                touched_ms: record.touched_ms,
                len: record.body.len() as u32,
            });
        }
        for (key, slot) in self.items {
            if mutant("compaction-forgets-the-items") {
                continue;
            }
            match &slot.value {
                ItemValue::Inline(bytes) => facts.body.extend_from_slice(bytes),
                ItemValue::OnDisk | ItemValue::Damaged => {
                    let (_, body) = shelf.frame(slot.place)?;
                    let (at, len) = (slot.at as usize, slot.len as usize);
                    let value = body.get(at..at + len).ok_or(FetchError::Damaged(slot.place))?;
                    facts.body.extend_from_slice(value);
                }
            }
            facts.meta_items.push((key, Some(slot.len)));
        }
        if facts.record.is_some() || !facts.meta_items.is_empty() || copies.is_empty() {
            copies.push(facts);
        }
        for copied in copies {
            group.carry(id, flags, index, copied, |_| {});
        }
        Ok(())
    }
}

/// The events of one frame that are still retained.
fn copy_events(entry: &FrameEntry, first: bowline_protocol::Seq, shelf: &mut Shelf<'_>) -> Result<Copied, FetchError> {
    let (meta, body) = shelf.frame(entry.place)?;
    if (meta.base, meta.events.len()) != (entry.base, entry.count as usize) {
        return Err(FetchError::Damaged(entry.place));
    }
    let dead = entry.base.until(first) as usize;
    let skipped: usize = meta.events[..dead].iter().map(|len| *len as usize).sum();
    let events = meta.events[dead..].to_vec();
    let len: usize = events.iter().map(|len| *len as usize).sum();
    Ok(Copied {
        base: Some(entry.base.max(first)),
        at_ms: entry.at_ms,
        body: body[skipped..skipped + len].to_vec(),
        events,
        ..Copied::default()
    })
}
