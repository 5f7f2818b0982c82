//! Background operations over HTTP: started by the owner of the session, completed by the program that did the work.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bowline_protocol::{MessageId, OperationId, Refusal};
use serde_json::Value;

use super::super::problem::Problem;
use super::super::sorted::Sorted;
use super::producers::{ending, finished, task_of};
use super::read::{self, Body, Name};
use super::{Owner, session_id};
use crate::refusals;
use crate::session::operations::{Order, OrderedBy};
use crate::session::{CommandOutcome, SessionRequest, Sessions};
use crate::stream::Streams;

type Answer = Result<Response, Problem>;

/// Longest name of a tool.
const TOOL_NAME_BYTES_MAX: usize = 256;

/// Answers at once; the work goes on in the background.
pub async fn start(
    owner: Owner,
    State(sessions): State<Arc<Sessions>>,
    Name(sid): Name,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let mut fields = body.fields();
    let tool_name = tool_name(fields.text("tool_name")?)?;
    let tool_name = Some(tool_name.ok_or_else(|| Refusal::field("tool_name", "is missing"))?);
    let args = Value::Object(fields.object("arguments")?.unwrap_or_default());
    let idempotency_key = read::idempotency_key(&headers)?;
    let key = fields.name("tool_call_id", MessageId::parse)?;
    let by = OrderedBy::Caller;
    let order = Box::new(Order { tool_name, args, key, idempotency_key, operation_id: None, by });
    let outcome = owner.ask(&sessions, &session_id(&sid)?, SessionRequest::Operate(order)).await?;
    let CommandOutcome::Operation(begun) = outcome else { return Err(refusals::session_not_found().into()) };
    Ok((StatusCode::ACCEPTED, Sorted(begun.content())).into_response())
}

pub fn tool_name(name: Option<String>) -> Result<Option<String>, Refusal> {
    let fits =
        |name: &String| !name.is_empty() && name.len() <= TOOL_NAME_BYTES_MAX && !name.chars().any(char::is_control);
    match name {
        Some(name) if !fits(&name) => {
            Err(Refusal::field("tool_name", "is empty, too long, or holds control characters"))
        }
        name => Ok(name),
    }
}

/// Completion by webhook.
pub async fn complete(owner: Owner, State(streams): State<Arc<Streams>>, Name(oid): Name, body: Body) -> Answer {
    let ending = ending(body.fields(), true)?;
    let operation = OperationId::parse(&oid).ok_or_else(refusals::task_not_found)?;
    let task = task_of(&streams, &owner, &operation).await?;
    let ended = streams.tasks.end(&task, &owner.principal, ending).await?;
    Ok(Sorted(finished(&task, &ended)).into_response())
}
