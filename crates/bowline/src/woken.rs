//! A stream that is asked only when it has something to say.
//!
//! A driver waits for several things, and asks all of them whenever one of them has happened. Asking a WebSocket for its next
//! frame is not free: its library clears a whole read buffer first. So it is asked again only once it has woken its reader.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::Stream;
use futures_util::task::AtomicWaker;

pub struct WokenStream<S> {
    stream: S,
    state: Arc<StreamWaker>,
    /// The same, as the stream knows it.
    waker: Waker,
}

/// What the stream wakes.
struct StreamWaker {
    is_woken: AtomicBool,
    reader: AtomicWaker,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.reader.wake();
    }
}

impl<S> WokenStream<S> {
    pub fn new(stream: S) -> WokenStream<S> {
        let state = Arc::new(StreamWaker { is_woken: AtomicBool::new(true), reader: AtomicWaker::new() });
        WokenStream { stream, waker: state.clone().into(), state }
    }
}

impl<S: Stream + Unpin> Stream for WokenStream<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let Self { stream, state, waker } = &mut *self;
        // Registered before the look at the flag, or else a wake-up between the two would reach no reader.
        state.reader.register(context.waker());
        if !state.is_woken.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        let polled = Pin::new(stream).poll_next(&mut Context::from_waker(waker));
        if polled.is_ready() {
            // There may be more, and then the stream does not wake its reader again.
            state.is_woken.store(true, Ordering::Release);
        }
        polled
    }
}

impl<S> std::fmt::Debug for WokenStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WokenStream")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    /// Gives what a channel holds, keeps the waker of the last one who asked in vain, and counts how often it was asked.
    struct Counted {
        items: mpsc::Receiver<u32>,
        waker: Arc<AtomicWaker>,
        asked: Arc<AtomicUsize>,
    }

    impl Stream for Counted {
        type Item = u32;

        fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u32>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.waker.register(context.waker());
            match self.items.try_recv() {
                Ok(item) => Poll::Ready(Some(item)),
                Err(_) => Poll::Pending,
            }
        }
    }

    #[tokio::test]
    async fn it_is_asked_until_it_has_nothing_and_then_not_before_it_wakes() {
        let (send, items) = mpsc::channel();
        let (waker, asked) = (Arc::new(AtomicWaker::new()), Arc::new(AtomicUsize::new(0)));
        let mut stream = WokenStream::new(Counted { items, waker: waker.clone(), asked: asked.clone() });
        for item in [1, 2] {
            send.send(item).unwrap();
        }
        assert_eq!((stream.next().await, stream.next().await), (Some(1), Some(2)));
        for _ in 0..5 {
            assert_eq!(stream.next().now_or_never(), None);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 3, "two items, and once in vain");
        let waits = tokio::spawn(async move { stream.next().await });
        tokio::task::yield_now().await;
        send.send(3).unwrap();
        waker.wake();
        assert_eq!(waits.await.unwrap(), Some(3), "a reader that waits is woken");
    }
}
