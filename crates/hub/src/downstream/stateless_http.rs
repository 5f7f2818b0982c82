//! Stateless requests over HTTP: each stands alone, questions travel in results, and closing the response takes the call back.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use tokio_util::sync::CancellationToken;

use super::stateless::{self, Next, StatelessCall};
use super::streamable_http::{ResponseBody, empty, event_stream, json as json_response, problem, version};
use crate::call::Exchange;
use crate::call::reply::CallReply;
use crate::catalogue::ListKind;
use crate::catalogue::mirrored_headers::{self, plain_text};
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::{self, RpcId, RpcMessage, RpcRequest};
use crate::relay::{ClientContext, routing, task_extension};
use crate::requester::Requester;
use crate::revision::v2026;
use crate::session::Route;
use crate::{backend, sse};

/// Quiet streams get a comment now and then, so that proxies do not cut them.
const COMMENT: &str = ": still here\n\n";

pub async fn post(
    hub: &Arc<Hub>,
    who: &Requester,
    route: Route,
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
        Route::One(name) => hub.find(&who.principal, name).is_some_and(|backend| judges_itself(&backend)),
        Route::All => false,
    };
    // What is said of a task is said under another name there, so this is the place to look at it.
    let judged_here = !judged_there || task_extension::is_about_a_task(&request.method);
    if judged_here && let Err(reply) = check(headers, &request) {
        return respond(&request.id, &reply);
    }
    let client = client_of(who, route, headers, &request);
    if !judged_there && let Err(reply) = check_arguments(hub, &client, headers, &request) {
        return respond(&request.id, &reply);
    }
    let id = request.id.clone();
    // Over HTTP any client that knows the state may bring it back, on any connection.
    let mut talk = match StatelessCall::take_up(hub, client, request, CancellationToken::new()) {
        Ok(talk) => talk,
        Err(reply) => return respond(&id, &reply),
    };
    match talk.next().await {
        Next::Ended(reply) => respond(&id, &reply),
        Next::Said(first) => event_stream(stream(talk, id, event(&first))),
        Next::Quiet => event_stream(stream(talk, id, COMMENT.to_owned())),
    }
}

fn judges_itself(backend: &backend::Backend) -> bool {
    backend.offers(Exchange::Stateless) && !backend.spec.is_stdio()
}

fn respond(id: &RpcId, reply: &CallReply) -> Response<ResponseBody> {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    json_response(status, &message::response(id, &reply.answer))
}

fn client_of(who: &Requester, route: Route, headers: &HeaderMap, request: &RpcRequest) -> ClientContext {
    let mirrored = headers.iter().filter(|(name, _)| name.as_str().starts_with("mcp-"));
    let mirrored =
        mirrored.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())));
    stateless::client_of(who, route, request, Some(mirrored.collect()))
}

/// The headers and the body must say the same, and something that we understand.
fn check(headers: &HeaderMap, request: &RpcRequest) -> Result<(), CallReply> {
    let bad = |text: &str| stateless::refused(message::HEADER_MISMATCH, text);
    let params = Fields::of(request.params.as_deref());
    match (params.object("_meta").text(v2026::META_VERSION), version(headers)) {
        (Some(_), None) => return Err(bad("the MCP-Protocol-Version header is missing")),
        (Some(asked), Some(told)) if told != asked => {
            return Err(bad("MCP-Protocol-Version differs from the body"));
        }
        _ => v2026::check(request.params.as_ref())?,
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header("mcp-method") != Some(request.method.as_str()) {
        return Err(bad("Mcp-Method differs from the body or is missing"));
    }
    let named = match request.method.as_str() {
        "tools/call" | "prompts/get" => params.text("name"),
        "resources/read" => params.text("uri"),
        method if task_extension::is_about_a_task(method) => params.text("taskId"),
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
        Route::All => routing::resolve(hub, client, ListKind::Tools, &name),
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

/// The rest of the talk as events. Dropping it takes the call back.
fn stream(
    talk: StatelessCall,
    id: RpcId,
    first: String,
) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    futures_util::stream::unfold((Some(talk), id, Some(first)), |(talk, id, first)| async move {
        if let Some(first) = first {
            return Some((Ok(Bytes::from(first)), (talk, id, None)));
        }
        let mut talk = talk?;
        let (text, rest) = match talk.next().await {
            Next::Said(said) => (event(&said), Some(talk)),
            Next::Quiet => (COMMENT.to_owned(), Some(talk)),
            Next::Ended(reply) => (event(&message::response(&id, &reply.answer)), None),
        };
        Some((Ok(Bytes::from(text)), (rest, id, None)))
    })
}

fn event(message: &Raw) -> String {
    sse::encode(None, message.get())
}
