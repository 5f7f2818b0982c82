//! Tasks over HTTP: how they stand, their streams, and how they are stopped.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::super::limits::RequestLimits;
use super::super::problem::Problem;
use super::super::sorted::Sorted;
use super::read::{self, Body, Name};
use super::sse::{self, StreamQuery};
use super::{Owner, task_id};
use crate::config::Config;
use crate::schema;
use crate::session::{CommandOutcome, SessionRequest};
use crate::stream::{Streams, Watched};
use crate::task::TaskClose;
use crate::task::status::Status;

type Answer = Result<Response, Problem>;

pub async fn show(owner: Owner, State(streams): State<Arc<Streams>>, Name(tid): Name) -> Answer {
    let watched = Watched::find(&streams, &task_id(&tid)?, &owner.principal, owner.proof.as_ref()).await?;
    Ok(Sorted(watched.resource(&streams).await?).into_response())
}

/// What was missed, then live.
pub async fn stream(
    owner: Owner,
    State(limits): State<Arc<RequestLimits>>,
    State(streams): State<Arc<Streams>>,
    Name(tid): Name,
    asked: Result<Query<StreamQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Answer {
    let wanted = read::query(asked)?.wanted(&headers)?;
    limits.admit_stream()?;
    let watched = Watched::find(&streams, &task_id(&tid)?, &owner.principal, owner.proof.as_ref()).await?;
    Ok(sse::of_task(&streams.readers, &watched, wanted).await?)
}

/// Whether a task was stopped, and how it stands.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TaskCancelled {
    cancelled: bool,
    status: Status,
}

/// How long the stream of a task can be read after its end: the setting `stream.ttl`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Ttl {
    #[schemars(schema_with = "schema::number")]
    stream_ttl_seconds: Value,
    stream_ttl_ms: u64,
}

/// Really stops the work. A task that has ended is answered as it is.
pub async fn cancel(owner: Owner, State(streams): State<Arc<Streams>>, Name(tid): Name, body: Body) -> Answer {
    let reason = body.fields().text("reason")?;
    let id = task_id(&tid)?;
    let watched = Watched::find(&streams, &id, &owner.principal, owner.proof.as_ref()).await?;
    let by = owner.name();
    let (cancelled, status) = match (id.turn(), &watched.session) {
        (Some((_, started)), Some(session)) => {
            let turn = Some(started);
            let outcome = owner.ask(&streams.sessions, session, SessionRequest::Cancel { by, reason, turn }).await?;
            match outcome {
                CommandOutcome::Cancelled { ran: true } => (true, Status::Cancelled),
                _ => {
                    let now = Watched::find(&streams, &id, &owner.principal, owner.proof.as_ref()).await?;
                    (false, now.status())
                }
            }
        }
        _ if watched.is_released() => (false, watched.status()),
        _ => {
            let ended = streams.tasks.end(&id, &owner.principal, TaskClose::cancelled(by, reason)).await?;
            (ended.by_this, ended.record.status)
        }
    };
    Ok(Sorted(TaskCancelled { cancelled, status }).into_response())
}

pub async fn ttl(_: Owner, State(config): State<Arc<Config>>) -> Answer {
    let ttl = config.stream.ttl;
    let seconds: Value = if ttl.subsec_nanos() == 0 { ttl.as_secs().into() } else { ttl.as_secs_f64().into() };
    Ok(Sorted(Ttl { stream_ttl_seconds: seconds, stream_ttl_ms: ttl.as_millis() as u64 }).into_response())
}
