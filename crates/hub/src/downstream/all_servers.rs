//! All backends as one server: the hub's own tools, and everything the backends offer, under one roof.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::call::facts::{is_log_level, our_info};
use crate::call::{CallReply, Exchange, InboundSink, done, facts as declared, refuse};
use crate::catalogue::{ListKind, hub_tools};
use crate::fields::{Fields, Raw, empty, raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
use crate::relay::{self, ClientContext, call, hosted_task, subscriptions, task};
use crate::revision::{self, Revision, ServerIntroduction};
use crate::{downstream, tools};

/// How long a list waits for backends that are being dialled for the first time.
const PATIENCE: Duration = Duration::from_secs(5);

pub async fn answer(
    hub: &Arc<Hub>,
    revision: &dyn Revision,
    client: &ClientContext,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    if let Some(reply) = revision.removed(&request.method) {
        return reply;
    }
    let params = Fields::of(request.params.as_deref());
    let direct = hub.options.expose.direct();
    let stateless = client.exchange() == Exchange::Stateless;
    let asks_what_we_are = request.method == revision.opening_method();
    let discovered =
        if stateless { asks_what_we_are.then_some(revision) } else { revision::discovered_by(&request.method) };
    if let Some(revision) = discovered {
        return done(revision.introduced(&introduction(stateless_capabilities(hub)), revision.versions()[0]));
    }
    match request.method.as_str() {
        "ping" => done(empty()),
        "subscriptions/listen" => subscriptions::answer(hub, client, None, request, sink).await,
        "logging/setLevel" => set_level(hub, client, &params, request).await,
        "tools/call" => call_tool(hub, client, request, &params, sink).await,
        "prompts/get" if direct => by_name(hub, client, request, ListKind::Prompts, &params, sink).await,
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" if direct => {
            by_uri(hub, client, request, &params, sink).await
        }
        method if direct && stateless && task::is_about_a_task(method) => {
            task::answer(hub, client, None, request, &params, sink).await
        }
        "completion/complete" if direct => complete(hub, client, request, &params, sink).await,
        method => match ListKind::of_method(method) {
            Some(kind) => list(hub, client, kind).await,
            None => refuse(message::METHOD_NOT_FOUND, "the hub does not know this method"),
        },
    }
}

pub const INSTRUCTIONS: &str = "Many MCP servers behind one endpoint. Tools named <server>__<tool> belong to a server; list_servers shows which are connected, and await_activity tells what happens to them.";

pub fn capabilities(hub: &Hub) -> Raw {
    let listed = json!({ "listChanged": true });
    let mut capabilities = json!({ "tools": listed });
    if hub.options.expose.direct() {
        capabilities["resources"] = json!({ "listChanged": true, "subscribe": true });
        capabilities["prompts"] = listed;
        capabilities["completions"] = json!({});
        capabilities["logging"] = json!({});
    }
    raw(&capabilities)
}

/// Each server decides which of its calls become tasks, if any; the hub passes on what it says about them.
fn stateless_capabilities(hub: &Hub) -> Raw {
    let mut capabilities = Fields::of(Some(&capabilities(hub)));
    if hub.options.expose.direct() {
        capabilities.put("extensions", &json!({ declared::TASKS_EXTENSION: {} }));
    }
    capabilities.to_raw()
}

fn introduction(capabilities: Raw) -> ServerIntroduction {
    ServerIntroduction { capabilities, info: our_info(), instructions: Some(raw(INSTRUCTIONS)) }
}

pub fn initialize(hub: &Hub, revision: &dyn Revision, version: &str) -> Raw {
    revision.introduced(&introduction(capabilities(hub)), version)
}

/// The merged list. A server that is away is listed as it was; one that is unknown is named.
async fn list(hub: &Arc<Hub>, client: &ClientContext, kind: ListKind) -> CallReply {
    let backends = hub.visible(&client.principal);
    let settle = backends.iter().map(|backend| backend.settled(PATIENCE));
    futures_util::future::join_all(settle).await;
    let mut entries: Vec<Raw> = Vec::new();
    if kind == ListKind::Tools && hub.options.expose.meta() {
        entries.extend(hub_tools::schemas());
    }
    if hub.options.expose.direct() {
        let merged = call::merged(&backends, kind, &hub.options);
        entries.extend(merged.into_iter().map(|(_, entry)| entry.shown));
    }
    let troubles = call::troubles(&backends, kind);
    let meta = (!troubles.is_empty()).then(|| raw(&json!({ "bowline/servers": troubles })));
    done(downstream::list(kind.member(), &entries, true, meta))
}

async fn call_tool(
    hub: &Arc<Hub>,
    client: &ClientContext,
    request: &RpcRequest,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    let Some(name) = params.text("name") else {
        return refuse(message::INVALID_PARAMS, "`name` is missing");
    };
    if call::is_shown_of_ours(&hub.options, &name) {
        return tools::call(hub, client, &name, &revision::plain(params), sink).await;
    }
    if !hub.options.expose.direct() {
        return refuse(message::INVALID_PARAMS, &format!("there is no tool {name}"));
    }
    by_name(hub, client, request, ListKind::Tools, params, sink).await
}

/// Passes a request on to the backend that its name leads to, under the name that the backend knows.
async fn by_name(
    hub: &Arc<Hub>,
    client: &ClientContext,
    request: &RpcRequest,
    kind: ListKind,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    let name = params.text("name").unwrap_or_default();
    let Some((backend, own)) = call::resolve(hub, client, kind, &name) else {
        return refuse(
            message::INVALID_PARAMS,
            &format!("there is no {} named {name}", kind.member().trim_end_matches('s')),
        );
    };
    let mut params = params.clone();
    params.put("name", &own);
    // Tasks of sessions are not offered here, and who does not offer them does not look at this.
    if client.exchange() == Exchange::Session {
        params.remove("task");
    }
    if let Some(reply) = hosted_task::begin(hub, client, &backend, &request.method, || params.clone()).await {
        return reply;
    }
    let reply = call::pass(hub, client, &backend, &request.method, &params, sink).await;
    task::created(hub, client, &backend, reply)
}

async fn by_uri(
    hub: &Arc<Hub>,
    client: &ClientContext,
    request: &RpcRequest,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    let uri = params.text("uri").unwrap_or_default();
    let Some(backend) = call::server_of_resource(hub, client, &uri) else {
        let (code, text) = (message::RESOURCE_NOT_FOUND, "no server here has this resource");
        return CallReply::new(Err(message::error_with(code, text, &json!({ "uri": uri }))));
    };
    relay::pass(hub, client, &backend, &request.method, params, sink).await
}

async fn complete(
    hub: &Arc<Hub>,
    client: &ClientContext,
    request: &RpcRequest,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    let mut reference = params.object("ref");
    let mut params = params.clone();
    let backend = if let Some(name) = reference.text("name") {
        call::resolve(hub, client, ListKind::Prompts, &name).map(|(backend, own)| {
            reference.put("name", &own);
            params.set("ref", reference.to_raw());
            backend
        })
    } else {
        reference.text("uri").and_then(|uri| call::server_of_resource(hub, client, &uri))
    };
    match backend {
        Some(backend) => call::pass(hub, client, &backend, &request.method, &params, sink).await,
        None => refuse(message::INVALID_PARAMS, "no server here has what `ref` names"),
    }
}

async fn set_level(hub: &Arc<Hub>, client: &ClientContext, params: &Fields, request: &RpcRequest) -> CallReply {
    let (level, session) = match (params.text("level"), &client.session) {
        (Some(level), Some(session)) if is_log_level(&level) => (level, session),
        _ => return refuse(message::INVALID_PARAMS, "`level` is missing, or is no log level"),
    };
    session.set_log_level(level);
    subscriptions::note(client, None, &request.method, request.params.as_deref(), &done(empty())).await;
    for backend in hub.visible(&client.principal) {
        if subscriptions::logs(&backend) && backend.snapshot().is_connected() && backend.offers(Exchange::Session) {
            let (client, hub, request) = (client.clone(), hub.clone(), request.clone());
            let (sink, _said) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move { call::call(&hub, &client, &backend, &request, &sink).await });
        }
    }
    done(empty())
}
