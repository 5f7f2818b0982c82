//! One stream of a session, read from its log: what was missed and what comes, as Server-Sent Events.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_protocol::Seq;
use bowline_store::{ReadLimit, StoreError, TailGuard, WakeSet};
use bytes::Bytes;
use futures_util::Stream;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::fields::Raw;
use crate::session::{MESSAGE, Session};
use crate::sse;

/// Quiet streams get a comment this often, so that proxies do not cut them.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
const READ: ReadLimit = ReadLimit { events: 256, bytes: 1 << 20 };

/// What an event in a session's log says.
#[derive(Deserialize)]
pub struct Logged {
    pub event: String,
    #[serde(default)]
    pub timestamp: String,
    pub content: Raw,
    #[serde(default)]
    pub metadata: Facts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Facts {
    pub stream: Option<String>,
    pub last: bool,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub server: Option<String>,
}

pub struct Reader {
    session: Arc<Session>,
    stream: String,
    next: Seq,
    wake: Arc<WakeSet>,
    _guard: TailGuard,
    /// Another reader has taken the stream over.
    stop: CancellationToken,
    over: bool,
}

/// What comes next on a stream.
pub enum Piece {
    Messages(Vec<(Seq, Raw)>),
    Quiet,
}

impl Reader {
    /// Reads what follows `after`. Subscribes first, then looks, so that nothing slips in between.
    pub fn new(session: &Arc<Session>, stream: &str, after: Seq, stop: CancellationToken) -> Reader {
        let wake = WakeSet::new();
        let guard = session.store().tail(&session.id, &wake, 0);
        Reader {
            session: session.clone(),
            stream: stream.to_owned(),
            next: after.next(),
            wake,
            _guard: guard,
            stop,
            over: false,
        }
    }

    /// `None` when the stream has ended, for whatever reason.
    pub async fn next(&mut self) -> Option<Piece> {
        loop {
            if self.over || self.stop.is_cancelled() || self.session.over.is_cancelled() {
                return None;
            }
            let messages = self.read().await.ok()?;
            if !messages.is_empty() {
                return Some(Piece::Messages(messages));
            }
            if self.over {
                return None;
            }
            let (stop, over) = (self.stop.clone(), self.session.over.clone());
            let woken = stop.run_until_cancelled(over.run_until_cancelled(self.wake.woken()));
            if tokio::time::timeout(COMMENT_EVERY, woken).await.is_err() {
                return Some(Piece::Quiet);
            }
            self.wake.take();
        }
    }

    async fn read(&mut self) -> Result<Vec<(Seq, Raw)>, StoreError> {
        let mut messages = Vec::new();
        loop {
            let batch = self.session.store().read(&self.session.id, self.next, READ).await?;
            let Some(last) = batch.events.last().map(|event| event.seq) else { return Ok(messages) };
            for event in &batch.events {
                let Ok(logged) = serde_json::from_slice::<Logged>(&event.bytes) else { continue };
                if logged.event != MESSAGE || logged.metadata.stream.as_deref() != Some(&self.stream) {
                    continue;
                }
                if logged.content.get() != "null" {
                    messages.push((event.seq, logged.content));
                }
                self.over |= logged.metadata.last;
            }
            self.next = last.next();
            if !messages.is_empty() || self.over {
                return Ok(messages);
            }
        }
    }

    /// The stream as bytes, with `first` before everything.
    pub fn into_sse(self, first: Option<String>) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        futures_util::stream::unfold((self, first), |(mut reader, first)| async move {
            if let Some(first) = first {
                return Some((Ok(Bytes::from(first)), (reader, None)));
            }
            let text = match reader.next().await? {
                Piece::Quiet => ": still here\n\n".to_owned(),
                Piece::Messages(messages) => {
                    let one =
                        |(seq, message): &(Seq, Raw)| sse::encode(Some(&reader.session.event_id(*seq)), message.get());
                    messages.iter().map(one).collect()
                }
            };
            Some((Ok(Bytes::from(text)), (reader, None)))
        })
    }
}

/// The stream to which an event belongs; `None` if it is not there any more.
pub async fn stream_of(session: &Session, at: Seq) -> Result<Option<String>, StoreError> {
    let batch = session.store().read(&session.id, at, ReadLimit { events: 1, bytes: 1 }).await?;
    let event = batch.events.first().filter(|event| event.seq == at);
    Ok(event
        .and_then(|event| serde_json::from_slice::<Logged>(&event.bytes).ok())
        .and_then(|logged| logged.metadata.stream))
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({}, {})", self.session.id, self.stream)
    }
}
