//! All backends as one server: the hub's own tools, and everything the backends offer, under one roof.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, answer, bridge, done, listen, names, refuse, renew, tasked};
use crate::backend::{Backend, Lists};
use crate::catalogue::ListKind;
use crate::drive::conversation::Reply;
use crate::era::{self, Era};
use crate::fields::{Fields, Raw, empty, raw};
use crate::hub::Hub;
use crate::link::{self, ClientFacts, Sink};
use crate::message::{self, Request};
use crate::pending;
use crate::tools;

/// How long a list waits for backends that are being dialled for the first time.
const PATIENCE: Duration = Duration::from_secs(5);

pub async fn answer(hub: &Arc<Hub>, client: &Client, request: &Request, sink: &Sink) -> Reply {
    let params = Fields::of(request.params.as_deref());
    let direct = hub.options.expose.direct();
    let reply = match request.method.as_str() {
        method if client.era() == Era::Modern && super::transparent::is_removed(method) => {
            refuse(message::METHOD_NOT_FOUND, "this method is gone since 2026-07-28")
        }
        "ping" if client.era() == Era::Legacy => done(empty()),
        "server/discover" => {
            done(answer::discover(&modern_capabilities(hub), &era::our_info(), Some(&raw(INSTRUCTIONS))))
        }
        "subscriptions/listen" => return listen::answer(hub, client, None, request, sink).await,
        "logging/setLevel" => set_level(hub, client, &params, request).await,
        "tools/call" => call_tool(hub, client, request, &params, sink).await,
        "prompts/get" if direct => by_name(hub, client, request, ListKind::Prompts, &params, sink).await,
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" if direct => {
            by_uri(hub, client, request, &params, sink).await
        }
        method if direct && client.era() == Era::Modern && tasked::is_about_a_task(method) => {
            tasked::answer(hub, client, None, request, &params, sink).await
        }
        "completion/complete" if direct => complete(hub, client, request, &params, sink).await,
        method => match ListKind::of_method(method) {
            Some(kind) => list(hub, client, kind).await,
            None => refuse(message::METHOD_NOT_FOUND, "the hub does not know this method"),
        },
    };
    answer::adapt(client.era(), &request.method, reply)
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
fn modern_capabilities(hub: &Hub) -> Raw {
    let mut capabilities = Fields::of(Some(&capabilities(hub)));
    if hub.options.expose.direct() {
        capabilities.put("extensions", &json!({ era::TASKS_EXTENSION: {} }));
    }
    capabilities.to_raw()
}

pub fn initialize(hub: &Hub, version: &str) -> Raw {
    raw(&json!({
        "protocolVersion": version,
        "capabilities": capabilities(hub),
        "serverInfo": era::our_info(),
        "instructions": INSTRUCTIONS,
    }))
}

/// The merged list. A server that is away is listed as it was; one that is unknown is named.
async fn list(hub: &Arc<Hub>, client: &Client, kind: ListKind) -> Reply {
    let backends = hub.visible(&client.principal);
    let settle = backends.iter().map(|backend| backend.settled(PATIENCE));
    futures_util::future::join_all(settle).await;
    let mut entries: Vec<Raw> = Vec::new();
    if kind == ListKind::Tools && hub.options.expose.meta() {
        entries.extend(tools::schemas());
    }
    if hub.options.expose.direct() {
        let merged = names::merged(&backends, kind, &hub.options);
        entries.extend(merged.into_iter().map(|(_, entry)| entry.shown));
    }
    let troubles = troubles(&backends, kind);
    let meta = (!troubles.is_empty()).then(|| raw(&json!({ "bowline/servers": troubles })));
    done(answer::list(kind.member(), &entries, true, meta))
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

async fn call_tool(hub: &Arc<Hub>, client: &Client, request: &Request, params: &Fields, sink: &Sink) -> Reply {
    let Some(name) = params.text("name") else {
        return refuse(message::INVALID_PARAMS, "`name` is missing");
    };
    if names::is_shown_of_ours(&hub.options, &name) {
        return tools::call(hub, client, &name, params, sink).await;
    }
    if !hub.options.expose.direct() {
        return refuse(message::INVALID_PARAMS, &format!("there is no tool {name}"));
    }
    by_name(hub, client, request, ListKind::Tools, params, sink).await
}

/// Passes a request on to the backend that its name leads to, under the name that the backend knows.
async fn by_name(
    hub: &Arc<Hub>,
    client: &Client,
    request: &Request,
    kind: ListKind,
    params: &Fields,
    sink: &Sink,
) -> Reply {
    let name = params.text("name").unwrap_or_default();
    let Some((backend, own)) = names::resolve(hub, client, kind, &name) else {
        return refuse(
            message::INVALID_PARAMS,
            &format!("there is no {} named {name}", kind.member().trim_end_matches('s')),
        );
    };
    let mut params = params.clone();
    params.put("name", &own);
    // Tasks of the older era are not offered here, and who does not offer them does not look at this.
    if client.era() == Era::Legacy {
        params.remove("task");
    }
    let reply = pass(hub, client, &backend, &request.method, &params, sink).await;
    tasked::created(hub, client, &backend, reply)
}

async fn by_uri(hub: &Arc<Hub>, client: &Client, request: &Request, params: &Fields, sink: &Sink) -> Reply {
    let uri = params.text("uri").unwrap_or_default();
    let Some(backend) = names::server_of_resource(hub, client, &uri) else {
        let code = if client.era() == Era::Modern { message::INVALID_PARAMS } else { message::RESOURCE_NOT_FOUND };
        return Reply::new(Err(message::error_with(code, "no server here has this resource", &json!({ "uri": uri }))));
    };
    let subscribes = client.era() == Era::Legacy && request.method != "resources/read";
    let reply = if subscribes && super::transparent::is_modern_only(&backend) {
        listen::subscribe(hub, client, &backend, request)
    } else {
        pass(hub, client, &backend, &request.method, params, sink).await
    };
    renew::note(client, Some(backend.name()), &request.method, request.params.as_ref(), &reply).await;
    reply
}

async fn complete(hub: &Arc<Hub>, client: &Client, request: &Request, params: &Fields, sink: &Sink) -> Reply {
    let mut reference = params.object("ref");
    let mut params = params.clone();
    let backend = if let Some(name) = reference.text("name") {
        names::resolve(hub, client, ListKind::Prompts, &name).map(|(backend, own)| {
            reference.put("name", &own);
            params.set("ref", reference.to_raw());
            backend
        })
    } else {
        reference.text("uri").and_then(|uri| names::server_of_resource(hub, client, &uri))
    };
    match backend {
        Some(backend) => pass(hub, client, &backend, &request.method, &params, sink).await,
        None => refuse(message::INVALID_PARAMS, "no server here has what `ref` names"),
    }
}

/// The body has another name in it now, so the headers that repeat it are made anew; the others stay.
pub async fn pass(hub: &Hub, client: &Client, backend: &Backend, method: &str, params: &Fields, sink: &Sink) -> Reply {
    let params = params.to_raw();
    let mut client = client.clone();
    if let Some(headers) = &mut client.headers {
        headers.retain(|(name, _)| name != "mcp-name" && name != "mcp-method");
        let mirrored = link::mirror_headers(method, Some(&params));
        headers.extend(mirrored.into_iter().filter(|(name, _)| name != "mcp-protocol-version"));
    }
    let request = Request { id: message::Id::number(0), method: method.to_owned(), params: Some(params) };
    bridge::call(hub, &client, backend, &request, sink).await
}

async fn set_level(hub: &Arc<Hub>, client: &Client, params: &Fields, request: &Request) -> Reply {
    let (level, session) = match (params.text("level"), &client.session) {
        (Some(level), Some(session)) if era::is_log_level(&level) => (level, session),
        _ => return refuse(message::INVALID_PARAMS, "`level` is missing, or is no log level"),
    };
    session.set_log_level(level);
    renew::note(client, None, &request.method, request.params.as_ref(), &done(empty())).await;
    for backend in hub.visible(&client.principal) {
        if renew::logs(&backend) && backend.snapshot().is_connected() && !super::transparent::is_modern_only(&backend) {
            let (client, hub, request) = (client.clone(), hub.clone(), request.clone());
            let (sink, _said) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move { bridge::call(&hub, &client, &backend, &request, &sink).await });
        }
    }
    done(empty())
}

/// A client that can answer everything, by itself or by the hub's tools, and for whom the hub follows tasks.
pub fn all_facts(client: &Client) -> ClientFacts {
    let mut capabilities = Fields::of(Some(&pending::with_tools(&client.caller.client.capabilities)));
    let mut extensions = capabilities.object("extensions");
    extensions.set(era::TASKS_EXTENSION, empty());
    capabilities.set("extensions", extensions.to_raw());
    ClientFacts { capabilities: capabilities.to_raw(), info: client.caller.client.info.clone() }
}
