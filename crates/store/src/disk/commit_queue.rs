//! The desk: callers number and encode their commits here, each on its own thread, while the writer still syncs what it
//! took before.
//!
//! What lies on the desk stands on what was taken last and is not yet on disk. If that fails, so does this.

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

/// Who waits for a group, and what they will be told if it reaches the disk.
pub enum Waiting {
    Commit(Answer<Committed>, Result<Committed, StoreError>),
    Lease(LogId, Claim, Answer<Leased>, Result<Leased, StoreError>),
    GiveBack(LogId, Holder, Fence, Answer<()>, Result<(), StoreError>),
}

/// What the writer does between two groups.
pub enum Errand {
    Sweep(u64, Answer<Vec<Trimmed>>),
    /// A reader found something unreadable.
    Damaged(LogId, Place, oneshot::Sender<()>),
    /// The interval is over.
    Sync,
    Close(oneshot::Sender<()>),
}

/// What the writer has taken from the desk.
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

pub struct Desk {
    top: Mutex<Top>,
    retention: Retentions,
    room: Semaphore,
    /// Wakes a writer that is a thread, and one that is a task.
    woken: Condvar,
    notify: Notify,
}

struct Top {
    group: Group,
    waiting: Vec<Waiting>,
    /// What came while the group was full or the desk was the writer's, in order.
    deferred: VecDeque<Request>,
    errands: VecDeque<Errand>,
    /// The writer makes frames of its own, which must stand on what the index says; so no caller makes any.
    held: bool,
    door: Door,
    /// The writer sleeps, and must be woken.
    idle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    /// Nothing more is taken in; what is here is done.
    Closed,
}

impl Desk {
    /// A desk that is the writer's until it is [`released`](Desk::release).
    pub fn new(retention: Retentions) -> Desk {
        let top = Top {
            group: Group::default(),
            waiting: Vec::new(),
            deferred: VecDeque::new(),
            errands: VecDeque::new(),
            held: true,
            door: Door::Open,
            idle: false,
        };
        let (room, woken, notify) = (Semaphore::new(REQUESTS_MAX), Condvar::new(), Notify::new());
        Desk { top: Mutex::new(top), retention, room, woken, notify }
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
        let mut top = self.open_top()?;
        if top.held || top.is_full() || !top.deferred.is_empty() {
            top.deferred.push_back(request);
        } else {
            top.encode(request, shared, &self.retention);
        }
        self.wake(top);
        Ok(())
    }

    /// Leaves word for the writer. A request to close is the last that is taken in.
    pub fn errand(&self, errand: Errand) -> Result<(), StoreError> {
        let mut top = self.open_top()?;
        if matches!(errand, Errand::Close(_)) {
            top.door = Door::Closed;
        }
        top.errands.push_back(errand);
        self.wake(top);
        Ok(())
    }

    /// Takes nothing more in. The writer does what is here, and ends.
    pub fn shut(&self) {
        if let Ok(mut top) = self.open_top() {
            top.door = Door::Closed;
            self.wake(top);
        }
    }

    /// The writer is gone, and with it all hope of an answer.
    pub fn give_up(&self) {
        let mut top = lock(&self.top);
        top.door = Door::Closed;
        (top.waiting, top.deferred, top.errands) = Default::default();
        drop(top);
        self.room.close();
    }

    /// Whether there is something to do. If not, the writer is woken when there is.
    pub fn look(&self) -> Work {
        self.top().map_or(Work::Over, |mut top| top.look())
    }

    /// Sleeps until there is something to do.
    pub fn wait(&self) -> Work {
        let Ok(mut top) = self.top() else { return Work::Over };
        loop {
            match top.look() {
                Work::Nothing => match self.woken.wait(top) {
                    Ok(woken) => top = woken,
                    Err(_) => return Work::Over,
                },
                work => return work,
            }
        }
    }

    /// [`wait`](Desk::wait) for a writer that is a task.
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
        let Ok(mut top) = self.top() else { return Taken::default() };
        let taken = top.take();
        top.encode_deferred(shared, &self.retention);
        drop(top);
        self.room.add_permits(taken.waiting.len());
        taken
    }

    /// Takes what lies here, and keeps the desk: callers' requests wait until it is [`released`](Desk::release). Says whether
    /// the desk was kept already.
    pub fn hold(&self) -> (Taken, bool) {
        let Ok(mut top) = self.top() else { return Default::default() };
        let was_held = std::mem::replace(&mut top.held, true);
        let taken = top.take();
        drop(top);
        self.room.add_permits(taken.waiting.len());
        (taken, was_held)
    }

    /// What was taken is in the index now.
    pub fn landed(&self) {
        if let Ok(mut top) = self.top() {
            top.group.stand_on_the_index();
        }
    }

    /// Callers may put down commits again. The first frame will be `next_lsn`, and stands on what the index says.
    pub fn release(&self, next_lsn: u64, shared: &Shared) {
        if let Ok(mut top) = self.top() {
            top.group = Group::new(next_lsn);
            top.held = false;
            top.encode_deferred(shared, &self.retention);
        }
    }

    pub fn next_errand(&self) -> Option<Errand> {
        self.top().ok()?.errands.pop_front()
    }

    pub fn has_errand(&self) -> bool {
        self.top().is_ok_and(|top| !top.errands.is_empty())
    }

    /// Where a panic left half a frame, nothing may be put behind it.
    fn top(&self) -> Result<MutexGuard<'_, Top>, StoreError> {
        self.top.lock().map_err(|_| StoreError::Closed)
    }

    fn open_top(&self) -> Result<MutexGuard<'_, Top>, StoreError> {
        self.top().and_then(|top| if top.door == Door::Open { Ok(top) } else { Err(StoreError::Closed) })
    }

    fn wake(&self, mut top: MutexGuard<'_, Top>) {
        let idle = std::mem::take(&mut top.idle);
        drop(top);
        if idle {
            self.woken.notify_one();
            self.notify.notify_one();
        }
    }
}

impl Top {
    fn is_full(&self) -> bool {
        self.group.events >= GROUP_EVENTS_MAX || self.group.buffer.len() >= GROUP_BYTES_MAX
    }

    fn look(&mut self) -> Work {
        let none = self.waiting.is_empty() && self.deferred.is_empty() && self.errands.is_empty();
        self.idle = none && self.door == Door::Open;
        match (none, self.door) {
            (false, _) => Work::Waits,
            (true, Door::Open) => Work::Nothing,
            (true, Door::Closed) => Work::Over,
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

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.top().map_or(0, |top| top.waiting.len() + top.deferred.len());
        write!(f, "Desk({waiting} waiting)")
    }
}
