//! One stream of a session, read from its log: what was missed and what comes, as Server-Sent Events. Who reads which stream now is
//! known: what is asked there is seen, and need not be asked again elsewhere.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::Resume;
use bowline_mutant::mutant;
use bowline_protocol::{Cursor, Seq};
use bowline_store::budget::Pacer;
use bowline_store::{Followed, Follower, ReadLimit, StoreError, WakeSet};
use bytes::Bytes;
use futures_util::Stream;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::call::facts;
use crate::fields::{Fields, Raw};
use crate::session::{ACTIVITY, HubSession, MESSAGE, OWN_STREAM, Route};
use crate::{message, sse};

/// Quiet streams get a comment this often, so that proxies do not cut them.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// As what events come over a stream.
const EVENT_LEVEL: &str = "info";
const EVENT_LOGGER: &str = "bowline";
const READ: ReadLimit = ReadLimit { events: 256, bytes: 256 << 10 };

/// What an event in a session's log says.
#[derive(Deserialize)]
pub struct Logged {
    pub event: String,
    #[serde(default)]
    pub timestamp: String,
    pub content: Raw,
    #[serde(default)]
    pub metadata: MessageFacts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct MessageFacts {
    pub stream: Option<String>,
    pub last: bool,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub server: Option<String>,
    /// The client gets it as it is, too.
    pub native: bool,
}

impl Logged {
    /// An event as `await_activity` gives it; `None` if this is something else.
    pub fn event(&self, id: &str) -> Option<Fields> {
        if self.event != ACTIVITY {
            return None;
        }
        let mut event = Fields::default();
        event.put("id", id);
        event.put("type", &self.metadata.kind);
        event.put("server", &self.metadata.server);
        event.put("createdAt", &self.timestamp);
        event.set("data", self.content.clone());
        Some(event)
    }
}

pub struct SessionStreamReader {
    session: Arc<HubSession>,
    stream: String,
    follower: Follower,
    wake: Arc<WakeSet>,
    _reading: ReadingGuard,
    /// Another reader has taken the stream over.
    stop: CancellationToken,
    over: bool,
    /// Its cursor is that of an event; so its client wants the events that follow.
    from_event: bool,
    pacer: Pacer,
}

/// What comes next on a stream.
pub enum SessionStreamItem {
    Messages(Vec<(Seq, Raw)>),
    Quiet,
}

impl SessionStreamReader {
    /// Reads what follows `after`.
    pub fn new(session: &Arc<HubSession>, stream: &str, after: Seq, stop: CancellationToken) -> SessionStreamReader {
        let wake = WakeSet::new();
        SessionStreamReader {
            session: session.clone(),
            stream: stream.to_owned(),
            follower: session.follow(after, &wake),
            wake,
            _reading: ReadingGuard::new(session, stream),
            stop,
            over: false,
            from_event: false,
            pacer: Pacer::new(&session.reading),
        }
    }

    /// The same after an event rather than after a message: what follows has the events in it.
    pub fn after_event(session: &Arc<HubSession>, after: Seq, stop: CancellationToken) -> SessionStreamReader {
        SessionStreamReader { from_event: true, ..SessionStreamReader::new(session, OWN_STREAM, after, stop) }
    }

    /// Events are for the stream that belongs to no call, and for those who asked: by a log level that has them, or by
    /// coming back with one of them in their hands.
    fn carries_events(&self) -> bool {
        let asked = self.from_event || facts::is_logged(Some(EVENT_LEVEL), self.session.log_level().as_deref());
        asked && self.stream == OWN_STREAM && self.session.record.route == Route::All
    }

    /// Whether nothing can come any more, wherever it is read from.
    pub fn is_over(&self) -> bool {
        self.over || self.stop.is_cancelled() || self.session.over.is_cancelled()
    }

    /// `None` when the stream has ended, or when it cannot be read now; a reader that can wait may ask again.
    pub async fn next(&mut self) -> Option<SessionStreamItem> {
        loop {
            if self.is_over() {
                return None;
            }
            let room = self.room().await?;
            let messages = self.read(room).await.ok()?;
            if !messages.is_empty() {
                return Some(SessionStreamItem::Messages(messages));
            }
            if self.over {
                return None;
            }
            self.pacer.rest();
            let (stop, over) = (self.stop.clone(), self.session.over.clone());
            let woken = stop.run_until_cancelled(over.run_until_cancelled(self.wake.woken()));
            if tokio::time::timeout(COMMENT_EVERY, woken).await.is_err() {
                return Some(SessionStreamItem::Quiet);
            }
            self.wake.take();
        }
    }

    /// How much may be read now. A client that takes nothing is waited for, as long as anything can come of it.
    async fn room(&mut self) -> Option<usize> {
        let (stop, over) = (self.stop.clone(), self.session.over.clone());
        stop.run_until_cancelled(over.run_until_cancelled(self.pacer.room(READ.bytes))).await.flatten()
    }

    async fn read(&mut self, bytes: usize) -> Result<Vec<(Seq, Raw)>, StoreError> {
        let mut messages = Vec::new();
        let events = self.carries_events();
        self.follower.wake();
        loop {
            let found = match self.follower.next(ReadLimit { bytes, ..READ }).await? {
                Followed::Events(found) => found,
                Followed::Idle => return Ok(messages),
                Followed::Gap { .. } => {
                    // What a reader this slow is owed is gone. Its stream ends; a client that returns for the rest learns that.
                    self.over = true;
                    return Ok(messages);
                }
                Followed::Epoch(extent) => {
                    // What stands there now was never owed to this reader.
                    self.session.is_in(&extent.epoch);
                    return Ok(messages);
                }
            };
            for event in &found {
                let Ok(logged) = serde_json::from_slice::<Logged>(&event.bytes) else { continue };
                if events && !logged.metadata.native {
                    let told = logged.event(&self.session.event_id(event.seq)).map(|told| as_message(&told));
                    messages.extend(told.map(|told| (event.seq, told)));
                }
                let is_here = logged.metadata.stream.as_deref() == Some(&self.stream);
                if logged.event != MESSAGE || !(is_here || mutant("mix-the-streams-of-a-session")) {
                    continue;
                }
                if logged.content.get() != "null" {
                    messages.push((event.seq, logged.content));
                }
                self.over |= logged.metadata.last;
            }
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
            let bytes = match reader.next().await? {
                SessionStreamItem::Quiet => Bytes::from_static(b": still here\n\n"),
                SessionStreamItem::Messages(messages) => {
                    let one =
                        |(seq, message): &(Seq, Raw)| sse::encode(Some(&reader.session.event_id(*seq)), message.get());
                    let text: String = messages.iter().map(one).collect();
                    reader.pacer.piece(text.into_bytes())
                }
            };
            Some((Ok(bytes), (reader, None)))
        })
    }
}

/// An event as a notification that every client knows.
fn as_message(event: &Fields) -> Raw {
    let mut params = Fields::default();
    params.put("level", EVENT_LEVEL);
    params.put("logger", EVENT_LOGGER);
    params.set("data", event.to_raw());
    message::notification("notifications/message", Some(&params.to_raw()))
}

/// What a position in the log belongs to.
pub enum PositionOwner {
    Stream(String),
    /// An event, or the beginning, for a reader that has had no event yet.
    Event,
}

/// What stands at this position; `None` if it is not there any more.
pub async fn place_of(session: &HubSession, at: Seq) -> Result<Option<PositionOwner>, StoreError> {
    let events = session.record.route == Route::All;
    if at == Seq::ZERO {
        let extent = session.store().extent(&session.id).await?;
        let whole = !matches!(Resume::decide(&extent, &Cursor::bare(at)), Resume::Gap { .. });
        return Ok((events && whole).then_some(PositionOwner::Event));
    }
    let batch = session.store().read(&session.id, at, ReadLimit { events: 1, bytes: 1 }).await?;
    let event = batch.events.first().filter(|event| event.seq == at);
    let logged = event.and_then(|event| serde_json::from_slice::<Logged>(&event.bytes).ok());
    Ok(match logged {
        Some(logged) if logged.event == ACTIVITY => events.then_some(PositionOwner::Event),
        logged => logged.and_then(|logged| logged.metadata.stream).map(PositionOwner::Stream),
    })
}

impl fmt::Debug for SessionStreamReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({}, {})", self.session.id, self.stream)
    }
}

/// The streams that have readers.
#[derive(Default)]
pub(super) struct StreamReaders(HashMap<String, ReaderCount>);

#[derive(Default)]
struct ReaderCount {
    by: usize,
    /// The client has come back on another wire meanwhile, and was not asked again what was asked here.
    owed: bool,
}

impl StreamReaders {
    /// Whether it has a reader now. That may be a connection of which we do not know yet that it is lost; so what was asked there is
    /// owed to the client that is back, and comes once it has no reader any more.
    pub fn see(&mut self, stream: &str) -> bool {
        let read = self.0.get_mut(stream);
        read.map(|read| read.owed = true).is_some()
    }

    pub fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    fn enter(&mut self, stream: &str) {
        self.0.entry(stream.to_owned()).or_default().by += 1;
    }

    /// True if it has no reader any more, and something is owed.
    fn leave(&mut self, stream: &str) -> bool {
        let Some(read) = self.0.get_mut(stream) else { return false };
        read.by -= 1;
        let (over, owed) = (read.by == 0, read.owed);
        over && self.0.remove(stream).is_some() && owed
    }
}

/// A stream has a reader for as long as this exists.
pub struct ReadingGuard {
    session: Arc<HubSession>,
    stream: String,
}

impl ReadingGuard {
    pub fn new(session: &Arc<HubSession>, stream: &str) -> ReadingGuard {
        session.state().readers.enter(stream);
        ReadingGuard { session: session.clone(), stream: stream.to_owned() }
    }
}

impl Drop for ReadingGuard {
    fn drop(&mut self) {
        let owed = self.session.state().readers.leave(&self.stream);
        // Without a runtime there is no client left to ask.
        if let (true, Ok(runtime)) = (owed, tokio::runtime::Handle::try_current()) {
            let (session, stream) = (self.session.clone(), std::mem::take(&mut self.stream));
            runtime.spawn(async move { session.offer_left_on(&stream).await });
        }
    }
}

impl fmt::Debug for ReadingGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reading({}, {})", self.session.id, self.stream)
    }
}
