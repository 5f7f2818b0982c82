//! What can be watched: a turn in its session's log, or a task with a log of its own, found by one name for its owner.

pub mod queued;
pub mod reader;

use std::sync::Arc;

use bowline_api::Message;
use bowline_core::dialect::{Projection, ProjectionIndex, index_key};
use bowline_core::resume::{Resume, Span};
use bowline_core::watch::WatchStart;
use bowline_env::clock;
use bowline_protocol::event::names;
use bowline_protocol::{
    Cursor, Epoch, ErrorCode, Extent, LogId, OperationId, Principal, Refusal, Seq, SessionId, StreamCursor, TaskId,
};
use bowline_store::{LogKind, ReadLimit, StoreError};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use reader::{ReaderContext, StreamPlace};

use crate::config::Config;
use crate::decode::decode;
use crate::logs::Logs;
use crate::refusals;
use crate::schema;
use crate::secret::Presented;
use crate::session::background;
use crate::session::record::keys;
use crate::session::turns::TurnEntry;
use crate::session::{Life, SessionRecord, Sessions};
use crate::task::status::{Status, TurnError};
use crate::task::{self, TaskRecord, Tasks};

/// Where turns and tasks are found, and what their readers share.
pub struct Streams {
    pub config: Arc<Config>,
    pub sessions: Arc<Sessions>,
    pub tasks: Arc<Tasks>,
    pub readers: Arc<ReaderContext>,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Streams")
    }
}

/// What shows that a session is the asker's, beyond its name.
#[derive(Clone, Debug)]
pub enum Proof<'a> {
    Token(Option<&'a Presented>),
    /// The logs of the sessions that the asker's connection is attached to, and a token if it showed one.
    Attached(Vec<LogId>, Option<Presented>),
}

impl Proof<'_> {
    fn token(&self) -> Option<&Presented> {
        match self {
            Proof::Token(token) => *token,
            Proof::Attached(_, token) => token.as_ref(),
        }
    }
}

/// A task as its owner sees it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Task")]
pub(crate) struct TaskResource {
    #[schemars(with = "String")]
    task_id: TaskId,
    #[schemars(with = "Option<String>")]
    session_id: Option<SessionId>,
    #[schemars(with = "Option<String>")]
    operation_id: Option<OperationId>,
    tool_name: Option<String>,
    status: Status,
    #[schemars(schema_with = "schema::time")]
    created_at: String,
    #[schemars(schema_with = "schema::time_or_null")]
    finished_at: Option<String>,
    /// The cursor at its end, so far.
    #[schemars(schema_with = "schema::cursor")]
    last_message_id: String,
    /// What the work gave: an operation's result, `{text}` of a turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    result: Option<Value>,
    /// The result was too old to be kept; how the task ended is known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(schema_with = "schema::only_true")]
    result_expired: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TurnError")]
    error: Option<TurnError>,
}

/// A task that its owner may watch.
#[derive(Debug)]
pub struct Watched {
    pub id: TaskId,
    pub log: LogId,
    /// The name of the session it belongs to, if any.
    pub session: Option<SessionId>,
    /// Its first event, and its last if it has ended.
    pub first: Seq,
    pub last: Option<Seq>,
    pub extent: Extent,
    /// Where its index is kept, beside its log.
    pub index_key: String,
    facts: WatchedFacts,
}

#[derive(Debug)]
enum WatchedFacts {
    Turn(TurnEntry),
    /// `let_go`: the session that knows how it ended does not keep its result any more.
    Task {
        record: Box<TaskRecord>,
        let_go: bool,
    },
}

impl Watched {
    /// Finds a task. One that is unknown and one that is another principal's are answered alike.
    pub async fn find(
        streams: &Streams,
        id: &TaskId,
        asker: &Principal,
        proof: Option<&Presented>,
    ) -> Result<Watched, Refusal> {
        Watched::find_with(streams, id, asker, &Proof::Token(proof)).await
    }

    pub async fn find_with(
        streams: &Streams,
        id: &TaskId,
        asker: &Principal,
        proof: &Proof<'_>,
    ) -> Result<Watched, Refusal> {
        match id.turn() {
            Some((log, started)) => Watched::turn(streams, id, log, started, asker, proof).await,
            None => Watched::task(streams, id, asker, proof).await,
        }
    }

    async fn turn(
        streams: &Streams,
        id: &TaskId,
        log: LogId,
        started: Seq,
        asker: &Principal,
        proof: &Proof<'_>,
    ) -> Result<Watched, Refusal> {
        let record = session_record(streams, &log, asker, proof).await?;
        if record.released {
            return Err(refusals::task_expired());
        }
        let extent = streams.readers.logs.store.extent(&log).await.map_err(|error| refusals::of_task(&error))?;
        let key = keys::turn(started);
        let entry = streams.readers.logs.store.item(&log, &key).await.map_err(|error| refusals::of_task(&error))?;
        let entry = match decode::<TurnEntry>(&log, &key, entry)? {
            Some(entry) => entry,
            // Its session may have been let go since its record was read, and its items with it.
            None if session_record(streams, &log, asker, proof).await?.released => {
                return Err(refusals::task_expired());
            }
            None if was_forgotten(streams, &log, &record, &extent, started).await? => {
                return Err(refusals::task_expired());
            }
            None => return Err(refusals::task_not_found()),
        };
        let last = entry.ended.as_ref().map(|ended| ended.seq);
        let session = Some(record.current.unwrap_or_else(|| SessionId::from(&log)));
        let (index_key, facts) = (keys::index(started), WatchedFacts::Turn(entry));
        Ok(Watched { id: id.clone(), log, session, first: started, last, extent, index_key, facts })
    }

    async fn task(streams: &Streams, id: &TaskId, asker: &Principal, proof: &Proof<'_>) -> Result<Watched, Refusal> {
        let mut record = streams.tasks.record(id, asker).await?;
        let (mut living, mut let_go) = (None, false);
        // Where a name proves nothing, a stranger does not learn either that there was such a task.
        if !record.is_proven(streams.config.session.ownership, proof.token()) {
            return Err(refusals::task_not_found());
        }
        if let Some(session) = &record.session {
            // A client that must prove that a session is its own must prove it for its operations too. A session that its owner
            // ended takes them along; one that expired does not, since they live by `stream.ttl`.
            let known = session_record(streams, &LogId::from(session), asker, proof).await?;
            if known.released && known.life != Life::Expired {
                return Err(refusals::task_expired());
            }
            living = Some(session).filter(|_| known.life == Life::Active);
        }
        if record.released {
            // Its stream is gone. How it ended is known as long as its session lives.
            let end = match living {
                Some(session) => background::end_of(&streams.readers.logs, session, id).await,
                None => Ok(None),
            };
            let end = end.map_err(|error| refusals::of_task(&error))?.ok_or_else(refusals::task_expired)?;
            (record.result, record.error, let_go) = (end.result, end.error, end.let_go);
        }
        let log = LogId::from(id);
        let extent = streams.readers.logs.store.extent(&log).await.map_err(|error| refusals::of_task(&error))?;
        let last = (!record.is_running()).then(|| extent.last());
        // All of it that is retained, whatever epoch it is from.
        let (first, session) = (Seq::FIRST, record.session.clone());
        let (index_key, facts) =
            (task::record::keys::INDEX.to_owned(), WatchedFacts::Task { record: Box::new(record), let_go });
        Ok(Watched { id: id.clone(), log, session, first, last, extent, index_key, facts })
    }

    /// What of a turn follows this event, as those see it who call it so.
    #[must_use]
    pub fn part(self, name: TaskId, first: Seq) -> Watched {
        Watched { id: name, first, ..self }
    }

    /// The epoch that it is in now, and its first event.
    pub fn beginning(&self) -> (&Epoch, Seq) {
        (&self.extent.epoch, self.first)
    }

    /// What its readers follow.
    pub fn place(&self) -> StreamPlace {
        StreamPlace { id: self.id.clone(), first: self.first, index_key: self.index_key.clone() }
    }

    /// Where a reader with this cursor begins; none if the task has ended and the reader has all of it.
    pub fn start(&self, cursor: Option<StreamCursor>, framed: bool) -> Result<Option<WatchStart>, Refusal> {
        if self.is_released() || self.last.is_some_and(|last| last < self.extent.first) {
            return Err(refusals::task_expired());
        }
        let Some(cursor) = cursor else { return Ok(Some(WatchStart::Fresh)) };
        match Resume::within(self.span(), &self.extent, &cursor) {
            Resume::AheadOfLog => {
                let (seq, last) = (cursor.cursor.seq, self.extent.last());
                let message = format!("The cursor {seq} is beyond the last event, {last}.");
                Err(Refusal::new(ErrorCode::CursorAhead, message))
            }
            Resume::CaughtUp if self.last.is_some() => Ok(None),
            _ => Ok(Some(if framed { WatchStart::Framed(cursor) } else { WatchStart::After(cursor) })),
        }
    }

    /// The events of its log that are its own.
    pub fn span(&self) -> Span {
        Span { first: self.first, last: self.last }
    }

    /// Whether only how it ended is still known.
    pub fn is_released(&self) -> bool {
        matches!(&self.facts, WatchedFacts::Task { record, .. } if record.released)
    }

    pub fn status(&self) -> Status {
        match &self.facts {
            WatchedFacts::Turn(entry) => entry.ended.as_ref().map_or(Status::Running, |ended| ended.status),
            WatchedFacts::Task { record, .. } => record.status,
        }
    }

    /// The operation that it is, unless it is a turn.
    pub fn operation_id(&self) -> Option<&OperationId> {
        match &self.facts {
            WatchedFacts::Turn(_) => None,
            WatchedFacts::Task { record, .. } => Some(&record.operation_id),
        }
    }

    pub fn last_message_id(&self) -> String {
        cursor(&self.extent, self.last.unwrap_or_else(|| self.extent.last()))
    }

    /// The task as its owner sees it.
    pub(crate) async fn resource(&self, streams: &Streams) -> Result<TaskResource, Refusal> {
        let mut shown = TaskResource {
            task_id: self.id.clone(),
            session_id: self.session.clone(),
            operation_id: None,
            tool_name: None,
            status: self.status(),
            created_at: String::new(),
            finished_at: None,
            last_message_id: self.last_message_id(),
            result: None,
            result_expired: false,
            error: None,
        };
        match &self.facts {
            WatchedFacts::Turn(entry) => {
                shown.created_at = clock::rfc3339(entry.created_ms);
                if let Some(ended) = &entry.ended {
                    shown.finished_at = Some(clock::rfc3339(ended.at_ms));
                    shown.error = ended.error.clone();
                    shown.result = self.answer(streams, ended.message).await?.map(|text| json!({ "text": text }));
                }
            }
            WatchedFacts::Task { record, let_go } => {
                shown.operation_id = Some(record.operation_id.clone());
                shown.tool_name = record.tool_name.clone();
                shown.created_at = clock::rfc3339(record.created_ms);
                shown.finished_at = record.finished_ms.map(clock::rfc3339);
                shown.result = record.result.clone();
                shown.result_expired = *let_go;
                shown.error = record.error.clone();
            }
        }
        Ok(shown)
    }

    async fn answer(&self, streams: &Streams, number: Option<u64>) -> Result<Option<String>, Refusal> {
        let Some(number) = number else { return Ok(None) };
        let item = streams.readers.logs.store.item(&self.log, &keys::message(number)).await;
        let item = item.map_err(|error| refusals::of_task(&error))?;
        let message: Option<Message> = item.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // The number may belong to a later answer by now, if this one was made anew.
        Ok(message.filter(|message| message.turn == Some(self.first)).map(|message| message.content))
    }
}

/// Whether a turn may have begun with this event of which nothing is kept any more. A turn is remembered as long as the
/// message that began it, so before the first message goes there is no such turn.
async fn was_forgotten(
    streams: &Streams,
    log: &LogId,
    record: &SessionRecord,
    extent: &Extent,
    started: Seq,
) -> Result<bool, Refusal> {
    if record.messages <= streams.config.limits.messages_kept_max || started >= extent.next {
        return Ok(false);
    }
    if started < extent.first {
        // Its event is gone too, so it is not known what it was.
        return Ok(true);
    }
    let one = ReadLimit { events: 1, bytes: 1 };
    let batch = streams.readers.logs.store.read(log, started, one).await.map_err(|error| refusals::of_task(&error))?;
    let name = batch.events.first().and_then(|event| Some(event.view()?.event == names::USER_MESSAGE));
    Ok(name.unwrap_or(true))
}

/// The index that is kept beside a log: what was open at each event.
async fn stored_index<P: Projection>(
    logs: &Logs,
    log: &LogId,
    key: &str,
) -> Result<Option<ProjectionIndex<P::Mark>>, StoreError> {
    let Some(key) = index_key::<P>(key) else { return Ok(None) };
    Ok(logs.store.item(log, &key).await?.and_then(|bytes| ProjectionIndex::decode(&bytes)))
}

/// The position of an event as text.
pub fn cursor(extent: &Extent, seq: Seq) -> String {
    Cursor { epoch: Some(extent.epoch.clone()), seq }.to_string()
}

/// A stranger learns nothing, not even that it is one.
fn stranger(refusal: Refusal) -> Refusal {
    if refusal.code == ErrorCode::SessionNotFound { refusals::task_not_found() } else { refusal }
}

/// The record of a session of the asker's own, for its tasks.
async fn session_record(
    streams: &Streams,
    log: &LogId,
    asker: &Principal,
    proof: &Proof<'_>,
) -> Result<SessionRecord, Refusal> {
    let stored = streams.readers.logs.store.record(log).await.map_err(|error| refusals::of_task(&error))?;
    let stored = stored.filter(|stored| stored.kind == LogKind::Session && stored.owner == *asker);
    let record = SessionRecord::decode(&stored.ok_or_else(refusals::task_not_found)?.body);
    let record = record.map_err(|why| {
        Refusal::new(ErrorCode::StoreUnavailable, format!("The session's record cannot be read: {why}."))
    })?;
    match proof {
        Proof::Attached(logs, _) if logs.contains(log) => {}
        proof => streams.sessions.prove(log, &record, asker, proof.token()).await.map_err(stranger)?,
    }
    Ok(record)
}
