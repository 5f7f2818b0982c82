//! Following one log in one epoch: subscribe to its tail, read to its end, wait for a wake-up, read on.
//!
//! Wake-ups may merge or repeat; they never carry truth.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use bowline_mutant::mutant;
use bowline_protocol::{Epoch, Extent, LogId, Recorded, Seq};
use tokio::sync::Notify;

use crate::sync::{Mutex, lock};
use crate::{ReadLimit, Store, StoreError};

/// A reader of one log that counts in one epoch.
///
/// It subscribes when it is made, so an event that is stored later wakes the [`WakeSet`], and an event that was stored
/// earlier is found by the first [`next`](Follower::next). The caller reads until [`Followed::Idle`], then waits on the
/// wake set, which many followers may share, then says so and reads again:
///
/// ```text
/// loop {
///     match follower.next(limit).await? {
///         Followed::Events(events) => …,
///         Followed::Gap { from, to } => …,
///         Followed::Epoch(extent) => …,          // compare the cursor, then `enter` and `seek`, or stop
///         Followed::Idle => {
///             wake.changed().await;
///             follower.wake();
///         }
///     }
/// }
/// ```
pub struct Follower {
    store: Arc<dyn Store>,
    log: LogId,
    epoch: Epoch,
    /// The number of the next event that this reader wants.
    position: Seq,
    /// Where the log ended when this reader last looked.
    end: Seq,
    look: Look,
    _tail: TailGuard,
}

/// Where a follower looks whether the log has grown.
#[derive(Clone, Copy)]
enum Look {
    /// It has not: whatever is stored wakes the reader.
    No,
    /// At what all followers share, which is as new as the last wake-up.
    Shared,
    Store,
}

/// An event that was stored before the subscription is found by looking once.
fn first_look() -> Look {
    if mutant("subscribe-without-a-look") { Look::No } else { Look::Shared }
}

/// What a follower finds at its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// Events without holes; the first one is the one at the position. The position is now behind the last one.
    Events(Vec<Recorded>),
    /// Events `from .. to` can no longer be read. The position is now `to`.
    Gap { from: Seq, to: Seq },
    /// The log goes on in another epoch, in which the position means nothing. It stays where it was until
    /// [`enter`](Follower::enter) and [`seek`](Follower::seek).
    Epoch(Extent),
    /// The reader has everything. It is woken when there may be more.
    Idle,
}

/// Why a log cannot be followed any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The reader's numbers mean something else now. It must compare its cursor with the log anew.
    #[error("the log goes on in another epoch")]
    EpochChanged,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Follower {
    /// A reader that counts in `epoch` and whose next event is `from`.
    pub fn new(
        store: &Arc<dyn Store>,
        log: &LogId,
        (epoch, from): (&Epoch, Seq),
        wake: &Arc<WakeSet>,
        token: u64,
    ) -> Follower {
        let tail = store.tail(log, wake, token);
        let (store, log, epoch) = (store.clone(), log.clone(), epoch.clone());
        Follower { store, log, epoch, position: from, end: from, look: first_look(), _tail: tail }
    }

    pub fn log(&self) -> &LogId {
        &self.log
    }

    /// The epoch that the reader counts in.
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// The reader has compared its position with this epoch, and counts in it from now on.
    pub fn enter(&mut self, epoch: &Epoch) {
        self.epoch.clone_from(epoch);
        self.end = self.position;
        self.look = Look::Shared;
    }

    /// The number of the next event that this reader wants.
    pub fn position(&self) -> Seq {
        self.position
    }

    /// Moves the position: the next event that this reader wants is `to`.
    pub fn seek(&mut self, to: Seq) {
        self.position = to;
    }

    /// The wake set has given this reader's token: the log may have grown.
    pub fn wake(&mut self) {
        self.look = Look::Shared;
    }

    /// A wake-up may have been missed: the store itself must say whether the log has grown.
    pub fn doubt(&mut self) {
        self.look = Look::Store;
    }

    /// Where the log ended when this reader last looked: the number of the event that came next.
    pub fn end(&self) -> Seq {
        self.end
    }

    /// Reads on from the position. It never waits for the log to grow, and asks the store for nothing if the reader has
    /// everything and was not woken since.
    pub async fn next(&mut self, limit: ReadLimit) -> Result<Followed, StoreError> {
        if self.position >= self.end {
            let mut extent = match self.look {
                Look::No => return Ok(Followed::Idle),
                Look::Shared => self.store.glance(&self.log).await?,
                Look::Store => self.store.extent(&self.log).await?,
            };
            if extent.epoch != self.epoch {
                // What all followers share may be older than what this reader knows, so the store itself is asked.
                extent = self.store.extent(&self.log).await?;
            }
            if extent.epoch != self.epoch {
                return Ok(Followed::Epoch(extent));
            }
            // Whatever is stored from now on wakes the reader again.
            self.look = Look::No;
            self.end = self.end.max(extent.next);
            if self.position >= self.end {
                return Ok(Followed::Idle);
            }
        }
        let mut batch = self.store.follow(&self.log, self.position, limit).await?;
        if batch.epoch != self.epoch || batch.next < self.end {
            batch = self.store.read(&self.log, self.position, limit).await?;
        }
        if batch.epoch != self.epoch {
            return Ok(Followed::Epoch(self.store.extent(&self.log).await?));
        }
        self.end = batch.next;
        if batch.first > self.position {
            let from = std::mem::replace(&mut self.position, batch.first);
            return Ok(Followed::Gap { from, to: batch.first });
        }
        match batch.events.last() {
            Some(last) => {
                self.position = last.seq.next();
                Ok(Followed::Events(batch.events))
            }
            None => Ok(Followed::Idle),
        }
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Follower({} in {})", self.log, self.epoch)
    }
}

/// One waiter for any number of logs: each has a token, and a token is queued at most once.
#[derive(Debug, Default)]
pub struct WakeSet {
    woken: Mutex<Vec<u64>>,
    notify: Notify,
}

impl WakeSet {
    pub fn new() -> Arc<WakeSet> {
        Arc::default()
    }

    pub fn wake(&self, token: u64) {
        let mut woken = lock(&self.woken);
        if !woken.contains(&token) {
            woken.push(token);
            drop(woken);
            self.notify.notify_one();
        }
    }

    /// Waits until at least one token was woken. Cancel-safe: tokens are only taken by [`take`](WakeSet::take).
    pub async fn woken(&self) {
        loop {
            let notified = self.notify.notified();
            if !lock(&self.woken).is_empty() {
                return;
            }
            notified.await;
        }
    }

    /// Waits until at least one token was woken, and takes all that were. Cancel-safe: a wait that is dropped takes none.
    pub async fn changed(&self) -> Vec<u64> {
        self.woken().await;
        self.take()
    }

    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.woken))
    }
}

/// Who waits for which log, for all logs of a store.
#[derive(Default)]
pub struct Tails {
    waiters: Mutex<HashMap<LogId, Vec<Waiter>>>,
}

struct Waiter {
    wake: Weak<WakeSet>,
    token: u64,
}

impl Tails {
    pub fn subscribe(self: &Arc<Self>, log: &LogId, wake: &Arc<WakeSet>, token: u64) -> TailGuard {
        lock(&self.waiters).entry(log.clone()).or_default().push(Waiter { wake: Arc::downgrade(wake), token });
        TailGuard { tails: Arc::downgrade(self), log: log.clone(), wake: Arc::downgrade(wake), token }
    }

    pub fn wake(&self, log: &LogId) {
        self.wake_each([log]);
    }

    pub fn has(&self, log: &LogId) -> bool {
        lock(&self.waiters).contains_key(log)
    }

    /// Logs that have waiting readers.
    pub fn logs(&self) -> Vec<LogId> {
        lock(&self.waiters).keys().cloned().collect()
    }

    pub fn wake_each<'a>(&self, logs: impl IntoIterator<Item = &'a LogId>) {
        let waiters = lock(&self.waiters);
        if waiters.is_empty() {
            return;
        }
        let each = if mutant("wake-one-reader") { 1 } else { usize::MAX };
        for waiter in logs.into_iter().filter_map(|log| waiters.get(log)).flat_map(|list| list.iter().take(each)) {
            if let Some(wake) = waiter.wake.upgrade() {
                wake.wake(waiter.token);
            }
        }
    }
}

impl fmt::Debug for Tails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tails({} logs)", lock(&self.waiters).len())
    }
}

/// A subscription; dropping it ends it.
#[derive(Debug)]
pub struct TailGuard {
    tails: Weak<Tails>,
    log: LogId,
    wake: Weak<WakeSet>,
    token: u64,
}

impl Drop for TailGuard {
    fn drop(&mut self) {
        let Some(tails) = self.tails.upgrade() else { return };
        let mut waiters = lock(&tails.waiters);
        if let Some(list) = waiters.get_mut(&self.log) {
            if let Some(at) = list.iter().position(|w| w.token == self.token && w.wake.ptr_eq(&self.wake)) {
                list.swap_remove(at);
            }
            if list.is_empty() {
                waiters.remove(&self.log);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_protocol::event::{Draft, names};
    use bowline_protocol::{SessionId, Unnumbered};

    use super::*;
    use crate::memory::MemoryStore;
    use crate::{Commit, Fence, Release, Retention, Start};

    const LIMIT: ReadLimit = ReadLimit { events: 2, bytes: 1 << 20 };

    fn event() -> Unnumbered {
        Draft::new(names::THINKING, &"x").seal(&SessionId::from_random(1), "2026-01-01T00:00:00Z")
    }

    fn store(events_max: u64) -> (Arc<dyn Store>, LogId) {
        let store = MemoryStore::new(Retention { events_max, age_max_ms: u64::MAX });
        (Arc::new(store), LogId::parse("followed").unwrap())
    }

    async fn create(store: &Arc<dyn Store>, log: &LogId, epoch: u64) -> Epoch {
        let start = Start { epoch: Epoch::from_random(epoch), after: Seq::ZERO };
        let commit = Commit { create: Some(start), ..Commit::to(log.clone(), Fence::OPEN, 0) };
        store.commit(commit).await.unwrap().epoch
    }

    async fn append(store: &Arc<dyn Store>, log: &LogId, count: usize) {
        let commit = Commit { events: vec![event(); count], ..Commit::to(log.clone(), Fence::OPEN, 0) };
        store.commit(commit).await.unwrap();
    }

    async fn numbers(follower: &mut Follower) -> Vec<u64> {
        match follower.next(LIMIT).await.unwrap() {
            Followed::Events(events) => events.iter().map(|event| event.seq.get()).collect(),
            other => panic!("{other:?} where events were expected"),
        }
    }

    #[tokio::test]
    async fn every_event_comes_once_whether_it_was_stored_before_or_after_the_subscription() {
        let (store, log) = store(100);
        let epoch = create(&store, &log, 1).await;
        append(&store, &log, 3).await;
        let wake = WakeSet::new();
        let mut follower = Follower::new(&store, &log, (&epoch, Seq::FIRST), &wake, 7);
        assert_eq!(numbers(&mut follower).await, [1, 2]);
        assert_eq!(numbers(&mut follower).await, [3]);
        assert_eq!(follower.next(LIMIT).await.unwrap(), Followed::Idle);
        append(&store, &log, 1).await;
        assert_eq!(wake.changed().await, [7], "what is stored after the subscription wakes the reader");
        assert_eq!(follower.next(LIMIT).await.unwrap(), Followed::Idle, "and is looked for once the reader knows that");
        follower.wake();
        assert_eq!(numbers(&mut follower).await, [4]);
        assert_eq!(follower.position().get(), 5);
    }

    #[tokio::test]
    async fn what_was_trimmed_is_a_gap_and_not_a_jump() {
        let (store, log) = store(2);
        let epoch = create(&store, &log, 1).await;
        append(&store, &log, 5).await;
        let from = Seq::new(2).unwrap();
        let mut follower = Follower::new(&store, &log, (&epoch, from), &WakeSet::new(), 0);
        let to = Seq::new(4).unwrap();
        assert_eq!(follower.next(LIMIT).await.unwrap(), Followed::Gap { from, to });
        assert_eq!(numbers(&mut follower).await, [4, 5]);
    }

    #[tokio::test]
    async fn another_epoch_is_told_until_the_reader_has_entered_it() {
        let (store, log) = store(100);
        let epoch = create(&store, &log, 1).await;
        append(&store, &log, 2).await;
        let mut follower = Follower::new(&store, &log, (&epoch, Seq::FIRST), &WakeSet::new(), 0);
        assert_eq!(numbers(&mut follower).await, [1, 2]);
        let release = Commit { release: Some(Release::Log), ..Commit::to(log.clone(), Fence::OPEN, 0) };
        store.commit(release).await.unwrap();
        follower.wake();
        assert_eq!(follower.next(LIMIT).await, Err(StoreError::NoSuchLog));
        let other = create(&store, &log, 2).await;
        append(&store, &log, 3).await;
        for _ in 0..2 {
            let Ok(Followed::Epoch(extent)) = follower.next(LIMIT).await else { panic!("the epoch is another one") };
            assert_eq!((extent.epoch, extent.next.get()), (other.clone(), 4));
        }
        follower.enter(&other);
        follower.seek(Seq::FIRST);
        assert_eq!(numbers(&mut follower).await, [1, 2]);
    }

    #[tokio::test]
    async fn a_wake_before_the_wait_is_not_lost_and_repeats_merge() {
        let tails = Arc::new(Tails::default());
        let (log, wake) = (LogId::parse("a").unwrap(), WakeSet::new());
        let guard = tails.subscribe(&log, &wake, 7);
        tails.wake(&log);
        tails.wake(&log);
        wake.woken().await;
        assert_eq!(wake.take(), [7]);
        drop(guard);
        tails.wake(&log);
        assert!(wake.take().is_empty());
    }
}
