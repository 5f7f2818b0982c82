//! Streams that are held over HTTP: what belongs to no call comes there, and their end is a sign of death.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::attribution::Recipient;
use bowline_core::upstream_session::{HeldStep, HeldStream};
use bowline_env::clock;
use bowline_env::http::Response;
use http::StatusCode;

use super::HttpTransport;
use super::request::PostError;
use super::response::{ResponseOutcome, is_stream, pass_on, read_response, refuse};
use crate::call::{Exchange, Inbound};
use crate::catalogue::ListKind;
use crate::message::{BYTES_MAX, Malformed, RpcMessage};
use crate::scan::JsonScan;
use crate::sse::{SseItem, SseParser};
use crate::upstream::TransportEvent;
use crate::upstream::backend_session::{BackendSession, HttpSession};
use crate::upstream::http::said;
use crate::upstream::inbound_queue::Unread;

/// How a held stream is asked for, again and again.
struct Opening<'a> {
    transport: &'a Arc<HttpTransport>,
    stream: HeldStream,
}

impl Opening<'_> {
    fn new(transport: &Arc<HttpTransport>) -> Opening<'_> {
        Opening { transport, stream: HeldStream::default() }
    }

    /// The response, if there is one in time. If not, whether the server is still there is asked. What is seldom needed is boxed, here and
    /// by the callers, because a held stream would have room for it all its life.
    async fn wait(&mut self, asking: impl Future<Output = Result<Response, PostError>>) -> HeldStreamAnswer {
        match tokio::time::timeout(self.stream.patience(), asking).await {
            Ok(Ok(response)) => HeldStreamAnswer::Answered(response),
            Ok(Err(PostError { why, .. })) => match self.stream.handle_refused() {
                HeldStep::NotOffered => {
                    // One that refuses streams in its own way and answers all the same never offered them.
                    if !Box::pin(self.transport.confirm_in_time()).await {
                        self.transport.lost(&why).await;
                    }
                    HeldStreamAnswer::NotOffered
                }
                step => self.again(step, &why).await,
            },
            Err(_) => {
                let step = self.stream.handle_late();
                self.again(step, "its stream was not opened in time").await
            }
        }
    }

    async fn again(&self, step: HeldStep, why: &str) -> HeldStreamAnswer {
        let HeldStep::Again(pause) = step else { return HeldStreamAnswer::NotOffered };
        self.transport.suspect(why);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        HeldStreamAnswer::Again
    }
}

/// What asking for a held stream came to.
enum HeldStreamAnswer {
    Answered(Response),
    Again,
    /// Calls and checks will notice a loss.
    NotOffered,
}

/// Holds the session's own stream: what belongs to no call comes here, and its end is a sign of death.
pub(super) async fn hold_get(
    transport: Arc<HttpTransport>,
    backend_session: Arc<BackendSession<HttpSession>>,
    session: Arc<HttpSession>,
) {
    let held = async {
        let mut last_id: Option<String> = None;
        let mut opening = Opening::new(&transport);
        loop {
            let asked = clock::now();
            let response = match opening.wait(Box::pin(transport.get(&session, last_id.as_deref()))).await {
                HeldStreamAnswer::Answered(response) => response,
                HeldStreamAnswer::Again => continue,
                HeldStreamAnswer::NotOffered => return,
            };
            match response.status() {
                status if status.is_success() => {
                    // Without a session nothing says whether this is still the same process, and without an event's id nothing
                    // says what was sent in between.
                    let blind = session.id.is_none() || last_id.is_none();
                    if opening.stream.handle_opened() && blind && backend_session.is_shared() {
                        look_again(&transport).await;
                    }
                }
                // It never offered the stream; calls and checks will notice a loss.
                _ if !opening.stream.was_open() => return,
                StatusCode::METHOD_NOT_ALLOWED => return,
                // The session is gone, which is what a restart looks like.
                status => return transport.session_gone(&backend_session, &session, &said(status)).await,
            }
            let (newer, retry) = follow(response, &transport, &backend_session, &session).await;
            last_id = newer.or(last_id);
            // Whether the backend lives must be known now: a proxy that only accepts connections may open it again.
            let step = opening.stream.handle_ended(retry, clock::since(asked));
            opening.again(step, "its stream ended").await;
        }
    };
    let stop = session.over.run_until_cancelled(held);
    transport.closed.run_until_cancelled(stop).await;
}

async fn follow(
    mut response: Response,
    transport: &Arc<HttpTransport>,
    backend_session: &Arc<BackendSession<HttpSession>>,
    session: &Arc<HttpSession>,
) -> (Option<String>, Option<Duration>) {
    let mut parser = SseParser::new(BYTES_MAX);
    while let Ok(Some(chunk)) = response.chunk().await {
        for piece in parser.push(&chunk) {
            let read = match piece {
                SseItem::TooLarge(scan) => Err((scan, Unread::TooLong)),
                SseItem::NotUtf8(scan) => Err((scan, Unread::Malformed(Malformed::NotUtf8))),
                SseItem::Event(event) if event.data.is_empty() => continue,
                SseItem::Event(event) => RpcMessage::parse(&event.data)
                    .map_err(|why| (JsonScan::of(event.data.as_bytes()), Unread::Malformed(why))),
            };
            let message = match read {
                Ok(message) => message,
                // No answer comes here, so this hurts no call.
                Err(unread) => {
                    refuse(&unread, transport, Some(session));
                    continue;
                }
            };
            // A request that names no call is this client's; its newest call can answer it best. Where all clients share
            // a session, it may have no recipient.
            let (whose, newest) = backend_session.whose_word();
            let sink = match &message {
                RpcMessage::Request(_) => newest.or_else(|| backend_session.caller.inbox.clone()),
                // Nor does a log line say whose it is.
                RpcMessage::Notification(line)
                    if line.method == "notifications/message" && whose == Recipient::Ambiguous =>
                {
                    continue;
                }
                _ => backend_session.caller.inbox.clone(),
            };
            pass_on(message, sink, !matches!(whose, Recipient::OneOfCalls(_)), transport, Some(session.clone())).await;
        }
    }
    (parser.last_id().map(ToOwned::to_owned), parser.retry())
}

/// Holds one subscription at a stateless backend: changes of its lists come here, and its end is a sign of death.
pub(super) async fn hold_listen(transport: Arc<HttpTransport>) {
    let revision = transport.revision(Exchange::Stateless);
    let Some(listen) = revision.watch() else { return };
    let held = async {
        let mut opening = Opening::new(&transport);
        loop {
            let asked = clock::now();
            let id = transport.own_id();
            let (body, headers) = transport.alone(revision, &id, &listen);
            let response = match opening.wait(Box::pin(transport.post(body, &headers, None))).await {
                HeldStreamAnswer::Answered(response) => response,
                HeldStreamAnswer::Again => continue,
                HeldStreamAnswer::NotOffered => return,
            };
            let opens = response.status().is_success() && is_stream(&response);
            if opens && opening.stream.was_open() {
                // No client was notified of what changed in between, and this may be another process.
                look_again(&transport).await;
            }
            let refused = match read_response(response, &id, None, &transport, None).await {
                ResponseOutcome::Answer(Err(_)) => true,
                // What cannot be read ends a stream that was granted, and another one may be had.
                ResponseOutcome::Other(_) | ResponseOutcome::Answer(Ok(_)) | ResponseOutcome::Ended { .. } => !opens,
            };
            if refused {
                // Without subscriptions calls and checks notice a loss.
                let step = opening.stream.handle_refused();
                match opening.again(step, "its subscription was refused").await {
                    HeldStreamAnswer::NotOffered => return,
                    HeldStreamAnswer::Answered(_) | HeldStreamAnswer::Again => continue,
                }
            }
            opening.stream.handle_opened();
            let step = opening.stream.handle_ended(None, clock::since(asked));
            opening.again(step, "its subscription ended").await;
        }
    };
    transport.closed.run_until_cancelled(held).await;
}

/// Has the lists fetched again. Clients are notified only of a real difference.
async fn look_again(transport: &HttpTransport) {
    let (server, method) = (transport.dial.name.clone(), ListKind::Tools.changed().to_owned());
    let changed = Inbound::Notification { server, method, params: None };
    let _ = transport.dial.events.send((transport.dial.generation, TransportEvent::Inbound(changed))).await;
}
