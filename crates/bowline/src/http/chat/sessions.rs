//! Sessions over HTTP: made, listed, shown and ended; a message starts a turn, and anybody of theirs can stop it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline_api::Reply;
use bowline_env::{clock, entropy};
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{ClientId, MessageId, Refusal, Seq, SessionId, StepId, TaskId};
use bowline_store::Kind;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::problem::Problem;
use super::read::{self, Body, Name};
use super::sse::{self, Reading};
use super::{Owner, session_id, shown};
use crate::config::Ownership;
use crate::drive::stream::Stream;
use crate::refusals;
use crate::secret::Presented;
use crate::server::Shared;
use crate::session::operations;
use crate::session::registry::NewSession;
use crate::session::{Ask, Life, Outcome, SessionRecord};
use crate::stream::Watched;
use crate::task::Ending;
use crate::task::status::Status;

type Answer = Result<Response, Problem>;
type Shares = State<Arc<Shared>>;

pub async fn create(owner: Owner, State(shared): Shares, body: Body) -> Answer {
    let mut fields = body.fields();
    let new = NewSession {
        owner: owner.principal.clone(),
        agent: fields.text("agent")?,
        client_id: fields.name("client_id", ClientId::parse)?,
        app_version: fields.text("app_version")?,
        config: fields.object("config")?.unwrap_or_default(),
    };
    let made = make(&shared, new, None).await?;
    let location = HeaderValue::from_str(&format!("/api/chat/sessions/{}", made.id));
    let mut response = (StatusCode::CREATED, Json(made.shown())).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// A session that was just made, and the secret that proves it to be its maker's, where that is asked for.
#[derive(Debug)]
pub struct Made {
    pub id: SessionId,
    pub token: Option<Secret>,
    created_at: String,
}

impl Made {
    fn shown(&self) -> Value {
        let mut shown = json!({ "id": self.id, "created_at": self.created_at, "status": "idle" });
        if let Some(token) = &self.token {
            shown["resume_token"] = token.expose().into();
        }
        shown
    }
}

/// `brought` is a secret of the caller's own choice, with which it may come back if it never gets the answer to this.
pub async fn make(shared: &Arc<Shared>, new: NewSession, brought: Option<&Presented>) -> Result<Made, Refusal> {
    new.check(&shared.sessions, "")?;
    let token = (shared.config.session.ownership == Ownership::Token).then(entropy::secret);
    let (id, created_ms) = shared.sessions.create_unheld(new, token.as_deref(), brought).await?;
    let token = token.map(Secret::new);
    Ok(Made { id, token, created_at: clock::rfc3339(created_ms) })
}

#[derive(Debug, Deserialize)]
pub struct Page {
    limit: Option<u64>,
    offset: Option<u64>,
}

pub async fn list(owner: Owner, State(shared): Shares, page: Result<Query<Page>, QueryRejection>) -> Answer {
    let Page { limit, offset } = read::query(page)?;
    let limit = limit.unwrap_or(20);
    if !(1..=100).contains(&limit) {
        return Err(Refusal::field("limit", "must be from 1 to 100").into());
    }
    let listed = shared.store.list(Kind::Session, Some(&owner.principal)).await;
    let listed = listed.map_err(|error| refusals::of_store(&error))?;
    let ownership = shared.config.session.ownership;
    let mut mine: Vec<_> = listed
        .into_iter()
        .filter_map(|(log, stored)| Some((log, SessionRecord::decode(&stored.body).ok()?)))
        .filter(|(_, record)| record.life == Life::Active)
        .filter(|(_, record)| record.is_proven(ownership, owner.proof.as_ref()).is_ok())
        .collect();
    for (log, record) in &mine {
        shared.sessions.prove(log, record, &owner.principal, owner.proof.as_ref()).await?;
    }
    mine.sort_by(|(_, a), (_, b)| b.touched_ms.cmp(&a.touched_ms).then(b.created_ms.cmp(&a.created_ms)));
    let skipped = mine.iter().skip(usize::try_from(offset.unwrap_or(0)).unwrap_or(usize::MAX));
    let mut sessions: Vec<Value> = Vec::new();
    for (log, record) in skipped.take(limit as usize) {
        sessions.push(shown::summary(&shared, log, record).await?);
    }
    Ok(Json(json!({ "sessions": sessions, "total": mine.len() })).into_response())
}

pub async fn show(owner: Owner, State(shared): Shares, Name(sid): Name) -> Answer {
    let (log, record) = shared.sessions.own(&session_id(&sid)?, &owner.principal, owner.proof.as_ref()).await?;
    Ok(Json(shown::whole(&shared, &log, &record).await?).into_response())
}

pub async fn delete(owner: Owner, State(shared): Shares, Name(sid): Name) -> Answer {
    let by = owner.name();
    owner.ask(&shared, &session_id(&sid)?, Ask::End { by }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Starts a turn, or joins the one that the same message started before.
pub async fn start(owner: Owner, State(shared): Shares, Name(sid): Name, headers: HeaderMap, body: Body) -> Answer {
    let mut fields = body.fields();
    let message = fields.take("message").ok_or_else(|| Refusal::field("message", "is missing"))?;
    let content = read::content(&shared, "message", &message)?;
    let header = read::idempotency_key(&headers)?;
    let named = fields.name("message_id", MessageId::parse)?;
    sse::admit(&shared)?;
    let session = session_id(&sid)?;
    // A message that has to wait needs a name by which its turn is found.
    let also = header.clone().filter(|_| named.is_some());
    let message_id = named.or(header).unwrap_or_else(|| MessageId::from_random(entropy::u128()));
    let command = Ask::Message { message_id: Some(message_id.clone()), also, content };
    let outcome = owner.ask(&shared, &session, command).await?;
    turn_of(&shared, &owner, &session, outcome, Some(message_id)).await
}

/// The stream of the turn that a request led to.
pub async fn turn_of(
    shared: &Arc<Shared>,
    owner: &Owner,
    session: &SessionId,
    outcome: Outcome,
    message_id: Option<MessageId>,
) -> Answer {
    let (log, _) = shared.sessions.own(session, &owner.principal, owner.proof.as_ref()).await?;
    let (turn, message_id): (Option<Seq>, _) = match outcome {
        Outcome::Started { turn } => (Some(turn), message_id),
        // It may have come under another key the first time.
        Outcome::Repeated { turn, message_id: first, .. } => (turn, first.or(message_id)),
        _ => (None, message_id),
    };
    if let Some(turn) = turn {
        let task = TaskId::of_turn(&log, turn);
        let watched = Watched::find(shared, &task, &owner.principal, owner.proof.as_ref()).await?;
        return Ok(sse::of_turn(shared, &watched).await?);
    }
    let waiting = message_id.ok_or_else(refusals::task_not_found)?;
    let stream = Stream::queued(shared.clone(), log, waiting).await.map_err(|error| refusals::of_store(&error))?;
    Ok(sse::respond(stream, None))
}

/// The running turn from its start, or from a cursor in it on; 204 when nothing runs.
pub async fn follow(
    owner: Owner,
    State(shared): Shares,
    Name(sid): Name,
    asked: Result<Query<Reading>, QueryRejection>,
    headers: HeaderMap,
) -> Answer {
    let wanted = read::query(asked)?.wanted(&headers)?;
    sse::admit(&shared)?;
    let (log, record) = shared.sessions.own(&session_id(&sid)?, &owner.principal, owner.proof.as_ref()).await?;
    let Some(active) = record.turn.active() else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let task = TaskId::of_turn(&log, active.started);
    let watched = Watched::find(&shared, &task, &owner.principal, owner.proof.as_ref()).await?;
    Ok(sse::of_task(&shared, &watched, wanted).await?)
}

/// Really stops the turn that runs; without one, what is at work in the background.
pub async fn cancel(owner: Owner, State(shared): Shares, Name(sid): Name, body: Body) -> Answer {
    let reason = body.fields().text("reason")?;
    let (session, by) = (session_id(&sid)?, owner.name());
    let ask = Ask::Cancel { by: by.clone(), reason: reason.clone(), turn: None };
    let mut cancelled = matches!(owner.ask(&shared, &session, ask).await?, Outcome::Cancelled { ran: true });
    if !cancelled {
        let (log, _) = shared.sessions.own(&session, &owner.principal, owner.proof.as_ref()).await?;
        for (_, entry) in operations::entries(&shared.logs, &log).await? {
            if entry.status == Status::Running {
                let ending = Ending::cancelled(by.clone(), reason.clone());
                cancelled |= shared.tasks.end(&entry.task_id, &owner.principal, ending).await?.by_this;
            }
        }
    }
    let status = if cancelled { "cancelled" } else { "idle" };
    Ok(Json(json!({ "cancelled": cancelled, "status": status })).into_response())
}

/// Answers a question of the agent's.
pub async fn respond(owner: Owner, State(shared): Shares, Name(sid): Name, body: Body) -> Answer {
    let mut fields = body.fields();
    let step = fields.name("step_id", StepId::parse)?.ok_or_else(|| Refusal::field("step_id", "is missing"))?;
    let confirmed = match fields.flag("confirmed")? {
        Some(confirmed) => Some(confirmed),
        None => fields.flag("approved")?,
    };
    let confirmed = confirmed.ok_or_else(|| Refusal::field("confirmed", "is missing"))?;
    let tasks = match fields.take("tasks") {
        None => None,
        Some(tasks) if tasks.is_array() => Some(tasks),
        Some(_) => return Err(Refusal::field("tasks", "must be a list").into()),
    };
    let reply = Reply { confirmed, tasks, reason: fields.text("reason")? };
    let session = session_id(&sid)?;
    let step_id = step.clone();
    owner.ask(&shared, &session, Ask::Response { step_id, reply }).await?;
    Ok(Json(json!({ "step_id": step, "confirmed": confirmed, "accepted": true })).into_response())
}
