//! What comes back over HTTP: one answer, a stream that ends with one, or a stream that is held to notice the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::{Response, StatusCode};
use serde_json::json;

use super::http::{HttpLink, PostError};
use super::http_words::{body, parse, said, tell};
use super::lane::{Lane, UpSession};
use super::{Inbound, LinkEvent, MESSAGE_BYTES_MAX, Sink, Upcall, ask, own_answer};
use crate::catalogue::ListKind;
use crate::fields::{Raw, raw};
use crate::message::{self, Answer, Id, Message};
use crate::sse::Parser;

/// A held stream that ends at once again and again is not reopened faster than this.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// How often the stream of a call is asked for again when the server asks for that itself.
const RESUMES_MAX: u32 = 1000;

/// What reading a response came to.
pub(super) enum Reading {
    Answer(Answer),
    /// Not an answer at all: garbage, or a refusal.
    Other(String),
    /// The stream ended before the answer. With an id it may be taken up again.
    Ended {
        last_id: Option<String>,
        retry: Option<Duration>,
        why: String,
    },
}

/// Reads until the answer to `id`. What comes before it goes to `sink`.
pub(super) async fn read_response(
    response: Response,
    id: &Id,
    sink: Option<&Sink>,
    link: &Arc<HttpLink>,
    session: Option<&Arc<UpSession>>,
) -> Reading {
    let kind = response.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if response.status().is_success() && kind.starts_with("text/event-stream") {
        return read_stream(response, id, sink, link, session).await;
    }
    let status = response.status();
    let bytes = match body(response).await {
        Ok(bytes) => bytes,
        Err(why) => return Reading::Ended { last_id: None, retry: None, why },
    };
    match parse(&bytes) {
        Some(Message::Response(response)) if response.id.as_ref() == Some(id) => Reading::Answer(response.answer),
        // Over HTTP an error without an id can only mean this request, unless its session is what is wrong.
        Some(Message::Response(response)) if response.id.is_none() && status.is_success() => {
            Reading::Answer(response.answer)
        }
        Some(Message::Response(response))
            if response.id.is_none() && super::is_modern_error_answer(&response.answer) =>
        {
            Reading::Answer(response.answer)
        }
        Some(Message::Response(_)) => Reading::Other("it answered another request than the one asked".into()),
        _ => Reading::Other(format!("{} and no answer", said(status))),
    }
}

async fn read_stream(
    mut response: Response,
    id: &Id,
    sink: Option<&Sink>,
    link: &Arc<HttpLink>,
    session: Option<&Arc<UpSession>>,
) -> Reading {
    let mut parser = Parser::new(MESSAGE_BYTES_MAX);
    let why = loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break "the stream ended before the answer".to_owned(),
            Err(error) => break tell(error),
        };
        let events = match parser.push(&chunk) {
            Ok(events) => events,
            Err(error) => return Reading::Other(error.to_string()),
        };
        for event in events.iter().filter(|event| !event.data.is_empty()) {
            match parse(event.data.as_bytes()) {
                Some(Message::Response(response)) if response.id.as_ref() == Some(id) => {
                    return Reading::Answer(response.answer);
                }
                Some(Message::Response(_)) | None => tracing::warn!("a backend sent something that was not asked"),
                Some(message) => pass_on(message, sink.cloned(), link, session.cloned()).await,
            }
        }
    };
    Reading::Ended { last_id: parser.last_id().map(ToOwned::to_owned), retry: parser.retry(), why }
}

/// Takes the stream of a call up again where it was cut.
pub(super) async fn resume(
    link: &Arc<HttpLink>,
    session: &Arc<UpSession>,
    id: &Id,
    last_id: &str,
    retry: Option<Duration>,
    sink: Option<&Sink>,
    why: String,
) -> Reading {
    let mut last_id = last_id.to_owned();
    let mut pause = retry;
    for _ in 0..RESUMES_MAX {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        let ended = |why: String| Reading::Ended { last_id: None, retry: None, why };
        let response = match link.get(session, Some(&last_id)).await {
            Ok(response) if response.status().is_success() => response,
            Ok(_) => return ended(why),
            Err(PostError::Refused(_) | PostError::Broken(_)) => return ended(why),
        };
        let began = Instant::now();
        match read_stream(response, id, sink, link, Some(session)).await {
            Reading::Ended { last_id: newer, retry, .. } => {
                last_id = newer.unwrap_or(last_id);
                let hasty = began.elapsed() < REOPEN_PAUSE;
                pause = retry.or(pause).or_else(|| hasty.then_some(REOPEN_PAUSE));
            }
            reading => return reading,
        }
    }
    Reading::Ended { last_id: None, retry: None, why }
}

/// A notification goes where it belongs; a request too, and its answer goes back to the backend.
async fn pass_on(message: Message, sink: Option<Sink>, link: &Arc<HttpLink>, session: Option<Arc<UpSession>>) {
    match message {
        Message::Notification(notification) => {
            // A backend of the older era tells each session of a change; whether there is one is found out once, for all.
            let changed = session.is_some() && ListKind::ALL.iter().any(|kind| kind.changed() == notification.method);
            let sink = sink.filter(|_| !changed);
            let inbound = Inbound::Notification { method: notification.method, params: notification.params };
            match sink {
                Some(sink) => drop(sink.send(inbound).await),
                None => drop(link.dial.events.send((link.dial.generation, LinkEvent::Inbound(inbound))).await),
            }
        }
        Message::Request(request) => {
            let link = link.clone();
            tokio::spawn(async move {
                let answer = match own_answer(&request.method) {
                    Some(answer) => Some(answer),
                    None => {
                        let asked = ask(sink.as_ref(), &link.dial.name, request.method, request.params);
                        link.closed.run_until_cancelled(asked).await
                    }
                };
                // If the backend is gone, nobody wants the answer.
                let Some(answer) = answer else { return };
                let body = message::response(&request.id, &answer);
                let _ = link.post(&body, &[], session.as_deref()).await;
            });
        }
        Message::Response(_) => {}
    }
}

/// Holds the session's own stream: what belongs to no call comes here, and its end is a sign of death.
pub(super) async fn hold_get(link: Arc<HttpLink>, lane: Arc<Lane>, session: Arc<UpSession>) {
    let held = async {
        let mut last_id: Option<String> = None;
        let mut was_open = false;
        loop {
            let opened = Instant::now();
            let response = match link.get(&session, last_id.as_deref()).await {
                Ok(response) => response,
                Err(PostError::Refused(why) | PostError::Broken(why)) => return link.lost(&why).await,
            };
            match response.status() {
                status if status.is_success() => was_open = true,
                // It never offered the stream; calls and checks will notice a loss.
                _ if !was_open => return,
                StatusCode::METHOD_NOT_ALLOWED => return,
                // The session is gone, which is what a restart looks like.
                status => return link.session_gone(&lane, &session, &said(status)).await,
            }
            let (newer, retry) = follow(response, &link, &lane, &session).await;
            last_id = newer.or(last_id);
            match retry {
                Some(pause) => tokio::time::sleep(pause.min(REOPEN_PAUSE)).await,
                None if opened.elapsed() < REOPEN_PAUSE => {
                    // Whether the backend lives must be known now, not after the pause.
                    link.suspect("its stream ended");
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
                None => {}
            }
        }
    };
    let stop = session.over.run_until_cancelled(held);
    link.closed.run_until_cancelled(stop).await;
}

async fn follow(
    mut response: Response,
    link: &Arc<HttpLink>,
    lane: &Arc<Lane>,
    session: &Arc<UpSession>,
) -> (Option<String>, Option<Duration>) {
    let mut parser = Parser::new(MESSAGE_BYTES_MAX);
    while let Ok(Some(chunk)) = response.chunk().await {
        let Ok(events) = parser.push(&chunk) else { break };
        for event in events.iter().filter(|event| !event.data.is_empty()) {
            let Some(message) = parse(event.data.as_bytes()) else { continue };
            // A request that names no call is this client's; its newest call can answer it best.
            let sink = match &message {
                Message::Request(_) => lane.newest_call().or_else(|| lane.caller.inbox.clone()),
                _ => lane.caller.inbox.clone(),
            };
            pass_on(message, sink, link, Some(session.clone())).await;
        }
    }
    (parser.last_id().map(ToOwned::to_owned), parser.retry())
}

/// Holds one subscription at a modern backend: changes of its lists come here, and its end is a sign of death.
pub(super) async fn hold_listen(link: Arc<HttpLink>) {
    let held = async {
        loop {
            let opened = Instant::now();
            let id = link.own_id();
            let filter = json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true });
            let params: Raw = raw(&json!({ "notifications": filter }));
            let (body, headers) = link.modern_request(&id, &Upcall::of_hub("subscriptions/listen", Some(params)));
            let response = match link.post(&body, &headers, None).await {
                Ok(response) if response.status().is_success() => response,
                // It has no subscriptions; calls and checks will notice a loss.
                Ok(_) => return,
                Err(PostError::Refused(why) | PostError::Broken(why)) => return link.lost(&why).await,
            };
            match read_stream(response, &id, None, &link, None).await {
                Reading::Answer(Err(_)) | Reading::Other(_) => return,
                Reading::Answer(Ok(_)) | Reading::Ended { .. } => {}
            }
            if opened.elapsed() < REOPEN_PAUSE {
                link.suspect("its subscription ended");
                tokio::time::sleep(REOPEN_PAUSE).await;
            }
        }
    };
    link.closed.run_until_cancelled(held).await;
}
