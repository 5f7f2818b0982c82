//! The one writer: it takes what is queued, writes it in one piece, syncs, and only then shows and answers. It has a thread of
//! its own; where no sync is waited for, a caller may write on its own thread while that one sleeps.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_env::clock;
use bowline_mutant::mutant;
use bowline_protocol::LogId;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::commit_queue::{CommitQueue, GroupWaiter, TakenGroup, WriterCommand, WriterWork};
use super::compact::{Compaction, CompactionStep};
use super::data_dir::DataDir;
use super::frame::FrameFlags;
use super::pace::Pace;
use super::read::{FetchError, Shelf};
use super::segment::{FramePlace, segment_path};
use super::segment_writer::{SegmentWriter, WrittenAt};
use super::shared::DiskShared;
use super::space::Space;
use super::state::{State, Witness};
use super::tail_cache::TailCache;
use super::write_group::WriteGroup;
use crate::sync::Mutex;
use crate::{Retentions, StoreError, Trimmed};

/// How long compaction rests after it met an obstacle. Room is short then, but trying again at once does not help.
const REST: Duration = Duration::from_secs(2);

/// So many answers are better given from within the runtime: waking a task from outside takes a lock that all of its
/// threads share, and may wake a thread each time.
const RELAY_MIN: usize = 8;

/// A larger group is left to the writer's own thread.
const HERE_BYTES_MAX: usize = 64 << 10;

pub struct Writer {
    pub queue: Arc<CommitQueue>,
    pub shared: Arc<DiskShared>,
    pub segment_writer: SegmentWriter,
    pub space: Space,
    /// Where those who wait are likely to run; it runs by itself.
    pub runtime: Option<Handle>,
    pub tail_cache: TailCache,
    pub pace: Pace,
    pub state: State,
    /// Interval mode only.
    pub witness: Option<Witness>,
    pub ticks: Option<mpsc::UnboundedSender<()>>,
    pub retention: Retentions,
    pub segment_bytes: u64,
    pub compaction: Option<Compaction>,
    /// Compaction met an obstacle, and is tried again then.
    pub resting_until: Option<Instant>,
}

/// Answers that are given at the latest when this is dropped, so that none can be lost on the way.
struct Answers(Vec<GroupWaiter>);

impl Drop for Answers {
    fn drop(&mut self) {
        for one in self.0.drain(..) {
            // A caller that stopped waiting loses nothing: the commit stands.
            match one {
                GroupWaiter::Commit(answer, done) => drop(answer.send(done)),
                GroupWaiter::Lease(_, _, answer, leased) => drop(answer.send(leased)),
                GroupWaiter::GiveBack(_, _, _, answer, given) => drop(answer.send(given)),
            }
        }
    }
}

/// However the writer ends, no caller waits for it any longer.
struct GivesUp(Arc<CommitQueue>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// The same, if a caller that writes in its place panics.
struct GivesUpOnPanic(Arc<CommitQueue>);

impl Drop for GivesUpOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up();
        }
    }
}

impl Writer {
    /// Writes until the store is closed or dropped, on a thread of its own.
    pub fn run(writer: &Mutex<Writer>, queue: &Arc<CommitQueue>) {
        let _gives_up = GivesUp(queue.clone());
        loop {
            // Where a panic left half a change, nothing more is written.
            let Ok(compacts) = writer.lock().map(|writer| writer.wants_to_compact()) else { return };
            let work = if compacts { queue.look() } else { queue.wait() };
            let waits = writer.lock().map(|mut writer| writer.pace.poll(clock::now(), queue.waiting()));
            if let Ok(Some(time)) = waits {
                queue.rest(time);
            }
            if writer.lock().map_or(ControlFlow::Break(()), |mut writer| writer.serve(work)).is_break() {
                return;
            }
        }
    }

    /// Writes what is queued on a caller's thread, while the writer's own sleeps. False if that might take long: without a
    /// sync, a small group is a copy into the kernel's memory, which costs less than waking the other thread.
    pub fn write_here(&mut self) -> bool {
        let bytes = self.queue.bytes();
        if self.ticks.is_none()
            || self.wants_to_compact()
            || bytes > HERE_BYTES_MAX
            || !self.segment_writer.has_room(bytes)
        {
            return false;
        }
        let _gives_up = GivesUpOnPanic(self.queue.clone());
        let taken = self.queue.take(&self.shared);
        self.finish(taken);
        true
    }

    /// The same as a task of the caller's runtime. Nothing in it waits but for work, and for a simulated disk that says how slow it
    /// is, so that a simulation that controls the runtime and the files controls the store.
    pub async fn run_as_task(mut self) {
        let _gives_up = GivesUp(self.queue.clone());
        loop {
            let work = if self.wants_to_compact() {
                tokio::task::yield_now().await;
                self.queue.look()
            } else {
                self.queue.waited().await
            };
            let latency = self.shared.dir.files.latency();
            if work == WriterWork::Waits && !latency.is_zero() {
                tokio::time::sleep(latency).await;
            }
            if self.serve(work).is_break() {
                return;
            }
        }
    }

    /// Does what there is to do, and a step of compaction if one is due.
    fn serve(&mut self, work: WriterWork) -> ControlFlow<()> {
        if work == WriterWork::Over {
            // Dropped without having been closed: keep what can be kept, but leave no mark that says "closed".
            let _ = self.segment_writer.sync();
            return ControlFlow::Break(());
        }
        if self.queue.has_command() || self.wants_to_compact() {
            let (taken, _) = self.queue.hold();
            self.finish(taken);
            let closed = self.run_commands();
            if closed.is_none() && self.wants_to_compact() {
                self.compact_a_little();
            }
            self.release();
            if let Some(closed) = closed {
                self.queue.give_up();
                // The caller may be gone already.
                let _ = closed.send(());
                return ControlFlow::Break(());
            }
        } else {
            let taken = self.queue.take(&self.shared);
            self.pace.handle_group(clock::now(), taken.waiting.len());
            self.finish(taken);
        }
        ControlFlow::Continue(())
    }

    /// Lets callers put down commits, behind what has been written.
    pub fn release(&self) {
        self.queue.release(self.segment_writer.written_lsn() + 1, &self.shared);
    }

    /// Returns the caller that asked to close, if there is one. The queue must be held.
    fn run_commands(&mut self) -> Option<oneshot::Sender<()>> {
        while let Some(command) = self.queue.next_command() {
            match command {
                WriterCommand::Sweep(now_ms, answer) => {
                    self.tail_cache.evict_old(&self.shared.index);
                    drop(answer.send(self.sweep(now_ms)));
                }
                WriterCommand::Damaged(log, place, answer) => {
                    self.assess_damage(&log, place);
                    let _ = answer.send(());
                }
                WriterCommand::Sync => self.sync(),
                WriterCommand::Close(answer) => {
                    // What was queued before the close is done first.
                    loop {
                        self.release();
                        let (taken, _) = self.queue.hold();
                        if taken.waiting.is_empty() {
                            break;
                        }
                        self.finish(taken);
                    }
                    self.close();
                    return Some(answer);
                }
            }
        }
        None
    }

    fn group(&self) -> WriteGroup {
        WriteGroup::new(self.segment_writer.written_lsn() + 1)
    }

    /// Writes the group, makes it visible, and answers each caller in it.
    fn finish(&mut self, taken: TakenGroup) {
        let TakenGroup { group, waiting } = taken;
        if waiting.is_empty() {
            return;
        }
        match self.write(group) {
            Ok(()) => {
                self.queue.landed();
                let answers = Answers(waiting);
                match &self.runtime {
                    Some(runtime) if answers.0.len() >= RELAY_MIN => drop(runtime.spawn(async move { drop(answers) })),
                    _ => drop(answers),
                }
            }
            Err(error) => self.fail(waiting, &error),
        }
    }

    /// A group did not reach the disk. What was refused in it may have been refused because of something that did not happen,
    /// and what was put down since stands on it, so all of these share the failure; only leases need no disk, and a full one
    /// must not keep people out.
    fn fail(&mut self, mut waiting: Vec<GroupWaiter>, error: &StoreError) {
        let (since, was_held) = self.queue.hold();
        waiting.extend(since.waiting);
        let index = &self.shared.index;
        let mut leases = self.group();
        let mut answers = Answers(Vec::new());
        for one in waiting {
            answers.0.push(match one {
                GroupWaiter::Commit(answer, _) => GroupWaiter::Commit(answer, Err(error.clone())),
                GroupWaiter::Lease(log, claim, answer, _) => {
                    let leased = leases.lease(&log, &claim, index);
                    GroupWaiter::Lease(log, claim, answer, leased)
                }
                GroupWaiter::GiveBack(log, by, fence, answer, _) => {
                    let given = leases.give_back(&log, &by, fence, index);
                    GroupWaiter::GiveBack(log, by, fence, answer, given)
                }
            });
        }
        leases.publish(None, index, &mut self.space);
        if !was_held {
            self.release();
        }
    }

    /// Writes the group and makes it visible; or does neither, and says why.
    pub fn write(&mut self, mut group: WriteGroup) -> Result<(), StoreError> {
        let mut written = None;
        if !group.is_empty() {
            let put = self.put_down(&mut group);
            self.note_space();
            match put {
                Ok(at) => written = Some(at),
                Err(_) if mutant("answer-before-the-write") => {}
                Err(error) => {
                    self.shared.note_failure(&error);
                    return Err(error);
                }
            }
            self.shared.note_success();
        }
        let published = group.publish(written, &self.shared.index, &mut self.space);
        if !mutant("wake-no-reader") {
            self.shared.tails.wake_each(published.logs());
        }
        self.tail_cache.push(published.bytes, published.cached, &self.shared.index);
        Ok(())
    }

    fn put_down(&mut self, group: &mut WriteGroup) -> Result<WrittenAt, StoreError> {
        if let Some(why) = self.shared.read_only() {
            return Err(StoreError::ReadOnly(why));
        }
        let headers = group.headers();
        let was_synced = self.segment_writer.is_synced();
        let written = self.segment_writer.write(&mut group.buffer, &headers)?;
        match &self.ticks {
            None => {
                if let Err(error) = self.segment_writer.sync()
                    && !mutant("ignore-a-failed-sync")
                {
                    self.segment_writer.take_back(written);
                    return Err(error);
                }
            }
            Some(ticks) => {
                if was_synced {
                    // The other thread ends only after this one.
                    let _ = ticks.send(());
                }
                let noted = self.witness.as_ref().map(|witness| witness.note(self.segment_writer.written_lsn()));
                if let Some(Err(_)) = noted {
                    self.drop_witness();
                }
            }
        }
        Ok(written)
    }

    /// Without a witness a crash is taken for a power cut, which is safe; with one that lags it would not be.
    fn drop_witness(&mut self) {
        self.witness = None;
        Witness::remove(&*self.shared.dir.files, self.state.instance);
    }

    fn sync(&mut self) {
        if self.shared.read_only().is_none()
            && let Err(error) = self.segment_writer.sync()
        {
            self.shared.note_failure(&error);
        }
    }

    fn note_space(&mut self) {
        for (segment, bytes) in self.segment_writer.take_sizes() {
            self.space.set_bytes(segment, bytes);
        }
        self.shared.note_bytes(self.space.bytes());
    }

    fn sweep(&mut self, now_ms: u64) -> Result<Vec<Trimmed>, StoreError> {
        let trimmed = self.shared.index.collect(|id, log| {
            let oldest = now_ms.saturating_sub(self.retention.of(log.kind()).age_max_ms);
            let old = log.entries.iter().take_while(|entry| entry.at_ms < oldest).last();
            let old = old.filter(|_| log.quarantined.is_none());
            old.map(|entry| Trimmed { log: id.clone(), from: log.first, to: entry.end() })
        });
        let mut group = self.group();
        for Trimmed { log, to, .. } in &trimmed {
            group.amend(log, FrameFlags::default(), &self.shared.index, |head| head.first = *to);
        }
        if group.is_empty() {
            self.try_to_heal();
            return Ok(trimmed);
        }
        self.write(group).map(|()| trimmed)
    }

    /// Looks whether there is space again, so that a server which refuses commits while the disk is full finds out.
    fn try_to_heal(&mut self) {
        if self.shared.is_full() && self.segment_writer.write(&mut [], &[]).is_ok() {
            self.shared.note_success();
            self.note_space();
        }
    }

    /// What a reader could not read is looked at once more; then its log loses what is before it, or is set aside.
    pub fn assess_damage(&mut self, id: &LogId, place: FramePlace) {
        let shared = self.shared.clone();
        if !matches!(Shelf::new(&shared.dir).frame(place), Err(FetchError::Damaged(_))) {
            return;
        }
        let at = |other: FramePlace| (other.segment, other.offset) == (place.segment, place.offset);
        let (facts, end) = shared
            .index
            .read(id, |log| {
                let record = log.record.as_ref().is_some_and(|kept| at(kept.place));
                let facts = record || log.items.values().any(|slot| at(slot.place));
                let entry = log.entries.iter().find(|entry| at(entry.place));
                (facts, entry.map(|entry| entry.end()))
            })
            .unwrap_or_default();
        if facts {
            shared.quarantine(id, "its record or one of its items became unreadable");
        } else if let Some(end) = end {
            shared.note_damage(format!("log {id} begins at {end} now: some of what was before is unreadable"));
            let mut group = self.group();
            group.amend(id, FrameFlags::default(), &shared.index, |head| head.first = end);
            if self.write(group).is_err() {
                shared.index.change(id, |log| log.trim_to(end, &mut self.space));
            }
        }
        shared.tails.wake(id);
    }

    fn wants_to_compact(&self) -> bool {
        let due = || self.space.due(self.segment_bytes).is_some();
        let rested = || self.resting_until.is_none_or(|until| until <= clock::now());
        (self.compaction.is_some() || due()) && rested() && !self.shared.is_read_only()
    }

    fn rest(&mut self) {
        self.resting_until = Some(clock::now() + REST);
    }

    /// One step towards freeing the oldest segment.
    fn compact_a_little(&mut self) {
        let due = self.space.due(self.segment_bytes);
        let Some(mut walk) = self.compaction.take().or(due.map(Compaction::of)) else {
            return;
        };
        let mut group = self.group();
        let shared = self.shared.clone();
        let step = walk.step(&shared.index, &shared.dir, &mut group);
        if self.write(group).is_err() {
            self.rest();
            return;
        }
        match step {
            CompactionStep::More => self.compaction = Some(walk),
            CompactionStep::Damaged(log, place) => {
                self.assess_damage(&log, place);
                self.compaction = Some(walk);
            }
            CompactionStep::Failed(why) => {
                self.shared.note_obstacle(&why);
                self.rest();
            }
            CompactionStep::Done => match self.drop_segment(walk.segment) {
                Ok(()) => self.shared.note_room(),
                Err(why) => {
                    self.shared.note_obstacle(&why);
                    self.rest();
                }
            },
        }
    }

    /// Removes a segment that nothing refers to any more. While that fails no later one may go either: a hole in the row
    /// would be taken for a loss.
    fn drop_segment(&mut self, segment: u32) -> Result<(), String> {
        // Looked at once more, since nothing else stands between a mistake and the loss of data.
        let touched = self.shared.index.collect(|_, log| log.touches(segment).then_some(()));
        self.sync();
        if !touched.is_empty() || !self.segment_writer.is_synced() || self.shared.read_only().is_some() {
            return Err(format!("segment {segment} is still needed"));
        }
        let DataDir { path, files } = &self.shared.dir;
        let removed = match files.remove(&segment_path(path, segment)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let removed = removed.and_then(|()| files.sync_dir(path));
        removed.map_err(|error| format!("segment {segment} could not be removed: {error}"))?;
        self.space.remove(segment);
        self.note_space();
        Ok(())
    }

    fn close(&mut self) {
        let closed = match self.shared.read_only() {
            Some(_) => return,
            None => self.segment_writer.close(),
        };
        self.state.closed_at = Some(self.segment_writer.written_lsn());
        match closed {
            Ok(()) => {
                if let Err(error) = self.state.save(&self.shared.dir) {
                    self.shared.note_damage(format!("could not be marked as closed: {error}"));
                } else {
                    self.drop_witness();
                    self.segment_writer.cut_finished();
                }
            }
            Err(error) => self.shared.note_failure(&error),
        }
    }
}
