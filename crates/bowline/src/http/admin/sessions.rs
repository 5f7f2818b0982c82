//! `/api/admin/sessions`: all sessions, one of them, and its log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bowline_env::clock;
use bowline_protocol::{Epoch, LogId, Principal, Seq, SessionId};
use bowline_store::{LogKind, Record};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::chat::read::Name;
use super::super::follow::{FollowedLog, follow};
use super::super::problem::Problem;
use super::super::sorted::Sorted;
use super::{Admin, Beginning, Page, QueryResult, Settings, bad_query};
use crate::logs::Location;
use crate::logs::Logs;
use crate::refusals;
use crate::schema;
use crate::session::actor::SessionPresence;
use crate::session::record::SessionState;
use crate::session::{Life, SessionRecord, Sessions};
use crate::stream::reader::ReaderContext;

pub async fn list(
    _: Admin,
    State(logs): State<Arc<Logs>>,
    State(sessions): State<Arc<Sessions>>,
    page: QueryResult<Page>,
) -> Result<Sorted<AllSessions>, Problem> {
    let page = page.map_err(|rejection| bad_query(&rejection))?.0;
    let (listed, total) = page.read(&logs, LogKind::Session).await?;
    let mut summaries = Vec::new();
    for (log, record) in &listed {
        summaries.push(summary(&logs, &sessions, log, record).await);
    }
    Ok(Sorted(AllSessions { sessions: summaries, total }))
}

pub async fn show(
    _: Admin,
    State(settings): State<Arc<Settings>>,
    State(logs): State<Arc<Logs>>,
    State(sessions): State<Arc<Sessions>>,
    Name(id): Name,
) -> Result<Sorted<AnySession>, Problem> {
    let (log, record) = find(&logs, &id).await?;
    let session = summary(&logs, &sessions, &log, &record).await;
    let first = session.first_retained_seq.map_or(0, Seq::get);
    let last = session.last_seq.map_or(0, Seq::get);
    let size = (last + 1).saturating_sub(first);
    let created_ms = SessionRecord::decode(&record.body).map_or(0, |record| record.created_ms);
    let buffer = Buffer {
        buffer_size: size,
        buffer_usage_percent: size as f64 * 100.0 / settings.config.buffer.events_max.max(1) as f64,
        oldest_event_seq: (size > 0).then_some(first),
        newest_event_seq: (size > 0).then_some(last),
        unacked_events: last.saturating_sub(session.acked_seq.get().max(first.saturating_sub(1))),
        session_age_seconds: logs.clock.now_ms().saturating_sub(created_ms) / 1000,
    };
    Ok(Sorted(AnySession { session, buffer }))
}

pub async fn find(logs: &Logs, id: &str) -> Result<(LogId, Record), Problem> {
    let log = LogId::parse(id).ok_or_else(refusals::session_not_found)?;
    let record = logs.store.record(&log).await.map_err(|error| refusals::of_store(&error))?;
    // A restored session may be asked for by its new name; its log has kept the old one.
    let root = record.as_ref().filter(|record| record.kind == LogKind::Alias);
    let root = root.and_then(|alias| LogId::parse(std::str::from_utf8(&alias.body).ok()?));
    let (log, record) = match root {
        Some(root) => (root.clone(), logs.store.record(&root).await.map_err(|error| refusals::of_store(&error))?),
        None => (log, record),
    };
    let record = record.filter(|record| record.kind == LogKind::Session).ok_or_else(refusals::session_not_found)?;
    Ok((log, record))
}

/// A session of any owner.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AnySessionSummary {
    #[schemars(with = "String")]
    id: SessionId,
    /// The log it is kept in, whose name it had first.
    #[schemars(with = "String")]
    log: LogId,
    #[schemars(with = "String")]
    owner: Principal,
    /// Whether a client has it.
    held: bool,
    observers: usize,
    #[schemars(with = "u64")]
    acked_seq: Seq,
    #[schemars(with = "Option<u64>")]
    last_seq: Option<Seq>,
    #[schemars(with = "Option<u64>")]
    first_retained_seq: Option<Seq>,
    #[schemars(with = "Option<String>")]
    epoch: Option<Epoch>,
    /// Which node has it, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    node: Option<String>,
    #[serde(flatten)]
    record: Option<SessionRecordView>,
    /// Why its record cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    unreadable: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct SessionRecordView {
    agent: String,
    state: SessionState,
    life: Life,
    title: Option<String>,
    messages: u64,
    #[schemars(schema_with = "schema::time")]
    created_at: String,
    #[schemars(schema_with = "schema::time")]
    last_active_at: String,
}

/// A session of any owner, with how full its buffer is.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AnySession {
    #[serde(flatten)]
    session: AnySessionSummary,
    buffer: Buffer,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Buffer {
    buffer_size: u64,
    buffer_usage_percent: f64,
    oldest_event_seq: Option<u64>,
    newest_event_seq: Option<u64>,
    unacked_events: u64,
    session_age_seconds: u64,
}

/// Some of all sessions, and how many there are.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AllSessions {
    sessions: Vec<AnySessionSummary>,
    total: usize,
}

async fn summary(logs: &Logs, sessions: &Sessions, log: &LogId, stored: &Record) -> AnySessionSummary {
    let decoded = SessionRecord::decode(&stored.body);
    let current =
        decoded.as_ref().ok().and_then(|record| record.current.clone()).unwrap_or_else(|| SessionId::from(log));
    let presence = sessions.presence(&current);
    let extent = logs.store.extent(log).await.ok();
    let acked_seq = sessions.acked(log).await;
    let elsewhere = match &presence {
        None => match logs.placement.locate(log).await {
            Ok(Location::There(node)) => Some(node),
            Ok(Location::Here) | Err(_) => None,
        },
        Some(_) => None,
    };
    let held_there = || elsewhere.is_some() && decoded.as_ref().is_ok_and(|record| record.held);
    let held_here = |presence: &Arc<SessionPresence>| presence.held.load(Ordering::Relaxed) > 0;
    let (record, unreadable) = match &decoded {
        Ok(record) => {
            let shown = SessionRecordView {
                agent: record.agent.clone(),
                state: record.state(),
                life: record.life.clone(),
                title: record.title.clone(),
                messages: record.messages,
                created_at: clock::rfc3339(record.created_ms),
                last_active_at: clock::rfc3339(record.touched_ms),
            };
            (Some(shown), None)
        }
        Err(why) => (None, Some(why.clone())),
    };
    AnySessionSummary {
        id: current,
        log: log.clone(),
        owner: stored.owner.clone(),
        held: presence.as_ref().map_or_else(held_there, held_here),
        observers: presence.as_ref().map_or(0, |presence| presence.observers.load(Ordering::Relaxed)),
        acked_seq,
        last_seq: extent.as_ref().map(|extent| extent.last()),
        first_retained_seq: extent.as_ref().map(|extent| extent.first),
        epoch: extent.map(|extent| extent.epoch),
        node: elsewhere.map(|node| node.as_str().to_owned()),
        record,
        unreadable,
    }
}

/// One session's log, live, as Server-Sent Events. `id:` is the cursor; `Last-Event-ID` wins over `from`.
pub async fn events(
    _: Admin,
    State(readers): State<Arc<ReaderContext>>,
    Name(id): Name,
    asked: QueryResult<Beginning>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Beginning { from } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let (log, record) = find(&readers.logs, &id).await?;
    let over = SessionRecord::decode(&record.body).is_ok_and(|record| record.life != Life::Active);
    follow(readers, log, FollowedLog::Session { over }, from, &headers).await
}
