//! Locks and threads: the standard library's, or shuttle's, which tries their interleavings (`crates/interleavings`).

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread,
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread,
};

use std::sync::PoisonError;
use std::time::Duration;

/// A poisoned lock still guards sound data here: every critical section is a few infallible moves.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a thread that is about to end. A panic there has been reported by the thread itself.
pub(crate) async fn joined(thread: thread::JoinHandle<()>) {
    #[cfg(not(feature = "shuttle"))]
    let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    #[cfg(feature = "shuttle")]
    let _ = thread.join();
}

/// Waits for a wake-up, for so long at most; none if the lock is poisoned. Shuttle knows no time, so there the time is over at once.
pub(crate) fn wait_for<'a, T>(
    woken: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> Option<MutexGuard<'a, T>> {
    #[cfg(not(feature = "shuttle"))]
    {
        let _ = mutex;
        woken.wait_timeout(guard, time).ok().map(|(guard, _)| guard)
    }
    #[cfg(feature = "shuttle")]
    {
        let _ = (woken, time);
        drop(guard);
        thread::yield_now();
        mutex.lock().ok()
    }
}
