//! The HTTP face, without a server around it: a request with its body in, a response out.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};

use super::{batch, peers, session_http, stateless_http};
use crate::call::Exchange;
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::{self, RpcMessage};
use crate::requester::Requester;
use crate::revision::{self, v2026};
use crate::session::Route;
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
    let is_batch = request.method() == Method::POST && batch::is_batch(request.body());
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
    match peers::home(hub, headers, message.as_ref()).await {
        Ok(None) => {}
        Ok(Some(node)) => {
            // Boxed, because a carried request may be carried on from there.
            return Box::pin(peers::carry(hub, &node, who, route, &request, hops)).await;
        }
        Err(error) => {
            tracing::warn!(%error, "cannot find the node that holds an MCP session");
            let text = "The store cannot be read now. Try again.";
            return problem(StatusCode::SERVICE_UNAVAILABLE, message::INTERNAL_ERROR, text);
        }
    }
    if is_batch {
        return batch::post(hub, who, &route, headers, request.body()).await;
    }
    match message {
        Some(message) if exchange_of(headers, &message) == Exchange::Stateless => {
            stateless_http::post(hub, who, route, headers, message).await
        }
        Some(message) => session_http::post(hub, who, route, headers, message).await,
        None if request.method() == Method::GET => session_http::get(hub, principal, &route, headers).await,
        None => session_http::delete(hub, principal, &route, headers).await,
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

/// Chosen for each request: a session or a handshake shows by itself, everything else says its version.
fn exchange_of(headers: &HeaderMap, message: &RpcMessage) -> Exchange {
    if headers.contains_key(SESSION) {
        return Exchange::Session;
    }
    let told = text(headers, &VERSION).and_then(revision::exchange_of);
    let RpcMessage::Request(request) = message else { return told.unwrap_or(Exchange::Session) };
    let meta = Fields::of(request.params.as_deref()).object("_meta");
    match (request.method.as_str(), meta.has(v2026::META_VERSION)) {
        ("initialize", false) => Exchange::Session,
        (_, true) | (v2026::DISCOVER, _) => Exchange::Stateless,
        (_, false) => told.unwrap_or_else(|| {
            let mirrors = headers.contains_key(&VERSION) || headers.contains_key("mcp-method");
            if mirrors { Exchange::Stateless } else { Exchange::Session }
        }),
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
    json(status, &message::nameless_error(code, text))
}

pub fn json(status: StatusCode, body: &Raw) -> Response<ResponseBody> {
    let mut response = Response::new(full(body.get().to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

pub fn empty(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(full(String::new()));
    *response.status_mut() = status;
    response
}

pub(super) fn full(text: String) -> ResponseBody {
    Full::new(Bytes::from(text)).boxed_unsync()
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
