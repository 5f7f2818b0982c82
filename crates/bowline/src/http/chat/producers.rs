//! Producers over HTTP: any program makes a task, appends chunks to it, and ends it. A repeated append is harmless.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bowline_core::resume_token::ResumeToken;
use bowline_env::entropy;
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{
    ErrorCode, LogId, MessageId, OperationId, Principal, ProducerId, Refusal, Seq, SessionId, TaskId,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::limits::RequestLimits;
use super::super::problem::Problem;
use super::super::sorted::Sorted;
use super::operations::tool_name;
use super::read::{self, Body, BodyFields, Name};
use super::{Owner, task_id};
use crate::alias::{self, Naming};
use crate::config::Ownership;
use crate::refusals;
use crate::schema;
use crate::secret::Presented;
use crate::session::operations::{Order, OrderedBy};
use crate::session::{CommandOutcome, SessionRequest};
use crate::stream::{Streams, Watched};
use crate::task::command::EndedTask;
use crate::task::record::{TaskRecord, Worker};
use crate::task::registry::gone;
use crate::task::status::Status;
use crate::task::{AcceptedOperation, TaskClose};

type Answer = Result<Response, Problem>;

/// Chunks of one append.
const CHUNKS_MAX: usize = 10_000;

/// Makes a task for a program outside.
pub async fn create(
    owner: Owner,
    State(naming): State<Arc<Naming>>,
    State(streams): State<Arc<Streams>>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let mut fields = body.fields();
    let session = fields.name("session_id", SessionId::parse)?;
    let tool_name = tool_name(fields.text("tool_name")?)?;
    let named = fields.name("operation_id", OperationId::parse)?;
    let key = read::idempotency_key(&headers)?;
    let wanted = TaskSpec { session, tool_name, named, key };
    let what = match (&wanted.named, &wanted.key) {
        (Some(named), _) => named.to_string(),
        (None, Some(key)) => key.to_string(),
        (None, None) => {
            return made(&owner, &streams, wanted).await.map(shown_as_created).map_err(Problem::from);
        }
    };
    // One at a time, so that two who choose the same name do not both get it.
    let making = made(&owner, &streams, wanted);
    Ok(shown_as_created(naming.alone(&format!("{}\0{what}", owner.principal), making).await?))
}

/// What a program outside asks for.
struct TaskSpec {
    session: Option<SessionId>,
    tool_name: Option<String>,
    named: Option<OperationId>,
    key: Option<MessageId>,
}

/// A task, and the secret that proves it to be its maker's, if it is new and nothing else does.
struct CreatedTask {
    begun: AcceptedOperation,
    token: Option<Secret>,
}

impl From<AcceptedOperation> for CreatedTask {
    fn from(begun: AcceptedOperation) -> CreatedTask {
        CreatedTask { begun, token: None }
    }
}

fn shown_as_created(CreatedTask { begun, token }: CreatedTask) -> Response {
    let made = TaskMade {
        task_id: begun.task_id,
        operation_id: begun.operation_id,
        resume_token: token.map(|token| token.expose().to_owned()),
    };
    (StatusCode::CREATED, Sorted(made)).into_response()
}

/// A task that was just made.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TaskMade {
    #[schemars(with = "String")]
    task_id: TaskId,
    #[schemars(with = "String")]
    operation_id: OperationId,
    /// What proves that it is its maker's, where nothing else does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    resume_token: Option<String>,
}

/// The chunks are durable.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Appended")]
pub(crate) struct ChunksAppended {
    #[schemars(schema_with = "schema::cursor")]
    last_message_id: String,
}

/// How a task that was ended stands.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Ended")]
pub(crate) struct TaskFinished {
    #[schemars(with = "String")]
    task_id: TaskId,
    status: Status,
    #[schemars(schema_with = "schema::cursor")]
    last_message_id: String,
}

async fn made(owner: &Owner, streams: &Streams, wanted: TaskSpec) -> Result<CreatedTask, Refusal> {
    let TaskSpec { session, tool_name, named, key } = wanted;
    let known = match &named {
        Some(named) => task_of(streams, owner, named).await.map(Some).or_else(|refusal| match refusal.code {
            ErrorCode::TaskNotFound => Ok(None),
            // It is known and gone, or cannot be looked at now.
            _ => Err(refusal),
        })?,
        None => None,
    };
    if let Some((named, known)) = named.as_ref().zip(known) {
        // The same name twice is one task, if the same is meant by it.
        let record = streams.tasks.look_up(&known, &owner.principal).await?;
        let session = match &session {
            Some(session) => Some(streams.sessions.own(session, &owner.principal, owner.proof.as_ref()).await?.0),
            None => None,
        };
        if record.session != session.as_ref().map(SessionId::from) || record.tool_name != tool_name {
            let message = format!("The operation `{named}` is one of another session or tool. Choose another name.");
            return Err(Refusal::new(ErrorCode::IdempotencyConflict, message));
        }
        streams.readers.metrics.duplicates_avoided.inc();
        return Ok(AcceptedOperation { task_id: known, operation_id: record.operation_id, tool_name }.into());
    }
    if let Some(named) = named.as_ref().filter(|_| streams.config.session.ownership == Ownership::Token) {
        let known = alias::targets(
            &streams.readers.logs,
            &operation_log(&owner.principal, named)?,
            &owner.principal,
            TaskId::parse,
        )
        .await?;
        alias::check_room(&alias::still_there(&streams.readers.logs, &known).await)?;
    }
    let made = match session {
        Some(session) => {
            let (args, by) = (json!({}), OrderedBy::Producer);
            let (operation_id, idempotency_key) = (named.clone(), key);
            let order = Box::new(Order { tool_name, args, key: None, idempotency_key, operation_id, by });
            match owner.ask(&streams.sessions, &session, SessionRequest::Operate(order)).await? {
                CommandOutcome::Operation(begun) => CreatedTask::from(*begun),
                _ => return Err(refusals::session_not_found()),
            }
        }
        None => found(streams, owner, tool_name, named.clone(), key).await?,
    };
    if named.is_some() {
        // A webhook that knows only the operation finds its task.
        let log = operation_log(&owner.principal, &made.begun.operation_id)?;
        let task = made.begun.task_id.as_str();
        if streams.config.session.ownership == Ownership::Token {
            let known = alias::targets(&streams.readers.logs, &log, &owner.principal, TaskId::parse).await?;
            let others = alias::still_there(&streams.readers.logs, &known).await;
            if !others.iter().any(|other| other == task) {
                alias::share(&streams.readers.logs, &log, &owner.principal, others, task).await?;
            }
        } else {
            alias::point(&streams.readers.logs, &log, &owner.principal, task).await?;
        }
    }
    Ok(made)
}

/// A task that belongs to no session. With a key, its name follows from that, so that a repetition finds it; where a name proves
/// nothing, from the caller's own secret too, and a repetition without that is another caller's request.
async fn found(
    streams: &Streams,
    owner: &Owner,
    tool_name: Option<String>,
    named: Option<OperationId>,
    key: Option<MessageId>,
) -> Result<CreatedTask, Refusal> {
    let by_token = streams.config.session.ownership == Ownership::Token;
    let secret = owner.own_secret().filter(|_| by_token);
    let principal = &owner.principal;
    let bits = match (&key, secret) {
        (Some(key), None) if !by_token => Some(alias::digest(&format!("{principal}\0task\0{key}"))),
        (Some(key), Some(secret)) => Some(alias::digest(&format!("{principal}\0task\0{key}\0{}", secret.0))),
        (Some(_) | None, _) => None,
    };
    let begun = AcceptedOperation::new(bits.unwrap_or_else(entropy::u128), named.clone(), tool_name);
    let mut record = TaskRecord::new(&begun, Worker::Producer, None, streams.readers.logs.clock.now_ms());
    let token = (by_token && secret.is_none()).then(|| Secret::new(entropy::secret()));
    let proof = secret.cloned().or_else(|| token.as_ref().map(Presented::from));
    record.resume_token = proof.map(|proof| ResumeToken::first(proof.0));
    if bits.is_some() {
        match streams.tasks.look_up(&begun.task_id, principal).await {
            Ok(known)
                if known.tool_name != begun.tool_name
                    || named.as_ref().is_some_and(|named| *named != known.operation_id) =>
            {
                let message = "This key was used before for another task. Use a new one.";
                return Err(Refusal::new(ErrorCode::IdempotencyConflict, message));
            }
            Ok(known) => {
                streams.readers.metrics.duplicates_avoided.inc();
                return Ok(
                    AcceptedOperation { operation_id: known.operation_id, tool_name: known.tool_name, ..begun }.into()
                );
            }
            Err(refusal) if refusal.code == ErrorCode::TaskNotFound => {}
            // It is known and gone, or cannot be looked at now: making another would be doing it twice.
            Err(refusal) => return Err(refusal),
        }
    }
    streams.tasks.create(principal, &begun.task_id, record, None).await?;
    Ok(CreatedTask { begun, token })
}

fn operation_log(owner: &Principal, operation: &OperationId) -> Result<LogId, Refusal> {
    alias::log_of(owner, "operation", operation.as_str()).ok_or_else(refusals::task_not_found)
}

/// The task of an operation that the owner has shown to be its own.
pub async fn task_of(streams: &Streams, owner: &Owner, operation: &OperationId) -> Result<TaskId, Refusal> {
    // The names that we give belong together.
    let derived = operation.as_str().strip_prefix("op_").and_then(|rest| TaskId::parse(&format!("task_{rest}")));
    let log = operation_log(&owner.principal, operation)?;
    let named = alias::targets(&streams.readers.logs, &log, &owner.principal, TaskId::parse).await?;
    let mut refusal = refusals::task_not_found();
    for task in derived.into_iter().chain(named.iter().filter_map(|name| TaskId::parse(name))) {
        match Watched::find(streams, &task, &owner.principal, owner.proof.as_ref()).await {
            Ok(watched) if watched.operation_id() == Some(operation) => return Ok(task),
            Ok(_) => {}
            Err(why) if why.code == ErrorCode::TaskNotFound => {}
            Err(why) => refusal = why,
        }
    }
    Err(refusal)
}

/// Chunks become durable before this answers.
pub async fn append(
    owner: Owner,
    State(limits): State<Arc<RequestLimits>>,
    State(streams): State<Arc<Streams>>,
    Name(tid): Name,
    headers: HeaderMap,
    request: Request,
) -> Answer {
    let place = place(&headers)?;
    let bytes = limits.bytes(request).await?;
    let chunks = chunks(limits.text(&bytes)?)?;
    let id = task_id(&tid)?;
    Watched::find(&streams, &id, &owner.principal, owner.proof.as_ref()).await?;
    if id.turn().is_some() {
        return Err(not_a_producers().into());
    }
    let answer = streams.tasks.append(&id, &owner.principal, place, chunks).await?;
    let appended = answer.await.unwrap_or_else(|_gone| Err(gone()))?;
    Ok(Sorted(ChunksAppended { last_message_id: appended.last_message_id }).into_response())
}

/// A turn is its agent's to write.
pub fn not_a_producers() -> Refusal {
    Refusal::new(ErrorCode::NotSupported, "A turn is written by its agent. Make a task of your own to write to.")
}

fn place(headers: &HeaderMap) -> Result<Option<(ProducerId, u64)>, Refusal> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    match (text("producer-id"), text("producer-seq")) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(Refusal::field("Producer-Seq", "is missing beside `Producer-Id`")),
        (None, Some(_)) => Err(Refusal::field("Producer-Id", "is missing beside `Producer-Seq`")),
        (Some(id), Some(seq)) => {
            let id = ProducerId::parse(id)
                .ok_or_else(|| Refusal::field("Producer-Id", "is empty, too long, or holds control characters"))?;
            let seq = Some(seq).filter(|seq| seq.bytes().all(|byte| byte.is_ascii_digit()));
            let seq = seq.and_then(|seq| seq.parse().ok()).filter(|seq| *seq <= Seq::MAX.get());
            Ok(Some((id, seq.ok_or_else(|| Refusal::field("Producer-Seq", "must be a whole number from 0"))?)))
        }
    }
}

/// A JSON array of chunks, or one on each line.
pub fn chunks(text: &str) -> Result<Vec<Box<RawValue>>, Refusal> {
    let invalid = |error: serde_json::Error| {
        let message = format!("The body is neither a JSON array nor one JSON object per line: {error}.");
        Refusal::new(ErrorCode::InvalidJson, message)
    };
    let chunks: Vec<Box<RawValue>> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(invalid)?
    } else {
        let lines = serde_json::Deserializer::from_str(text).into_iter::<Box<RawValue>>();
        lines.collect::<Result<_, _>>().map_err(invalid)?
    };
    if chunks.is_empty() {
        return Err(Refusal::new(ErrorCode::InvalidPayload, "The body holds no chunk."));
    }
    if chunks.len() > CHUNKS_MAX {
        let message = format!("One append takes at most {CHUNKS_MAX} chunks.");
        return Err(Refusal::new(ErrorCode::MessageTooLarge, message));
    }
    Ok(chunks)
}

/// Ends a task. Ending it twice in the same way is harmless.
pub async fn complete(owner: Owner, State(streams): State<Arc<Streams>>, Name(tid): Name, body: Body) -> Answer {
    let ending = ending(body.fields(), false)?;
    let id = task_id(&tid)?;
    Watched::find(&streams, &id, &owner.principal, owner.proof.as_ref()).await?;
    if id.turn().is_some() {
        return Err(not_a_producers().into());
    }
    let ended = streams.tasks.end(&id, &owner.principal, ending).await?;
    Ok(Sorted(finished(&id, &ended)).into_response())
}

/// How the work ended, as the one who did it says: `success`, or `status`, with `result` or `error`.
pub fn ending(mut fields: BodyFields, success_needed: bool) -> Result<TaskClose, Refusal> {
    let success = match (fields.flag("success")?, fields.text("status")?.as_deref()) {
        (Some(success), _) => success,
        (None, Some("completed")) => true,
        (None, Some("failed")) => false,
        (None, Some("cancelled")) => return Ok(TaskClose::cancelled("producer", fields.text("error")?)),
        (None, Some(_)) => return Err(Refusal::field("status", "must be completed, failed or cancelled")),
        (None, None) if success_needed => return Err(Refusal::field("success", "is missing")),
        (None, None) => fields.0.get("error").is_none_or(Value::is_null),
    };
    let error = match fields.take("error") {
        None => "The producer says that it failed.".to_owned(),
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
    };
    Ok(if success {
        TaskClose::Completed { result: fields.take("result"), finish: None }
    } else {
        TaskClose::failed(ErrorCode::AgentFailed, error)
    })
}

pub(super) fn finished(task: &TaskId, ended: &EndedTask) -> TaskFinished {
    TaskFinished { task_id: task.clone(), status: ended.record.status, last_message_id: ended.last_message_id.clone() }
}
