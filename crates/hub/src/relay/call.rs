//! One call on behalf of a client: its name is resolved where all servers are one, questions that come as results are asked, and the
//! call is repeated.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::CallFailure;
use bowline_env::clock;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::backend::{Backend, Lists};
use crate::call::outcome::ResultKind;
use crate::call::{BackendCall, CallEnd, CallReply, Exchange, Inbound, InboundSink, outcome};
use crate::catalogue::{ListKind, hub_tools, mirrored_headers};
use crate::config::{Options, Prefix};
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
use crate::relay::ClientContext;
use crate::session::Route;

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
    backend.observer.call_ended(reply.outcome, counted.end(reply.outcome));
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
    let mut params = request.params.as_deref().map(Cow::Borrowed);
    for _ in 0..ROUNDS_MAX {
        let reply = once(hub, client, backend, &request.method, params.as_deref(), sink).await;
        let Ok(result) = &reply.answer else { return reply };
        if client.exchange() == Exchange::Stateless || reply.kind != ResultKind::Question {
            return reply;
        }
        params = match Box::pin(answer_questions(backend, params.as_deref(), result, sink)).await {
            Ok(params) => Some(Cow::Owned(params)),
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
    params: Option<&RawValue>,
    sink: &InboundSink,
) -> CallReply {
    let reply = send(hub, client, backend, method, params, sink).await;
    let refused = reply.answer.as_ref().is_err_and(|error| message::code_of(error) == message::HEADER_MISMATCH);
    if !refused || reply.status != 400 || method != "tools/call" || has_headers(client) {
        return reply;
    }
    Box::pin(backend.relist(RELIST_PATIENCE)).await;
    Box::pin(send(hub, client, backend, method, params, sink)).await
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
    params: Option<&RawValue>,
    sink: &InboundSink,
) -> CallReply {
    let resend = outcome::resend(method, params, &backend.catalogue(), hub.options.retry_idempotent);
    let param_headers = param_headers(backend, method, params);
    let call = BackendCall {
        sink: Some(sink.clone()),
        sent: client.sent.clone(),
        param_headers,
        log_level: client.log_level.clone(),
        ..BackendCall::new(client.caller.clone(), method, params.map(ToOwned::to_owned))
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
fn param_headers(backend: &Backend, method: &str, params: Option<&RawValue>) -> Vec<(String, String)> {
    let catalogue = backend.catalogue();
    if method != "tools/call" || !catalogue.mirrors_arguments() {
        return Vec::new();
    }
    let params = Fields::of(params);
    let tool = params.text("name").and_then(|name| catalogue.find(ListKind::Tools, &name));
    tool.map(|tool| mirrored_headers::headers(tool, &params.object("arguments"))).unwrap_or_default()
}

/// Asks the client each question and puts the answers where the next round finds them.
async fn answer_questions(
    backend: &Backend,
    params: Option<&RawValue>,
    result: &Raw,
    sink: &InboundSink,
) -> Result<Raw, Raw> {
    let result = Fields::of(Some(result));
    let responses = ask_each(&backend.key.name, &result.object("inputRequests"), sink).await?;
    let mut params = Fields::of(params);
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

/// Between a backend's name and that of its tool. No backend's name has it.
const BETWEEN: &str = "__";

/// One entry of a merged list.
pub struct RoutedEntry {
    pub backend: Backend,
    /// What the backend calls it.
    pub own_name: String,
    pub shown: Raw,
}

/// All entries of a kind, under the names that clients see. Where two would have the same, the first keeps it.
pub fn merged(backends: &[Backend], kind: ListKind, options: &Options) -> Vec<(String, RoutedEntry)> {
    let prefix = options.prefix;
    let catalogues: Vec<_> = backends.iter().map(|backend| (backend, backend.catalogue())).collect();
    let mut count: HashMap<String, usize> = HashMap::new();
    let name_of = |entry: &Raw| Fields::of(Some(entry)).text("name").unwrap_or_default();
    if prefix == Prefix::Conditional {
        for entry in catalogues.iter().flat_map(|(_, catalogue)| catalogue.list(kind)) {
            *count.entry(name_of(entry)).or_default() += 1;
        }
    }
    let mut all = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (backend, catalogue) in &catalogues {
        for entry in catalogue.list(kind) {
            let own_name = name_of(entry);
            let prefixed = match prefix {
                Prefix::Always => true,
                // What is called like one of the hub's own tools could not be called by that name.
                _ if kind == ListKind::Tools && is_shown_of_ours(options, &own_name) => true,
                Prefix::Conditional => count.get(&own_name).is_some_and(|count| *count > 1),
                Prefix::Never => false,
            };
            let name = if prefixed { format!("{}{BETWEEN}{own_name}", backend.name()) } else { own_name.clone() };
            let mut fields = Fields::of(Some(entry));
            fields.put("name", &name);
            // A resource is found by its address, which is its own; only tools and prompts are found by name.
            let unique = match kind {
                ListKind::Tools | ListKind::Prompts => name.clone(),
                ListKind::Resources | ListKind::Templates => format!("{} {own_name} {}", backend.name(), all.len()),
            };
            if seen.insert(unique) {
                all.push((name, RoutedEntry { backend: (*backend).clone(), own_name, shown: fields.to_raw() }));
            }
        }
    }
    all
}

/// Whether a client means one of the hub's own tools by this name.
pub fn is_shown_of_ours(options: &Options, name: &str) -> bool {
    options.expose.meta() && hub_tools::is_ours(name)
}

/// Who offers what a client calls by this name, and what it is called there.
pub fn resolve(hub: &Hub, client: &ClientContext, kind: ListKind, name: &str) -> Option<(Backend, String)> {
    // A prefixed name needs no list, so it works before the lists are there and while the backend is away.
    if let Some((server, own)) = name.split_once(BETWEEN)
        && let Some(backend) = hub.find(&client.principal, server)
    {
        return Some((backend, own.to_owned()));
    }
    let entries = merged(&hub.visible(&client.principal), kind, &hub.options);
    let found = entries.into_iter().find(|(shown, _)| shown == name);
    found.map(|(_, entry)| (entry.backend, entry.own_name))
}

/// The server that a request is for, on whatever path and by whatever name.
pub fn target(hub: &Arc<Hub>, client: &ClientContext, request: &RpcRequest) -> Option<Backend> {
    let params = Fields::of(request.params.as_deref());
    if let Route::One(server) = &client.route {
        return hub.find(&client.principal, server);
    }
    let name = params.text("name").unwrap_or_default();
    match request.method.as_str() {
        "tools/call" if is_shown_of_ours(&hub.options, &name) => {
            hub.find(&client.principal, &params.object("arguments").text("server")?)
        }
        "tools/call" => resolve(hub, client, ListKind::Tools, &name).map(|(backend, _)| backend),
        "prompts/get" => resolve(hub, client, ListKind::Prompts, &name).map(|(backend, _)| backend),
        "resources/read" => server_of_resource(hub, client, &params.text("uri")?),
        _ => None,
    }
}

/// Who has this resource: by its address, or by a template that it fits. Of several, the first that is there.
pub fn server_of_resource(hub: &Arc<Hub>, client: &ClientContext, uri: &str) -> Option<Backend> {
    let mut backends = hub.visible(&client.principal);
    backends.sort_by_key(|backend| !backend.snapshot().is_connected());
    let listed = backends.iter().find(|backend| backend.catalogue().find(ListKind::Resources, uri).is_some());
    let fits = |backend: &&Backend| {
        backend.catalogue().list(ListKind::Templates).iter().any(|template| {
            let template = Fields::of(Some(template)).text("uriTemplate").unwrap_or_default();
            let fixed = template.split('{').next().unwrap_or_default();
            !fixed.is_empty() && uri.starts_with(fixed)
        })
    };
    listed.or_else(|| backends.iter().find(fits)).cloned()
}

/// What a reader of a list should know of servers that are not as they should be.
pub fn troubles(backends: &[Backend], kind: ListKind) -> Vec<Value> {
    let bad = backends.iter().filter_map(|backend| {
        let snapshot = backend.snapshot();
        let late = (snapshot.lists != Lists::Fetched).then_some("not all of its lists have arrived yet");
        let listing = snapshot.catalogue.trouble(kind).or(late).map(ToOwned::to_owned);
        if snapshot.is_connected() && listing.is_none() {
            return None;
        }
        Some(json!({
            "name": backend.name(),
            "status": snapshot.status.as_str(),
            "stale": snapshot.lists.are_known(),
            "lastError": snapshot.last_error.or(listing),
        }))
    });
    bad.collect()
}
