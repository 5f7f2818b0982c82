//! The one thread that writes: it takes what is queued, writes it in one piece, syncs, and only then shows and answers.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender as Ticks;
use std::time::{Duration, Instant};

use bowline_env::clock;
use bowline_protocol::LogId;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::compact::{Compaction, Step};
use super::files::DataDir;
use super::frame::Flags;
use super::group::Group;
use super::hot::Hot;
use super::pen::{Pen, Written};
use super::read::{FetchError, Shelf};
use super::segment::{Place, segment_path};
use super::shared::Shared;
use super::space::Space;
use super::state::{State, Witness};
use crate::{Claim, Commit, Committed, Fence, Holder, Leased, Retentions, StoreError, Trimmed};

/// A group grows no larger than this, so that the first in it does not wait for long.
const GROUP_EVENTS_MAX: usize = 4096;
const GROUP_BYTES_MAX: usize = 1 << 20;

/// How long compaction rests after it met an obstacle. Room is short then, but asking again at once helps nobody.
const REST: Duration = Duration::from_secs(2);

/// So many answers are better given from within the runtime: waking a task from outside takes a lock that all of its
/// threads share, and may wake a thread each time.
const RELAY_MIN: usize = 8;

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

pub enum Request {
    Commit(Box<Commit>, Answer<Committed>),
    Lease(LogId, Claim, Answer<Leased>),
    GiveBack(LogId, Holder, Fence, Answer<()>),
    Sweep(u64, Answer<Vec<Trimmed>>),
    /// A reader found something unreadable.
    Damaged(LogId, Place, oneshot::Sender<()>),
    /// The interval is over.
    Sync,
    Close(oneshot::Sender<()>),
}

pub struct Writer {
    pub shared: Arc<Shared>,
    pub pen: Pen,
    pub space: Space,
    /// Where those who wait are likely to run; it runs by itself.
    pub runtime: Option<Handle>,
    pub hot: Hot,
    pub state: State,
    /// Interval mode only.
    pub witness: Option<Witness>,
    pub ticks: Option<Ticks<()>>,
    pub retention: Retentions,
    pub segment_bytes: u64,
    pub compaction: Option<Compaction>,
    /// Compaction met an obstacle, and is tried again then.
    pub resting_until: Option<Instant>,
}

/// Who waits for the group.
enum Waiting {
    Commit(Answer<Committed>, Result<Committed, StoreError>),
    Lease(LogId, Claim, Answer<Leased>, Result<Leased, StoreError>),
    GiveBack(LogId, Holder, Fence, Answer<()>, Result<(), StoreError>),
}

/// Answers that are given at the latest when this is dropped, so that none can be lost on the way.
struct Answers(Vec<Waiting>);

impl Drop for Answers {
    fn drop(&mut self) {
        for one in self.0.drain(..) {
            // Whoever does not wait any more has lost nothing: the commit stands.
            match one {
                Waiting::Commit(answer, done) => drop(answer.send(done)),
                Waiting::Lease(_, _, answer, leased) => drop(answer.send(leased)),
                Waiting::GiveBack(_, _, _, answer, given) => drop(answer.send(given)),
            }
        }
    }
}

impl Writer {
    pub fn run(mut self, mut queue: mpsc::Receiver<Request>) {
        loop {
            let request = match queue.try_recv() {
                Ok(request) => Some(request),
                Err(mpsc::error::TryRecvError::Disconnected) => break,
                Err(mpsc::error::TryRecvError::Empty) if self.wants_to_compact() => None,
                Err(mpsc::error::TryRecvError::Empty) => match queue.blocking_recv() {
                    Some(request) => Some(request),
                    None => break,
                },
            };
            if let Some(request) = request
                && let Some(closed) = self.serve(request, &mut queue)
            {
                self.close();
                queue.close();
                // The caller may be gone already.
                let _ = closed.send(());
                return;
            }
            if self.wants_to_compact() {
                self.compact_a_little();
            }
        }
        // Dropped without having been closed: keep what can be kept, but leave no mark that says "closed".
        let _ = self.pen.sync();
    }

    /// Serves `request` and what is queued behind it. Returns who asked for the end, if somebody did.
    fn serve(&mut self, request: Request, queue: &mut mpsc::Receiver<Request>) -> Option<oneshot::Sender<()>> {
        let (mut group, mut waiting) = (self.group(), Vec::new());
        let mut next = Some(request);
        let mut last = None;
        while let Some(request) = next.take() {
            match request {
                Request::Commit(commit, answer) => {
                    let refused = self.shared.read_only().map(StoreError::ReadOnly);
                    let done = match refused {
                        Some(error) => Err(error),
                        None => group.commit(&commit, &self.retention, &self.shared.index),
                    };
                    waiting.push(Waiting::Commit(answer, done));
                }
                Request::Lease(log, claim, answer) => {
                    let leased = group.lease(&log, &claim, &self.shared.index);
                    waiting.push(Waiting::Lease(log, claim, answer, leased));
                }
                Request::GiveBack(log, by, fence, answer) => {
                    let given = group.give_back(&log, &by, fence, &self.shared.index);
                    waiting.push(Waiting::GiveBack(log, by, fence, answer, given));
                }
                other => {
                    last = Some(other);
                    break;
                }
            }
            if group.events < GROUP_EVENTS_MAX && group.buffer.len() < GROUP_BYTES_MAX {
                next = queue.try_recv().ok();
            }
        }
        self.finish(group, waiting);
        match last? {
            Request::Sweep(now_ms, answer) => {
                self.hot.cool(&self.shared.index);
                drop(answer.send(self.sweep(now_ms)));
            }
            Request::Damaged(log, place, answer) => {
                self.judge_damage(&log, place);
                let _ = answer.send(());
            }
            Request::Sync => self.sync(),
            Request::Close(answer) => return Some(answer),
            Request::Commit(..) | Request::Lease(..) | Request::GiveBack(..) => {}
        }
        None
    }

    fn group(&self) -> Group {
        Group::new(self.pen.written_lsn() + 1)
    }

    /// Writes the group, shows it, and answers everybody in it.
    fn finish(&mut self, group: Group, waiting: Vec<Waiting>) {
        match self.write(group) {
            Ok(()) => {
                let answers = Answers(waiting);
                match &self.runtime {
                    Some(runtime) if answers.0.len() >= RELAY_MIN => drop(runtime.spawn(async move { drop(answers) })),
                    _ => drop(answers),
                }
            }
            Err(error) => {
                // What was refused may have been refused because of something that did not happen, so all share the
                // failure; only leases need no disk, and a full one must not keep people out.
                let index = &self.shared.index;
                let mut leases = self.group();
                let mut answers = Answers(Vec::new());
                for one in waiting {
                    answers.0.push(match one {
                        Waiting::Commit(answer, _) => Waiting::Commit(answer, Err(error.clone())),
                        Waiting::Lease(log, claim, answer, _) => {
                            let leased = leases.lease(&log, &claim, index);
                            Waiting::Lease(log, claim, answer, leased)
                        }
                        Waiting::GiveBack(log, by, fence, answer, _) => {
                            let given = leases.give_back(&log, &by, fence, index);
                            Waiting::GiveBack(log, by, fence, answer, given)
                        }
                    });
                }
                leases.publish(None, index, &mut self.space);
            }
        }
    }

    /// Writes the group and makes it visible; or does neither, and says why.
    pub fn write(&mut self, mut group: Group) -> Result<(), StoreError> {
        let mut written = None;
        if !group.is_empty() {
            let put = self.put_down(&mut group);
            self.note_space();
            match put {
                Ok(at) => written = Some(at),
                Err(error) => {
                    self.shared.note_failure(&error);
                    return Err(error);
                }
            }
            self.shared.note_success();
        }
        let published = group.publish(written, &self.shared.index, &mut self.space);
        self.hot.push(published.bytes, published.hot, &self.shared.index);
        self.shared.tails.wake_each(&published.logs);
        Ok(())
    }

    fn put_down(&mut self, group: &mut Group) -> Result<Written, StoreError> {
        if let Some(why) = self.shared.read_only() {
            return Err(StoreError::ReadOnly(why));
        }
        let headers = group.headers();
        let was_synced = self.pen.is_synced();
        let written = self.pen.write(&mut group.buffer, &headers)?;
        match &self.ticks {
            None => {
                if let Err(error) = self.pen.sync() {
                    self.pen.take_back(written);
                    return Err(error);
                }
            }
            Some(ticks) => {
                if was_synced {
                    // The other thread ends only after this one.
                    let _ = ticks.send(());
                }
                let noted = self.witness.as_ref().map(|witness| witness.note(self.pen.written_lsn()));
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
            && let Err(error) = self.pen.sync()
        {
            self.shared.note_failure(&error);
        }
    }

    fn note_space(&mut self) {
        for (segment, bytes) in self.pen.take_sizes() {
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
            group.amend(log, Flags::default(), &self.shared.index, |head| head.first = *to);
        }
        if group.is_empty() {
            self.try_to_heal();
            return Ok(trimmed);
        }
        self.write(group).map(|()| trimmed)
    }

    /// Looks whether there is space again, so that a server which refuses commits while the disk is full finds out.
    fn try_to_heal(&mut self) {
        if self.shared.is_full() && self.pen.write(&mut [], &[]).is_ok() {
            self.shared.note_success();
            self.note_space();
        }
    }

    /// What a reader could not read is looked at once more; then its log loses what is before it, or is set aside.
    pub fn judge_damage(&mut self, id: &LogId, place: Place) {
        let shared = self.shared.clone();
        if !matches!(Shelf::new(&shared.dir).frame(place), Err(FetchError::Damaged(_))) {
            return;
        }
        let at = |other: Place| (other.segment, other.offset) == (place.segment, place.offset);
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
            group.amend(id, Flags::default(), &shared.index, |head| head.first = end);
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
            Step::More => self.compaction = Some(walk),
            Step::Damaged(log, place) => {
                self.judge_damage(&log, place);
                self.compaction = Some(walk);
            }
            Step::Failed(why) => {
                self.shared.note_obstacle(&why);
                self.rest();
            }
            Step::Done => match self.drop_segment(walk.segment) {
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
        if !touched.is_empty() || !self.pen.is_synced() || self.shared.read_only().is_some() {
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
            None => self.pen.close(),
        };
        self.state.closed_at = Some(self.pen.written_lsn());
        match closed {
            Ok(()) => {
                if let Err(error) = self.state.save(&self.shared.dir) {
                    self.shared.note_damage(format!("could not be marked as closed: {error}"));
                } else {
                    self.drop_witness();
                    self.pen.cut_finished();
                }
            }
            Err(error) => self.shared.note_failure(&error),
        }
    }
}
