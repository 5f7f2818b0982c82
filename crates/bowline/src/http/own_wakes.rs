//! Keeps a task from waking itself. The parts of a connection wake each other, all in one task; and a task that is woken while it runs is put
//! at the end of its queue, and another thread is roused to help with what looks like more work.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// How often what has woken itself is run again before others have their turn.
const ROUNDS_MAX: usize = 8;

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const RUNNING_AND_WOKEN: u8 = 2;

/// Wakes the task, but for what wakes it while it runs: that is only noted.
#[derive(Default)]
struct Wakes {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let noted = self.state.compare_exchange(RUNNING, RUNNING_AND_WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if noted == Err(IDLE) {
            self.task.wake();
        }
    }
}

/// Runs its work again at once where the work has woken itself.
pub struct OwnWakes<F> {
    work: F,
    wakes: Arc<Wakes>,
    waker: Waker,
}

impl<F> OwnWakes<F> {
    pub fn of(work: F) -> OwnWakes<F> {
        let wakes = Arc::new(Wakes::default());
        OwnWakes { work, waker: wakes.clone().into(), wakes }
    }
}

impl<F: Future + Unpin> Future for OwnWakes<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.wakes.task.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            this.wakes.state.store(RUNNING, Ordering::SeqCst);
            let done = Pin::new(&mut this.work).poll(&mut Context::from_waker(&this.waker));
            let is_woken = this.wakes.state.swap(IDLE, Ordering::SeqCst) == RUNNING_AND_WOKEN;
            if done.is_ready() || !is_woken {
                return done;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// How often the work ran, and how often its task was woken.
    fn run(mut work: impl FnMut(usize, &Waker) -> Poll<()>) -> (usize, usize) {
        let (count, mut runs) = (Arc::new(Count::default()), 0);
        let work = poll_fn(|cx| {
            runs += 1;
            work(runs, cx.waker())
        });
        let _ = Pin::new(&mut OwnWakes::of(work)).poll(&mut Context::from_waker(&count.clone().into()));
        (runs, count.0.load(Ordering::SeqCst))
    }

    #[test]
    fn what_wakes_itself_runs_again_without_a_wake_and_not_for_ever() {
        assert_eq!(run(|_, _| Poll::Pending), (1, 0));
        let twice = |runs, waker: &Waker| {
            if runs < 3 {
                waker.wake_by_ref();
            }
            Poll::Pending
        };
        assert_eq!(run(twice), (3, 0));
        let always = |_, waker: &Waker| {
            waker.wake_by_ref();
            Poll::Pending
        };
        assert_eq!(run(always), (ROUNDS_MAX, 1));
    }

    #[test]
    fn what_is_woken_by_others_is_woken() {
        let (count, mut kept) = (Arc::new(Count::default()), None);
        let mut work = OwnWakes::of(poll_fn(|cx| {
            kept = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        assert!(Pin::new(&mut work).poll(&mut Context::from_waker(&count.clone().into())).is_pending());
        drop(work);
        kept.unwrap().wake();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }
}
