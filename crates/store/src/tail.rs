//! Waking readers: who wants to know when which log changes. Wake-ups may merge or repeat; they never carry truth.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use bowline_mutant::mutant;
use bowline_protocol::LogId;
use tokio::sync::Notify;

use crate::sync::{Mutex, lock};

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
    use super::*;

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
