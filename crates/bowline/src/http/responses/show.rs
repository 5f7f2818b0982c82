//! Responses that exist: shown, streamed from any event on, stopped, deleted, and what they were asked.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use bowline_protocol::{ErrorCode, Refusal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::chat::Owner;
use super::super::chat::read::{self, Name};
use super::super::chat::sse;
use super::super::limits::RequestLimits;
use super::super::problem::Problem;
use super::super::sorted::Sorted;
use super::found::{FoundResponse, object, streamed};
use super::items::{InputItem, InputItemStatus};
use super::models::ListObject;
use crate::refusals;
use crate::schema;
use crate::session::SessionRequest;
use crate::session::record::keys;
use crate::stream::Streams;

type Answer = Result<Response, Problem>;

/// How many items are listed unless the caller says so, and at most.
const LISTED: usize = 20;
const LISTED_MAX: usize = 100;

#[derive(Debug, Deserialize)]
pub struct RetrieveQuery {
    stream: Option<String>,
    starting_after: Option<String>,
}

/// `GET /v1/responses/{id}`: the response as it stands, or its events from the one behind `starting_after` on.
pub async fn show(
    owner: Owner,
    State(limits): State<Arc<RequestLimits>>,
    State(streams): State<Arc<Streams>>,
    Name(id): Name,
    asked: Result<Query<RetrieveQuery>, QueryRejection>,
) -> Answer {
    let RetrieveQuery { stream, starting_after } = read::query(asked)?;
    let wants_stream = sse::flag("stream", stream.as_deref())?.unwrap_or(false);
    let wrong = || Refusal::field("starting_after", "must be the `sequence_number` of an event");
    let after = starting_after.map(|text| text.parse::<u64>().map_err(|_| wrong())).transpose()?;
    if after.is_some() && !wants_stream {
        return Err(Refusal::field("starting_after", "needs `stream=true`").into());
    }
    if !wants_stream {
        return Ok(object(&FoundResponse::find(&streams, &owner, &id).await?.response(&streams).await?));
    }
    limits.admit_stream()?;
    let found = FoundResponse::find(&streams, &owner, &id).await?;
    let from = after.map_or(0, |number| number.saturating_add(1));
    Ok(streamed(sse::body(found.stream(&streams, from).await?)))
}

/// `POST /v1/responses/{id}/cancel`: really stops the run. One that has ended is shown as it is.
pub async fn cancel(owner: Owner, State(streams): State<Arc<Streams>>, Name(id): Name) -> Answer {
    let found = FoundResponse::find(&streams, &owner, &id).await?;
    let response = found.response(&streams).await?;
    if !is_running(response.get()) {
        return Ok(object(&response));
    }
    let ask = SessionRequest::Cancel { by: owner.name(), reason: None, turn: Some(found.id.turn) };
    owner.ask(&streams.sessions, &found.session, ask).await?;
    Ok(object(&found.response(&streams).await?))
}

/// The `status` of a response. No status has escapes, so it can be borrowed.
pub(super) fn status_of(response: &str) -> Option<&str> {
    #[derive(Deserialize)]
    struct WithStatus<'a> {
        status: &'a str,
    }
    serde_json::from_str::<WithStatus<'_>>(response).ok().map(|response| response.status)
}

fn is_running(response: &str) -> bool {
    status_of(response) == Some("in_progress")
}

/// `DELETE /v1/responses/{id}`: ends the session that the response is all of, and lets its contents go.
pub async fn delete(owner: Owner, State(streams): State<Arc<Streams>>, Name(id): Name) -> Answer {
    let found = FoundResponse::find(&streams, &owner, &id).await?;
    let turns = streams.readers.logs.store.items(&found.id.log, keys::TURNS).await;
    let turns = turns.map_err(|error| refusals::of_store(&error))?;
    if turns.len() > 1 || found.id.question.is_some() {
        let message = format!(
            "The response is one of several of a conversation, which goes as a whole: DELETE /api/chat/sessions/{}.",
            found.session
        );
        return Err(Refusal::new(ErrorCode::NotSupported, message).into());
    }
    owner.ask(&streams.sessions, &found.session, SessionRequest::End { by: owner.name() }).await?;
    Ok(Sorted(ResponseDeleted { id, object: ResponseObject::Response, deleted: true }).into_response())
}

/// A response is gone.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ResponseDeleted {
    id: String,
    object: ResponseObject,
    #[schemars(schema_with = "schema::only_true")]
    deleted: bool,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ResponseObject {
    Response,
}

/// What a response was asked.
#[derive(Serialize, JsonSchema)]
pub(crate) struct InputItems {
    object: ListObject,
    data: Vec<InputItem>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

#[derive(Debug, Deserialize)]
pub struct ItemsPage {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

/// `GET /v1/responses/{id}/input_items`: what the response was asked.
pub async fn input_items(
    owner: Owner,
    State(streams): State<Arc<Streams>>,
    Name(id): Name,
    page: Result<Query<ItemsPage>, QueryRejection>,
) -> Answer {
    let ItemsPage { limit, order, after } = read::query(page)?;
    let limit = limit.unwrap_or(LISTED);
    if !(1..=LISTED_MAX).contains(&limit) {
        return Err(Refusal::field("limit", "must be from 1 to 100").into());
    }
    let is_rising = match order.as_deref() {
        Some("asc") => true,
        None | Some("desc") => false,
        Some(_) => return Err(Refusal::field("order", "must be asc or desc").into()),
    };
    let found = FoundResponse::find(&streams, &owner, &id).await?;
    let mut items = asked(&streams, &found).await?;
    if !is_rising {
        items.reverse();
    }
    let skipped = match after {
        None => 0,
        Some(after) => items.iter().position(|item| item.id() == after).map_or(items.len(), |at| at + 1),
    };
    let has_more = items.len() > skipped.saturating_add(limit);
    let data: Vec<InputItem> = items.into_iter().skip(skipped).take(limit).collect();
    let id_of = |item: Option<&InputItem>| item.map(|item| item.id().to_owned());
    let (first_id, last_id) = (id_of(data.first()), id_of(data.last()));
    let object = ListObject::List;
    Ok(Sorted(InputItems { object, data, first_id, last_id, has_more }).into_response())
}

/// What the response was asked, the oldest first.
async fn asked(streams: &Streams, found: &FoundResponse) -> Result<Vec<InputItem>, Refusal> {
    let id = found.id.to_string();
    if let Some(question) = found.id.question {
        let Some(reply) = found.reply(streams, question).await? else { return Ok(Vec::new()) };
        if reply.content.get("outputs").is_some() {
            let outputs = found.outputs(streams, question).await?;
            // The calls are the events before the one that waits, in the same order.
            let first = (question.get() + 1).saturating_sub(outputs.len() as u64);
            let shown = outputs.into_iter().enumerate().map(|(at, output)| InputItem::FunctionCallOutput {
                id: format!("in_{at}_{id}"),
                status: InputItemStatus::Completed,
                call_id: format!("call_{}_{}", first + at as u64, found.id.log),
                output: output.metadata.get("data").cloned().unwrap_or(output.content),
            });
            return Ok(shown.collect());
        }
        return Ok(vec![InputItem::McpApprovalResponse {
            id: format!("in_0_{id}"),
            approval_request_id: format!("mcpr_{question}_{}", found.id.log),
            approve: reply.content["confirmed"].clone(),
            reason: reply.content.get("reason").cloned().unwrap_or_default(),
        }]);
    }
    let event = found.event(streams, found.id.turn).await?;
    Ok(event.map(|event| InputItem::of_message(&id, &event.content)).unwrap_or_default())
}
