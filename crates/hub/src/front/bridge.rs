//! A client of the older era before a modern backend: questions that come as results are asked, and the call is repeated.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::Client;
use crate::backend::{Backend, CallEnd};
use crate::catalogue::ListKind;
use crate::drive::conversation::Reply;
use crate::era::Era;
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::link::{Inbound, Sink, Upcall};
use crate::message::{self, Request};
use crate::{mirrored, outcome};

/// A backend that asks more often than this for one call is going round in circles.
const ROUNDS_MAX: usize = 16;

/// Calls a backend on behalf of a client, across the eras.
pub async fn call(hub: &Hub, client: &Client, backend: &Backend, request: &Request, sink: &Sink) -> Reply {
    let counted = backend.counts.begin();
    let reply = rounds(hub, client, backend, request, sink).await;
    let outcome = word(&reply);
    hub.observer.call_ended(backend, outcome, counted.end(outcome));
    reply
}

/// Calls until the backend asks no more.
async fn rounds(hub: &Hub, client: &Client, backend: &Backend, request: &Request, sink: &Sink) -> Reply {
    let mut params = request.params.clone();
    for _ in 0..ROUNDS_MAX {
        let reply = once(hub, client, backend, &request.method, params.clone(), sink).await;
        let asked = client.era() == Era::Legacy && is_question(&reply);
        if !asked {
            return reply;
        }
        let Ok(result) = &reply.answer else { return reply };
        params = match answer_questions(backend, params.as_ref(), result, sink).await {
            Ok(params) => Some(params),
            Err(error) => return Reply::new(Err(error)),
        };
    }
    Reply::new(Err(message::error(message::INTERNAL_ERROR, "the server asked for input too many times")))
}

async fn once(hub: &Hub, client: &Client, backend: &Backend, method: &str, params: Option<Raw>, sink: &Sink) -> Reply {
    let resend = outcome::resend(method, params.as_ref(), &backend.catalogue(), hub.options.retry_idempotent);
    let param_headers = param_headers(backend, method, params.as_ref());
    let call = Upcall {
        method: method.to_owned(),
        params,
        caller: client.caller.clone(),
        sink: Some(sink.clone()),
        headers: client.headers.clone(),
        param_headers,
        log_level: client.log_level.clone(),
    };
    let end: CallEnd = backend.call(call, Instant::now() + hub.options.call_timeout, resend).await;
    outcome::reply(backend.name(), method, end)
}

/// What a tool wants to see in headers, as far as its definition is known.
fn param_headers(backend: &Backend, method: &str, params: Option<&Raw>) -> Vec<(String, String)> {
    if method != "tools/call" {
        return Vec::new();
    }
    let params = Fields::of(params.map(|raw| &**raw));
    let catalogue = backend.catalogue();
    let tool = params.text("name").and_then(|name| catalogue.find(ListKind::Tools, &name));
    tool.map(|tool| mirrored::headers(tool, &params.object("arguments"))).unwrap_or_default()
}

fn is_question(reply: &Reply) -> bool {
    let kind = reply.answer.as_ref().ok().and_then(|result| Fields::of(Some(result)).text("resultType"));
    kind.as_deref() == Some("input_required")
}

/// Asks the client each question and puts the answers where the next round finds them.
async fn answer_questions(backend: &Backend, params: Option<&Raw>, result: &Raw, sink: &Sink) -> Result<Raw, Raw> {
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
pub async fn ask_each(server: &Arc<str>, questions: &Fields, sink: &Sink) -> Result<Fields, Raw> {
    let mut responses = Fields::default();
    for (key, question) in questions.iter() {
        let question = Fields::of(Some(question));
        let (reply, answered) = oneshot::channel();
        let inbound = Inbound::Request {
            server: server.clone(),
            method: question.text("method").unwrap_or_default(),
            params: question.get("params").map(ToOwned::to_owned),
            reply,
        };
        let unanswered = || message::error(message::INTERNAL_ERROR, "the client did not answer");
        sink.send(inbound).await.map_err(|_| unanswered())?;
        responses.set(key, answered.await.map_err(|_| unanswered())??);
    }
    Ok(responses)
}

/// How a call ended, for those who count.
fn word(reply: &Reply) -> &'static str {
    let Ok(result) = &reply.answer else { return "error" };
    let fields = Fields::of(Some(result));
    if fields.read("isError") != Some(true) {
        return "result";
    }
    match fields.object("structuredContent").text("code").as_deref() {
        Some(outcome::OUTCOME_UNKNOWN) => "unknown",
        Some("SERVER_UNAVAILABLE" | "NOT_EXECUTED" | "BUSY" | "DEADLINE") => "not_executed",
        _ => "tool_error",
    }
}
