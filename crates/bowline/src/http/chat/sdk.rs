//! The two requests that the Vercel AI SDK's own transport makes, so that `useChat({ resume: true })` needs no adapter.
//!
//! A chat id that the client chose stands for a session, for each principal its own. The server's history wins: of the
//! messages that the client sends only the last one is new.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bowline_env::entropy;
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{ErrorCode, LogId, MessageId, Principal, Refusal, SessionId, TaskId};
use serde_json::{Value, json};

use super::super::limits::RequestLimits;
use super::super::problem::Problem;
use super::read::{self, Body, BodyFields, Name};
use super::sessions::{make, turn_of};
use super::sse::{self, StreamQuery};
use super::{Owner, RESUME_TOKEN};
use crate::alias::{self, Naming};
use crate::refusals;
use crate::session::registry::NewSession;
use crate::session::{Life, SessionRequest};
use crate::stream::{Streams, Watched};

type Answer = Result<Response, Problem>;

/// Longest name of a chat that a client may choose.
const CHAT_ID_BYTES_MAX: usize = 256;

/// What a submit asks for.
enum Trigger {
    Submit { content: Value, message_id: Option<MessageId>, also: Option<MessageId> },
    Regenerate { replaces: Option<MessageId> },
}

/// `POST /api/chat`.
pub async fn submit(
    owner: Owner,
    State(limits): State<Arc<RequestLimits>>,
    State(naming): State<Arc<Naming>>,
    State(streams): State<Arc<Streams>>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let mut fields = body.fields();
    let chat = match fields.text("id")? {
        Some(chat) => chat,
        None => unnamed(&fields),
    };
    let log = chat_log(&owner.principal, &chat).ok_or_else(|| Refusal::field("id", "is empty or too long"))?;
    let trigger = trigger(&mut fields, &headers)?;
    let agent = fields.text("agent")?;
    agent.as_deref().map_or(Ok(()), |agent| streams.sessions.knows(agent, "agent"))?;
    limits.admit_stream()?;
    let (session, owner, token) = session_of(&naming, &streams, owner, &log, agent, &trigger).await?;
    let (outcome, message_id) = match trigger {
        Trigger::Submit { content, message_id, also } => {
            let content = limits.content("messages", &content)?;
            let message_id = message_id.unwrap_or_else(|| MessageId::from_random(entropy::u128()));
            let key = Some(message_id.clone());
            let command = SessionRequest::Message { message_id: key, also, behind: None, content };
            (owner.ask(&streams.sessions, &session, command).await?, Some(message_id))
        }
        Trigger::Regenerate { replaces } => {
            let by = owner.name();
            (owner.ask(&streams.sessions, &session, SessionRequest::Regenerate { by, replaces }).await?, None)
        }
    };
    let mut response = turn_of(&streams, &owner, &session, outcome, message_id).await?;
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(session.as_str()) {
        headers.insert(HeaderName::from_static("bowline-session-id"), value);
    }
    if let Some(Ok(value)) = token.map(|token| HeaderValue::from_str(token.expose())) {
        headers.insert(HeaderName::from_static(RESUME_TOKEN), value);
    }
    Ok(response)
}

/// A chat whose client has no name for it. Its first message is always the same, so that names it; a message without an id
/// begins a chat that no client reconnects to.
fn unnamed(fields: &BodyFields) -> String {
    let first = fields.0.get("messages").and_then(|messages| messages[0]["id"].as_str()).filter(|id| !id.is_empty());
    match first {
        Some(first) => format!("begun with {first}"),
        None => format!("unnamed {:032x}", entropy::u128()),
    }
}

fn trigger(fields: &mut BodyFields, headers: &HeaderMap) -> Result<Trigger, Refusal> {
    let key = read::idempotency_key(headers)?;
    let replaces = fields.name("messageId", MessageId::parse)?;
    let messages = match fields.take("messages") {
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err(Refusal::field("messages", "must be a list")),
        None => Vec::new(),
    };
    match fields.text("trigger")?.as_deref() {
        None | Some("submit-message") => {
            let last = messages.last().ok_or_else(|| Refusal::field("messages", "is missing or empty"))?;
            if last["role"] != "user" {
                return Err(Refusal::field("messages", "must end with a message of the user's"));
            }
            let own_id = last["id"].as_str().filter(|id| !id.is_empty());
            let (message_id, also) = match own_id.map(MessageId::parse) {
                Some(Some(id)) => (Some(id), key),
                Some(None) => return Err(Refusal::field("messages", "end with a message whose id is too long")),
                None => (key, None),
            };
            Ok(Trigger::Submit { content: content_of(last)?, message_id, also })
        }
        Some("regenerate-message") => Ok(Trigger::Regenerate { replaces: replaces.or(key) }),
        Some(_) => Err(Refusal::field("trigger", "must be submit-message or regenerate-message")),
    }
}

/// The text of a message of several parts. What is not text is kept beside it.
fn content_of(message: &Value) -> Result<Value, Refusal> {
    if let Some(text) = message["content"].as_str().filter(|_| message["parts"].is_null()) {
        return Ok(text.into());
    }
    let wrong = || Refusal::field("messages", "end with a message without `parts`");
    let parts = message["parts"].as_array().ok_or_else(wrong)?;
    let text: String =
        parts.iter().filter(|part| part["type"] == "text").filter_map(|part| part["text"].as_str()).collect();
    let plain = parts.len() == 1 && parts[0]["type"] == "text" && !text.is_empty();
    Ok(if plain { text.into() } else { json!({ "text": text, "parts": parts }) })
}

/// The session that a chat id stands for; a new one if there is none, or none that lives.
async fn session_of(
    naming: &Naming,
    streams: &Streams,
    owner: Owner,
    log: &LogId,
    agent: Option<String>,
    trigger: &Trigger,
) -> Result<(SessionId, Owner, Option<Secret>), Refusal> {
    if let Some(session) = living(streams, &owner, log).await?.own {
        return Ok((session, owner, None));
    }
    if matches!(trigger, Trigger::Regenerate { .. }) {
        return Err(refusals::session_not_found());
    }
    // One at a time, so that a submit that comes twice makes one session.
    naming.alone(log.as_str(), named(streams, owner, log, agent)).await
}

/// The session that a name of the caller's stands for; a new one if there is none. `field` is where the name was given.
pub async fn session_of_chat(
    naming: &Naming,
    streams: &Streams,
    owner: Owner,
    field: &str,
    chat: &str,
    agent: Option<String>,
) -> Result<(SessionId, Owner, Option<Secret>), Refusal> {
    let log = chat_log(&owner.principal, chat).ok_or_else(|| Refusal::field(field, "is empty or too long"))?;
    if let Some(session) = living(streams, &owner, &log).await?.own {
        return Ok((session, owner, None));
    }
    naming.alone(log.as_str(), named(streams, owner, &log, agent)).await
}

async fn named(
    streams: &Streams,
    owner: Owner,
    log: &LogId,
    agent: Option<String>,
) -> Result<(SessionId, Owner, Option<Secret>), Refusal> {
    let Living { own, all } = living(streams, &owner, log).await?;
    if let Some(session) = own {
        return Ok((session, owner, None));
    }
    let config = serde_json::Map::new();
    let new = NewSession { owner: owner.principal.clone(), agent, client_id: None, app_version: None, config };
    alias::check_room(&all)?;
    let made = make(&streams.sessions, streams.config.session.ownership, new, owner.own_secret()).await?;
    alias::share(&streams.readers.logs, log, &owner.principal, all, made.id.as_str()).await?;
    Ok((made.id, owner.of_made(made.token.as_ref()), made.token))
}

/// The sessions of a chat id that live. Where a name proves nothing there may be several: strangers who choose the same id get each
/// their own, and cannot tell that they are not the first.
struct Living {
    own: Option<SessionId>,
    /// Under the names of their logs.
    all: Vec<String>,
}

async fn living(streams: &Streams, owner: &Owner, log: &LogId) -> Result<Living, Refusal> {
    let mut living = Living { own: None, all: Vec::new() };
    for target in alias::targets(&streams.readers.logs, log, &owner.principal, SessionId::parse).await? {
        let Some(session) = SessionId::parse(&target) else { continue };
        let found = streams.sessions.living_record(&session, &owner.principal).await?;
        let Some((current, record)) = found else { continue };
        living.all.push(target);
        if record.is_proven(streams.config.session.ownership, owner.proof.as_ref()).is_ok() {
            living.own = Some(current);
        }
    }
    Ok(living)
}

/// The log that remembers which session a chat is.
fn chat_log(owner: &Principal, chat: &str) -> Option<LogId> {
    if chat.is_empty() || chat.len() > CHAT_ID_BYTES_MAX {
        return None;
    }
    alias::log_of(owner, "chat", chat)
}

/// `GET /api/chat/{id}/stream`: the running turn of a chat; or, for transports that come back to a run, of that run.
/// An unknown or foreign id has nothing to resume.
pub async fn resume(
    owner: Owner,
    State(limits): State<Arc<RequestLimits>>,
    State(streams): State<Arc<Streams>>,
    Name(id): Name,
    asked: Result<Query<StreamQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Answer {
    let wanted = read::query(asked)?.wanted(&headers)?;
    limits.admit_stream()?;
    let nothing = || Ok(StatusCode::NO_CONTENT.into_response());
    let chat = match chat_log(&owner.principal, &id) {
        Some(log) => living(&streams, &owner, &log).await?.own,
        None => None,
    };
    let task = match chat {
        Some(session) => {
            let proof = owner.proof.as_ref();
            match streams.sessions.own(&session, &owner.principal, proof).await {
                Ok((log, record)) if record.life == Life::Active => {
                    record.turn.active().map(|active| TaskId::of_turn(&log, active.started))
                }
                Err(refusal) if refusal.code == ErrorCode::StoreUnavailable => return Err(refusal.into()),
                Ok(_) | Err(_) => None,
            }
        }
        None => TaskId::parse(&id),
    };
    let Some(task) = task else { return nothing() };
    match Watched::find(&streams, &task, &owner.principal, owner.proof.as_ref()).await {
        Ok(watched) => Ok(sse::of_task(&streams.readers, &watched, wanted).await?),
        Err(refusal) if refusal.code == ErrorCode::TaskNotFound => nothing(),
        Err(refusal) => Err(refusal.into()),
    }
}
