//! The modern era: each request stands alone, questions travel in results, and closing the response takes the call back.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_protocol::Principal;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::json;
use tokio::sync::oneshot;

use super::carried::{self, Asking};
use super::http::{Body, empty, event_stream, json as json_response, problem, version};
use super::{Client, answer, begin, names, transparent};
use crate::catalogue::ListKind;
use crate::drive::conversation::{Conversation, Reply, Step};
use crate::era::{self, Era};
use crate::fields::{Fields, Raw, raw};
use crate::hub::Hub;
use crate::link::{Caller, ClientFacts, Inbound, plain_text};
use crate::message::{self, Id, Message, Request};
use crate::mirrored;
use crate::parked::{ParkedCall, ParkedCalls, Question};
use crate::pending::capability;
use crate::session::Route;
use crate::sse;

/// Quiet streams get a comment this often, so that proxies do not cut them.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// A backend that asks several things at once sends them within this time, and they are asked in one round.
const GATHER: Duration = Duration::from_millis(20);

pub async fn post(
    hub: &Arc<Hub>,
    principal: &Principal,
    route: Route,
    headers: &HeaderMap,
    message: Message,
) -> Response<Body> {
    let request = match message {
        Message::Request(request) => request,
        Message::Notification(_) => return empty(StatusCode::ACCEPTED),
        Message::Response(_) => {
            let text = "A response is not taken here: questions are answered by asking again.";
            return problem(StatusCode::BAD_REQUEST, message::INVALID_REQUEST, text);
        }
    };
    // A modern backend behind its own path judges its requests itself.
    let judged_there = match &route {
        Route::One(name) => hub.find(principal, name).is_some_and(|backend| judges_itself(&backend)),
        Route::All => false,
    };
    if !judged_there && let Err(reply) = check(headers, &request) {
        return respond(&request.id, &reply);
    }
    let client = client_of(principal, route, headers, &request);
    if !judged_there && let Err(reply) = check_arguments(hub, &client, headers, &request) {
        return respond(&request.id, &reply);
    }
    let mut talk = match take_up(hub, &client, &request).await {
        Ok(talk) => talk,
        Err(reply) => return respond(&request.id, &reply),
    };
    match talk.next().await {
        Next::Ended(reply) => respond(&request.id, &reply),
        Next::Said(first) => event_stream(stream(talk, first)),
        Next::Quiet => event_stream(stream(talk, String::from(": still here\n\n"))),
    }
}

fn judges_itself(backend: &crate::backend::Backend) -> bool {
    transparent::is_modern(backend) && !backend.spec.is_stdio()
}

fn respond(id: &Id, reply: &Reply) -> Response<Body> {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    json_response(status, &message::response(id, &reply.answer))
}

/// The call as the client means it: a new one, or the rest of one that waits for input.
async fn take_up(hub: &Arc<Hub>, client: &Client, request: &Request) -> Result<Talk, Reply> {
    let params = Fields::of(request.params.as_deref());
    let talk = |conversation, said| Talk {
        hub: hub.clone(),
        client: client.clone(),
        request: request.clone(),
        conversation,
        said,
        ended: false,
    };
    let state = params.text("requestState").filter(|state| ParkedCalls::is_ours(state));
    let Some(state) = state else {
        return Ok(talk(begin(hub, client.clone(), request.clone()), VecDeque::new()));
    };
    let subject = subject(request);
    let Some(mut parked) = hub.parked.take(&state, &client.principal, &subject) else {
        let text = "`requestState` is not valid for this request, or it is too late";
        return Err(Reply { answer: Err(message::error(message::INVALID_PARAMS, text)), status: 400 });
    };
    let responses = params.object("inputResponses");
    let (answered, open): (Vec<Question>, Vec<Question>) =
        parked.questions.into_iter().partition(|question| responses.has(&question.key));
    for question in answered {
        if let Some(response) = responses.get(&question.key) {
            let _ = question.reply.send(Ok(response.to_owned()));
        }
    }
    if !open.is_empty() {
        parked.questions = open;
        return Err(ask(hub, parked));
    }
    Ok(talk(parked.conversation, parked.said))
}

/// What a parked call was about; its answers count for nothing else.
fn subject(request: &Request) -> String {
    let params = Fields::of(request.params.as_deref());
    let name = params.text("name").or_else(|| params.text("uri")).unwrap_or_default();
    format!("{} {name}", request.method)
}

/// Parks the call and asks its questions.
fn ask(hub: &Hub, parked: ParkedCall) -> Reply {
    let mut questions = Fields::default();
    for question in &parked.questions {
        questions.put(&question.key, &json!({ "method": question.method, "params": question.params }));
    }
    let here = hub.neighbours.as_ref().map(|neighbours| neighbours.name());
    let Some(state) = hub.parked.park(parked, here) else {
        return Reply::new(Err(message::error(message::INTERNAL_ERROR, "too many calls wait for input already")));
    };
    let mut result = Fields::default();
    result.put("resultType", "input_required");
    result.set("inputRequests", questions.to_raw());
    result.put("requestState", &state);
    Reply::new(Ok(result.to_raw()))
}

fn client_of(principal: &Principal, route: Route, headers: &HeaderMap, request: &Request) -> Client {
    let meta = Fields::of(request.params.as_deref()).object("_meta");
    let facts = ClientFacts {
        capabilities: meta.get(era::META_CAPABILITIES).map_or_else(era::no_capabilities, ToOwned::to_owned),
        info: meta.get(era::META_CLIENT).map_or_else(era::our_info, ToOwned::to_owned),
    };
    let mirrored = headers.iter().filter(|(name, _)| name.as_str().starts_with("mcp-"));
    let mirrored =
        mirrored.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())));
    Client {
        principal: principal.clone(),
        route,
        caller: Caller::without_session(principal, facts),
        session: None,
        headers: Some(mirrored.collect()),
        log_level: meta.text(era::META_LOG_LEVEL),
    }
}

/// The headers and the body must say the same, and something that we understand.
fn check(headers: &HeaderMap, request: &Request) -> Result<(), Reply> {
    let bad = |code: i64, text: &str| Reply { answer: Err(message::error(code, text)), status: 400 };
    let params = Fields::of(request.params.as_deref());
    let meta = params.object("_meta");
    let Some(asked) = meta.text(era::META_VERSION) else {
        return Err(bad(message::INVALID_PARAMS, &format!("`_meta` must have {}", era::META_VERSION)));
    };
    let Some(told) = version(headers) else {
        return Err(bad(message::HEADER_MISMATCH, "the MCP-Protocol-Version header is missing"));
    };
    if told != asked {
        return Err(bad(message::HEADER_MISMATCH, "MCP-Protocol-Version differs from the body"));
    }
    if !era::MODERN_VERSIONS.contains(&asked.as_str()) {
        let data = json!({ "supported": era::versions(), "requested": asked });
        let error = message::error_with(message::UNSUPPORTED_VERSION, "this version is not spoken here", &data);
        return Err(Reply { answer: Err(error), status: 400 });
    }
    if meta.get(era::META_CAPABILITIES).is_none_or(|raw| !raw.get().starts_with('{')) {
        return Err(bad(message::INVALID_PARAMS, &format!("`_meta` must have {}", era::META_CAPABILITIES)));
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header("mcp-method") != Some(request.method.as_str()) {
        return Err(bad(message::HEADER_MISMATCH, "Mcp-Method differs from the body or is missing"));
    }
    let named = match request.method.as_str() {
        "tools/call" | "prompts/get" => params.text("name"),
        "resources/read" => params.text("uri"),
        _ => None,
    };
    if let Some(name) = named
        && header("mcp-name").is_none_or(|told| told != name && plain_text(told) != name)
    {
        return Err(bad(message::HEADER_MISMATCH, "Mcp-Name differs from the body or is missing"));
    }
    Ok(())
}

/// The same for arguments that a tool wants to see in headers.
fn check_arguments(hub: &Hub, client: &Client, headers: &HeaderMap, request: &Request) -> Result<(), Reply> {
    let params = Fields::of(request.params.as_deref());
    let (true, Some(name)) = (request.method == "tools/call", params.text("name")) else { return Ok(()) };
    let found = match &client.route {
        Route::One(server) => hub.find(&client.principal, server).map(|backend| (backend, name)),
        Route::All => names::resolve(hub, client, ListKind::Tools, &name),
    };
    let Some((backend, own)) = found else { return Ok(()) };
    let catalogue = backend.catalogue();
    let Some(tool) = catalogue.find(ListKind::Tools, &own) else { return Ok(()) };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match mirrored::mismatch(tool, &params.object("arguments"), header) {
        Some(why) => Err(Reply { answer: Err(message::error(message::HEADER_MISMATCH, &why)), status: 400 }),
        None => Ok(()),
    }
}

/// One request and everything that is said until its answer.
struct Talk {
    hub: Arc<Hub>,
    client: Client,
    request: Request,
    conversation: Conversation,
    /// Events that the client has not got yet.
    said: VecDeque<String>,
    ended: bool,
}

enum Next {
    Said(String),
    Quiet,
    Ended(Reply),
}

impl Talk {
    async fn next(&mut self) -> Next {
        loop {
            if let Some(said) = self.said.pop_front() {
                return Next::Said(said);
            }
            let Ok(step) = tokio::time::timeout(COMMENT_EVERY, self.conversation.next()).await else {
                return Next::Quiet;
            };
            match step {
                Step::Said(Inbound::Notification { method, params }) => self.hear(&method, params.as_ref()),
                Step::Said(Inbound::Request { method, params, reply, .. }) if self.can_answer(&method) => {
                    return Next::Ended(self.park(Question::new(method, params, reply)).await);
                }
                Step::Said(Inbound::Request { server, method, params, reply }) => {
                    self.elsewhere(&server, method, params, reply).await;
                }
                Step::Ended(reply) => return Next::Ended(self.adapt(reply)),
            }
        }
    }

    fn adapt(&self, reply: Reply) -> Reply {
        answer::adapt(Era::Modern, &self.request.method, reply)
    }

    /// A notification. Logs are for those who asked for them, from the level that they named.
    fn hear(&mut self, method: &str, params: Option<&Raw>) {
        let level = Fields::of(params.map(|raw| &**raw)).text("level");
        let wanted = self.client.log_level.as_deref();
        if method != "notifications/message" || era::is_logged(level.as_deref(), wanted) {
            self.said.push_back(sse::encode(None, message::notification(method, params).get()));
        }
    }

    /// Whether the client itself can be asked, which it can only in an answer.
    fn can_answer(&self, method: &str) -> bool {
        let capabilities = Fields::of(Some(&self.client.caller.client.capabilities));
        let may = matches!(self.request.method.as_str(), "tools/call" | "prompts/get" | "resources/read");
        may && capability(method).is_some_and(|name| capabilities.has(name))
    }

    /// A backend of the older era asks: the call waits, and its questions become the answer.
    async fn park(&mut self, first: Question) -> Reply {
        let mut questions = vec![first];
        while let Ok(step) = tokio::time::timeout(GATHER, self.conversation.next()).await {
            match step {
                Step::Said(Inbound::Notification { method, params }) => self.hear(&method, params.as_ref()),
                Step::Said(Inbound::Request { method, params, reply, .. }) if self.can_answer(&method) => {
                    questions.push(Question::new(method, params, reply));
                }
                Step::Said(Inbound::Request { server, method, params, reply }) => {
                    self.elsewhere(&server, method, params, reply).await;
                }
                // It did not wait for the answers.
                Step::Ended(reply) => return self.adapt(reply),
            }
        }
        let nothing = Conversation::begin(|_| Box::pin(std::future::pending()));
        let parked = ParkedCall {
            conversation: std::mem::replace(&mut self.conversation, nothing),
            questions,
            said: std::mem::take(&mut self.said),
            principal: self.client.principal.clone(),
            subject: subject(&self.request),
            until: Instant::now(),
        };
        ask(&self.hub, parked)
    }

    /// A question that the client cannot answer by itself. It can by the tools, if it has a handle.
    async fn elsewhere(
        &mut self,
        server: &str,
        method: String,
        params: Option<Raw>,
        reply: oneshot::Sender<message::Answer>,
    ) {
        if method == "roots/list" {
            let _ = reply.send(Ok(raw(&json!({ "roots": [] }))));
            return;
        }
        // The handle that it named, or any that it has.
        let named = Fields::of(self.request.params.as_deref()).object("arguments").text("handle");
        let asking = Asking { handle: named, server: server.to_owned(), method, params, reply };
        carried::ask_by_handle(&self.hub, &self.client.principal, asking).await;
    }
}

/// The rest of the talk as events. Dropping it takes the call back.
fn stream(talk: Talk, first: String) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    futures_util::stream::unfold((talk, Some(first)), |(mut talk, first)| async move {
        if let Some(first) = first {
            return Some((Ok(Bytes::from(first)), (talk, None)));
        }
        if talk.ended {
            return None;
        }
        let text = match talk.next().await {
            Next::Said(text) => text,
            Next::Quiet => ": still here\n\n".to_owned(),
            Next::Ended(reply) => {
                talk.ended = true;
                sse::encode(None, message::response(&talk.request.id, &reply.answer).get())
            }
        };
        Some((Ok(Bytes::from(text)), (talk, None)))
    })
}
