//! One backend as it is: nothing is renamed but tasks, which are their owner's, and what it cannot say while it is away is said from memory.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::backend::Backend;
use crate::call::facts::{self, is_log_level, our_info};
use crate::call::{CallReply, Exchange, InboundSink, done, refuse};
use crate::catalogue::ListKind;
use crate::downstream;
use crate::fields::{Fields, Raw, empty, raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
use crate::relay::{ClientContext, call, hosted_task, subscriptions, task};
use crate::revision::{v2025, v2026};

/// How long the first request waits to learn what a backend is.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn answer(
    hub: &Arc<Hub>,
    client: &ClientContext,
    name: &str,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    let Some(backend) = hub.find(&client.principal, name) else {
        return refuse(message::NOT_FOUND, "there is no such server");
    };
    let (has_sessions, stateless) = (backend.offers(Exchange::Session), backend.offers(Exchange::Stateless));
    let reply = match (client.exchange(), request.method.as_str()) {
        (Exchange::Session, "ping") => done(empty()),
        (Exchange::Stateless, method) if v2026::is_removed(method) && !stateless => {
            refuse(message::METHOD_NOT_FOUND, "this method is gone since 2026-07-28")
        }
        (Exchange::Stateless, v2026::DISCOVER) if !stateless => discover(&backend).await,
        (Exchange::Stateless, "subscriptions/listen") => {
            subscriptions::answer(hub, client, Some(&backend), request, sink).await
        }
        (Exchange::Session, "logging/setLevel") if !has_sessions => set_level(request),
        (Exchange::Session, "resources/subscribe" | "resources/unsubscribe") if !has_sessions => {
            subscriptions::subscribe(hub, client, &backend, request)
        }
        (Exchange::Stateless, method) if task::is_about_a_task(method) => {
            let params = Fields::of(request.params.as_deref());
            task::answer(hub, client, Some(&backend), request, &params, sink).await
        }
        (_, method) => match ListKind::of_method(method) {
            Some(kind) => list(hub, client, &backend, kind, request, sink).await,
            None => {
                let params = Fields::of(request.params.as_deref());
                match hosted_task::begin(hub, client, &backend, method, &params).await {
                    Some(reply) => reply,
                    None => {
                        let reply = call::call(hub, client, &backend, request, sink).await;
                        task::created(hub, client, &backend, reply)
                    }
                }
            }
        },
    };
    if let (true, "logging/setLevel", Some(session)) = (reply.answer.is_ok(), request.method.as_str(), &client.session)
        && let Some(level) = level_of(request)
    {
        session.set_log_level(level);
    }
    subscriptions::note(client, Some(name), &request.method, request.params.as_ref(), &reply).await;
    reply
}

/// A list comes from the backend; while that is away, it is the last one known, and never an empty success.
async fn list(
    hub: &Arc<Hub>,
    client: &ClientContext,
    backend: &Backend,
    kind: ListKind,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    let snapshot = backend.snapshot();
    let first_page = !Fields::of(request.params.as_deref()).has("cursor");
    let remembered = || {
        let meta = json!({ "bowline/stale": true, "bowline/status": backend.snapshot().status.as_str() });
        done(downstream::list(kind.member(), snapshot.catalogue.list(kind), true, Some(raw(&meta))))
    };
    if snapshot.lists.are_known() && !snapshot.is_connected() && first_page {
        return remembered();
    }
    let reply = call::call(hub, client, backend, request, sink).await;
    let away = reply.answer.is_err() && !backend.snapshot().is_connected();
    if away && snapshot.lists.are_known() && first_page { remembered() } else { reply }
}

async fn discover(backend: &Backend) -> CallReply {
    backend.settled(PATIENCE).await;
    done(match backend.snapshot().facts {
        Some(facts) => {
            let info = facts.info.unwrap_or_else(our_info);
            v2026::discovered(&with_hosted_tasks(&facts.capabilities), &info, facts.instructions.as_ref())
        }
        None => {
            let info = raw(&json!({ "name": backend.name(), "version": "0" }));
            v2026::discovered(&unknown_capabilities(), &info, None)
        }
    })
}

/// The hub runs tasks for a server that cannot; those that the server itself has are another thing, which the client cannot use.
fn with_hosted_tasks(capabilities: &Raw) -> Raw {
    let mut capabilities = Fields::of(Some(&facts::with_tasks(capabilities)));
    capabilities.remove("tasks");
    capabilities.to_raw()
}

/// A stateless backend gets the level with each request, so nothing is sent to it now.
fn set_level(request: &RpcRequest) -> CallReply {
    match level_of(request) {
        Some(level) if is_log_level(&level) => done(empty()),
        _ => refuse(message::INVALID_PARAMS, "`level` is missing, or is no log level"),
    }
}

fn level_of(request: &RpcRequest) -> Option<String> {
    Fields::of(request.params.as_deref()).text("level")
}

/// What is said of a backend that was never reached: that it may have anything.
pub fn unknown_capabilities() -> Raw {
    raw(&json!({
        "tools": { "listChanged": true }, "resources": { "listChanged": true }, "prompts": { "listChanged": true },
    }))
}

/// The answer to `initialize`: the backend's own, or what is known of it.
pub async fn initialize(hub: &Arc<Hub>, client: &ClientContext, name: &str, version: &str) -> CallReply {
    let Some(backend) = hub.find(&client.principal, name) else {
        return refuse(message::NOT_FOUND, "there is no such server");
    };
    let request = RpcRequest { id: message::RpcId::number(0), method: "initialize".into(), params: None };
    let (sink, _said) = tokio::sync::mpsc::channel(1);
    let reply = call::call(hub, client, &backend, &request, &sink).await;
    let mut result = match (reply.answer, backend.snapshot().facts) {
        (Ok(result), _) => Fields::of(Some(&result)),
        (Err(_), Some(facts)) => Fields::of(Some(&v2025::initialized(&facts))),
        (Err(_), None) => {
            let mut result = Fields::default();
            result.set("capabilities", unknown_capabilities());
            result.put("serverInfo", &json!({ "name": name, "version": "0" }));
            result
        }
    };
    result.put("protocolVersion", version);
    done(result.to_raw())
}
