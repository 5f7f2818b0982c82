//! `/api/admin/*`: what operators see. Needs an admin, who without auth is everybody on loopback, else `auth.admin_token`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRef, FromRequestParts, Query, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::get;
use bowline_env::clock;
use bowline_protocol::{ErrorCode, LogId, Refusal, SessionId, TaskId};
use bowline_store::{LogKind, Record};
use serde::Deserialize;
use serde_json::{Value, json};

use super::admission::Admission;
use super::chat::read::Name;
use super::doors;
use super::follow::{Subject, follow};
use super::problem::Problem;
use crate::config::{Config, StoreUrl, SyncMode};
use crate::logs::Logs;
use crate::logs::placement::Location;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::refusals;
use crate::session::actor::Presence;
use crate::session::record::keys;
use crate::session::turns::TurnEntry;
use crate::session::{Life, SessionRecord, Sessions};
use crate::stream::reader::Readers;
use crate::task::TaskRecord;
use crate::task::status::Status;

/// With what this node was started.
pub struct Settings {
    pub config: Arc<Config>,
    /// The effective settings with secrets hidden.
    pub effective: Value,
    /// Where it listens; the port that was asked for may have been 0.
    pub address: SocketAddr,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.address)
    }
}

/// What these endpoints are made of; each names what it needs of it.
#[derive(Clone, Debug, FromRef)]
pub struct AdminState {
    pub admission: Arc<Admission>,
    pub settings: Arc<Settings>,
    pub logs: Arc<Logs>,
    pub metrics: Arc<Metrics>,
    pub readers: Arc<Readers>,
    pub readiness: Arc<Readiness>,
    pub sessions: Arc<Sessions>,
}

doors! {
    AdminState;
    "/api/admin/node" => get(node),
    "/api/admin/config" => get(config),
    "/api/admin/sessions" => get(sessions),
    "/api/admin/sessions/{id}" => get(session),
    "/api/admin/sessions/{id}/events" => get(events),
    "/api/admin/tasks" => get(tasks),
    "/api/admin/tasks/{id}/events" => get(task_events),
}

/// An operator.
#[derive(Debug)]
pub struct Admin;

impl<S: Send + Sync> FromRequestParts<S> for Admin
where
    Arc<Admission>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Admin, Problem> {
        Arc::<Admission>::from_ref(state).admin(parts).await.map(|_| Admin)
    }
}

async fn node(_: Admin, State(state): State<AdminState>) -> Json<Value> {
    let AdminState { settings, logs, metrics, readiness, sessions, .. } = state;
    let health = logs.store.health();
    let config = &settings.config;
    let count = |state| metrics.session_state(state).get();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": logs.clock.uptime().as_secs(),
        "listen": settings.address.to_string(),
        "ready": readiness.is_ready(),
        "draining": readiness.lifecycle.is_draining(),
        "default_agent": config.default_agent,
        "agents": sessions.agents.keys().collect::<Vec<_>>(),
        "store": {
            "url": config.store.url.to_string(),
            "sync": match (&config.store.url, config.store.sync) {
                (StoreUrl::Redis(_), _) => "by Redis",
                (_, SyncMode::Always) => "always",
                (_, SyncMode::Interval) => "interval",
            },
            "writable": health.writable,
            "loss_window": health.loss_window,
            "troubles": health.troubles,
            "quarantined": health.quarantined,
            "bytes": health.bytes,
            "logs": health.logs,
        },
        "connections": metrics.connections.get(),
        "sessions": {
            "idle": count("idle"),
            "running": count("running"),
            "waiting": count("waiting"),
            "ended": count("ended"),
            "held": metrics.sessions_held.get(),
        },
        "tasks": task_counts(&metrics),
        "streams": metrics.streams.get(),
        "runs_active": metrics.runs_active.get(),
        "events_appended": metrics.events_appended.get(),
    }))
}

fn task_counts(metrics: &Metrics) -> Value {
    Status::ALL
        .iter()
        .map(|status| (status.as_str().to_owned(), Value::from(metrics.task_state(status.as_str()).get())))
        .collect()
}

async fn config(_: Admin, State(settings): State<Arc<Settings>>) -> Json<Value> {
    Json(settings.effective.clone())
}

pub type Asked<T> = Result<Query<T>, QueryRejection>;

pub fn bad_query(rejection: &QueryRejection) -> Refusal {
    Refusal::new(ErrorCode::InvalidPayload, format!("{}.", rejection.body_text()))
}

#[derive(Debug, Deserialize)]
pub struct Page {
    limit: Option<usize>,
    offset: Option<usize>,
}

async fn sessions(
    _: Admin,
    State(logs): State<Arc<Logs>>,
    State(sessions): State<Arc<Sessions>>,
    page: Asked<Page>,
) -> Result<Json<Value>, Problem> {
    let page = page.map_err(|rejection| bad_query(&rejection))?.0;
    let listed = logs.store.list(LogKind::Session, None).await;
    let mut listed = listed.map_err(|error| refusals::of_store(&error))?;
    let total = listed.len();
    listed.sort_by_key(|(_, record)| std::cmp::Reverse(record.touched_ms));
    let mut summaries = Vec::new();
    for (log, record) in listed.iter().skip(page.offset.unwrap_or(0)).take(page.limit.unwrap_or(100).min(1000)) {
        summaries.push(summary(&logs, &sessions, log, record).await);
    }
    Ok(Json(json!({ "sessions": summaries, "total": total })))
}

async fn session(
    _: Admin,
    State(settings): State<Arc<Settings>>,
    State(logs): State<Arc<Logs>>,
    State(sessions): State<Arc<Sessions>>,
    Name(id): Name,
) -> Result<Json<Value>, Problem> {
    let (log, record) = find(&logs, &id).await?;
    let mut shown = summary(&logs, &sessions, &log, &record).await;
    let (first, last) = (shown["first_retained_seq"].as_u64().unwrap_or(0), shown["last_seq"].as_u64().unwrap_or(0));
    let acked = shown["acked_seq"].as_u64().unwrap_or(0);
    let size = (last + 1).saturating_sub(first);
    let created_ms = SessionRecord::decode(&record.body).map_or(0, |record| record.created_ms);
    shown["buffer"] = json!({
        "buffer_size": size,
        "buffer_usage_percent": size as f64 * 100.0 / settings.config.buffer.events_max.max(1) as f64,
        "oldest_event_seq": if size > 0 { Value::from(first) } else { Value::Null },
        "newest_event_seq": if size > 0 { Value::from(last) } else { Value::Null },
        "unacked_events": last.saturating_sub(acked.max(first.saturating_sub(1))),
        "session_age_seconds": logs.clock.now_ms().saturating_sub(created_ms) / 1000,
    });
    Ok(Json(shown))
}

async fn find(logs: &Logs, id: &str) -> Result<(LogId, Record), Problem> {
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

async fn summary(logs: &Logs, sessions: &Sessions, log: &LogId, stored: &Record) -> Value {
    let decoded = SessionRecord::decode(&stored.body);
    let current =
        decoded.as_ref().ok().and_then(|record| record.current.clone()).unwrap_or_else(|| SessionId::from(log));
    let presence = sessions.presence(&current);
    let extent = logs.store.extent(log).await.ok();
    let acked = sessions.acked(log).await;
    let elsewhere = match &presence {
        None => match logs.placement.locate(log).await {
            Ok(Location::There(node)) => Some(node),
            Ok(Location::Here) | Err(_) => None,
        },
        Some(_) => None,
    };
    let held_there = || elsewhere.is_some() && decoded.as_ref().is_ok_and(|record| record.held);
    let held_here = |presence: &Arc<Presence>| presence.held.load(Ordering::Relaxed) > 0;
    let mut shown = json!({
        "id": current,
        "log": log,
        "owner": stored.owner,
        "held": presence.as_ref().map_or_else(held_there, held_here),
        "observers": presence.as_ref().map_or(0, |presence| presence.observers.load(Ordering::Relaxed)),
        "acked_seq": acked,
        "last_seq": extent.as_ref().map(|extent| extent.last()),
        "first_retained_seq": extent.as_ref().map(|extent| extent.first),
        "epoch": extent.as_ref().map(|extent| extent.epoch.clone()),
    });
    if let Some(node) = elsewhere {
        shown["node"] = node.as_str().into();
    }
    match decoded {
        Ok(record) => {
            shown["agent"] = record.agent.clone().into();
            shown["state"] = record.state().into();
            shown["life"] = json!(record.life);
            shown["title"] = record.title.clone().into();
            shown["messages"] = record.messages.into();
            shown["created_at"] = clock::rfc3339(record.created_ms).into();
            shown["last_active_at"] = clock::rfc3339(record.touched_ms).into();
        }
        Err(why) => shown["unreadable"] = why.into(),
    }
    shown
}

#[derive(Debug, Deserialize)]
pub struct From {
    from: Option<String>,
}

/// One session's log, live, as Server-Sent Events. `id:` is the cursor; `Last-Event-ID` wins over `from`.
async fn events(
    _: Admin,
    State(readers): State<Arc<Readers>>,
    Name(id): Name,
    asked: Asked<From>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let From { from } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let (log, record) = find(&readers.logs, &id).await?;
    let over = SessionRecord::decode(&record.body).is_ok_and(|record| record.life != Life::Active);
    follow(readers, log, Subject::Session { over }, from, &headers).await
}

/// Everybody's tasks with a log of their own, the newest first.
async fn tasks(_: Admin, State(logs): State<Arc<Logs>>, page: Asked<Page>) -> Result<Json<Value>, Problem> {
    let page = page.map_err(|rejection| bad_query(&rejection))?.0;
    let listed = logs.store.list(LogKind::Task, None).await;
    let mut listed = listed.map_err(|error| refusals::of_store(&error))?;
    let total = listed.len();
    listed.sort_by_key(|(_, record)| std::cmp::Reverse(record.touched_ms));
    let shown = listed.iter().skip(page.offset.unwrap_or(0)).take(page.limit.unwrap_or(100).min(1000));
    let mut tasks = Vec::new();
    for (log, stored) in shown {
        let last = logs.store.extent(log).await.ok().map(|extent| extent.last());
        let mut task = json!({ "task_id": log, "owner": stored.owner, "last_seq": last });
        match TaskRecord::decode(&stored.body) {
            Ok(record) => {
                task["session_id"] = json!(record.session);
                task["operation_id"] = json!(record.operation_id);
                task["tool_name"] = json!(record.tool_name);
                task["status"] = json!(record.status);
                task["released"] = record.released.into();
                task["created_at"] = clock::rfc3339(record.created_ms).into();
                task["finished_at"] = record.finished_ms.map(clock::rfc3339).into();
            }
            Err(why) => task["unreadable"] = why.into(),
        }
        tasks.push(task);
    }
    Ok(Json(json!({ "tasks": tasks, "total": total })))
}

/// The log of one task, live; of a turn, that of its session from the turn's beginning.
async fn task_events(
    _: Admin,
    State(readers): State<Arc<Readers>>,
    Name(id): Name,
    asked: Asked<From>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let From { from } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let task = TaskId::parse(&id).ok_or_else(refusals::task_not_found)?;
    if let Some((log, started)) = task.turn() {
        let (log, record) = find(&readers.logs, log.as_str()).await?;
        let over = SessionRecord::decode(&record.body).is_ok_and(|record| record.life != Life::Active);
        let from = from.or_else(|| Some(started.prev().to_string()));
        let entry =
            readers.logs.store.item(&log, &keys::turn(started)).await.map_err(|error| refusals::of_task(&error))?;
        let entry: Option<TurnEntry> = entry.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let ended = entry.and_then(|entry| entry.ended).map(|ended| ended.seq);
        return follow(readers, log, Subject::Turn { ended, over }, from, &headers).await;
    }
    let log = LogId::from(&task);
    let record = readers.logs.store.record(&log).await.map_err(|error| refusals::of_task(&error))?;
    let record = record.filter(|record| record.kind == LogKind::Task).ok_or_else(refusals::task_not_found)?;
    let over = TaskRecord::decode(&record.body).is_ok_and(|record| !record.is_running());
    follow(readers, log, Subject::Task { over }, from, &headers).await
}
