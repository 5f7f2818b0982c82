//! A stream as an HTTP answer.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline_core::dialect::Projection;
use bowline_core::dialect::ai_sdk::Projector;
use bowline_core::watch::WatchStart;
use bowline_protocol::{Refusal, StreamCursor, TaskId};
use serde::Deserialize;
use serde_json::json;

use super::super::guard;
use crate::drive::stream::WatchedStream;
use crate::refusals;
use crate::resume_metrics::ResumeMetrics;
use crate::stream::Watched;
use crate::stream::reader::ReaderContext;

/// Where a browser that comes back says how far it is.
const LAST_EVENT_ID: &str = "Last-Event-ID";

/// What every stream of server-sent events is answered with.
pub const EVENT_STREAM: [(&str, &str); 3] =
    [("content-type", "text/event-stream"), ("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no")];
const AI_SDK: [(&str, &str); 1] = [("x-vercel-ai-ui-message-stream", "v1")];
/// How the workflow transport learns which run it may come back to, and where its end is.
const RUN_ID: &str = "x-workflow-run-id";
const TAIL_INDEX: &str = "x-workflow-stream-tail-index";

/// A stream whose credential ended, as a last chunk that leaves nothing in the message.
pub fn cut_off(refusal: &Refusal) -> String {
    let chunk = json!({ "type": "data-unauthorized", "data": guard::facts(refusal), "transient": true });
    format!("data: {chunk}\n\n")
}

/// How a reader asks for its stream, as it wrote it.
#[derive(Debug, Default, Deserialize)]
pub struct StreamQuery {
    last_message_id: Option<String>,
    frame: Option<String>,
    fold: Option<String>,
    #[serde(rename = "startIndex")]
    start_index: Option<String>,
}

/// How a reader wants its stream.
#[derive(Clone, Debug)]
pub enum RequestedStart {
    /// What follows the cursor; everything without one.
    After { cursor: Option<StreamCursor>, framed: bool, fold: bool },
    /// From the chunk with this number on; a negative one counts from the end.
    Index(i64),
}

impl StreamQuery {
    /// What it means. Told before anything is looked up, so that a wrong request is wrong whatever it is for.
    pub fn wanted(&self, headers: &HeaderMap) -> Result<RequestedStart, Refusal> {
        let asked = cursor("last_message_id", self.last_message_id.as_deref().unwrap_or_default())?;
        // The header wins: a browser that comes back keeps the address it first asked for.
        let cursor = match last_event_id(headers)? {
            Some(text) => cursor(LAST_EVENT_ID, text)?,
            None => asked,
        };
        let framed = flag("frame", self.frame.as_deref())?.unwrap_or(false);
        let fold = flag("fold", self.fold.as_deref())?.unwrap_or(cursor.is_none() || framed);
        match &self.start_index {
            None => Ok(RequestedStart::After { cursor, framed, fold }),
            Some(index) => {
                let index = index.parse().map_err(|_| Refusal::field("startIndex", "must be a whole number"))?;
                Ok(RequestedStart::Index(index))
            }
        }
    }
}

fn cursor(field: &str, text: &str) -> Result<Option<StreamCursor>, Refusal> {
    StreamCursor::parse(text).map_err(|_| Refusal::field(field, "must be `<epoch>-<seq>` or a number"))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Refusal::field(LAST_EVENT_ID, "must be `<epoch>-<seq>` or a number"))?;
    Ok(Some(text.trim()).filter(|text| !text.is_empty()))
}

/// The turn that a request began or joined. Nothing of it is folded, however fast it was: a transport that counts what it gets comes
/// back with that number.
pub async fn of_turn(readers: &Arc<ReaderContext>, watched: &Watched) -> Result<Response, Refusal> {
    let start = watched.start(None, false)?.unwrap_or(WatchStart::Fresh);
    readers.metrics.stream_starts.inc("fresh");
    let stream = WatchedStream::watch(readers.clone(), watched, start, false).await;
    let stream = stream.map_err(|error| refusals::of_follower(&error))?;
    Ok(respond(stream, Some(&watched.id)))
}

/// What a reader asked for; 204 if the task has ended and the reader has all of it.
pub async fn of_task(
    readers: &Arc<ReaderContext>,
    watched: &Watched,
    wanted: RequestedStart,
) -> Result<Response, Refusal> {
    let (cursor, framed, fold) = match wanted {
        RequestedStart::After { cursor, framed, fold } => (cursor, framed, fold),
        RequestedStart::Index(index) => return from_index(readers, watched, index).await,
    };
    let resuming = ResumeMetrics::begin(&readers.metrics, watched, cursor.as_ref());
    let returns = cursor.is_some();
    let start = watched.start(cursor, framed).inspect_err(|refusal| {
        if returns {
            ResumeMetrics::refused(&readers.metrics, &watched.id, refusal);
        }
    })?;
    let Some(start) = start else {
        resuming.into_iter().for_each(|resuming| resuming.lacks_nothing(&readers.metrics));
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let may_be_over = watched.last.is_some() && matches!(start, WatchStart::After(_) | WatchStart::Framed(_));
    readers.metrics.stream_starts.inc(match &start {
        WatchStart::Fresh | WatchStart::Index(_) => "fresh",
        WatchStart::After(_) => "resumed",
        WatchStart::Framed(_) => "framed",
    });
    let mut stream = WatchedStream::watch(readers.clone(), watched, start, fold)
        .await
        .map_err(|error| refusals::of_follower(&error))?;
    if may_be_over && stream.is_over().await.map_err(|error| refusals::of_follower(&error))? {
        resuming.into_iter().for_each(|resuming| resuming.lacks_nothing(&readers.metrics));
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    stream.tell(resuming);
    Ok(respond(stream, Some(&watched.id)))
}

/// From the chunk with this number on; a negative one counts from the end. Nothing is folded, so that numbers hold.
/// 204 if the task has ended and has no such chunk.
async fn from_index(readers: &Arc<ReaderContext>, watched: &Watched, index: i64) -> Result<Response, Refusal> {
    watched.start(None, false)?;
    let refuse = |error| refusals::of_follower(&error);
    let mut counting: WatchedStream<Projector> =
        WatchedStream::watch(readers.clone(), watched, WatchStart::Fresh, false).await.map_err(refuse)?;
    let count = counting.count().await.map_err(refuse)?;
    drop(counting);
    let from = if index < 0 { count.saturating_sub(index.unsigned_abs()) } else { index.unsigned_abs() };
    // A transport that knows no end but `finish` would ask for ever after an `abort`. Chunks that are gone cannot
    // be counted, and the reader begins with what is left.
    let trimmed = watched.first < watched.extent.first;
    if watched.last.is_some() && !trimmed && from >= count {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    readers.metrics.stream_starts.inc("indexed");
    let stream =
        WatchedStream::watch(readers.clone(), watched, WatchStart::Index(from), false).await.map_err(refuse)?;
    let mut response = respond(stream, Some(&watched.id));
    let tail = HeaderValue::from(count as i64 - 1);
    response.headers_mut().insert(HeaderName::from_static(TAIL_INDEX), tail);
    Ok(response)
}

pub fn flag(name: &str, text: Option<&str>) -> Result<Option<bool>, Refusal> {
    match text {
        None | Some("") => Ok(None),
        Some("1" | "true") => Ok(Some(true)),
        Some("0" | "false") => Ok(Some(false)),
        Some(_) => Err(Refusal::field(name, "must be 1 or 0")),
    }
}

/// A stream as a body. One that is cut ends in an error and not cleanly, so that no client takes it for whole.
pub fn body<P: Projection>(stream: WatchedStream<P>) -> Body {
    Body::from_stream(futures_util::stream::unfold(Some(stream), |stream| async move {
        let mut stream = stream?;
        match Box::pin(stream.next()).await {
            Ok(Some(bytes)) => Some((Ok(bytes), Some(stream))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// The answer itself.
pub fn respond(stream: WatchedStream<Projector>, task: Option<&TaskId>) -> Response {
    let mut response = (StatusCode::OK, EVENT_STREAM, AI_SDK, body(stream)).into_response();
    if let Some(task) = task {
        let headers = response.headers_mut();
        if let Ok(value) = HeaderValue::from_str(task.as_str()) {
            headers.insert(HeaderName::from_static(RUN_ID), value);
        }
        if let Ok(value) = HeaderValue::from_str(&format!("/api/chat/tasks/{task}/stream")) {
            headers.insert(header::LOCATION, value.clone());
            headers.insert(header::CONTENT_LOCATION, value);
        }
    }
    response
}
