//! The commit queue: callers number and encode their commits here, each on its own thread, while the writer still syncs what it
//! took before.
//!
//! What is queued stands on what was taken last and is not yet on disk. If that fails, so does this.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};

use bowline_protocol::LogId;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::group::Group;
use super::segment::Place;
use super::shared::Shared;
use crate::tail::lock;
use crate::{Claim, Commit, Committed, Fence, Holder, Leased, Retentions, StoreError, Trimmed};

/// A group grows no larger than this, so that the first in it does not wait for long.
const GROUP_EVENTS_MAX: usize = 4096;
const GROUP_BYTES_MAX: usize = 1 << 20;

/// How many requests may lie here; further ones wait where they are made.
const REQUESTS_MAX: usize = 4096;

pub type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What becomes part of a group.
pub enum Request {
    Commit(Box<Commit>, Answer<Committed>),
    Lease(LogId, Claim, Answer<Leased>),
    GiveBack(LogId, Holder, Fence, Answer<()>),
}

/// Who waits for a group, and their answers if it reaches the disk.
pub enum Waiting {
    Commit(Answer<Committed>, Result<Committed, StoreError>),
    Lease(LogId, Claim, Answer<Leased>, Result<Leased, StoreError>),
    GiveBack(LogId, Holder, Fence, Answer<()>, Result<(), StoreError>),
}

/// What the writer does between two groups.
pub enum WriterCommand {
    Sweep(u64, Answer<Vec<Trimmed>>),
    /// A reader found something unreadable.
    Damaged(LogId, Place, oneshot::Sender<()>),
    /// The interval is over.
    Sync,
    Close(oneshot::Sender<()>),
}

/// What the writer has taken from the queue.
#[derive(Default)]
pub struct Taken {
    pub group: Group,
    pub waiting: Vec<Waiting>,
}

/// Whether there is something to do for the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
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
    group: Group,
    waiting: Vec<Waiting>,
    /// What came while the group was full or the queue was the writer's, in order.
    deferred: VecDeque<Request>,
    commands: VecDeque<WriterCommand>,
    /// The writer makes frames of its own, which must stand on what the index says; so no caller makes any.
    held: bool,
    intake: Intake,
    /// The writer sleeps, and must be woken.
    idle: bool,
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
            group: Group::default(),
            waiting: Vec::new(),
            deferred: VecDeque::new(),
            commands: VecDeque::new(),
            held: true,
            intake: Intake::Open,
            idle: false,
        };
        let (room, woken, notify) = (Semaphore::new(REQUESTS_MAX), Condvar::new(), Notify::new());
        CommitQueue { state: Mutex::new(state), retention, room, woken, notify }
    }

    pub async fn commit(&self, commit: Commit, shared: &Shared) -> Result<Committed, StoreError> {
        Group::check(&commit)?;
        self.ask(shared, |answer| Request::Commit(Box::new(commit), answer)).await
    }

    /// Puts down a request, numbered and encoded if that can be done now, and waits for the answer.
    pub async fn ask<T>(&self, shared: &Shared, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let request = request(answer);
        // The row in which they wait for room is the order in which they came.
        self.room.acquire().await.map_err(|_| StoreError::Closed)?.forget();
        self.put(request, shared)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    fn put(&self, request: Request, shared: &Shared) -> Result<(), StoreError> {
        let mut state = self.open_state()?;
        if state.held || state.is_full() || !state.deferred.is_empty() {
            state.deferred.push_back(request);
        } else {
            state.encode(request, shared, &self.retention);
        }
        self.wake(state);
        Ok(())
    }

    /// Leaves word for the writer. A request to close is the last that is taken in.
    pub fn command(&self, command: WriterCommand) -> Result<(), StoreError> {
        let mut state = self.open_state()?;
        if matches!(command, WriterCommand::Close(_)) {
            state.intake = Intake::Closed;
        }
        state.commands.push_back(command);
        self.wake(state);
        Ok(())
    }

    /// Takes nothing more in. The writer does what is here, and ends.
    pub fn shut(&self) {
        if let Ok(mut state) = self.open_state() {
            state.intake = Intake::Closed;
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
    }

    /// Whether there is something to do. If not, the writer is woken when there is.
    pub fn look(&self) -> Work {
        self.state().map_or(Work::Over, |mut state| state.look())
    }

    /// Sleeps until there is something to do.
    pub fn wait(&self) -> Work {
        let Ok(mut state) = self.state() else { return Work::Over };
        loop {
            match state.look() {
                Work::Nothing => match self.woken.wait(state) {
                    Ok(woken) => state = woken,
                    Err(_) => return Work::Over,
                },
                work => return work,
            }
        }
    }

    /// [`wait`](CommitQueue::wait) for a writer that is a task.
    pub async fn waited(&self) -> Work {
        loop {
            match self.look() {
                Work::Nothing => self.notify.notified().await,
                work => return work,
            }
        }
    }

    /// Takes what lies here. What callers put down next stands on it.
    pub fn take(&self, shared: &Shared) -> Taken {
        let Ok(mut state) = self.state() else { return Taken::default() };
        let taken = state.take();
        state.encode_deferred(shared, &self.retention);
        drop(state);
        self.room.add_permits(taken.waiting.len());
        taken
    }

    /// Takes what lies here, and keeps the queue: callers' requests wait until it is [`released`](CommitQueue::release). Says whether
    /// the queue was kept already.
    pub fn hold(&self) -> (Taken, bool) {
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
    pub fn release(&self, next_lsn: u64, shared: &Shared) {
        if let Ok(mut state) = self.state() {
            state.group = Group::new(next_lsn);
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

    fn look(&mut self) -> Work {
        let none = self.waiting.is_empty() && self.deferred.is_empty() && self.commands.is_empty();
        self.idle = none && self.intake == Intake::Open;
        match (none, self.intake) {
            (false, _) => Work::Waits,
            (true, Intake::Open) => Work::Nothing,
            (true, Intake::Closed) => Work::Over,
        }
    }

    fn take(&mut self) -> Taken {
        let next = self.group.next();
        Taken { group: std::mem::replace(&mut self.group, next), waiting: std::mem::take(&mut self.waiting) }
    }

    fn encode_deferred(&mut self, shared: &Shared, retention: &Retentions) {
        while !self.is_full()
            && let Some(request) = self.deferred.pop_front()
        {
            self.encode(request, shared, retention);
        }
    }

    fn encode(&mut self, request: Request, shared: &Shared, retention: &Retentions) {
        let index = &shared.index;
        self.waiting.push(match request {
            Request::Commit(commit, answer) => {
                let done = match shared.read_only() {
                    Some(why) => Err(StoreError::ReadOnly(why)),
                    None => self.group.commit(&commit, retention, index),
                };
                Waiting::Commit(answer, done)
            }
            Request::Lease(log, claim, answer) => {
                let leased = self.group.lease(&log, &claim, index);
                Waiting::Lease(log, claim, answer, leased)
            }
            Request::GiveBack(log, by, fence, answer) => {
                let given = self.group.give_back(&log, &by, fence, index);
                Waiting::GiveBack(log, by, fence, answer, given)
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
