//! Tells calls when they have taken long. All share one timer: one for each call would interrupt the runtime with each of them, since it is
//! due before anything else that is waited for.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bowline_env::clock;
use futures_util::task::AtomicWaker;

/// A call that is answered within this time is answered directly; a longer one gets a stream that survives its wire.
pub const DIRECT_FOR: Duration = Duration::from_millis(100);

/// Calls that have just begun, the oldest first.
pub struct SlowCalls {
    after: Duration,
    young: Mutex<YoungCalls>,
}

#[derive(Default)]
struct YoungCalls {
    calls: VecDeque<(Instant, Arc<CallAge>)>,
    /// A task waits for the first of them.
    is_watched: bool,
}

#[derive(Default)]
struct CallAge {
    is_slow: AtomicBool,
    is_over: AtomicBool,
    waker: AtomicWaker,
}

impl SlowCalls {
    pub fn new(after: Duration) -> Arc<SlowCalls> {
        Arc::new(SlowCalls { after, young: Mutex::default() })
    }

    /// A call begins. What is given is ready when it has taken long, and ends the wait for that when it is dropped.
    pub fn begin(self: &Arc<Self>) -> Slowness {
        let age = Arc::new(CallAge::default());
        let mut young = self.lock();
        young.calls.push_back((clock::now() + self.after, age.clone()));
        if !std::mem::replace(&mut young.is_watched, true) {
            tokio::spawn(self.clone().watch(clock::now() + self.after));
        }
        Slowness(age)
    }

    async fn watch(self: Arc<Self>, mut due: Instant) {
        loop {
            tokio::time::sleep_until(due.into()).await;
            let mut young = self.lock();
            let now = clock::now();
            while let Some((_, age)) =
                young.calls.pop_front_if(|(due, age)| *due <= now || age.is_over.load(Ordering::Relaxed))
            {
                age.is_slow.store(true, Ordering::Release);
                age.waker.wake();
            }
            match young.calls.front() {
                Some((next, _)) => due = *next,
                None => {
                    young.is_watched = false;
                    return;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, YoungCalls> {
        self.young.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SlowCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlowCalls({} young)", self.lock().calls.len())
    }
}

/// Ready when its call has taken long.
pub struct Slowness(Arc<CallAge>);

impl Future for Slowness {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.waker.register(cx.waker());
        if self.0.is_slow.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Slowness {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slowness")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_slow_when_its_time_is_over_and_not_before_however_many_came_and_went() {
        let calls = SlowCalls::new(Duration::from_millis(100));
        let began = tokio::time::Instant::now();
        let first = calls.begin();
        for _ in 0..5 {
            drop(calls.begin());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let second = calls.begin();
        first.await;
        assert!(began.elapsed() >= Duration::from_millis(100), "{:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_millis(110), "{:?}", began.elapsed());
        assert_eq!(calls.lock().calls.len(), 1, "those that were over are gone");
        second.await;
        assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!calls.lock().is_watched, "nobody waits for nothing");
        calls.begin().await;
        assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    }
}
