//! What comes back over HTTP: one answer, or a stream that ends with one.

use std::sync::Arc;
use std::time::Duration;

use bowline_env::http::Response;

use super::HttpTransport;
use crate::call::server_request::{AnswerReceiver, ask, own_answer};
use crate::call::{Inbound, InboundSink};
use crate::catalogue::ListKind;
use crate::fields::into_bytes;
use crate::message::{self, BYTES_MAX, Malformed, RpcId, RpcMessage, RpcRequest, RpcResult};
use crate::revision;
use crate::scan::JsonScan;
use crate::sse::{SseItem, SseParser};
use crate::upstream::TransportEvent;
use crate::upstream::backend_session::HttpSession;
use crate::upstream::http::{BodyError, body, said};
use crate::upstream::inbound_queue::{Unread, WRONGLY_NAMED};
use crate::upstream::pending_calls::TAKEN_BACK;

/// What reading a response came to.
pub(super) enum ResponseOutcome {
    Answer(RpcResult),
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
    id: &RpcId,
    sink: Option<&InboundSink>,
    transport: &Arc<HttpTransport>,
    session: Option<&Arc<HttpSession>>,
) -> ResponseOutcome {
    if response.status().is_success() && is_stream(&response) {
        return read_stream(response, id, sink, transport, session).await;
    }
    let status = response.status();
    let bytes = match body(response).await {
        Ok(bytes) => bytes,
        Err(BodyError::Broken(why)) => return ResponseOutcome::Ended { last_id: None, retry: None, why },
        Err(BodyError::TooLong) => return ResponseOutcome::Other(Unread::TooLong.to_string()),
    };
    match RpcMessage::parse_bytes(&bytes) {
        Ok(RpcMessage::Response(response)) if response.id.as_ref() == Some(id) => {
            ResponseOutcome::Answer(response.answer)
        }
        // Over HTTP an error without an id can only mean this request, unless its session is what is wrong.
        Ok(RpcMessage::Response(response)) if response.id.is_none() && status.is_success() => {
            ResponseOutcome::Answer(response.answer)
        }
        Ok(RpcMessage::Response(response))
            if response.id.is_none() && response.answer.as_ref().is_err_and(revision::is_own_error) =>
        {
            ResponseOutcome::Answer(response.answer)
        }
        Ok(RpcMessage::Response(_)) => ResponseOutcome::Other(WRONGLY_NAMED.into()),
        Err(why) if status.is_success() && !bytes.is_empty() => {
            ResponseOutcome::Other(Unread::Malformed(why).to_string())
        }
        Ok(_) | Err(_) => ResponseOutcome::Other(format!("{} and no answer", said(status))),
    }
}

async fn read_stream(
    mut response: Response,
    id: &RpcId,
    sink: Option<&InboundSink>,
    transport: &Arc<HttpTransport>,
    session: Option<&Arc<HttpSession>>,
) -> ResponseOutcome {
    let mut parser = SseParser::new(BYTES_MAX);
    let why = loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break "the stream ended before the answer".to_owned(),
            Err(cut) => break cut.0,
        };
        for piece in parser.push(&chunk) {
            let unread = match piece {
                SseItem::TooLarge(scan) => (scan, Unread::TooLong),
                SseItem::NotUtf8(scan) => (scan, Unread::Malformed(Malformed::NotUtf8)),
                SseItem::Event(event) if event.data.is_empty() => continue,
                SseItem::Event(event) => match RpcMessage::parse(&event.data) {
                    Ok(RpcMessage::Response(message::RpcResponse { id: Some(other), answer })) if other == *id => {
                        response.finish();
                        return ResponseOutcome::Answer(answer);
                    }
                    // As in a body: an error without an id can only mean this request.
                    Ok(RpcMessage::Response(message::RpcResponse { id: None, answer })) => {
                        return ResponseOutcome::Answer(answer);
                    }
                    Ok(RpcMessage::Response(_)) => return ResponseOutcome::Other(WRONGLY_NAMED.into()),
                    Ok(message) => {
                        pass_on(message, sink.cloned(), true, transport, session.cloned()).await;
                        continue;
                    }
                    // Events of other kinds are no messages.
                    Err(_) if event.kind.as_deref().is_some_and(|kind| kind != "message") => continue,
                    Err(why) => (JsonScan::of(event.data.as_bytes()), Unread::Malformed(why)),
                },
            };
            let (scan, why) = &unread;
            tracing::warn!(?why, "a backend sent something that was passed over");
            if let Some(why) = why.spoils(scan, id) {
                return ResponseOutcome::Other(why);
            }
            refuse(&unread, transport, session);
        }
    };
    ResponseOutcome::Ended { last_id: parser.last_id().map(ToOwned::to_owned), retry: parser.retry(), why }
}

/// A request that cannot be taken is answered all the same.
pub(super) fn refuse(
    (scan, why): &(JsonScan, Unread),
    transport: &Arc<HttpTransport>,
    session: Option<&Arc<HttpSession>>,
) {
    let Some(refusal) = why.refusal(scan) else { return };
    let (transport, session) = (transport.clone(), session.cloned());
    tokio::spawn(async move { transport.post(into_bytes(refusal), &[], session.as_deref()).await.map(drop) });
}

/// A notification goes where it belongs; a request too, and its answer goes back to the backend.
pub(super) async fn pass_on(
    message: RpcMessage,
    sink: Option<InboundSink>,
    certain: bool,
    transport: &Arc<HttpTransport>,
    session: Option<Arc<HttpSession>>,
) {
    match message {
        // It is called by the backend's own name, which tells the client nothing; who is asked hears of it otherwise.
        RpcMessage::Notification(message::RpcNotification { method, params }) if method == TAKEN_BACK => {
            if let Some(session) = &session {
                session.asked.take_back(params.as_ref());
            }
        }
        RpcMessage::Notification(notification) => {
            // A backend with sessions tells each of them of a change; whether there is one is found out once, for all.
            let changed = session.is_some() && ListKind::ALL.iter().any(|kind| kind.changed() == notification.method);
            let sink = sink.filter(|_| !changed);
            let message::RpcNotification { method, params } = notification;
            let inbound = Inbound::Notification { server: transport.dial.name.clone(), method, params };
            match sink {
                Some(sink) => drop(sink.send(inbound).await),
                None => drop(
                    transport.dial.events.send((transport.dial.generation, TransportEvent::Inbound(inbound))).await,
                ),
            }
        }
        RpcMessage::Request(request) => answer(request, sink, certain, transport, session),
        RpcMessage::Response(_) => {}
    }
}

fn answer(
    request: RpcRequest,
    sink: Option<InboundSink>,
    certain: bool,
    transport: &Arc<HttpTransport>,
    session: Option<Arc<HttpSession>>,
) {
    let (transport, id) = (transport.clone(), request.id.clone());
    let taken_back = session.as_ref().map(|session| session.asked.begin(&id)).unwrap_or_default();
    tokio::spawn(async move {
        let answer = match own_answer(&request.method) {
            Some(answer) => Some(answer),
            None => {
                let question = AnswerReceiver::new(&transport.dial.name, request, certain);
                let asked = ask(sink.as_ref(), question);
                let asked = taken_back.run_until_cancelled(asked);
                transport.closed.run_until_cancelled(asked).await.flatten()
            }
        };
        if let Some(session) = &session {
            session.asked.end(&id);
        }
        // If the backend is gone or has cancelled its request, the answer is not sent.
        let Some(answer) = answer else { return };
        let body = message::response(&id, &answer);
        let _ = transport.post(into_bytes(body), &[], session.as_deref()).await;
    });
}

pub(super) fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get("content-type").and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}
