//! Streamable HTTP: each call is a POST; backends with sessions have one for each client. One that knows no sessions is asked by all
//! clients together.

pub(crate) mod doubt;
pub(crate) mod held_streams;
mod request;
pub(crate) mod response;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::backend::DialError;
use bowline_core::upstream_session::PostFailure;
use bowline_env::http::{Endpoint, Response};
use bowline_mutant::mutant;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::call::facts::ServerFacts;
use crate::call::{BackendCall, CallEnding, Caller, Exchange};
use crate::fields::{Raw, into_bytes};
use crate::message::{self, RpcId};
use crate::revision::{self, Revision};
use crate::upstream::backend_session::{BackendSession, BackendSessions, HttpSession};
use crate::upstream::http::{SESSION, prepare, retry_after, said, session_headers, status_of};
use crate::upstream::pending_calls::AskedByBackend;
use crate::upstream::streamable_http::request::PostError;
use crate::upstream::streamable_http::response::ResponseOutcome;
use crate::upstream::subscriptions::{Subscriptions, UNSUBSCRIBE};
use crate::upstream::{Dial, PROBE_TIMEOUT, RENEWAL_TIMEOUT, passing};

/// How long a client's session may take to begin. Its calls wait for it.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

pub struct HttpTransport {
    facts: std::sync::OnceLock<ServerFacts>,
    endpoint: Endpoint,
    /// What every POST has: what was configured, and what a message needs.
    headers: HeaderMap,
    pub(super) dial: Dial,
    pub(super) backend_sessions: BackendSessions<HttpSession>,
    /// The hub's own session there; all clients share it where the server has no sessions.
    pub(super) shared: Arc<BackendSession<HttpSession>>,
    /// What all clients have subscribed to, where there are no sessions.
    pub(super) subscriptions: Subscriptions,
    next_id: AtomicU64,
    pub(super) suspected: AtomicBool,
    pub(super) closed: CancellationToken,
}

#[derive(Debug)]
pub enum HttpDialError {
    /// It answers as a server of the HTTP+SSE transport would.
    OlderTransport,
    /// The server cannot be reached, or a proxy in front of it says so.
    Unreachable {
        reason: String,
        retry_after: Option<Duration>,
    },
    /// It is there, and does not begin with us.
    Refused {
        reason: String,
        retry_after: Option<Duration>,
    },
    Failed(DialError),
}

pub async fn dial(
    url: &Url,
    headers: &BTreeMap<String, String>,
    dial: Dial,
) -> Result<Arc<HttpTransport>, HttpDialError> {
    let (endpoint, mut headers) = prepare(url, headers, &dial).map_err(HttpDialError::Failed)?;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    let (remembered, closed) = (dial.exchange, dial.over.child_token());
    let backend_sessions = BackendSessions::default();
    let subscriptions = Subscriptions::new(dial.renewals.clone(), dial.generation);
    let (shared, _) = backend_sessions.of(&Caller::hub());
    let transport = Arc::new(HttpTransport {
        facts: std::sync::OnceLock::new(),
        endpoint,
        headers,
        dial,
        backend_sessions,
        shared,
        subscriptions,
        next_id: AtomicU64::new(1),
        suspected: AtomicBool::new(false),
        closed,
    });
    let facts = match transport.discover(remembered).await? {
        Some(facts) => facts,
        None => transport.initialize_shared().await?,
    };
    let _ = transport.facts.set(facts);
    let own = transport.shared.session.lock().await.clone();
    match own {
        Some(session) => tokio::spawn(held_streams::hold_get(transport.clone(), transport.shared.clone(), session)),
        None => tokio::spawn(held_streams::hold_listen(transport.clone())),
    };
    Ok(transport)
}

impl HttpTransport {
    #[allow(clippy::expect_used)]
    pub fn facts(&self) -> &ServerFacts {
        self.facts.get().expect("a link is handed out only after the handshake")
    }

    async fn discover(self: &Arc<Self>, remembered: Option<Exchange>) -> Result<Option<ServerFacts>, HttpDialError> {
        if remembered == Some(Exchange::Session) {
            return Ok(None);
        }
        let probe = async {
            let mut found = Ok(None);
            for revision in revision::exchanging(Exchange::Stateless) {
                let id = self.own_id();
                let (body, headers) = self.alone(revision, &id, &revision.opening(&Caller::hub()));
                let posted = self.post(body, &headers, None).await;
                let response = posted.map_err(|error| HttpDialError::Failed(passing(error.why)))?;
                found = match self.judge_probe(revision, response, &id).await {
                    ControlFlow::Break(found) => return found,
                    // An older one may be known to it.
                    ControlFlow::Continue(refused) => Err(HttpDialError::Failed(refused)),
                };
            }
            found
        };
        match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
            Ok(found) => found,
            Err(_) => Ok(None),
        }
    }

    /// What a server is, or that it speaks another version of what it was asked in.
    async fn judge_probe(
        self: &Arc<Self>,
        revision: &dyn Revision,
        response: Response,
        id: &RpcId,
    ) -> ControlFlow<Result<Option<ServerFacts>, HttpDialError>, DialError> {
        let status = response.status();
        let retry_after = retry_after(&response);
        let reading = response::read_response(response, id, None, self, None).await;
        ControlFlow::Break(match reading {
            ResponseOutcome::Answer(Ok(result)) if revision.is_of_opening(&result) => {
                let facts = revision.server_facts(&result);
                Ok(Some(ServerFacts { has_sessions: facts.has_sessions && !self.dial.only_exchange, ..facts }))
            }
            ResponseOutcome::Answer(Err(error)) if revision.is_own_error(&error) => {
                let reason = format!("it speaks no version that is known here: {}", message::message_of(&error));
                return ControlFlow::Continue(DialError::Passing { reason, retry_after });
            }
            _ if status_of(status).is_busy() => Err(HttpDialError::Refused { reason: said(status), retry_after }),
            _ => Ok(None),
        })
    }

    /// The revision in which messages are exchanged so with this server.
    pub(super) fn revision(&self, exchange: Exchange) -> &'static dyn Revision {
        let known = self.facts.get().map_or("", |facts| &facts.version);
        revision::of(known, exchange)
    }

    async fn initialize_shared(self: &Arc<Self>) -> Result<ServerFacts, HttpDialError> {
        let opened = self.open(&self.shared).await?;
        *self.shared.session.lock().await = Some(opened.0);
        Ok(opened.1)
    }

    /// `initialize` and all that belongs to it.
    pub(super) async fn open(
        self: &Arc<Self>,
        backend_session: &Arc<BackendSession<HttpSession>>,
    ) -> Result<(Arc<HttpSession>, ServerFacts), HttpDialError> {
        let id = self.own_id();
        let revision = revision::newest(Exchange::Session);
        let opening = revision.opening(&backend_session.caller);
        let body = into_bytes(message::request(&id, &opening.method, revision.params(&opening).as_deref()));
        let failed = |reason: String| HttpDialError::Failed(passing(reason));
        let response = self.post(body, &[], None).await.map_err(|error| match error {
            PostError { failure: PostFailure::NotSent, why: reason } => {
                HttpDialError::Unreachable { reason, retry_after: None }
            }
            PostError { failure: PostFailure::Unknown, why } => failed(why),
        })?;
        let status = response.status();
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return Err(HttpDialError::OlderTransport);
        }
        let retry_after = retry_after(&response);
        let session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let result = match response::read_response(response, &id, None, self, None).await {
            ResponseOutcome::Answer(Ok(result)) => result,
            // When to come back is said in the headers, whatever the body is.
            ResponseOutcome::Answer(Err(error)) => {
                let reason = message::message_of(&error);
                return Err(HttpDialError::Failed(DialError::Passing { reason, retry_after }));
            }
            ResponseOutcome::Other(why) | ResponseOutcome::Ended { why, .. } => {
                let reason = if status.is_success() { why } else { said(status) };
                return Err(match status {
                    status if status_of(status).is_of_absent_server() => {
                        HttpDialError::Unreachable { reason, retry_after }
                    }
                    status if status.is_client_error() => HttpDialError::Refused { reason, retry_after },
                    _ => HttpDialError::Failed(DialError::Passing { reason, retry_after }),
                });
            }
        };
        let facts = revision.server_facts(&result);
        let over = CancellationToken::new();
        let headers = session_headers(&self.headers, session.as_deref(), &facts.version);
        let asked = AskedByBackend::default();
        let session = Arc::new(HttpSession { id: session, headers, initialized: result, asked, over });
        let initialized = message::notification("notifications/initialized", None);
        let _ = self.post(into_bytes(initialized), &[], Some(&session)).await;
        let kept = self.dial.renewals.of(&backend_session.caller.session_name);
        if session.id.is_none() {
            self.subscriptions.renewed(&kept).await;
        }
        for (method, params) in kept {
            self.ask(&session, &method, params.as_ref()).await;
        }
        Ok((session, facts))
    }

    /// Opens the sessions of clients that wait for something, without waiting for their next call.
    pub async fn warm(self: &Arc<Self>) {
        let warming = async {
            for caller in self.dial.renewals.callers() {
                if self.facts().exchange_with(caller.exchange) == Exchange::Session {
                    let _ = self.session(&self.backend_session(&caller)).await;
                }
            }
        };
        self.closed.run_until_cancelled(warming).await;
    }

    fn backend_session(self: &Arc<Self>, caller: &Caller) -> Arc<BackendSession<HttpSession>> {
        if mutant("give-all-clients-one-session") {
            return self.shared.clone();
        }
        let (backend_session, gone) = self.backend_sessions.of(caller);
        for gone in gone {
            let transport = self.clone();
            tokio::spawn(async move { transport.leave(&gone).await });
        }
        backend_session
    }

    pub fn has_session(&self, session_name: &str) -> bool {
        self.backend_sessions
            .find(session_name)
            .is_some_and(|backend_session| backend_session.has(|session| session.id.is_some()))
    }

    /// Its session, made once however many calls want it.
    pub(super) async fn session(
        self: &Arc<Self>,
        backend_session: &Arc<BackendSession<HttpSession>>,
    ) -> Result<Arc<HttpSession>, HttpDialError> {
        let mut current = backend_session.session.lock().await;
        if let Some(session) = &*current {
            return Ok(session.clone());
        }
        let late = |_| HttpDialError::Failed(passing("it did not answer `initialize` in time"));
        let (session, _) =
            tokio::time::timeout(SESSION_TIMEOUT, Box::pin(self.open(backend_session))).await.map_err(late)??;
        *current = Some(session.clone());
        // Without sessions no stream is one client's; what is said to all comes over ours.
        if session.id.is_some() || backend_session.is_shared() {
            tokio::spawn(held_streams::hold_get(self.clone(), backend_session.clone(), session.clone()));
        }
        Ok(session)
    }

    pub async fn call(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        match self.facts().exchange_with(call.caller.exchange) {
            Exchange::Session => self.call_shared(call).await,
            Exchange::Stateless if call.method == "initialize" && call.caller.exchange == Exchange::Session => {
                CallEnding::answered(Ok(revision::introduced_across(self.facts())))
            }
            Exchange::Stateless => self.make(call, None).await,
        }
    }

    pub(super) async fn call_in_session(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        // A backend without sessions does not know its clients apart, so they share ours.
        let sessionless = self.shared.session.lock().await.as_ref().is_some_and(|session| session.id.is_none());
        let backend_session = if sessionless { self.shared.clone() } else { self.backend_session(&call.caller) };
        self.make(call, Some(&backend_session)).await
    }

    pub async fn notify(self: &Arc<Self>, caller: &Caller, method: &str, params: Option<Raw>) {
        let body = message::notification(method, params.as_ref());
        if self.facts().exchange_with(caller.exchange) == Exchange::Session {
            let backend_session = self.backend_sessions.find(&caller.session_name);
            let Some(backend_session) = backend_session else { return };
            let session = backend_session.session.lock().await.clone();
            if let Some(session) = session {
                let _ = self.post(into_bytes(body), &[], Some(&session)).await;
            }
        }
    }

    pub async fn end_backend_session(self: &Arc<Self>, session_name: &str) {
        if let Some(backend_session) = self.backend_sessions.remove(session_name) {
            self.leave(&backend_session).await;
        }
        self.end_unwanted().await;
    }

    async fn leave(&self, backend_session: &BackendSession<HttpSession>) {
        let session = backend_session.session.lock().await.take();
        if let Some(session) = session {
            self.farewell(&session).await;
        }
    }

    pub(super) async fn farewell(&self, session: &HttpSession) {
        session.over.cancel();
        if session.id.is_some() {
            let headers = session.headers.clone();
            let request = self.dial.http.send(Method::DELETE, &self.endpoint, headers, Bytes::new());
            let _ = tokio::time::timeout(FAREWELL_TIMEOUT, request).await;
        }
    }

    pub fn close(self: &Arc<Self>) {
        self.closed.cancel();
        let backend_sessions = self.backend_sessions.drain();
        let transport = self.clone();
        tokio::spawn(async move {
            for backend_session in backend_sessions {
                transport.leave(&backend_session).await;
            }
        });
    }

    pub(super) fn own_id(&self) -> RpcId {
        RpcId::number(self.next_id.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpTransport({} sessions)", self.backend_sessions.len())
    }
}

impl HttpTransport {
    /// A call in a session, which may concern others than its caller.
    pub(super) async fn call_shared(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        if self.sessionless().await.is_none() {
            return self.call_in_session(call).await;
        }
        let Some(mut turn) = self.subscriptions.turn(call).await else {
            return CallEnding::answered(Ok(crate::fields::empty()));
        };
        // Each request is a connection of its own, so the order in which they arrive is not defined.
        turn.sent();
        turn.ended(self.call_in_session(call).await)
    }

    /// A client has left: what only it had subscribed to is ended.
    pub(super) async fn end_unwanted(self: &Arc<Self>) {
        let Some(session) = self.sessionless().await else { return };
        let (unwanted, _order) = self.subscriptions.unwanted().await;
        for params in unwanted {
            self.ask(&session, UNSUBSCRIBE, Some(&params)).await;
        }
    }

    /// Sends a request whose answer is not awaited.
    pub(super) async fn ask(self: &Arc<Self>, session: &Arc<HttpSession>, method: &str, params: Option<&Raw>) {
        let id = self.own_id();
        let body = into_bytes(message::request(&id, method, params.map(|raw| &**raw)));
        let asked = async {
            if let Ok(response) = self.post(body, &[], Some(session)).await {
                response::read_response(response, &id, None, self, Some(session)).await;
            }
        };
        let _ = tokio::time::timeout(RENEWAL_TIMEOUT, asked).await;
    }

    async fn sessionless(&self) -> Option<Arc<HttpSession>> {
        self.shared.session.lock().await.clone().filter(|session| session.id.is_none())
    }
}
