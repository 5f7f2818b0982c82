//! The commit queue: callers number and encode their commits here, each on its own thread, while the writer still syncs what it
//! took before.
//!
//! What is queued stands on what was taken last and is not yet on disk. If that fails, so does this.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bowline_protocol::LogId;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::segment::FramePlace;
use super::shared::DiskShared;
use super::write_group::WriteGroup;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait_for};
use crate::{Claim, Commit, Committed, Fence, Holder, Leased, Retentions, StoreError, Trimmed};

/// A group grows no larger than this, so that the first in it does not wait for long.
const GROUP_EVENTS_MAX: usize = 4096;
const GROUP_BYTES_MAX: usize = 1 << 20;

/// How many requests may lie here; further ones wait where they are made.
const REQUESTS_MAX: usize = 4096;

pub type CommitReply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What becomes part of a group.
pub enum QueuedRequest {
    Commit(Box<Commit>, CommitReply<Committed>),
    Lease(LogId, Claim, CommitReply<Leased>),
    GiveBack(LogId, Holder, Fence, CommitReply<()>),
}

/// Who waits for a group, and their answers if it reaches the disk.
pub enum GroupWaiter {
    Commit(CommitReply<Committed>, Result<Committed, StoreError>),
    Lease(LogId, Claim, CommitReply<Leased>, Result<Leased, StoreError>),
    GiveBack(LogId, Holder, Fence, CommitReply<()>, Result<(), StoreError>),
}

/// What the writer does between two groups.
pub enum WriterCommand {
    Sweep(u64, CommitReply<Vec<Trimmed>>),
    /// A reader found something unreadable.
    Damaged(LogId, FramePlace, oneshot::Sender<()>),
    /// The interval is over.
    Sync,
    Close(oneshot::Sender<()>),
}

/// What the writer has taken from the queue.
#[derive(Default)]
pub struct TakenGroup {
    pub group: WriteGroup,
    pub waiting: Vec<GroupWaiter>,
}

/// Whether there is something to do for the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterWork {
    Waits,
    Nothing,
    /// Nothing, and nothing will come any more.
    Over,
}

pub struct CommitQueue {
    state: Mutex<QueueState>,
    retention: Retentions,
    room: Semaphore,
    /// Wakes a writer that is a thread, and one that is a task.
    woken: Condvar,
    notify: Notify,
}

struct QueueState {
    group: WriteGroup,
    waiting: Vec<GroupWaiter>,
    /// What came while the group was full or the queue was the writer's, in order.
    deferred: VecDeque<QueuedRequest>,
    commands: VecDeque<WriterCommand>,
    /// The writer makes frames of its own, which must stand on what the index says; so no caller makes any.
    held: bool,
    intake: Intake,
    /// The writer sleeps, and must be woken.
    idle: bool,
    /// The writer waits for more of the same; only a command wakes it.
    resting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Open,
    /// Nothing more is taken in; what is here is done.
    Closed,
}

impl CommitQueue {
    /// A queue that is the writer's until it is [`released`](CommitQueue::release).
    pub fn new(retention: Retentions) -> CommitQueue {
        let state = QueueState {
            group: WriteGroup::default(),
            waiting: Vec::new(),
            deferred: VecDeque::new(),
            commands: VecDeque::new(),
            held: true,
            intake: Intake::Open,
            idle: false,
            resting: false,
        };
        let (room, woken, notify) = (Semaphore::new(REQUESTS_MAX), Condvar::new(), Notify::new());
        CommitQueue { state: Mutex::new(state), retention, room, woken, notify }
    }

    /// Numbers and encodes a commit, and waits until it is written. If the writer sleeps, `write` may write in its place, and says
    /// whether it did.
    pub async fn commit(
        &self,
        commit: Commit,
        shared: &DiskShared,
        write: impl FnOnce() -> bool,
    ) -> Result<Committed, StoreError> {
        WriteGroup::check(&commit)?;
        let (answer, answered) = oneshot::channel();
        self.ask_with(QueuedRequest::Commit(Box::new(commit), answer), shared, write).await?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    /// Puts down a request, numbered and encoded if that can be done now, and waits for the answer.
    pub async fn ask<T>(
        &self,
        shared: &DiskShared,
        request: impl FnOnce(CommitReply<T>) -> QueuedRequest,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.ask_with(request(answer), shared, || false).await?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    async fn ask_with(
        &self,
        request: QueuedRequest,
        shared: &DiskShared,
        write: impl FnOnce() -> bool,
    ) -> Result<(), StoreError> {
        // The row in which they wait for room is the order in which they came.
        self.room.acquire().await.map_err(|_| StoreError::Closed)?.forget();
        let mut state = self.open_state()?;
        if state.held || state.is_full() || !state.deferred.is_empty() {
            state.deferred.push_back(request);
        } else {
            state.encode(request, shared, &self.retention);
        }
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        if idle && !(write() && self.is_settled()) {
            self.woken.notify_one();
            self.notify.notify_one();
        }
        Ok(())
    }

    /// Whether there is nothing to do for the writer, which sleeps on and has to be woken by the next.
    fn is_settled(&self) -> bool {
        self.look() == WriterWork::Nothing
    }

    /// Leaves word for the writer. A request to close is the last that is taken in.
    pub fn command(&self, command: WriterCommand) -> Result<(), StoreError> {
        let mut state = self.open_state()?;
        if matches!(command, WriterCommand::Close(_)) {
            state.intake = Intake::Closed;
        }
        state.commands.push_back(command);
        state.idle |= state.resting;
        self.wake(state);
        Ok(())
    }

    /// Takes nothing more in. The writer does what is here, and ends.
    pub fn shut(&self) {
        if let Ok(mut state) = self.open_state() {
            state.intake = Intake::Closed;
            state.idle |= state.resting;
            self.wake(state);
        }
    }

    /// The writer is gone, and with it all hope of an answer.
    pub fn give_up(&self) {
        let mut state = lock(&self.state);
        state.intake = Intake::Closed;
        (state.waiting, state.deferred, state.commands) = Default::default();
        drop(state);
        self.room.close();
        // It may be a caller that gives up, while the writer sleeps.
        self.woken.notify_one();
    }

    /// Whether there is something to do. If not, the writer is woken when there is.
    pub fn look(&self) -> WriterWork {
        self.state().map_or(WriterWork::Over, |mut state| state.look())
    }

    /// Sleeps until there is something to do.
    pub fn wait(&self) -> WriterWork {
        let Ok(mut state) = self.state() else { return WriterWork::Over };
        loop {
            match state.look() {
                WriterWork::Nothing => match self.woken.wait(state) {
                    Ok(woken) => state = woken,
                    Err(_) => return WriterWork::Over,
                },
                work => return work,
            }
        }
    }

    /// How much is encoded for the next group.
    pub fn bytes(&self) -> usize {
        self.state().map_or(0, |state| state.group.buffer.len())
    }

    /// How many wait for the next group.
    pub fn waiting(&self) -> usize {
        self.state().map_or(0, |state| state.waiting.len())
    }

    /// Sleeps for so long, or until a command is left.
    pub fn rest(&self, time: Duration) {
        let Ok(mut state) = self.state() else { return };
        if state.commands.is_empty() {
            state.resting = true;
            // Whether it was woken or the time is over makes no difference.
            if let Some(mut state) = wait_for(&self.woken, &self.state, state, time) {
                state.resting = false;
            }
        }
    }

    /// [`wait`](CommitQueue::wait) for a writer that is a task.
    pub async fn waited(&self) -> WriterWork {
        loop {
            match self.look() {
                WriterWork::Nothing => self.notify.notified().await,
                work => return work,
            }
        }
    }

    /// Takes what lies here. What callers put down next stands on it.
    pub fn take(&self, shared: &DiskShared) -> TakenGroup {
        let Ok(mut state) = self.state() else { return TakenGroup::default() };
        let taken = state.take();
        state.encode_deferred(shared, &self.retention);
        drop(state);
        self.room.add_permits(taken.waiting.len());
        taken
    }

    /// Takes what lies here, and keeps the queue: callers' requests wait until it is [`released`](CommitQueue::release). Says whether
    /// the queue was kept already.
    pub fn hold(&self) -> (TakenGroup, bool) {
        let Ok(mut state) = self.state() else { return Default::default() };
        let was_held = std::mem::replace(&mut state.held, true);
        let taken = state.take();
        drop(state);
        self.room.add_permits(taken.waiting.len());
        (taken, was_held)
    }

    /// What was taken is in the index now.
    pub fn landed(&self) {
        if let Ok(mut state) = self.state() {
            state.group.stand_on_the_index();
        }
    }

    /// Callers may put down commits again. The first frame will be `next_lsn`, and stands on what the index says.
    pub fn release(&self, next_lsn: u64, shared: &DiskShared) {
        if let Ok(mut state) = self.state() {
            state.group = WriteGroup::new(next_lsn);
            state.held = false;
            state.encode_deferred(shared, &self.retention);
        }
    }

    pub fn next_command(&self) -> Option<WriterCommand> {
        self.state().ok()?.commands.pop_front()
    }

    pub fn has_command(&self) -> bool {
        self.state().is_ok_and(|state| !state.commands.is_empty())
    }

    /// Where a panic left half a frame, nothing may be put behind it.
    fn state(&self) -> Result<MutexGuard<'_, QueueState>, StoreError> {
        self.state.lock().map_err(|_| StoreError::Closed)
    }

    fn open_state(&self) -> Result<MutexGuard<'_, QueueState>, StoreError> {
        self.state().and_then(|state| if state.intake == Intake::Open { Ok(state) } else { Err(StoreError::Closed) })
    }

    fn wake(&self, mut state: MutexGuard<'_, QueueState>) {
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        if idle {
            self.woken.notify_one();
            self.notify.notify_one();
        }
    }
}

impl QueueState {
    fn is_full(&self) -> bool {
        self.group.events >= GROUP_EVENTS_MAX || self.group.buffer.len() >= GROUP_BYTES_MAX
    }

    fn look(&mut self) -> WriterWork {
        let none = self.waiting.is_empty() && self.deferred.is_empty() && self.commands.is_empty();
        self.idle = none && self.intake == Intake::Open;
        match (none, self.intake) {
            (false, _) => WriterWork::Waits,
            (true, Intake::Open) => WriterWork::Nothing,
            (true, Intake::Closed) => WriterWork::Over,
        }
    }

    fn take(&mut self) -> TakenGroup {
        let next = self.group.next();
        TakenGroup { group: std::mem::replace(&mut self.group, next), waiting: std::mem::take(&mut self.waiting) }
    }

    fn encode_deferred(&mut self, shared: &DiskShared, retention: &Retentions) {
        while !self.is_full()
            && let Some(request) = self.deferred.pop_front()
        {
            self.encode(request, shared, retention);
        }
    }

    fn encode(&mut self, request: QueuedRequest, shared: &DiskShared, retention: &Retentions) {
        let index = &shared.index;
        self.waiting.push(match request {
            QueuedRequest::Commit(commit, answer) => {
                let done = match shared.read_only() {
                    Some(why) => Err(StoreError::ReadOnly(why)),
                    None => self.group.commit(&commit, retention, index),
                };
                GroupWaiter::Commit(answer, done)
            }
            QueuedRequest::Lease(log, claim, answer) => {
                let leased = self.group.lease(&log, &claim, index);
                GroupWaiter::Lease(log, claim, answer, leased)
            }
            QueuedRequest::GiveBack(log, by, fence, answer) => {
                let given = self.group.give_back(&log, &by, fence, index);
                GroupWaiter::GiveBack(log, by, fence, answer, given)
            }
        });
    }
}

impl fmt::Debug for CommitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.state().map_or(0, |state| state.waiting.len() + state.deferred.len());
        write!(f, "CommitQueue({waiting} waiting)")
    }
}
