//! One call on behalf of a client: questions that come as results are asked, and the call is repeated.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::CallFailure;
use bowline_env::clock;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::ClientContext;
use crate::backend::Backend;
use crate::call::reply::{CallEnd, CallReply};
use crate::call::{BackendCall, Exchange, Inbound, InboundSink, outcome};
use crate::catalogue::{ListKind, mirrored_headers};
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};

/// A backend that asks more often than this for one call is going round in circles.
const ROUNDS_MAX: usize = 16;
/// How long a call waits for a fresh list of tools.
const RELIST_PATIENCE: Duration = Duration::from_secs(10);

/// Calls a backend on behalf of a client.
pub async fn call(
    hub: &Hub,
    client: &ClientContext,
    backend: &Backend,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    hub.used(backend, &client.principal);
    let counted = backend.counts.begin();
    let reply = rounds(hub, client, backend, request, sink).await;
    hub.observer.call_ended(backend, reply.outcome, counted.end(reply.outcome));
    reply
}

/// The body has another name in it now, so the headers that repeat it are made anew; the others stay.
pub async fn pass(
    hub: &Hub,
    client: &ClientContext,
    backend: &Backend,
    method: &str,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    let params = params.to_raw();
    let mut client = client.clone();
    if let Some(headers) = client.sent.as_mut().and_then(|sent| sent.headers.as_mut()) {
        headers.retain(|(name, _)| name != "mcp-name" && name != "mcp-method");
        headers.extend(mirrored_headers::named_headers(method, Some(&params)));
    }
    let request = RpcRequest { id: message::RpcId::number(0), method: method.to_owned(), params: Some(params) };
    call(hub, &client, backend, &request, sink).await
}

/// Calls until the backend asks no more.
async fn rounds(
    hub: &Hub,
    client: &ClientContext,
    backend: &Backend,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    let mut params = request.params.clone();
    for _ in 0..ROUNDS_MAX {
        let reply = once(hub, client, backend, &request.method, params.as_ref(), sink).await;
        let Ok(result) = &reply.answer else { return reply };
        if client.exchange() == Exchange::Stateless || !is_question(result) {
            return reply;
        }
        params = match answer_questions(backend, params.as_ref(), result, sink).await {
            Ok(params) => Some(params),
            Err(error) => return CallReply::new(Err(error)),
        };
    }
    CallReply::new(Err(message::error(message::INTERNAL_ERROR, "the server asked for input too many times")))
}

/// One round. A server that wants to see other headers has refused the call before it looked at it, so the call is made again
/// once the tool's definition is known anew. Headers that a client made are its own to mend.
async fn once(
    hub: &Hub,
    client: &ClientContext,
    backend: &Backend,
    method: &str,
    params: Option<&Raw>,
    sink: &InboundSink,
) -> CallReply {
    let reply = send(hub, client, backend, method, params, sink).await;
    let refused = reply.answer.as_ref().is_err_and(|error| message::code_of(error) == message::HEADER_MISMATCH);
    if !refused || reply.status != 400 || method != "tools/call" || has_headers(client) {
        return reply;
    }
    backend.relist(RELIST_PATIENCE).await;
    send(hub, client, backend, method, params, sink).await
}

/// Whether the client itself made the headers of its request.
fn has_headers(client: &ClientContext) -> bool {
    client.sent.as_ref().is_some_and(|sent| sent.headers.is_some())
}

async fn send(
    hub: &Hub,
    client: &ClientContext,
    backend: &Backend,
    method: &str,
    params: Option<&Raw>,
    sink: &InboundSink,
) -> CallReply {
    let resend = outcome::resend(method, params, &backend.catalogue(), hub.options.retry_idempotent);
    let param_headers = param_headers(backend, method, params);
    let call = BackendCall {
        sink: Some(sink.clone()),
        sent: client.sent.clone(),
        param_headers,
        log_level: client.log_level.clone(),
        ..BackendCall::new(client.caller.clone(), method, params.cloned())
    };
    let called = backend.call(call, clock::now() + hub.options.call_timeout, resend);
    let end = tokio::time::timeout(hub.options.call_limit, called).await;
    let endless = |_| {
        let reason = format!("it had not answered after {} s", hub.options.call_limit.as_secs());
        CallEnd::Failed(CallFailure::Unknown { reason })
    };
    outcome::reply(backend.name(), method, end.unwrap_or_else(endless))
}

/// What a tool wants to see in headers, as far as its definition is known.
fn param_headers(backend: &Backend, method: &str, params: Option<&Raw>) -> Vec<(String, String)> {
    let catalogue = backend.catalogue();
    if method != "tools/call" || !catalogue.mirrors_arguments() {
        return Vec::new();
    }
    let params = Fields::of(params.map(|raw| &**raw));
    let tool = params.text("name").and_then(|name| catalogue.find(ListKind::Tools, &name));
    tool.map(|tool| mirrored_headers::headers(tool, &params.object("arguments"))).unwrap_or_default()
}

/// Everything else in a result stays unread.
fn is_question(result: &Raw) -> bool {
    #[derive(Default, Deserialize)]
    struct Typed<'a> {
        #[serde(default, borrow, rename = "resultType")]
        result_type: Option<&'a RawValue>,
    }
    let typed: Typed<'_> = serde_json::from_str(result.get()).unwrap_or_default();
    let kind = typed.result_type.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
    kind.as_deref() == Some("input_required")
}

/// Asks the client each question and puts the answers where the next round finds them.
async fn answer_questions(
    backend: &Backend,
    params: Option<&Raw>,
    result: &Raw,
    sink: &InboundSink,
) -> Result<Raw, Raw> {
    let result = Fields::of(Some(result));
    let responses = ask_each(&backend.key.name, &result.object("inputRequests"), sink).await?;
    let mut params = Fields::of(params.map(|raw| &**raw));
    params.set("inputResponses", responses.to_raw());
    match result.get("requestState") {
        Some(state) => params.set("requestState", state.to_owned()),
        None => params.remove("requestState"),
    }
    Ok(params.to_raw())
}

/// Asks the client each question, in order; the answers under the same keys.
pub async fn ask_each(server: &Arc<str>, questions: &Fields, sink: &InboundSink) -> Result<Fields, Raw> {
    let mut responses = Fields::default();
    for (key, question) in questions.iter() {
        let question = Fields::of(Some(question));
        let (reply, answered) = oneshot::channel();
        let inbound = Inbound::Request {
            server: server.clone(),
            method: question.text("method").unwrap_or_default(),
            params: question.get("params").map(ToOwned::to_owned),
            reply: reply.into(),
        };
        let unanswered = || message::error(message::INTERNAL_ERROR, "the client did not answer");
        sink.send(inbound).await.map_err(|_| unanswered())?;
        responses.set(key, answered.await.map_err(|_| unanswered())??);
    }
    Ok(responses)
}
