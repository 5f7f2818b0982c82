//! `/api/admin/*`: what operators see. Needs an admin, who without auth is everybody on loopback, else `auth.admin_token`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::Response;
use bowline_env::clock;
use bowline_protocol::{ErrorCode, LogId, Refusal, SessionId, TaskId};
use bowline_store::{Kind, Record};
use serde::Deserialize;
use serde_json::{Value, json};

use super::admission;
use super::chat::read::Name;
use super::follow::{Subject, follow};
use super::health;
use super::problem::Problem;
use super::servers;
use crate::config::{StoreUrl, SyncMode};
use crate::logs::placement::Location;
use crate::refusals;
use crate::server::Shared;
use crate::session::actor::Presence;
use crate::session::record::keys;
use crate::session::turns::TurnEntry;
use crate::session::{Life, SessionRecord};
use crate::task::TaskRecord;
use crate::task::status::Status;
use crate::{drive, hub};

/// An operator.
#[derive(Debug)]
pub struct Admin;

impl FromRequestParts<Arc<Shared>> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Admin, Problem> {
        admission::admin(shared, parts).await.map(|_| Admin)
    }
}

pub async fn node(_: Admin, State(shared): State<Arc<Shared>>) -> Json<Value> {
    let health = shared.store.health();
    let config = &shared.config;
    let count = |state| shared.metrics.session_state(state).get();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": shared.clock.uptime().as_secs(),
        "listen": shared.address.to_string(),
        "ready": shared.is_ready(),
        "draining": shared.is_draining(),
        "default_agent": config.default_agent,
        "agents": shared.sessions.agents.keys().collect::<Vec<_>>(),
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
        "connections": shared.metrics.connections.get(),
        "sessions": {
            "idle": count("idle"),
            "running": count("running"),
            "waiting": count("waiting"),
            "ended": count("ended"),
            "held": shared.metrics.sessions_held.get(),
        },
        "tasks": task_counts(&shared),
        "streams": shared.metrics.streams.get(),
        "runs_active": shared.metrics.runs_active.get(),
        "events_appended": shared.metrics.events_appended.get(),
    }))
}

fn task_counts(shared: &Shared) -> Value {
    Status::ALL
        .iter()
        .map(|status| (status.as_str().to_owned(), Value::from(shared.metrics.task_state(status.as_str()).get())))
        .collect()
}

/// What `/metrics` says, for those whose `/metrics` is closed to the outside.
pub async fn metrics(_: Admin, shared: State<Arc<Shared>>) -> Response {
    health::metrics(shared).await
}

pub async fn config(_: Admin, State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(shared.effective.clone())
}

/// The backends of this node, and those of the others as they showed them last; and which of the servers file were removed.
pub async fn backends(_: Admin, State(shared): State<Arc<Shared>>) -> Json<Value> {
    let mut shown = hub::shown(&shared.hub);
    let Some(cluster) = &shared.cluster else { return Json(shown) };
    let mut all = Vec::new();
    let mut list = |node: &str, shown: &mut Value| {
        for backend in shown["backends"].as_array_mut().into_iter().flatten() {
            backend["node"] = node.into();
            all.push(backend.take());
        }
    };
    list(cluster.name.as_str(), &mut shown);
    match drive::cluster::others(cluster).await {
        Ok(others) => others
            .into_iter()
            .filter(|(node, record)| !record.left && !cluster.is_dead(node))
            .for_each(|(node, mut record)| list(node.as_str(), &mut record.backends)),
        Err(error) => tracing::warn!(%error, "the backends of other nodes cannot be seen"),
    }
    shown["backends"] = all.into();
    Json(shown)
}

#[derive(Debug, Deserialize)]
pub struct Owner {
    pub owner: Option<String>,
}

/// Dials a backend now, and answers when that is over.
pub async fn reconnect(
    _: Admin,
    State(shared): State<Arc<Shared>>,
    Name(name): Name,
    asked: Asked<Owner>,
) -> Result<Json<Value>, Problem> {
    let Owner { owner } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let wanted = |backend: &bowline_hub::Backend| {
        backend.name() == name && backend.key.owner.as_ref().map(|owner| owner.as_str()) == owner.as_deref()
    };
    let Some(backend) = shared.hub.all().into_iter().find(wanted) else { return Err(servers::unknown(&name)) };
    let success = backend.reconnect().await;
    Ok(Json(json!({ "success": success, "status": backend.snapshot().status.as_str() })))
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

pub async fn sessions(_: Admin, State(shared): State<Arc<Shared>>, page: Asked<Page>) -> Result<Json<Value>, Problem> {
    let page = page.map_err(|rejection| bad_query(&rejection))?.0;
    let listed = shared.store.list(Kind::Session, None).await;
    let mut listed = listed.map_err(|error| refusals::of_store(&error))?;
    let total = listed.len();
    listed.sort_by_key(|(_, record)| std::cmp::Reverse(record.touched_ms));
    let mut sessions = Vec::new();
    for (log, record) in listed.iter().skip(page.offset.unwrap_or(0)).take(page.limit.unwrap_or(100).min(1000)) {
        sessions.push(summary(&shared, log, record).await);
    }
    Ok(Json(json!({ "sessions": sessions, "total": total })))
}

pub async fn session(_: Admin, State(shared): State<Arc<Shared>>, Name(id): Name) -> Result<Json<Value>, Problem> {
    let (log, record) = find(&shared, &id).await?;
    let mut shown = summary(&shared, &log, &record).await;
    let (first, last) = (shown["first_retained_seq"].as_u64().unwrap_or(0), shown["last_seq"].as_u64().unwrap_or(0));
    let acked = shown["acked_seq"].as_u64().unwrap_or(0);
    let size = (last + 1).saturating_sub(first);
    let created_ms = SessionRecord::decode(&record.body).map_or(0, |record| record.created_ms);
    shown["buffer"] = json!({
        "buffer_size": size,
        "buffer_usage_percent": size as f64 * 100.0 / shared.config.buffer.events_max.max(1) as f64,
        "oldest_event_seq": if size > 0 { Value::from(first) } else { Value::Null },
        "newest_event_seq": if size > 0 { Value::from(last) } else { Value::Null },
        "unacked_events": last.saturating_sub(acked.max(first.saturating_sub(1))),
        "session_age_seconds": shared.clock.now_ms().saturating_sub(created_ms) / 1000,
    });
    Ok(Json(shown))
}

async fn find(shared: &Shared, id: &str) -> Result<(LogId, Record), Problem> {
    let log = LogId::parse(id).ok_or_else(refusals::session_not_found)?;
    let record = shared.store.record(&log).await.map_err(|error| refusals::of_store(&error))?;
    // A restored session may be asked for by its new name; its log has kept the old one.
    let root = record.as_ref().filter(|record| record.kind == Kind::Alias);
    let root = root.and_then(|alias| LogId::parse(std::str::from_utf8(&alias.body).ok()?));
    let (log, record) = match root {
        Some(root) => (root.clone(), shared.store.record(&root).await.map_err(|error| refusals::of_store(&error))?),
        None => (log, record),
    };
    let record = record.filter(|record| record.kind == Kind::Session).ok_or_else(refusals::session_not_found)?;
    Ok((log, record))
}

async fn summary(shared: &Shared, log: &LogId, stored: &Record) -> Value {
    let decoded = SessionRecord::decode(&stored.body);
    let current =
        decoded.as_ref().ok().and_then(|record| record.current.clone()).unwrap_or_else(|| SessionId::from(log));
    let presence = shared.sessions.presence(&current);
    let extent = shared.store.extent(log).await.ok();
    let acked = shared.sessions.acked(log).await;
    let elsewhere = match (&presence, &shared.cluster) {
        (None, Some(cluster)) => match cluster.place(log).await {
            Ok(Location::There(node)) => Some(node),
            Ok(Location::Here) | Err(_) => None,
        },
        _ => None,
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
pub async fn events(
    _: Admin,
    State(shared): State<Arc<Shared>>,
    Name(id): Name,
    asked: Asked<From>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let From { from } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let (log, record) = find(&shared, &id).await?;
    let over = SessionRecord::decode(&record.body).is_ok_and(|record| record.life != Life::Active);
    follow(shared, log, Subject::Session { over }, from, &headers).await
}

/// Everybody's tasks with a log of their own, the newest first.
pub async fn tasks(_: Admin, State(shared): State<Arc<Shared>>, page: Asked<Page>) -> Result<Json<Value>, Problem> {
    let page = page.map_err(|rejection| bad_query(&rejection))?.0;
    let listed = shared.store.list(Kind::Task, None).await;
    let mut listed = listed.map_err(|error| refusals::of_store(&error))?;
    let total = listed.len();
    listed.sort_by_key(|(_, record)| std::cmp::Reverse(record.touched_ms));
    let shown = listed.iter().skip(page.offset.unwrap_or(0)).take(page.limit.unwrap_or(100).min(1000));
    let mut tasks = Vec::new();
    for (log, stored) in shown {
        let last = shared.store.extent(log).await.ok().map(|extent| extent.last());
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
pub async fn task_events(
    _: Admin,
    State(shared): State<Arc<Shared>>,
    Name(id): Name,
    asked: Asked<From>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let From { from } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let task = TaskId::parse(&id).ok_or_else(refusals::task_not_found)?;
    if let Some((log, started)) = task.turn() {
        let (log, record) = find(&shared, log.as_str()).await?;
        let over = SessionRecord::decode(&record.body).is_ok_and(|record| record.life != Life::Active);
        let from = from.or_else(|| Some(started.prev().to_string()));
        let entry = shared.store.item(&log, &keys::turn(started)).await.map_err(|error| refusals::of_task(&error))?;
        let entry: Option<TurnEntry> = entry.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let ended = entry.and_then(|entry| entry.ended).map(|ended| ended.seq);
        return follow(shared, log, Subject::Turn { ended, over }, from, &headers).await;
    }
    let log = LogId::from(&task);
    let record = shared.store.record(&log).await.map_err(|error| refusals::of_task(&error))?;
    let record = record.filter(|record| record.kind == Kind::Task).ok_or_else(refusals::task_not_found)?;
    let over = TaskRecord::decode(&record.body).is_ok_and(|record| !record.is_running());
    follow(shared, log, Subject::Task { over }, from, &headers).await
}
