//! One call over HTTP, step by step as `core::upstream_session` decides, and the requests that it is made of: the POST of a message,
//! and the GET of a stream. Whether a request was sent is known here.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::DialError;
use bowline_core::upstream_session::{
    CallConclusion, CallStep, NoSession, OPEN_TIMEOUT, PostFailure, Reading, ResponseStatus, ResumeFailure,
    SessionPlace, UpstreamCall,
};
use bowline_env::clock;
use bowline_env::http::Response;
use bowline_mutant::mutant;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::response::{self, ResponseOutcome, is_stream};
use super::{HttpDialError, HttpTransport};
use crate::call::{BackendCall, CallEnding, Exchange};
use crate::fields::into_bytes;
use crate::message::{self, RpcId};
use crate::revision::Revision;
use crate::upstream::backend_session::{BackendSession, HttpSession, SessionCall};
use crate::upstream::cancelled;
use crate::upstream::http::{refusal, retry_after, said, status_of};

/// Why a POST brought no response to look at.
pub(in crate::upstream) struct PostError {
    pub failure: PostFailure,
    pub why: String,
}

/// A call in a session whose request may be out: if its caller leaves, the call is cancelled at the backend.
struct OpenCall<'a> {
    transport: &'a Arc<HttpTransport>,
    backend_session: &'a BackendSession<HttpSession>,
    session: Arc<HttpSession>,
    id: RpcId,
    over: bool,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.backend_session.give_up(self.id.as_number().unwrap_or_default());
        }
        if !self.over && !self.transport.closed.is_cancelled() {
            let body = message::notification("notifications/cancelled", Some(&cancelled(&self.id)));
            let (transport, session) = (self.transport.clone(), self.session.clone());
            tokio::spawn(async move { transport.post(into_bytes(body), &[], Some(&session)).await.map(drop) });
        }
    }
}

/// What a call has so far.
struct CallProgress<'a> {
    id: RpcId,
    session: Option<Arc<HttpSession>>,
    open: Option<OpenCall<'a>>,
    response: Option<Response>,
    status: StatusCode,
    outcome: ResponseOutcome,
    /// The last event of its stream.
    last_id: Option<String>,
    /// Why it has no answer, if it ends now.
    why: String,
}

impl HttpTransport {
    /// Makes a call in a client's session, or without one.
    pub(super) async fn make(
        self: &Arc<Self>,
        call: &BackendCall,
        backend_session: Option<&Arc<BackendSession<HttpSession>>>,
    ) -> CallEnding {
        let place = match backend_session {
            None => SessionPlace::Stateless,
            Some(backend_session) if backend_session.is_shared() => SessionPlace::OfHub,
            Some(_) => SessionPlace::OfClient,
        };
        let id = self.own_id();
        let number = id.as_number().unwrap_or_default();
        let _listed = backend_session
            .map(|backend_session| SessionCall::new(backend_session, number, &call.caller, call.sink.clone()));
        let in_session = backend_session.map(|_| {
            let params = self.revision(Exchange::Session).params(call);
            into_bytes(message::request(&id, &call.method, params.as_deref()))
        });
        let (outcome, status) = (ResponseOutcome::Other(String::new()), StatusCode::OK);
        let (session, open, response, last_id, why) = (None, None, None, None, String::new());
        let mut so_far = CallProgress { id, session, open, response, status, outcome, last_id, why };
        let (mut machine, mut step) = UpstreamCall::begin(place);
        loop {
            let next = match (step, backend_session) {
                (CallStep::Open, Some(backend_session)) => match self.session(backend_session).await {
                    // The session is the answer: it was made for this client, with what this client can do.
                    Ok(session) if call.method == "initialize" => {
                        return CallEnding::answered(Ok(session.initialized.clone()));
                    }
                    Ok(session) => {
                        let named = session.id.is_some();
                        so_far.session = Some(session);
                        machine.handle_opened(Ok(named))
                    }
                    Err(error) => {
                        let (error, why) = self.not_opened(error);
                        so_far.why = why;
                        machine.handle_opened(Err(error))
                    }
                },
                (CallStep::Post { wait }, _) => {
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                    let posted = self
                        .post_call(
                            call,
                            in_session.as_ref(),
                            backend_session.map(|backend_session| &**backend_session),
                            &mut so_far,
                        )
                        .await;
                    machine.handle_posted(posted)
                }
                (CallStep::Read, _) => {
                    let reading = self.read_call(call, &mut so_far).await;
                    machine.handle_read(reading)
                }
                (CallStep::Resume { pause, doubt }, _) => {
                    if doubt {
                        self.suspect("the stream of a call was not opened in time");
                    }
                    match Box::pin(self.resume_call(call, pause, &mut so_far)).await {
                        Ok(reading) => machine.handle_read(reading),
                        Err(failure) => machine.handle_not_resumed(failure),
                    }
                }
                (CallStep::AskSession { discard }, Some(backend_session)) => {
                    let Some(session) = so_far.session.clone() else { break };
                    let outcome = Box::pin(self.ping_in_time(Some(&session))).await;
                    if discard && outcome.is_forgotten() {
                        Box::pin(self.discard(backend_session, &session)).await;
                    }
                    machine.handle_session_asked(outcome)
                }
                (CallStep::AskServer, _) => machine.handle_server_asked(Box::pin(self.confirm_in_time()).await),
                (CallStep::End(conclusion), _) => return self.concluded(conclusion, so_far),
                (CallStep::Open | CallStep::AskSession { .. }, None) => break,
            };
            let asked = matches!(step, CallStep::AskSession { .. } | CallStep::AskServer);
            step = next.unwrap_or(CallStep::End(CallConclusion::Unknown));
            if asked && step == CallStep::End(CallConclusion::NotExecuted) {
                so_far.why = "the server does not know its sessions any more".into();
            }
            if let Some(open) = &mut so_far.open {
                open.over = !matches!(step, CallStep::Read | CallStep::Resume { .. });
            }
        }
        self.broken(so_far.why)
    }

    fn concluded(self: &Arc<Self>, conclusion: CallConclusion, so_far: CallProgress<'_>) -> CallEnding {
        let why = so_far.why;
        match (conclusion, so_far.outcome) {
            (CallConclusion::Answered, ResponseOutcome::Answer(answer)) => {
                CallEnding::Answered { answer, status: so_far.status.as_u16() }
            }
            (CallConclusion::NotExecuted, _) => CallEnding::NotExecuted(why),
            (CallConclusion::Refused { retry_after }, _) => CallEnding::Refused { why, retry_after },
            (CallConclusion::Failed, _) => CallEnding::failed(&why),
            // From here on the backend may know of the call.
            (CallConclusion::Unknown | CallConclusion::Answered, _) => self.broken(why),
        }
    }

    fn not_opened(&self, error: HttpDialError) -> (NoSession, String) {
        let refused = "the server refused a new session";
        match error {
            HttpDialError::Unreachable { reason, .. } => (NoSession::Unreachable, reason),
            HttpDialError::OlderTransport => (NoSession::Refused { retry_after: None }, refused.to_owned()),
            HttpDialError::Refused { reason, retry_after } => {
                (NoSession::Refused { retry_after }, format!("{refused}: {reason}"))
            }
            // In the backend's own words, but for what it was given in confidence.
            HttpDialError::Failed(DialError::Passing { reason, .. } | DialError::Fatal { reason }) => {
                (NoSession::Failed, self.dial.secrets.hide(format!("{refused}: {reason}")))
            }
        }
    }

    async fn post_call<'a>(
        self: &'a Arc<Self>,
        call: &BackendCall,
        in_session: Option<&Bytes>,
        backend_session: Option<&'a BackendSession<HttpSession>>,
        so_far: &mut CallProgress<'a>,
    ) -> Result<(ResponseStatus, Option<Duration>), PostFailure> {
        let posted = match in_session {
            Some(body) => {
                if let (Some(backend_session), Some(session)) = (backend_session, so_far.session.clone()) {
                    let id = so_far.id.clone();
                    so_far.open = Some(OpenCall { transport: self, backend_session, session, id, over: false });
                }
                self.post(body.clone(), &[], so_far.session.as_deref()).await
            }
            None => {
                so_far.id = self.own_id();
                let (body, headers) = self.alone(self.revision(Exchange::Stateless), &so_far.id, call);
                self.post(body, &headers, None).await
            }
        };
        match posted {
            Ok(response) => {
                let (status, wait) = (response.status(), retry_after(&response));
                so_far.status = status;
                if !status.is_success() {
                    so_far.why = refusal(status);
                }
                so_far.response = Some(response);
                Ok((status_of(status), wait))
            }
            Err(PostError { failure, why }) => {
                so_far.why = why;
                Err(failure)
            }
        }
    }

    async fn read_call(self: &Arc<Self>, call: &BackendCall, so_far: &mut CallProgress<'_>) -> Reading {
        let began = clock::now();
        if let Some(response) = so_far.response.take() {
            let (sink, session) = (call.sink.as_ref(), so_far.session.as_ref());
            so_far.outcome = response::read_response(response, &so_far.id, sink, self, session).await;
        }
        let status = so_far.status;
        match &so_far.outcome {
            ResponseOutcome::Answer(Ok(_)) => Reading::Result,
            ResponseOutcome::Answer(Err(error)) => {
                let words = format!("{}: {}", said(status), message::message_of(error));
                so_far.why = self.dial.secrets.hide(words);
                Reading::Error
            }
            ResponseOutcome::Other(why) => {
                if status.is_success() {
                    so_far.why.clone_from(why);
                }
                Reading::NoAnswer
            }
            ResponseOutcome::Ended { last_id, retry, why } => {
                so_far.why.clone_from(why);
                if last_id.is_some() {
                    so_far.last_id.clone_from(last_id);
                }
                Reading::Cut { resumable: so_far.last_id.is_some(), retry: *retry, lasted: clock::since(began) }
            }
        }
    }

    /// Takes the stream of a call up again where it was cut.
    async fn resume_call(
        self: &Arc<Self>,
        call: &BackendCall,
        pause: Duration,
        so_far: &mut CallProgress<'_>,
    ) -> Result<Reading, ResumeFailure> {
        // If the server is lost meanwhile, there is nothing to wait for.
        let waited = self.closed.run_until_cancelled(tokio::time::sleep(pause)).await;
        let (Some(()), Some(session)) = (waited, so_far.session.clone()) else { return Err(ResumeFailure::Refused) };
        let asked = tokio::time::timeout(OPEN_TIMEOUT, self.get(&session, so_far.last_id.as_deref())).await;
        match asked {
            // Anything but a stream says nothing about the call, which may have run.
            Ok(Ok(response)) if response.status().is_success() && is_stream(&response) => {
                so_far.response = Some(response);
                Ok(self.read_call(call, so_far).await)
            }
            Ok(Ok(_) | Err(_)) => Err(ResumeFailure::Refused),
            Err(_) => Err(ResumeFailure::Late),
        }
    }

    pub(in crate::upstream) async fn post(
        &self,
        body: Bytes,
        headers: &[(String, String)],
        session: Option<&HttpSession>,
    ) -> Result<Response, PostError> {
        let mut all = session.map_or(&self.headers, |session| &session.headers).clone();
        for (name, value) in headers {
            let (Ok(sent), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
                let why = format!("the header `{name}` cannot be sent");
                return Err(PostError { failure: PostFailure::NotSent, why });
            };
            all.append(sent, value);
        }
        self.dial.http.send(Method::POST, &self.endpoint, all, body).await.map_err(|error| PostError {
            failure: if error.is_unsent || mutant("take-a-cut-for-unsent") {
                PostFailure::NotSent
            } else {
                PostFailure::Unknown
            },
            why: error.why,
        })
    }

    pub(in crate::upstream) async fn get(
        &self,
        session: &HttpSession,
        last_id: Option<&str>,
    ) -> Result<Response, PostError> {
        let mut headers = session.headers.clone();
        headers.remove(CONTENT_TYPE);
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let unsent = |why: String| PostError { failure: PostFailure::NotSent, why };
        if let Some(last) = last_id {
            let last = HeaderValue::try_from(last);
            headers.insert("last-event-id", last.map_err(|error| unsent(error.to_string()))?);
        }
        let sent = self.dial.http.send(Method::GET, &self.endpoint, headers, Bytes::new());
        sent.await.map_err(|error| unsent(error.why))
    }

    /// A request that stands alone, and its headers.
    pub(in crate::upstream) fn alone(
        &self,
        revision: &dyn Revision,
        id: &RpcId,
        call: &BackendCall,
    ) -> (Bytes, Vec<(String, String)>) {
        let params = revision.params(call);
        let headers = revision.headers(call, params.as_deref());
        (into_bytes(message::request(id, &call.method, params.as_deref())), headers)
    }
}
