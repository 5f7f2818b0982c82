//! Sessions over HTTP: streams that can be taken up again, and questions to the client.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_mutant::mutant;
use bowline_protocol::Principal;
use bowline_store::StoreError;
use futures_util::future::{Either, select};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::sync::oneshot;

use super::streamable_http::{ResponseBody, SESSION, empty, event_stream, json, problem, text, version};
use super::{all_servers, begin, one_server, revision_of};
use crate::call::{CallReply, ConversationStep, Exchange, Inbound, Requester, RequesterRole, outcome};
use crate::downstream::Detached;
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::{self, RpcMessage, RpcNotification, RpcRequest};
use crate::relay::ClientContext;
use crate::revision;
use crate::session::elicitation_and_sampling::PendingServerRequest;
use crate::session::registry::SessionOpenError;
use crate::session::stream_reader::{self, PositionOwner, SessionStreamReader};
use crate::session::{HubSession, HubSessionRecord, OWN_STREAM, OpenedStream, Route};
use crate::sse;

/// What a client should wait before it takes a stream up again.
const RETRY: &str = "retry: 1000\n";
/// While the store cannot take the end of a call, it is tried again this often: ten minutes in all, as for tasks.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
const WRITES_MAX: usize = 600;

pub async fn post(
    hub: &Arc<Hub>,
    who: &Requester,
    route: Route,
    headers: &HeaderMap,
    message: RpcMessage,
) -> Response<ResponseBody> {
    if let RpcMessage::Request(request) = &message
        && request.method == "initialize"
        && !headers.contains_key(SESSION)
    {
        return Box::pin(initialize(hub, &who.principal, route, request)).await;
    }
    let session = match find(hub, &who.principal, &route, headers).await {
        Ok(session) => session,
        Err(response) => return *response,
    };
    session.touch().await;
    match message {
        RpcMessage::Request(request) => call(hub, &session, who.role, request).await,
        other => {
            Box::pin(heard(hub, &session, other)).await;
            empty(StatusCode::ACCEPTED)
        }
    }
}

/// What wants no answer.
pub(super) async fn heard(hub: &Arc<Hub>, session: &Arc<HubSession>, message: RpcMessage) {
    match message {
        RpcMessage::Request(_) => {}
        RpcMessage::Notification(notification) => notified(hub, session, notification).await,
        RpcMessage::Response(response) => {
            if let Some(id) = response.id.and_then(|id| serde_json::from_str::<String>(id.as_json()).ok()) {
                session.answer(&id, response.answer);
            }
        }
    }
}

/// The session that the request names, if it is the caller's and for this path.
pub(super) async fn find(
    hub: &Arc<Hub>,
    principal: &Principal,
    route: &Route,
    headers: &HeaderMap,
) -> Result<Arc<HubSession>, Box<Response<ResponseBody>>> {
    let Some(id) = text(headers, &SESSION) else {
        let text = "The Mcp-Session-Id header is missing. Begin with `initialize`.";
        return Err(Box::new(problem(StatusCode::BAD_REQUEST, message::INVALID_REQUEST, text)));
    };
    let spoken = |version| revision::of_version(version).is_some_and(|one| one.exchange() == Exchange::Session);
    if version(headers).is_some_and(|version| !spoken(version)) {
        let text = "This version of the protocol is not spoken in sessions.";
        return Err(Box::new(problem(StatusCode::BAD_REQUEST, message::INVALID_REQUEST, text)));
    }
    let found = hub.sessions.find(principal, id).await.map_err(|error| {
        tracing::warn!(%error, "a session of the hub cannot be read");
        let text = "The store cannot be read now. Try again.";
        Box::new(problem(StatusCode::SERVICE_UNAVAILABLE, message::INTERNAL_ERROR, text))
    })?;
    found.filter(|session| session.record.route == *route && !session.record.handle).ok_or_else(|| {
        Box::new(problem(
            StatusCode::NOT_FOUND,
            message::NOT_FOUND,
            "There is no such session. Begin with `initialize`.",
        ))
    })
}

pub async fn open(
    hub: &Arc<Hub>,
    principal: &Principal,
    route: Route,
    params: &Fields,
) -> Result<Arc<HubSession>, SessionOpenError> {
    let asked = params.text("protocolVersion").unwrap_or_default();
    let client = revision::of(&asked, Exchange::Session).client(params);
    let record = HubSessionRecord {
        route,
        version: client.version,
        capabilities: client.facts.capabilities,
        info: client.facts.info,
        created_ms: hub.options.clock.now_ms(),
        handle: false,
    };
    hub.sessions.create(principal, record).await
}

pub async fn greet(hub: &Arc<Hub>, session: &Arc<HubSession>) -> CallReply {
    let (revision, version) = (revision_of(session), session.record.version.as_str());
    match &session.record.route {
        Route::All => CallReply::new(Ok(all_servers::initialize(hub, revision, version))),
        Route::One(name) => {
            one_server::initialize(hub, revision, &ClientContext::of_session(session), name, version).await
        }
    }
}

async fn initialize(
    hub: &Arc<Hub>,
    principal: &Principal,
    route: Route,
    request: &RpcRequest,
) -> Response<ResponseBody> {
    let params = Fields::of(request.params.as_deref());
    let session = match open(hub, principal, route, &params).await {
        Ok(session) => session,
        Err(error) => {
            tracing::warn!(%error, "a session of the hub could not be made");
            let status = match error {
                SessionOpenError::TooMany => StatusCode::TOO_MANY_REQUESTS,
                SessionOpenError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            return problem(status, message::INTERNAL_ERROR, "A session cannot be made now. Try again later.");
        }
    };
    let reply = greet(hub, &session).await;
    let mut response = json(StatusCode::OK, message::response(&request.id, &reply.answer));
    if let Ok(id) = HeaderValue::from_str(session.id.as_str()) {
        response.headers_mut().insert(SESSION, id);
    }
    response
}

pub async fn notified(hub: &Arc<Hub>, session: &Arc<HubSession>, notification: RpcNotification) {
    let RpcNotification { method, params } = notification;
    match method.as_str() {
        "notifications/initialized" => {}
        "notifications/cancelled" => {
            let fields = Fields::of(params.as_deref());
            if let Some(id) = fields.get("requestId").and_then(|raw| message::RpcId::parse(raw.get())) {
                session.take_back(&id);
            }
        }
        _ => {
            let backends = match &session.record.route {
                Route::One(name) => hub.find(&session.principal, name).into_iter().collect(),
                Route::All => hub.visible(&session.principal),
            };
            for backend in backends {
                hub.used(&backend, &session.principal);
                backend.notify(session.caller(), &method, params.clone()).await;
            }
        }
    }
}

/// How a call is answered: in the response itself, or on a stream.
pub(super) enum Outlet {
    Direct(Raw),
    Stream(OpenedStream),
    /// It was taken back.
    Nothing,
}

/// Begins a call; how it is answered.
pub(super) async fn begun(
    hub: &Arc<Hub>,
    session: &Arc<HubSession>,
    role: RequesterRole,
    request: RpcRequest,
) -> Option<Outlet> {
    let (outlet, chosen) = oneshot::channel();
    // The call is not this request's: if its wire breaks, the call goes on, and its answer is in the log.
    Detached::new(run(hub.clone(), session.clone(), role, request, outlet)).until(chosen).await
}

async fn call(
    hub: &Arc<Hub>,
    session: &Arc<HubSession>,
    role: RequesterRole,
    request: RpcRequest,
) -> Response<ResponseBody> {
    match begun(hub, session, role, request).await {
        Some(Outlet::Direct(response)) => json(StatusCode::OK, response),
        Some(Outlet::Stream(opened)) => {
            let primed = revision_of(session).primes_streams(&session.record.version);
            let first = primed.then(|| format!("{RETRY}{}", sse::encode(Some(&session.event_id(opened.at)), "")));
            let reader = SessionStreamReader::new(session, &opened.stream, opened.at, session.over.child_token());
            event_stream(reader.into_sse(first))
        }
        Some(Outlet::Nothing) | None => empty(StatusCode::ACCEPTED),
    }
}

async fn run(
    hub: Arc<Hub>,
    session: Arc<HubSession>,
    role: RequesterRole,
    request: RpcRequest,
    outlet: oneshot::Sender<Outlet>,
) {
    let under_way = session.started(&request.id);
    let request = Arc::new(request);
    let client = ClientContext::of_session(&session).with_role(role);
    let mut conversation = begin(&hub, revision_of(&session), client, request.clone());
    let mut on_stream = OnStream::new(&session, &request, outlet);
    let mut slow = hub.slow_calls.begin();
    loop {
        let next = under_way.token().run_until_cancelled(conversation.next());
        let step = if on_stream.is_settled() {
            next.await
        } else {
            match select(pin!(next), &mut slow).await {
                Either::Left((step, _)) => step,
                Either::Right(_) => {
                    Box::pin(on_stream.open()).await;
                    continue;
                }
            }
        };
        match step {
            None => {
                on_stream.end(None).await;
                break;
            }
            Some(ConversationStep::Said(Inbound::Notification { method, params, .. })) => {
                Box::pin(on_stream.say(&message::notification(&method, params.as_ref()))).await;
            }
            Some(ConversationStep::Said(Inbound::Request { server, method, params, reply })) => {
                Box::pin(on_stream.ask(PendingServerRequest::new(&server, method, params, reply))).await;
            }
            Some(ConversationStep::Ended(reply)) => {
                on_stream.end(Some(&reply)).await;
                break;
            }
        }
    }
}

/// A call's way to its client: undecided at first, then a stream.
struct OnStream<'a> {
    session: &'a Arc<HubSession>,
    request: &'a RpcRequest,
    outlet: Option<oneshot::Sender<Outlet>>,
    stream: Option<String>,
    /// The store had no stream for it, so it is answered directly, unless something must be said before that.
    refused: bool,
}

impl<'a> OnStream<'a> {
    fn new(session: &'a Arc<HubSession>, request: &'a RpcRequest, outlet: oneshot::Sender<Outlet>) -> OnStream<'a> {
        OnStream { session, request, outlet: Some(outlet), stream: None, refused: false }
    }

    /// Whether nothing changes any more by waiting.
    fn is_settled(&self) -> bool {
        self.stream.is_some() || self.outlet.is_none() || self.refused
    }

    async fn open(&mut self) {
        if self.stream.is_some() || self.outlet.is_none() {
            return;
        }
        match self.session.open_stream(&self.request.id, &self.request.method).await {
            Ok(opened) => {
                self.stream = Some(opened.stream.clone());
                if let Some(outlet) = self.outlet.take() {
                    let _ = outlet.send(Outlet::Stream(opened));
                }
            }
            // Without a store there is no stream; the answer can still be given directly, if the wire holds.
            Err(error) => {
                self.refused = true;
                tracing::warn!(%error, "a call has no stream");
            }
        }
    }

    async fn say(&mut self, message: &Raw) {
        self.open().await;
        if let Some(stream) = &self.stream {
            self.note(self.session.say(stream, Some(message), false).await.map(drop));
        }
    }

    async fn ask(&mut self, pending: PendingServerRequest) {
        if self.session.can(&pending.method, pending.params.as_ref()) {
            self.open().await;
            let stream = self.stream.as_deref().unwrap_or(OWN_STREAM);
            self.note(self.session.ask(pending, Some(stream)).await);
        } else {
            self.note(self.session.ask(pending, None).await);
        }
    }

    async fn end(&mut self, reply: Option<&CallReply>) {
        let response = reply.map(|reply| message::response(&self.request.id, &reply.answer));
        if let Some(stream) = &self.stream {
            // Nothing can be said on it after the answer. What was asked for the sake of the call is void now, unless the call
            // goes on.
            match reply {
                Some(reply) if reply.goes_on_in.is_some() => self.session.ask_on_own_stream(stream),
                _ => self.note(Box::pin(self.session.withdraw(stream, reply.map(|reply| reply.outcome))).await),
            }
            return Box::pin(self.say_last(stream, response)).await;
        }
        if let Some(outlet) = self.outlet.take() {
            let _ = outlet.send(response.map_or(Outlet::Nothing, Outlet::Direct));
        }
    }

    /// The last message of the stream. Without it the client would wait for ever, so a store that cannot take it now is tried
    /// again; if it is given up, the stream ends as it is, and a client that reconnects for the rest gets the answer that the call was cut.
    async fn say_last(&self, stream: &str, mut response: Option<Raw>) {
        for _ in 0..WRITES_MAX {
            // A session that has ended, or went on elsewhere, takes nothing from here.
            if self.session.over.is_cancelled() {
                return;
            }
            match self.session.say(stream, response.as_ref(), true).await {
                Ok(_) => return,
                Err(StoreError::TooLarge { .. }) if response.is_some() => {
                    let answer = outcome::too_large_for(&self.request.method);
                    response = Some(message::response(&self.request.id, &answer));
                }
                Err(StoreError::Unavailable(_) | StoreError::Full(_)) => {
                    self.session.over.run_until_cancelled(tokio::time::sleep(WRITE_AGAIN)).await;
                }
                error => {
                    self.note(error.map(drop));
                    break;
                }
            }
        }
        self.session.lose("the end of a call could not be kept");
    }

    fn note(&self, written: Result<(), StoreError>) {
        if let Err(error) = written {
            tracing::warn!(session = %self.session.id, %error, "a message for a client could not be kept");
        }
    }
}

fn unreadable() -> Response<ResponseBody> {
    problem(StatusCode::SERVICE_UNAVAILABLE, message::INTERNAL_ERROR, "The log cannot be read now.")
}

/// The session's own stream, or any that is taken up again.
pub async fn get(hub: &Arc<Hub>, principal: &Principal, route: &Route, headers: &HeaderMap) -> Response<ResponseBody> {
    let session = match find(hub, principal, route, headers).await {
        Ok(session) => session,
        Err(response) => return *response,
    };
    session.touch().await;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let (place, after) = match last {
        None => {
            let Ok(extent) = session.store().extent(&session.id).await else { return unreadable() };
            if session.offer_again().await.is_err() {
                tracing::warn!(session = %session.id, "open questions could not be offered again");
            }
            (PositionOwner::Stream(OWN_STREAM.to_owned()), extent.last())
        }
        Some(last) => {
            let known = match session.position(last) {
                Some(at) => match stream_reader::place_of(&session, at).await {
                    Ok(place) => place.map(|place| (place, at)),
                    // Whether it is there is not known, and a client that hears that it is not gives its call up.
                    Err(_) if !mutant("take-unreadable-for-gone") => return unreadable(),
                    Err(_) => None,
                },
                None => None,
            };
            match known {
                Some(known) => known,
                None => {
                    let text = "What followed this event is not there any more. Open a stream without Last-Event-ID.";
                    return problem(StatusCode::BAD_REQUEST, message::NOT_FOUND, text);
                }
            }
        }
    };
    let reader = match place {
        PositionOwner::Event => SessionStreamReader::after_event(&session, after, session.take_own_stream()),
        PositionOwner::Stream(own) if own == OWN_STREAM => {
            SessionStreamReader::new(&session, &own, after, session.take_own_stream())
        }
        PositionOwner::Stream(stream) if mutant("take-a-stream-up-one-early") => {
            let after = after.prev();
            SessionStreamReader::new(&session, &stream, after, session.over.child_token())
        }
        PositionOwner::Stream(stream) => SessionStreamReader::new(&session, &stream, after, session.over.child_token()),
    };
    let first = last.is_none().then(|| format!("{RETRY}: open\n\n"));
    event_stream(reader.into_sse(first))
}

pub async fn delete(
    hub: &Arc<Hub>,
    principal: &Principal,
    route: &Route,
    headers: &HeaderMap,
) -> Response<ResponseBody> {
    match find(hub, principal, route, headers).await {
        Ok(session) => {
            let hub = hub.clone();
            // What was begun is brought to its end, also if its client does not wait for it.
            let _ = tokio::spawn(async move { hub.end_session(&session).await }).await;
            empty(StatusCode::OK)
        }
        Err(response) => *response,
    }
}
