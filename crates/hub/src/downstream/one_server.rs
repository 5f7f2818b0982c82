//! One backend as it is: nothing is renamed but tasks, which are their owner's, and what it cannot say while it is away is said from memory.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::backend::Backend;
use crate::call::facts::is_log_level;
use crate::call::{CallReply, Exchange, InboundSink, done, refuse};
use crate::catalogue::ListKind;
use crate::downstream::{self, speaks};
use crate::fields::{Fields, Raw, empty, raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
use crate::relay::{ClientContext, call, hosted_task, subscriptions, task};
use crate::revision::{Revision, ServerIntroduction};

/// How long the first request waits to learn what a backend is.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn answer(
    hub: &Arc<Hub>,
    revision: &dyn Revision,
    client: &ClientContext,
    name: &str,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    let Some(backend) = hub.find(&client.principal, name) else {
        return refuse(message::NOT_FOUND, "there is no such server");
    };
    let has_sessions = backend.offers(Exchange::Session);
    // A server that speaks as the client does judges its requests itself.
    let judges_itself = speaks(&backend, revision);
    let refusal = revision.removed(&request.method).filter(|_| !judges_itself);
    // What is seldom asked for is boxed, or each call would have room for it.
    let reply = match (refusal, client.exchange(), request.method.as_str()) {
        (Some(refusal), _, _) => refusal,
        (None, Exchange::Session, "ping") => done(empty()),
        (None, Exchange::Stateless, method) if method == revision.opening_method() && !judges_itself => {
            Box::pin(discover(&backend, revision)).await
        }
        (None, Exchange::Stateless, "subscriptions/listen") => {
            Box::pin(subscriptions::answer(hub, client, Some(&backend), request, sink)).await
        }
        (None, Exchange::Session, "logging/setLevel") if !has_sessions => set_level(request),
        (None, Exchange::Session, "resources/subscribe" | "resources/unsubscribe") if !has_sessions => {
            subscriptions::subscribe(hub, client, &backend, request)
        }
        (None, Exchange::Stateless, method) if task::is_about_a_task(method) => {
            let params = Fields::of(request.params.as_deref());
            Box::pin(task::answer(hub, client, Some(&backend), request, &params, sink)).await
        }
        (None, _, method) => match ListKind::of_method(method) {
            Some(kind) => Box::pin(list(hub, client, &backend, kind, request, sink)).await,
            None => {
                let params = || Fields::of(request.params.as_deref());
                match hosted_task::begin(hub, client, &backend, method, params).await {
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
    subscriptions::note(client, Some(name), &request.method, request.params.as_deref(), &reply).await;
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

async fn discover(backend: &Backend, revision: &dyn Revision) -> CallReply {
    backend.settled(PATIENCE).await;
    done(introduced(backend, revision, revision.versions()[0]))
}

/// What is known of a backend, for a client of this revision.
fn introduced(backend: &Backend, revision: &dyn Revision, version: &str) -> Raw {
    let server = match backend.snapshot().facts {
        Some(facts) => revision.across(&facts),
        None => ServerIntroduction {
            capabilities: unknown_capabilities(),
            info: raw(&json!({ "name": backend.name(), "version": "0" })),
            instructions: None,
        },
    };
    revision.introduced(&server, version)
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
pub async fn initialize(
    hub: &Arc<Hub>,
    revision: &dyn Revision,
    client: &ClientContext,
    name: &str,
    version: &str,
) -> CallReply {
    let Some(backend) = hub.find(&client.principal, name) else {
        return refuse(message::NOT_FOUND, "there is no such server");
    };
    let request = RpcRequest { id: message::RpcId::number(0), method: "initialize".into(), params: None };
    let (sink, _said) = tokio::sync::mpsc::channel(1);
    let reply = call::call(hub, client, &backend, &request, &sink).await;
    let Ok(result) = reply.answer else { return done(introduced(&backend, revision, version)) };
    let mut result = Fields::of(Some(&result));
    result.put("protocolVersion", version);
    done(result.to_raw())
}
