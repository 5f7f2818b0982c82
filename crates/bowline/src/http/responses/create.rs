//! `POST /v1/responses`: a message to an agent, the answer to its question or outputs of functions that it called, and the
//! response to that.

use std::sync::Arc;

use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use bowline_api::{FunctionOutput, Functions, Reply};
use bowline_core::dialect::responses::{CallId, QuestionId, ResponseId, Wait};
use bowline_env::entropy;
use bowline_protocol::frame::client::{Content, Secret};
use bowline_protocol::{ErrorCode, LogId, MessageId, Refusal, Seq, SessionId};
use bowline_store::WakeSet;
use serde_json::{Map, Value};

use super::super::chat::read::{self, Body};
use super::super::chat::{Owner, RESUME_TOKEN, sdk, sessions, sse};
use super::super::limits::RequestLimits;
use super::super::problem::Problem;
use super::found::{FoundResponse, object, streamed};
use super::input::{CallOutput, Input};
use super::request::{Delivery, ResponseRequest};
use crate::alias::Naming;
use crate::refusals;
use crate::session::record::SessionRecord;
use crate::session::registry::NewSession;
use crate::session::{CommandOutcome, Returned, SessionRequest};
use crate::stream::Streams;
use crate::stream::queued::{QueuedFate, QueuedMessage};

type Answer = Result<Response, Problem>;

/// The session that a response belongs to, and what its maker needs to come back to it.
pub struct Place {
    session: SessionId,
    owner: Owner,
    token: Option<Secret>,
    /// The turn that it is to follow.
    behind: Option<Seq>,
}

/// A response that was begun.
pub struct Begun {
    pub found: FoundResponse,
    pub place: Place,
}

/// Begins what is asked for, or finds it again.
pub async fn begin(
    owner: Owner,
    limits: &RequestLimits,
    naming: &Naming,
    streams: &Streams,
    key: Option<MessageId>,
    request: ResponseRequest,
) -> Result<Begun, Refusal> {
    let ResponseRequest { model, input, delivery, previous, conversation, functions, echoed, .. } = request;
    model.as_deref().map_or(Ok(()), |model| streams.sessions.knows(model, "model"))?;
    if delivery == Delivery::Streamed {
        limits.admit_stream()?;
    }
    // A caller that waits for the answer needs no webhook.
    let announce = echoed.0.get("background") == Some(&true.into());
    match input {
        Input::Answer { question, reply } => {
            let previous = previous.ok_or_else(|| {
                Refusal::field("previous_response_id", "is missing: it names the response that asked")
            })?;
            let request = limits.fits(&Value::Object(echoed.0))?;
            let found = answer(streams, &owner, &previous, &question, reply, request, announce).await?;
            let place = Place { session: found.session.clone(), owner, token: None, behind: None };
            Ok(Begun { found, place })
        }
        Input::Outputs(outputs) => {
            let request = limits.fits(&Value::Object(echoed.0))?;
            let given = Given { outputs, functions, request, announce };
            let found = returned(streams, &owner, previous.as_deref(), given).await?;
            let place = Place { session: found.session.clone(), owner, token: None, behind: None };
            Ok(Begun { found, place })
        }
        Input::Message(mut content) => {
            content.insert("response".into(), Value::Object(echoed.0));
            let is_new = previous.is_none() && conversation.is_none();
            if !functions.list.is_empty() {
                if is_new {
                    can_call(streams, model.as_deref().unwrap_or(&streams.config.default_agent))?;
                }
                content.insert("functions".into(), serde_json::json!(functions));
            }
            if announce {
                content.insert("announce".into(), true.into());
            }
            let content = limits.content("input", &Value::Object(content))?;
            let place = match (&previous, &conversation) {
                (Some(previous), _) => behind(streams, owner, previous, model.as_deref()).await?,
                (None, Some(name)) => named(naming, streams, owner, name, model.as_deref()).await?,
                (None, None) => unnamed(naming, streams, owner, model, key.as_ref()).await?,
            };
            if !is_new && !functions.list.is_empty() {
                let (_, record) =
                    streams.sessions.own(&place.session, &place.owner.principal, place.owner.proof.as_ref()).await?;
                can_call(streams, &record.agent)?;
            }
            let found = message(streams, &place, key, content).await?;
            Ok(Begun { found, place })
        }
    }
}

pub async fn create(
    owner: Owner,
    State(limits): State<Arc<RequestLimits>>,
    State(naming): State<Arc<Naming>>,
    State(streams): State<Arc<Streams>>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let key = read::idempotency_key(&headers)?;
    let request = ResponseRequest::read(body.fields())?;
    let (delivery, is_kept) = (request.delivery, request.is_kept);
    let Begun { found, place } = begin(owner, &limits, &naming, &streams, key, request).await?;
    let mut response = match delivery {
        Delivery::Now => object(&found.response(&streams).await?),
        Delivery::Whole => {
            let whole = found.whole(&streams).await?;
            if !is_kept {
                forget(&streams, &place).await;
            }
            object(&whole)
        }
        Delivery::Streamed => {
            let stream = found.stream(&streams, 0).await?;
            let body = sse::body(stream);
            streamed(if is_kept { body } else { forgetful(body, &streams, &place) })
        }
    };
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(place.session.as_str()) {
        headers.insert(HeaderName::from_static("bowline-session-id"), value);
    }
    if let Some(Ok(value)) = place.token.map(|token| HeaderValue::from_str(token.expose())) {
        headers.insert(HeaderName::from_static(RESUME_TOKEN), value);
    }
    Ok(response)
}

/// A response that follows another: in the same session, which takes it only behind its newest turn.
async fn behind(streams: &Streams, owner: Owner, previous: &str, model: Option<&str>) -> Result<Place, Refusal> {
    let found = FoundResponse::find(streams, &owner, previous).await?;
    let (_, record) = streams.sessions.own(&found.session, &owner.principal, owner.proof.as_ref()).await?;
    is_with(&record, model)?;
    let behind = Some(found.id.turn);
    Ok(Place { session: found.session, owner, token: None, behind })
}

/// A session has one agent.
fn is_with(record: &SessionRecord, model: Option<&str>) -> Result<(), Refusal> {
    if model.is_none_or(|model| model == record.agent) {
        return Ok(());
    }
    Err(Refusal::field("model", &format!("must be `{}`, with whom the conversation is", record.agent)))
}

/// What an agent would not call is not taken.
fn can_call(streams: &Streams, agent: &str) -> Result<(), Refusal> {
    if streams.sessions.agents.get(agent).is_none_or(|agent| agent.calls_functions()) {
        return Ok(());
    }
    let message = format!("`tools`: the agent `{agent}` calls no functions of its caller's.");
    Err(Refusal::new(ErrorCode::NotSupported, message).details(serde_json::json!({ "field": "tools" })))
}

/// A conversation that the caller names: a session by its own id, or whatever chat it calls so.
async fn named(
    naming: &Naming,
    streams: &Streams,
    owner: Owner,
    name: &str,
    model: Option<&str>,
) -> Result<Place, Refusal> {
    let own = match SessionId::parse(name) {
        Some(session) if name.starts_with("sess_") => Some(session),
        _ => None,
    };
    let (session, owner, token) = match own {
        Some(session) => (session, owner, None),
        None => sdk::session_of_chat(naming, streams, owner, "conversation", name, model.map(str::to_owned)).await?,
    };
    let (_, record) = streams.sessions.own(&session, &owner.principal, owner.proof.as_ref()).await?;
    is_with(&record, model)?;
    Ok(Place { session, owner, token, behind: None })
}

/// A conversation of its own. With a key, the same request finds it again.
async fn unnamed(
    naming: &Naming,
    streams: &Streams,
    owner: Owner,
    model: Option<String>,
    key: Option<&MessageId>,
) -> Result<Place, Refusal> {
    if let Some(key) = key {
        let name = format!("response {key}");
        let (session, owner, token) =
            sdk::session_of_chat(naming, streams, owner, "Idempotency-Key", &name, model).await?;
        return Ok(Place { session, owner, token, behind: None });
    }
    let new = NewSession {
        owner: owner.principal.clone(),
        agent: model,
        client_id: None,
        app_version: None,
        config: Map::new(),
    };
    let made = sessions::make(&streams.sessions, streams.config.session.ownership, new, owner.own_secret()).await?;
    Ok(Place { session: made.id, owner: owner.of_made(made.token.as_ref()), token: made.token, behind: None })
}

/// Sends the message, and waits for its turn if another runs.
async fn message(
    streams: &Streams,
    place: &Place,
    key: Option<MessageId>,
    content: Content,
) -> Result<FoundResponse, Refusal> {
    let Place { session, owner, behind, .. } = place;
    let message_id = key.unwrap_or_else(|| MessageId::from_random(entropy::u128()));
    let ask = SessionRequest::Message { message_id: Some(message_id.clone()), also: None, behind: *behind, content };
    let outcome = owner.ask(&streams.sessions, session, ask).await.map_err(in_our_words)?;
    let (log, _) = streams.sessions.own(session, &owner.principal, owner.proof.as_ref()).await?;
    let turn = match outcome {
        CommandOutcome::Started { turn } | CommandOutcome::Repeated { turn: Some(turn), .. } => turn,
        _ => turn_of(streams, &log, &message_id).await?,
    };
    FoundResponse::at(streams, owner, ResponseId::of_turn(log, turn)).await
}

/// A session knows nothing of responses.
fn in_our_words(refusal: Refusal) -> Refusal {
    if refusal.details.as_ref().is_none_or(|details| details["field"] != "behind") {
        return refusal;
    }
    let message = "Another response follows this one already. Name the newest of the conversation.";
    Refusal::new(refusal.code, message).details(serde_json::json!({ "field": "previous_response_id" }))
}

/// The turn of a message in the queue, once it has one.
async fn turn_of(streams: &Streams, log: &LogId, message: &MessageId) -> Result<Seq, Refusal> {
    let (logs, wake) = (&streams.readers.logs, WakeSet::new());
    let queued = QueuedMessage::follow(logs, log, message.clone(), &wake).await;
    let queued = queued.map_err(|error| refusals::of_store(&error))?;
    loop {
        match queued.fate(logs).await? {
            QueuedFate::Begun(turn) => return Ok(turn),
            QueuedFate::Dropped => {
                let message = "The session ended before the message had its turn.";
                return Err(Refusal::new(ErrorCode::SessionInactive, message));
            }
            QueuedFate::Waiting => {}
        }
        let woken = streams.readers.closing.run_until_cancelled(wake.woken()).await;
        woken.ok_or_else(refusals::draining)?;
        wake.take();
    }
}

/// Answers a question; what follows it is the response. The same answer again finds the same response.
async fn answer(
    streams: &Streams,
    owner: &Owner,
    previous: &str,
    question: &QuestionId,
    reply: Reply,
    request: Content,
    announce: bool,
) -> Result<FoundResponse, Refusal> {
    let before = FoundResponse::find(streams, owner, previous).await?;
    let wrong = || Refusal::field("input", "answers no question of `previous_response_id`");
    let (asked, wait) = before.waits(streams).await?.ok_or_else(wrong)?;
    if before.id.log != question.log || asked.seq != question.asked || wait != Wait::Question {
        return Err(wrong());
    }
    let step_id = asked.step_id.ok_or_else(wrong)?;
    let id = ResponseId { question: Some(question.asked), ..before.id.clone() };
    let confirmed = reply.confirmed;
    let announce = announce.then_some(asked.seq);
    let ask = SessionRequest::Response { step_id, reply, request: Some(request), announce };
    match owner.ask(&streams.sessions, &before.session, ask).await {
        Ok(_) => FoundResponse::at(streams, owner, id).await,
        Err(refusal) if refusal.code == ErrorCode::UnknownStep => {
            let known = before.reply(streams, question.asked).await?;
            if known.is_some_and(|known| known.content["confirmed"] == confirmed) {
                return FoundResponse::at(streams, owner, id).await;
            }
            Err(refusal)
        }
        Err(refusal) => Err(refusal),
    }
}

/// Outputs of functions, and what else their request says.
struct Given {
    outputs: Vec<CallOutput>,
    functions: Functions,
    request: Content,
    announce: bool,
}

/// Gives a run the outputs of the functions that it called; what follows is the response. The same outputs again find the
/// same response.
async fn returned(
    streams: &Streams,
    owner: &Owner,
    previous: Option<&str>,
    Given { outputs: given, functions, request, announce }: Given,
) -> Result<FoundResponse, Refusal> {
    let wrong = || Refusal::field("input", "holds an output of no call that `previous_response_id` made");
    let before = match (previous, given.first()) {
        (Some(previous), _) => FoundResponse::find(streams, owner, previous).await?,
        (None, Some(first)) => FoundResponse::that_called(streams, owner, &first.call).await?,
        (None, None) => return Err(wrong()),
    };
    let (asked, wait) = before.waits(streams).await?.ok_or_else(wrong)?;
    let (Wait::Outputs(steps), Some(step_id)) = (wait, asked.step_id) else { return Err(wrong()) };
    // Calls that are made together are events one after the other.
    let first = (asked.seq.get() + 1).checked_sub(steps.len() as u64).ok_or_else(wrong)?;
    let mut outputs = Vec::new();
    for CallOutput { call, text, data } in given {
        let at = call.called.get().checked_sub(first).filter(|_| call.log == before.id.log).ok_or_else(wrong)?;
        let step = steps.get(at as usize).ok_or_else(wrong)?;
        outputs.push(FunctionOutput { step_id: step.clone(), text, data });
    }
    for (at, step) in steps.iter().enumerate() {
        if outputs.iter().filter(|output| output.step_id == *step).count() != 1 {
            let call = Seq::new(first + at as u64).map(|called| CallId { log: before.id.log.clone(), called });
            let call = call.map(|call| call.to_string()).unwrap_or_default();
            return Err(Refusal::field("input", &format!("must hold one output for the call `{call}`")));
        }
    }
    let id = ResponseId { question: Some(asked.seq), ..before.id.clone() };
    let sent = outputs.clone();
    let announce = announce.then_some(asked.seq);
    let ask = SessionRequest::Returned(Box::new(Returned { step_id, outputs, functions, request, announce }));
    match owner.ask(&streams.sessions, &before.session, ask).await {
        Ok(_) => FoundResponse::at(streams, owner, id).await,
        Err(refusal) if refusal.code == ErrorCode::UnknownStep => {
            let known = before.outputs(streams, asked.seq).await?;
            let is_same = |output: &FunctionOutput| {
                let event = known.iter().find(|event| event.step_id.as_ref() == Some(&output.step_id));
                event.is_some_and(|event| {
                    let data = event.metadata.get("data");
                    event.content == output.text.as_str() && data == output.data.as_ref()
                })
            };
            if sent.iter().all(is_same) {
                return FoundResponse::at(streams, owner, id).await;
            }
            Err(refusal)
        }
        Err(refusal) => Err(refusal),
    }
}

/// Ends a session that nothing is to be kept of. If it cannot be ended now, it expires.
pub async fn forget(streams: &Streams, place: &Place) {
    let ask = SessionRequest::End { by: place.owner.name() };
    if let Err(refusal) = place.owner.ask(&streams.sessions, &place.session, ask).await {
        tracing::debug!(session = %place.session, %refusal, "a response that is not to be kept could not be let go");
    }
}

/// The same, behind the last byte of a stream.
fn forgetful(body: HttpBody, streams: &Arc<Streams>, place: &Place) -> HttpBody {
    let (sessions, session) = (streams.sessions.clone(), place.session.clone());
    let Owner { principal, proof, .. } = &place.owner;
    let (principal, proof, by) = (principal.clone(), proof.clone(), place.owner.name());
    let end = futures_util::stream::once(async move {
        // If it cannot be ended now, it expires.
        let _ = sessions.ask(&session, &principal, proof, SessionRequest::End { by }).await;
        Ok(bytes::Bytes::new())
    });
    HttpBody::from_stream(futures_util::StreamExt::chain(body.into_data_stream(), end))
}
