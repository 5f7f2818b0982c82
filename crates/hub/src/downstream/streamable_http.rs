//! The HTTP face, without a server around it: a request with its body in, a response out. Requests with a session go on in
//! `session_http`. Those without one stand alone: questions travel in results, and closing the response takes the call back. Several
//! messages in one body are handled as if each had come alone.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::call::{CallReply, Exchange, Requester, RequesterRole};
use crate::catalogue::ListKind;
use crate::catalogue::mirrored_headers::{self, plain_text};
use crate::downstream::session_http::{self, Outlet};
use crate::downstream::stateless::{self, Next, StatelessCall};
use crate::downstream::{carried_requests, revision_of, speaks};
use crate::fields::{Fields, Raw, into_bytes, raw};
use crate::hub::Hub;
use crate::message::{self, RpcId, RpcMessage, RpcRequest};
use crate::relay::{ClientContext, call, task};
use crate::revision::{self, Revision};
use crate::session::stream_reader::SessionStreamReader;
use crate::session::{HubSession, Route};
use crate::sse;

pub type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

pub const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Answers one request of a client that is known to be `who`.
pub async fn handle(
    hub: &Arc<Hub>,
    who: impl Into<Requester>,
    route: Route,
    request: Request<Bytes>,
) -> Response<ResponseBody> {
    answer(hub, &who.into(), route, request, 0).await
}

/// The same, for a request that has come through other nodes.
pub(super) async fn answer(
    hub: &Arc<Hub>,
    who: &Requester,
    route: Route,
    request: Request<Bytes>,
    hops: u8,
) -> Response<ResponseBody> {
    let principal = &who.principal;
    let headers = request.headers();
    if let Route::One(name) = &route
        && hub.find_anywhere(principal, name).await.is_none()
    {
        return problem(StatusCode::NOT_FOUND, message::NOT_FOUND, "There is no such server.");
    }
    let is_batch = request.method() == Method::POST && is_batch(request.body());
    let message = match *request.method() {
        Method::POST if is_batch => match check_type(headers) {
            Ok(()) => None,
            Err(response) => return *response,
        },
        Method::POST => match read(headers, request.body()) {
            Ok(message) => Some(message),
            Err(response) => return *response,
        },
        Method::GET | Method::DELETE => None,
        _ => return problem(StatusCode::METHOD_NOT_ALLOWED, message::INVALID_REQUEST, "Use POST, GET or DELETE."),
    };
    match carried_requests::home(hub, principal, headers, message.as_ref()).await {
        Ok(None) => {}
        Ok(Some(node)) => {
            // Boxed, because a carried request may be carried on from there.
            return Box::pin(carried_requests::carry(hub, &node, who, route, &request, hops)).await;
        }
        Err(error) => {
            tracing::warn!(%error, "cannot find the node that holds an MCP session");
            let text = "The store cannot be read now. Try again.";
            return problem(StatusCode::SERVICE_UNAVAILABLE, message::INTERNAL_ERROR, text);
        }
    }
    if is_batch {
        return Box::pin(post_batch(hub, who, &route, headers, request.body())).await;
    }
    match message {
        Some(message) => match standing_alone(headers, &message) {
            Some(revision) => Box::pin(post_stateless(hub, who, route, revision, headers, message)).await,
            None => session_http::post(hub, who, route, headers, message).await,
        },
        None if request.method() == Method::GET => Box::pin(session_http::get(hub, principal, &route, headers)).await,
        None => Box::pin(session_http::delete(hub, principal, &route, headers)).await,
    }
}

fn check_type(headers: &HeaderMap) -> Result<(), Box<Response<ResponseBody>>> {
    let kind = text(headers, &CONTENT_TYPE).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("application/json") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Box::new(problem(status, message::INVALID_REQUEST, "The body must be application/json.")));
    }
    Ok(())
}

fn read(headers: &HeaderMap, body: &Bytes) -> Result<RpcMessage, Box<Response<ResponseBody>>> {
    check_type(headers)?;
    RpcMessage::parse_bytes(body)
        .map_err(|why| Box::new(problem(StatusCode::BAD_REQUEST, why.code(), &format!("This is no message: {why}."))))
}

/// The revision of a message that stands alone. A session or a handshake shows by itself, everything else says its version.
fn standing_alone(headers: &HeaderMap, message: &RpcMessage) -> Option<&'static dyn Revision> {
    if headers.contains_key(SESSION) {
        return None;
    }
    let told = version(headers).and_then(revision::of_version);
    let alone = told.filter(|one| one.exchange() == Exchange::Stateless);
    let RpcMessage::Request(request) = message else { return alone };
    let mirrors = || headers.contains_key(&VERSION) || headers.contains_key("mcp-method");
    match (revision::standing_alone(request), told) {
        (Some(revision), _) => Some(revision),
        (None, _) if request.method == "initialize" => None,
        (None, Some(_)) => alone,
        (None, None) => mirrors().then(|| revision::newest(Exchange::Stateless)),
    }
}

pub fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

pub fn version(headers: &HeaderMap) -> Option<&str> {
    text(headers, &VERSION)
}

/// An error without an id, as HTTP says no.
pub fn problem(status: StatusCode, code: i64, text: &str) -> Response<ResponseBody> {
    json(status, message::nameless_error(code, text))
}

pub fn json(status: StatusCode, body: Raw) -> Response<ResponseBody> {
    let mut response = Response::new(full(into_bytes(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

pub fn empty(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

pub(super) fn full(body: Bytes) -> ResponseBody {
    Full::new(body).boxed_unsync()
}

pub fn event_stream(stream: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response<ResponseBody> {
    let body = StreamBody::new(stream.map(|chunk| chunk.map(http_body::Frame::data)));
    let mut response = Response::new(BodyExt::boxed_unsync(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(sse::CONTENT_TYPE));
    headers.insert(CACHE_CONTROL, http::HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", http::HeaderValue::from_static("no"));
    response
}

/// As many as a client may want at once; each may be a call that is under way for long.
const MESSAGES_MAX: usize = 100;

type AnswerStream = Pin<Box<dyn Stream<Item = Result<Bytes, Infallible>> + Send>>;

/// Whether a body is a batch, if it is anything.
pub fn is_batch(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

pub async fn post_batch(
    hub: &Arc<Hub>,
    who: &Requester,
    route: &Route,
    headers: &HeaderMap,
    body: &[u8],
) -> Response<ResponseBody> {
    let refused = |text: &str| problem(StatusCode::BAD_REQUEST, message::INVALID_REQUEST, text);
    let session = match session_http::find(hub, &who.principal, route, headers).await {
        Ok(session) => session,
        Err(response) => return *response,
    };
    if let Err(why) = revision_of(&session).check_batch(&session.record.version) {
        return refused(why);
    }
    let Ok(parts) = serde_json::from_slice::<Vec<Raw>>(body) else {
        return problem(StatusCode::BAD_REQUEST, message::PARSE_ERROR, "This is no batch: it is not JSON.");
    };
    if parts.is_empty() || parts.len() > MESSAGES_MAX {
        return refused("A batch has 1 to 100 messages.");
    }
    session.touch().await;
    let handled = parts.iter().map(|part| one(hub, &session, who.role, part));
    let outlets: Vec<Outlet> = futures_util::future::join_all(handled).await.into_iter().flatten().collect();
    respond_to_batch(&session, outlets)
}

/// What becomes of one message, if it wants an answer.
async fn one(hub: &Arc<Hub>, session: &Arc<HubSession>, role: RequesterRole, part: &Raw) -> Option<Outlet> {
    match RpcMessage::parse(part.get()) {
        Ok(RpcMessage::Request(request)) if request.method == "initialize" => {
            let error = message::error(message::INVALID_REQUEST, "`initialize` must come alone");
            Some(Outlet::Direct(message::response(&request.id, &Err(error))))
        }
        Ok(RpcMessage::Request(request)) => session_http::begun(hub, session, role, request).await,
        Ok(other) => {
            session_http::heard(hub, session, other).await;
            None
        }
        Err(why) => Some(Outlet::Direct(message::nameless_error(why.code(), &format!("This is no message: {why}.")))),
    }
}

/// One array if all answers are there, else a stream on which each comes when it is.
fn respond_to_batch(session: &Arc<HubSession>, outlets: Vec<Outlet>) -> Response<ResponseBody> {
    let mut direct = Vec::new();
    let mut streams: Vec<AnswerStream> = Vec::new();
    for outlet in outlets {
        match outlet {
            Outlet::Direct(response) => direct.push(response),
            Outlet::Stream(opened) => {
                let over = session.over.child_token();
                streams.push(SessionStreamReader::new(session, &opened.stream, opened.at, over).into_sse(None).boxed());
            }
            Outlet::Nothing => {}
        }
    }
    match (direct.is_empty(), streams.is_empty()) {
        (true, true) => empty(StatusCode::ACCEPTED),
        (false, true) => json(StatusCode::OK, raw(&direct)),
        (_, false) => {
            let events: String = direct.iter().map(|response| sse::encode(None, response.get())).collect();
            let first = futures_util::stream::once(async move { Ok(Bytes::from(events)) });
            event_stream(first.chain(futures_util::stream::select_all(streams)))
        }
    }
}

/// Quiet streams get a comment now and then, so that proxies do not cut them.
const COMMENT: &str = ": still here\n\n";

pub async fn post_stateless(
    hub: &Arc<Hub>,
    who: &Requester,
    route: Route,
    revision: &'static dyn Revision,
    headers: &HeaderMap,
    message: RpcMessage,
) -> Response<ResponseBody> {
    let request = match message {
        RpcMessage::Request(request) => request,
        RpcMessage::Notification(_) => return empty(StatusCode::ACCEPTED),
        RpcMessage::Response(_) => {
            let text = "A response is not taken here: questions are answered by asking again.";
            return problem(StatusCode::BAD_REQUEST, message::INVALID_REQUEST, text);
        }
    };
    // A stateless backend behind its own path judges its requests itself.
    let judged_there = match &route {
        Route::One(name) => hub.find(&who.principal, name).is_some_and(|backend| judges_itself(&backend, revision)),
        Route::All => false,
    };
    // What is said of a task is said under another name there, so this is the place to look at it.
    let judged_here = !judged_there || task::is_about_a_task(&request.method);
    if judged_here && let Err(reply) = check(revision, headers, &request) {
        return respond_stateless(&request.id, &reply);
    }
    let client = client_of(who, route, revision, headers, &request);
    if !judged_there && let Err(reply) = check_arguments(hub, &client, headers, &request) {
        return respond_stateless(&request.id, &reply);
    }
    let id = request.id.clone();
    // Over HTTP any client that knows the state may bring it back, on any connection.
    let mut stateless_call = match StatelessCall::take_up(hub, revision, client, request, CancellationToken::new()) {
        Ok(stateless_call) => stateless_call,
        Err(reply) => return respond_stateless(&id, &reply),
    };
    match stateless_call.next().await {
        Next::Ended(reply) => respond_stateless(&id, &reply),
        Next::Said(first) => event_stream(stream(stateless_call, id, event(&first))),
        Next::Quiet => event_stream(stream(stateless_call, id, COMMENT.to_owned())),
    }
}

fn judges_itself(backend: &Backend, revision: &dyn Revision) -> bool {
    speaks(backend, revision) && !backend.spec.is_stdio()
}

fn respond_stateless(id: &RpcId, reply: &CallReply) -> Response<ResponseBody> {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    json(status, message::response(id, &reply.answer))
}

fn client_of(
    who: &Requester,
    route: Route,
    revision: &dyn Revision,
    headers: &HeaderMap,
    request: &RpcRequest,
) -> ClientContext {
    let mirrored = headers.iter().filter(|(name, _)| name.as_str().starts_with("mcp-"));
    let mirrored =
        mirrored.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())));
    stateless::client_of(who, route, revision, request, Some(mirrored.collect()))
}

/// The headers and the body must say the same, and something that we understand.
fn check(revision: &dyn Revision, headers: &HeaderMap, request: &RpcRequest) -> Result<(), CallReply> {
    let bad = |text: &str| stateless::refused(message::HEADER_MISMATCH, text);
    let params = Fields::of(request.params.as_deref());
    match (revision.said_version(&params), version(headers)) {
        (Some(_), None) => return Err(bad("the MCP-Protocol-Version header is missing")),
        (Some(asked), Some(told)) if told != asked => {
            return Err(bad("MCP-Protocol-Version differs from the body"));
        }
        _ => revision.check(&params)?,
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header("mcp-method") != Some(request.method.as_str()) {
        return Err(bad("Mcp-Method differs from the body or is missing"));
    }
    let named = match request.method.as_str() {
        "tools/call" | "prompts/get" => params.text("name"),
        "resources/read" => params.text("uri"),
        method if task::is_about_a_task(method) => params.text("taskId"),
        _ => None,
    };
    if let Some(name) = named
        && header("mcp-name").is_none_or(|told| told != name && plain_text(told) != name)
    {
        return Err(bad("Mcp-Name differs from the body or is missing"));
    }
    Ok(())
}

/// The same for arguments that a tool wants to see in headers.
fn check_arguments(
    hub: &Hub,
    client: &ClientContext,
    headers: &HeaderMap,
    request: &RpcRequest,
) -> Result<(), CallReply> {
    let params = Fields::of(request.params.as_deref());
    let (true, Some(name)) = (request.method == "tools/call", params.text("name")) else { return Ok(()) };
    let found = match &client.route {
        Route::One(server) => hub.find(&client.principal, server).map(|backend| (backend, name)),
        Route::All => call::resolve(hub, client, ListKind::Tools, &name),
    };
    let Some((backend, own)) = found else { return Ok(()) };
    let catalogue = backend.catalogue();
    let Some(tool) = catalogue.find(ListKind::Tools, &own) else { return Ok(()) };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match mirrored_headers::mismatch(tool, &params.object("arguments"), header) {
        Some(why) => Err(stateless::refused(message::HEADER_MISMATCH, &why)),
        None => Ok(()),
    }
}

/// The rest of a call as events. Dropping it takes the call back.
fn stream(
    stateless_call: StatelessCall,
    id: RpcId,
    first: String,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    futures_util::stream::unfold((Some(stateless_call), id, Some(first)), |(stateless_call, id, first)| async move {
        if let Some(first) = first {
            return Some((Ok(Bytes::from(first)), (stateless_call, id, None)));
        }
        let mut stateless_call = stateless_call?;
        let (text, rest) = match stateless_call.next().await {
            Next::Said(said) => (event(&said), Some(stateless_call)),
            Next::Quiet => (COMMENT.to_owned(), Some(stateless_call)),
            Next::Ended(reply) => (event(&message::response(&id, &reply.answer)), None),
        };
        Some((Ok(Bytes::from(text)), (rest, id, None)))
    })
}

fn event(message: &Raw) -> String {
    sse::encode(None, message.get())
}
