//! Sessions over HTTP: made, listed, shown and ended; a message starts a turn, and every client of its owner can stop it.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline_api::Reply;
use bowline_env::{clock, entropy};
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{ClientId, MessageId, Refusal, Seq, SessionId, StepId, TaskId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::limits::RequestLimits;
use super::super::problem::Problem;
use super::super::sorted::Sorted;
use super::read::{self, Body, Name};
use super::sse::{self, StreamQuery};
use super::view::SessionSummary;
use super::{Owner, session_id, view};
use crate::config::{Config, Ownership};
use crate::drive::stream::WatchedStream;
use crate::logs::Logs;
use crate::refusals;
use crate::schema;
use crate::secret::Presented;
use crate::session::operations;
use crate::session::record::SessionState;
use crate::session::registry::NewSession;
use crate::session::{CommandOutcome, SessionRequest, Sessions};
use crate::stream::{Streams, Watched};
use crate::task::status::Status;
use crate::task::{TaskClose, Tasks};

type Answer = Result<Response, Problem>;

pub async fn create(
    owner: Owner,
    State(config): State<Arc<Config>>,
    State(sessions): State<Arc<Sessions>>,
    body: Body,
) -> Answer {
    let mut fields = body.fields();
    let new = NewSession {
        owner: owner.principal.clone(),
        agent: fields.text("agent")?,
        client_id: fields.name("client_id", ClientId::parse)?,
        app_version: fields.text("app_version")?,
        config: fields.object("config")?.unwrap_or_default(),
    };
    let made = make(&sessions, config.session.ownership, new, None).await?;
    let location = HeaderValue::from_str(&format!("/api/chat/sessions/{}", made.id));
    let mut response = (StatusCode::CREATED, Sorted(made.shown())).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// A session that was just made, and the secret that proves it to be its maker's, where that is asked for.
#[derive(Debug)]
pub struct CreatedSession {
    pub id: SessionId,
    pub token: Option<Secret>,
    created_at: String,
}

impl CreatedSession {
    fn shown(self) -> SessionMade {
        SessionMade {
            id: self.id,
            created_at: self.created_at,
            status: SessionState::Idle,
            resume_token: self.token.map(|token| token.expose().to_owned()),
        }
    }
}

/// A session that was just made.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SessionMade {
    #[schemars(with = "String")]
    id: SessionId,
    #[schemars(schema_with = "schema::time")]
    created_at: String,
    status: SessionState,
    /// What proves that it is its maker's, where that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    resume_token: Option<String>,
}

/// Some of the caller's sessions, and how many there are.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Sessions")]
pub(crate) struct SessionList {
    sessions: Vec<SessionSummary>,
    total: usize,
}

/// Whether anything was stopped.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TurnCancelled {
    cancelled: bool,
    status: CancelledState,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum CancelledState {
    Cancelled,
    Idle,
}

/// The answer to a question is in the log, and the run goes on.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Responded {
    #[schemars(with = "String")]
    step_id: StepId,
    confirmed: bool,
    #[schemars(schema_with = "schema::only_true")]
    accepted: bool,
}

/// `brought` is a secret of the caller's own choice, with which it may come back if it never gets the answer to this.
pub async fn make(
    sessions: &Arc<Sessions>,
    ownership: Ownership,
    new: NewSession,
    brought: Option<&Presented>,
) -> Result<CreatedSession, Refusal> {
    new.check(sessions, "")?;
    let token = (ownership == Ownership::Token).then(entropy::secret);
    let (id, created_ms) = sessions.create_unheld(new, token.as_deref(), brought).await?;
    let token = token.map(Secret::new);
    Ok(CreatedSession { id, token, created_at: clock::rfc3339(created_ms) })
}

#[derive(Debug, Deserialize)]
pub struct SessionPage {
    limit: Option<u64>,
    offset: Option<u64>,
}

pub async fn list(
    owner: Owner,
    State(logs): State<Arc<Logs>>,
    State(sessions): State<Arc<Sessions>>,
    page: Result<Query<SessionPage>, QueryRejection>,
) -> Answer {
    let SessionPage { limit, offset } = read::query(page)?;
    let limit = limit.unwrap_or(20);
    if !(1..=100).contains(&limit) {
        return Err(Refusal::field("limit", "must be from 1 to 100").into());
    }
    let offset = usize::try_from(offset.unwrap_or(0)).unwrap_or(usize::MAX);
    let page = sessions.page(&owner.principal, owner.proof.as_ref(), offset, limit as usize).await?;
    let mut listed = Vec::new();
    for (log, record) in &page.sessions {
        listed.push(view::summary(&logs, log, record).await?);
    }
    Ok(Sorted(SessionList { sessions: listed, total: page.total }).into_response())
}

pub async fn show(
    owner: Owner,
    State(logs): State<Arc<Logs>>,
    State(sessions): State<Arc<Sessions>>,
    Name(sid): Name,
) -> Answer {
    let (log, record) = sessions.own(&session_id(&sid)?, &owner.principal, owner.proof.as_ref()).await?;
    Ok(Sorted(view::whole(&logs, &log, &record).await?).into_response())
}

pub async fn delete(owner: Owner, State(sessions): State<Arc<Sessions>>, Name(sid): Name) -> Answer {
    let by = owner.name();
    owner.ask(&sessions, &session_id(&sid)?, SessionRequest::End { by }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Starts a turn, or joins the one that the same message started before.
pub async fn start(
    owner: Owner,
    State(limits): State<Arc<RequestLimits>>,
    State(streams): State<Arc<Streams>>,
    Name(sid): Name,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let mut fields = body.fields();
    let message = fields.take("message").ok_or_else(|| Refusal::field("message", "is missing"))?;
    let content = limits.content("message", &message)?;
    let header = read::idempotency_key(&headers)?;
    let named = fields.name("message_id", MessageId::parse)?;
    limits.admit_stream()?;
    let session = session_id(&sid)?;
    // A message that has to wait needs a name by which its turn is found.
    let also = header.clone().filter(|_| named.is_some());
    let message_id = named.or(header).unwrap_or_else(|| MessageId::from_random(entropy::u128()));
    let command = SessionRequest::Message { message_id: Some(message_id.clone()), also, behind: None, content };
    let outcome = owner.ask(&streams.sessions, &session, command).await?;
    turn_of(&streams, &owner, &session, outcome, Some(message_id)).await
}

/// The stream of the turn that a request led to.
pub async fn turn_of(
    streams: &Streams,
    owner: &Owner,
    session: &SessionId,
    outcome: CommandOutcome,
    message_id: Option<MessageId>,
) -> Answer {
    let (log, _) = streams.sessions.own(session, &owner.principal, owner.proof.as_ref()).await?;
    let (turn, message_id): (Option<Seq>, _) = match outcome {
        CommandOutcome::Started { turn } => (Some(turn), message_id),
        // It may have come under another key the first time.
        CommandOutcome::Repeated { turn, message_id: first, .. } => (turn, first.or(message_id)),
        _ => (None, message_id),
    };
    if let Some(turn) = turn {
        let task = TaskId::of_turn(&log, turn);
        let watched = Watched::find(streams, &task, &owner.principal, owner.proof.as_ref()).await?;
        return Ok(sse::of_turn(&streams.readers, &watched).await?);
    }
    let waiting = message_id.ok_or_else(refusals::task_not_found)?;
    let stream = WatchedStream::queued(streams.readers.clone(), log, waiting)
        .await
        .map_err(|error| refusals::of_store(&error))?;
    Ok(sse::respond(stream, None))
}

/// The running turn from its start, or from a cursor in it on; 204 when nothing runs.
pub async fn follow(
    owner: Owner,
    State(limits): State<Arc<RequestLimits>>,
    State(streams): State<Arc<Streams>>,
    Name(sid): Name,
    asked: Result<Query<StreamQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Answer {
    let wanted = read::query(asked)?.wanted(&headers)?;
    limits.admit_stream()?;
    let (log, record) = streams.sessions.own(&session_id(&sid)?, &owner.principal, owner.proof.as_ref()).await?;
    let Some(active) = record.turn.active() else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let task = TaskId::of_turn(&log, active.started);
    let watched = Watched::find(&streams, &task, &owner.principal, owner.proof.as_ref()).await?;
    Ok(sse::of_task(&streams.readers, &watched, wanted).await?)
}

/// Really stops the turn that runs; without one, what is at work in the background.
pub async fn cancel(
    owner: Owner,
    State(logs): State<Arc<Logs>>,
    State(sessions): State<Arc<Sessions>>,
    State(tasks): State<Arc<Tasks>>,
    Name(sid): Name,
    body: Body,
) -> Answer {
    let reason = body.fields().text("reason")?;
    let (session, by) = (session_id(&sid)?, owner.name());
    let ask = SessionRequest::Cancel { by: by.clone(), reason: reason.clone(), turn: None };
    let mut cancelled = matches!(owner.ask(&sessions, &session, ask).await?, CommandOutcome::Cancelled { ran: true });
    if !cancelled {
        let (log, _) = sessions.own(&session, &owner.principal, owner.proof.as_ref()).await?;
        for (_, entry) in operations::entries(&logs, &log).await? {
            if entry.status == Status::Running {
                let ending = TaskClose::cancelled(by.clone(), reason.clone());
                cancelled |= tasks.end(&entry.task_id, &owner.principal, ending).await?.by_this;
            }
        }
    }
    let status = if cancelled { CancelledState::Cancelled } else { CancelledState::Idle };
    Ok(Sorted(TurnCancelled { cancelled, status }).into_response())
}

/// Answers a question of the agent's.
pub async fn respond(owner: Owner, State(sessions): State<Arc<Sessions>>, Name(sid): Name, body: Body) -> Answer {
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
    owner.ask(&sessions, &session, SessionRequest::Response { step_id, reply, request: None, announce: None }).await?;
    Ok(Sorted(Responded { step_id: step, confirmed, accepted: true }).into_response())
}
