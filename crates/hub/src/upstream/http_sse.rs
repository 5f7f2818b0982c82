//! HTTP+SSE of 2024-11-05, as a client only: one stream in, POSTs out. The stream is the session, so each client has its own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::backend::DialError;
use bowline_env::http::{Endpoint, Http1Client, Response, SendError};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::backend_session::{BackendSession, BackendSessions, SessionCall};
use super::http::{prepare, refusal, retry_after, said, status_of};
use super::pending_calls::PipeKind;
use super::pipe::{OUT_QUEUE, Pipe};
use super::{Dial, TransportEvent, passing};
use crate::call::facts::ServerFacts;
use crate::call::{BackendCall, CallEnding, Caller, Exchange, SHARED_SESSION};
use crate::fields::Raw;
use crate::message::{self, BYTES_MAX, Malformed};
use crate::sse::{SseItem, SseParser};
use crate::upstream::inbound_queue::Unread;
use crate::upstream::pending_calls::Outgoing;

const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a message may take to be taken before the next one is sent.
const TAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// A client's stream that ends again and again is not opened faster than this.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

pub struct SseTransport {
    url: Url,
    endpoint: Endpoint,
    headers: HeaderMap,
    dial: Dial,
    /// Our own session. Its end is the loss of the link.
    own: Arc<Pipe>,
    backend_sessions: BackendSessions<Pipe>,
    next_call: AtomicU64,
    /// Ends all streams, as the end of our own one does.
    closed: CancellationToken,
}

/// Why a client has no stream.
enum StreamOpenError {
    /// The server cannot be reached.
    Unreachable(String),
    /// It is there, and gives no stream.
    Refused {
        reason: String,
        retry_after: Option<Duration>,
    },
    Failed(DialError),
}

impl StreamOpenError {
    fn failed(reason: impl Into<String>) -> StreamOpenError {
        StreamOpenError::Failed(passing(reason))
    }

    fn into_dial_error(self) -> DialError {
        match self {
            StreamOpenError::Unreachable(reason) => passing(reason),
            StreamOpenError::Refused { reason, retry_after } => DialError::Passing { reason, retry_after },
            StreamOpenError::Failed(error) => error,
        }
    }
}

pub async fn dial(url: &Url, headers: &BTreeMap<String, String>, dial: Dial) -> Result<Arc<SseTransport>, DialError> {
    let (endpoint, headers) = prepare(url, headers, &dial)?;
    let closed = dial.over.child_token();
    let wire = StreamOpener { url, endpoint: &endpoint, headers: &headers, dial: &dial };
    let (own, stream) = wire.open(None, closed.clone()).await.map_err(StreamOpenError::into_dial_error)?;
    let guard = closed.clone().drop_guard();
    own.renew(dial.renewals.of(SHARED_SESSION)).await;
    guard.disarm();
    let (events, generation) = (dial.events.clone(), dial.generation);
    let (url, backend_sessions, next_call) = (url.clone(), BackendSessions::default(), AtomicU64::new(1));
    tokio::spawn(async move {
        if let Ok(reason) = stream.await {
            let _ = events.send((generation, TransportEvent::Lost { reason, exit: None })).await;
        }
    });
    Ok(Arc::new(SseTransport { url, endpoint, headers, dial, own, backend_sessions, next_call, closed }))
}

impl SseTransport {
    pub fn facts(&self) -> &ServerFacts {
        self.own.facts()
    }

    pub async fn call(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        if *call.caller.session_name == *SHARED_SESSION {
            return self.own.call(call).await;
        }
        let backend_session = self.backend_session(&call.caller);
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let _listed = SessionCall::new(&backend_session, number, &call.caller, call.sink.clone());
        let mut again = false;
        loop {
            let pipe = match self.session(&backend_session).await {
                Ok(pipe) => pipe,
                Err(StreamOpenError::Unreachable(reason)) => return CallEnding::NotExecuted(reason),
                Err(StreamOpenError::Refused { reason, retry_after }) => {
                    return CallEnding::Refused {
                        why: format!("the server refused a new session: {reason}"),
                        retry_after,
                    };
                }
                Err(StreamOpenError::Failed(DialError::Passing { reason, .. } | DialError::Fatal { reason })) => {
                    return self.dial.refused_session(&reason);
                }
            };
            match pipe.call(call).await {
                // Only this client's stream is gone. Nothing was sent, so the next one may carry it.
                CallEnding::NotExecuted(why) if !self.closed.is_cancelled() => {
                    if again {
                        return CallEnding::failed(&format!("the server ends every session: {why}"));
                    }
                    again = true;
                }
                ending => return ending,
            }
        }
    }

    pub async fn notify(&self, caller: &Caller, method: &str, params: Option<Raw>) {
        let Some(backend_session) = self.backend_sessions.find(&caller.session_name) else { return };
        let pipe = backend_session.session.lock().await.clone();
        if let Some(pipe) = pipe {
            pipe.notify(method, params).await;
        }
    }

    /// Opens the streams of clients that wait for something, without waiting for their next call.
    pub async fn warm(self: &Arc<Self>) {
        let warming = async {
            for caller in self.dial.renewals.callers() {
                if *caller.session_name != *SHARED_SESSION {
                    let _ = self.session(&self.backend_session(&caller)).await;
                }
            }
        };
        self.closed.run_until_cancelled(warming).await;
    }

    pub fn has_session(&self, session_name: &str) -> bool {
        self.backend_sessions
            .find(session_name)
            .is_some_and(|backend_session| backend_session.has(|pipe| !pipe.is_lost()))
    }

    pub async fn end_backend_session(&self, session_name: &str) {
        if let Some(backend_session) = self.backend_sessions.remove(session_name) {
            leave(&backend_session).await;
        }
    }

    pub fn close(&self) {
        self.closed.cancel();
    }

    fn backend_session(&self, caller: &Caller) -> Arc<BackendSession<Pipe>> {
        let (backend_session, gone) = self.backend_sessions.of(caller);
        for gone in gone {
            tokio::spawn(async move { leave(&gone).await });
        }
        backend_session
    }

    /// Its stream, opened once however many calls want it.
    async fn session(
        self: &Arc<Self>,
        backend_session: &Arc<BackendSession<Pipe>>,
    ) -> Result<Arc<Pipe>, StreamOpenError> {
        let mut current = backend_session.session.lock().await;
        if let Some(pipe) = current.as_ref().filter(|pipe| !pipe.is_lost()) {
            return Ok(pipe.clone());
        }
        let (url, endpoint) = (&self.url, &self.endpoint);
        let wire = StreamOpener { url, endpoint, headers: &self.headers, dial: &self.dial };
        let closed = self.closed.child_token();
        // The caller may leave before the stream has an owner.
        let guard = closed.clone().drop_guard();
        let (pipe, stream) = wire.open(Some(&backend_session.caller), closed).await?;
        pipe.renew(self.dial.renewals.of(&backend_session.caller.session_name)).await;
        guard.disarm();
        *current = Some(pipe.clone());
        let (transport, backend_session) = (self.clone(), backend_session.clone());
        tokio::spawn(async move {
            if stream.await.is_ok() {
                transport.reopen(&backend_session).await;
            }
        });
        Ok(pipe)
    }

    /// A client's stream has ended, and ours has not. Who waits for something gets another one; all others with their
    /// next call.
    fn reopen<'a>(
        self: &'a Arc<Self>,
        backend_session: &'a Arc<BackendSession<Pipe>>,
    ) -> futures_util::future::BoxFuture<'a, ()> {
        Box::pin(async move {
            let pause = self.closed.run_until_cancelled(tokio::time::sleep(REOPEN_PAUSE)).await;
            let waits = !self.dial.renewals.of(&backend_session.caller.session_name).is_empty();
            let here = self
                .backend_sessions
                .find(&backend_session.caller.session_name)
                .is_some_and(|known| Arc::ptr_eq(&known, backend_session));
            if pause.is_some() && waits && here {
                let _ = self.session(backend_session).await;
            }
        })
    }
}

async fn leave(backend_session: &BackendSession<Pipe>) {
    if let Some(pipe) = backend_session.session.lock().await.take() {
        pipe.close();
    }
}

impl fmt::Debug for SseTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SseTransport({} sessions)", self.backend_sessions.len())
    }
}

/// Tells why a stream ended; nothing if we ended it.
type StreamEnd = oneshot::Receiver<String>;

/// What is needed to open a stream.
struct StreamOpener<'a> {
    url: &'a Url,
    endpoint: &'a Endpoint,
    headers: &'a HeaderMap,
    dial: &'a Dial,
}

impl StreamOpener<'_> {
    /// Opens a stream and shakes hands: as the client, or as ourselves.
    async fn open(
        &self,
        client: Option<&Caller>,
        closed: CancellationToken,
    ) -> Result<(Arc<Pipe>, StreamEnd), StreamOpenError> {
        let mut headers = self.headers.clone();
        headers.append(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let sent = self.dial.http.send(Method::GET, self.endpoint, headers, Bytes::new()).await;
        let response =
            sent.map_err(
                |SendError { is_unsent, why }| {
                    if is_unsent { StreamOpenError::Unreachable(why) } else { StreamOpenError::failed(why) }
                },
            )?;
        if !response.status().is_success() {
            let (reason, retry_after) = (said(response.status()), retry_after(&response));
            return Err(StreamOpenError::Refused { reason, retry_after });
        }
        let guard = closed.clone().drop_guard();
        let (out, outgoing) = mpsc::channel(OUT_QUEUE);
        let pipe = Arc::new(Pipe::new(out, self.dial, closed.clone(), client.cloned(), PipeKind::Session));
        let (endpoint, told) = oneshot::channel();
        let (tell_end, ended) = oneshot::channel();
        let (trouble, in_trouble) = mpsc::channel(1);
        let reading = follow(response, pipe.clone(), endpoint);
        tokio::spawn(live(reading, in_trouble, pipe.clone(), closed.clone(), tell_end));
        let endpoint = tokio::time::timeout(ENDPOINT_TIMEOUT, told).await;
        let endpoint = endpoint
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| StreamOpenError::failed("it named no endpoint for messages"))?;
        let target = self.url.join(&endpoint).ok().filter(|target| target.origin() == self.url.origin());
        // Elsewhere could be anywhere, with our headers.
        let target = target.ok_or_else(|| StreamOpenError::failed("it named an endpoint on another host"))?;
        let target = Endpoint::new(&target).map_err(|error| StreamOpenError::failed(error.why))?;
        let sender =
            PostSender { http: self.dial.http.clone(), target, headers: self.headers.clone(), pipe: pipe.clone() };
        tokio::spawn(sender.run(outgoing, closed, trouble));
        pipe.shake_hands(Some(Exchange::Session)).await.map_err(StreamOpenError::Failed)?;
        guard.disarm();
        Ok((pipe, ended))
    }
}

/// Holds the stream until it ends, until something cannot be sent, or until its last user drops it.
async fn live(
    reading: impl Future<Output = String>,
    mut in_trouble: mpsc::Receiver<String>,
    pipe: Arc<Pipe>,
    closed: CancellationToken,
    tell_end: oneshot::Sender<String>,
) {
    let trouble = std::pin::pin!(async {
        match in_trouble.recv().await {
            Some(why) => why,
            None => std::future::pending().await,
        }
    });
    let reading = std::pin::pin!(reading);
    let ends = futures_util::future::select(reading, trouble);
    let reason = closed.run_until_cancelled(ends).await;
    pipe.lost();
    if let Some(reason) = reason {
        let _ = tell_end.send(reason.factor_first().0);
    }
}

async fn follow(mut response: Response, pipe: Arc<Pipe>, endpoint: oneshot::Sender<String>) -> String {
    let mut endpoint = Some(endpoint);
    let mut parser = SseParser::new(BYTES_MAX);
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return "its stream ended".to_owned(),
            Err(cut) => return cut.0,
        };
        for piece in parser.push(&chunk) {
            let event = match piece {
                SseItem::Event(event) => event,
                SseItem::TooLarge(scan) => {
                    pipe.pass_over(&scan, Unread::TooLong);
                    continue;
                }
                SseItem::NotUtf8(scan) => {
                    pipe.pass_over(&scan, Unread::Malformed(Malformed::NotUtf8));
                    continue;
                }
            };
            match (event.kind.as_deref(), endpoint.take()) {
                (Some("endpoint"), Some(told)) => drop(told.send(event.data)),
                (_, kept) => {
                    endpoint = kept;
                    pipe.receive_text(event.data.as_bytes()).await;
                }
            }
        }
    }
}

/// The way out of one session.
struct PostSender {
    http: Http1Client,
    target: Endpoint,
    headers: HeaderMap,
    pipe: Arc<Pipe>,
}

impl PostSender {
    /// Messages leave one after the other. One that is not taken for long may still be, but nothing waits for it any longer.
    async fn run(
        self,
        mut outgoing: mpsc::Receiver<Outgoing>,
        closed: CancellationToken,
        trouble: mpsc::Sender<String>,
    ) {
        let sender = Arc::new(self);
        while let Some(Some(message)) = closed.run_until_cancelled(outgoing.recv()).await {
            if !message.leaves() {
                continue;
            }
            let (sender, closed, trouble) = (sender.clone(), closed.clone(), trouble.clone());
            let sending = tokio::spawn(async move {
                if let Some(Err(why)) = closed.run_until_cancelled(sender.send(&message)).await {
                    let _ = trouble.send(why).await;
                }
            });
            let _ = tokio::time::timeout(TAKE_TIMEOUT, sending).await;
        }
    }

    /// Why the session is over, if it is.
    async fn send(&self, message: &Outgoing) -> Result<(), String> {
        match self.post(message.text.get()).await {
            Ok((status, _)) if status.is_success() => Ok(()),
            // One message was refused. Whether that was the session's fault shows with the next.
            Ok((status, retry_after)) if self.is_known().await => {
                if let Some(number) = message.number {
                    let refused = CallEnding::Refused { why: refusal(status), retry_after };
                    self.pipe.give_up(number, (!status_of(status).may_have_run(true)).then_some(refused));
                }
                Ok(())
            }
            Ok((status, _)) => {
                if !status_of(status).may_have_run(false) {
                    message.stayed();
                }
                Err(said(status))
            }
            Err(error) => {
                if error.is_unsent {
                    message.stayed();
                }
                Err(error.why)
            }
        }
    }

    async fn is_known(&self) -> bool {
        let ping = message::request(&self.pipe.spare_id(), "ping", None);
        self.post(ping.get()).await.is_ok_and(|(status, _)| status.is_success())
    }

    /// The status, and when to come back if the server said so.
    async fn post(&self, text: &str) -> Result<(StatusCode, Option<Duration>), SendError> {
        let mut headers = self.headers.clone();
        headers.append(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let sent = self.http.send(Method::POST, &self.target, headers, text.to_owned().into()).await;
        sent.map(|response| (response.status(), retry_after(&response)))
    }
}
