//! What a backend says during one call, until its caller takes it: the task that reads from the backend never waits for a caller. And
//! what it says that cannot be taken, and why.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{Either, select};
use tokio::sync::Notify;

use crate::call::{Inbound, InboundSink};
use crate::fields::Raw;
use crate::message::{self, BYTES_MAX, Malformed, RpcId};
use crate::scan::JsonScan;
use crate::upstream::progress::is_progress;

/// What may wait for one caller, besides what its sink holds.
const WAITING_MAX: usize = 256;

pub(super) struct InboundQueue {
    server: Arc<str>,
    queue: Mutex<QueuedInbound>,
    more: Notify,
}

#[derive(Default)]
struct QueuedInbound {
    waiting: VecDeque<Inbound>,
    bytes: usize,
    /// What found no place. A question that finds none is not answered.
    missed: u64,
}

impl InboundQueue {
    pub fn new(server: &Arc<str>) -> InboundQueue {
        InboundQueue { server: server.clone(), queue: Mutex::default(), more: Notify::new() }
    }

    /// Never waits. When there is no place left, newer progress takes that of older progress, which it includes, and
    /// anything else is missed.
    pub fn put(&self, inbound: Inbound) {
        let mut queue = self.lock();
        if queue.is_full(&inbound) && is_progress(&inbound) {
            queue.forget_progress();
        }
        if queue.is_full(&inbound) {
            queue.missed += 1;
            return;
        }
        queue.bytes += bytes(&inbound);
        queue.waiting.push_back(inbound);
        self.more.notify_one();
    }

    /// Waits for the answer. What is said meanwhile goes to the caller, and is with it before the answer is.
    pub async fn until<T>(&self, answer: impl Future<Output = T>, sink: &InboundSink) -> T {
        let (answer, passing) = (pin!(answer), pin!(self.pass_on(sink)));
        let answer = match select(answer, passing).await {
            Either::Left((answer, _)) => answer,
            Either::Right((never, _)) => match never {},
        };
        while !self.lock().waiting.is_empty() {
            self.pass_one_on(sink).await;
        }
        answer
    }

    async fn pass_on(&self, sink: &InboundSink) -> Infallible {
        loop {
            if self.lock().waiting.is_empty() {
                self.more.notified().await;
            } else {
                self.pass_one_on(sink).await;
            }
        }
    }

    /// An item is taken only when there is room for it: a caller that stops waiting loses nothing.
    async fn pass_one_on(&self, sink: &InboundSink) {
        let place = sink.reserve().await;
        let next = self.lock().take();
        // A caller that is gone misses nothing.
        if let (Ok(place), Some(next)) = (place, next) {
            place.send(next);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueuedInbound> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedInbound {
    fn is_full(&self, next: &Inbound) -> bool {
        let heavy = !self.waiting.is_empty() && self.bytes + bytes(next) > BYTES_MAX;
        heavy || self.waiting.len() >= WAITING_MAX
    }

    fn take(&mut self) -> Option<Inbound> {
        let next = self.waiting.pop_front()?;
        self.bytes -= bytes(&next);
        Some(next)
    }

    /// Forgets the newest progress that waits.
    fn forget_progress(&mut self) {
        let newest = self.waiting.iter().rposition(is_progress);
        if let Some(older) = newest.and_then(|at| self.waiting.remove(at)) {
            self.bytes -= bytes(&older);
        }
    }
}

fn bytes(inbound: &Inbound) -> usize {
    let (Inbound::Notification { params, .. } | Inbound::Request { params, .. }) = inbound;
    params.as_ref().map_or(0, |params| params.get().len())
}

impl Drop for InboundQueue {
    fn drop(&mut self) {
        let missed = self.lock().missed;
        if missed > 0 {
            tracing::warn!(server = %self.server, missed, "a client that did not read missed what was said during its call");
        }
    }
}

/// The error of a call that was answered under another id.
pub const WRONGLY_NAMED: &str = "it answered another request than the one asked";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    TooLong,
    Malformed(Malformed),
}

impl Unread {
    /// Whether such a message can be the answer to a call. A program may also write lines of its own between its messages; those
    /// must not end a call.
    pub fn may_answer(self, scan: &JsonScan) -> bool {
        let meant = match self {
            Unread::TooLong | Unread::Malformed(Malformed::TooDeep) => true,
            Unread::Malformed(Malformed::NotUtf8 | Malformed::NotJson | Malformed::NotRpc) => {
                scan.is_rpc() || scan.is_plainly_response()
            }
        };
        meant && scan.may_be_response()
    }

    /// Why a call has no answer on the stream that is its alone, if this was to be its answer there. What is not even JSON was
    /// to be something.
    pub fn spoils(self, scan: &JsonScan, id: &RpcId) -> Option<String> {
        let unreadable = matches!(self, Unread::Malformed(Malformed::NotUtf8 | Malformed::NotJson));
        let noise = unreadable && !scan.has_method();
        let wrongly = scan.id().is_some_and(|other| other != id);
        match noise || self.may_answer(scan) {
            true if wrongly => Some(WRONGLY_NAMED.to_owned()),
            true => Some(self.to_string()),
            false => None,
        }
    }

    /// The error for a backend whose request cannot be read, so that it does not wait for an answer.
    pub fn refusal(self, scan: &JsonScan) -> Option<Raw> {
        let id = scan.asks().filter(|_| scan.is_rpc())?;
        let error = message::error(message::INVALID_REQUEST, "the request is larger than is taken, or cannot be read");
        Some(message::response(id, &Err(error)))
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::TooLong => write!(f, "the answer has more than {BYTES_MAX} bytes, which are not taken"),
            Unread::Malformed(why) => write!(f, "the answer cannot be read: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::raw;
    use serde_json::json;
    use tokio::sync::mpsc;

    fn says(method: &str, n: usize) -> Inbound {
        Inbound::Notification { server: "b".into(), method: method.into(), params: Some(raw(&json!(n))) }
    }

    async fn heard(said: &InboundQueue) -> Vec<(String, usize)> {
        let (sink, mut taken) = mpsc::channel(1);
        let read = async {
            let mut all = Vec::new();
            while let Some(Inbound::Notification { method, params, .. }) = taken.recv().await {
                all.push((method, params.unwrap().get().parse().unwrap()));
            }
            all
        };
        let pass = async {
            said.until(async {}, &sink).await;
            drop(sink);
        };
        futures_util::future::join(read, pass).await.0
    }

    #[tokio::test]
    async fn all_that_finds_a_place_is_heard_in_its_order_and_the_answer_comes_last() {
        let said = InboundQueue::new(&"b".into());
        (0..WAITING_MAX).for_each(|n| said.put(says("notifications/message", n)));
        said.put(says("notifications/message", WAITING_MAX));
        let heard = heard(&said).await;
        assert_eq!(heard.into_iter().map(|(_, n)| n).collect::<Vec<_>>(), (0..WAITING_MAX).collect::<Vec<_>>());
        assert_eq!(said.lock().missed, 1);
    }

    #[tokio::test]
    async fn of_progress_that_nobody_reads_the_newest_is_kept_and_nothing_is_missed() {
        let said = InboundQueue::new(&"b".into());
        said.put(says("notifications/progress", 0));
        said.put(says("notifications/message", 7));
        (1..1000).for_each(|n| said.put(says("notifications/progress", n)));
        let heard = heard(&said).await;
        let steps: Vec<usize> =
            heard.iter().filter(|(method, _)| method.ends_with("progress")).map(|it| it.1).collect();
        assert!(steps.is_sorted() && steps.len() == WAITING_MAX - 1 && steps.ends_with(&[999]), "{steps:?}");
        assert_eq!(heard[1], ("notifications/message".to_owned(), 7));
        assert_eq!(said.lock().missed, 0);
    }

    #[tokio::test]
    async fn what_waits_for_one_caller_is_limited_in_bytes_too() {
        let said = InboundQueue::new(&"b".into());
        let large = raw(&"x".repeat(BYTES_MAX / 2));
        for _ in 0..3 {
            let (server, method) = ("b".into(), "notifications/message".into());
            said.put(Inbound::Notification { server, method, params: Some(large.clone()) });
        }
        let queue = said.lock();
        assert_eq!((queue.waiting.len(), queue.missed), (1, 2));
    }
}
