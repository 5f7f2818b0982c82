//! The Tasks extension: whose task it is, and what it is called on either side.

use std::sync::Arc;

use serde_json::json;

use super::subscriptions::ACKNOWLEDGED;
use super::{ClientContext, call};
use crate::backend::Backend;
use crate::call::reply::CallReply;
use crate::call::{InboundSink, capabilities};
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};

/// Tells those who listen how a task stands.
pub const NOTIFICATION: &str = "notifications/tasks";

pub fn is_about_a_task(method: &str) -> bool {
    matches!(method, "tasks/get" | "tasks/update" | "tasks/cancel")
}

/// The server whose task it is, and what that calls it. Nothing if it does not exist or is another client's.
pub async fn whose<'a>(hub: &Hub, client: &ClientContext, name: &'a str) -> Option<(Backend, &'a str)> {
    let (server, own) = hub.task_names.resolve(&client.principal, name)?;
    hub.find_anywhere(&client.principal, server).await.map(|backend| (backend, own))
}

/// Passes a request about a task on to the server whose task it is; to no other than `only`.
pub async fn answer(
    hub: &Arc<Hub>,
    client: &ClientContext,
    only: Option<&Backend>,
    request: &RpcRequest,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    if !declares(client) {
        let data = json!({ "requiredCapabilities": { "extensions": { capabilities::TASKS_EXTENSION: {} } } });
        let error = message::error_with(message::MISSING_CAPABILITY, "the Tasks extension is needed", &data);
        return CallReply::new(Err(error));
    }
    let id = params.text("taskId").unwrap_or_default();
    let found = whose(hub, client, &id).await;
    let found = found.filter(|(backend, _)| only.is_none_or(|only| only.key == backend.key));
    let Some((backend, own)) = found else {
        let data = json!({ "taskId": id });
        return CallReply::new(Err(message::error_with(message::INVALID_PARAMS, "there is no such task", &data)));
    };
    let mut params = params.clone();
    params.put("taskId", own);
    let reply = call::pass(hub, client, &backend, &request.method, &params, sink).await;
    renamed(hub, client, &backend, reply)
}

/// The reply to a call, which a server may have made a task of.
pub fn created(hub: &Hub, client: &ClientContext, backend: &Backend, reply: CallReply) -> CallReply {
    let kind = |result: &Raw| Fields::of(Some(result)).text("resultType");
    let is_task = declares(client) && reply.answer.as_ref().is_ok_and(|result| kind(result).as_deref() == Some("task"));
    if is_task { renamed(hub, client, backend, reply) } else { reply }
}

/// A reply about a task, in which the task has the name that its owner knows.
fn renamed(hub: &Hub, client: &ClientContext, backend: &Backend, reply: CallReply) -> CallReply {
    CallReply { answer: reply.answer.map(|result| named(hub, client, backend, &result)), ..reply }
}

fn named(hub: &Hub, client: &ClientContext, backend: &Backend, about: &Raw) -> Raw {
    let mut fields = Fields::of(Some(about));
    if let Some(own) = fields.text("taskId") {
        fields.put("taskId", &hub.task_names.name(&client.principal, backend.name(), &own));
    }
    fields.to_raw()
}

/// A subscription as its server is asked for it: with the server's own names of the client's own tasks.
pub fn asked_of(hub: &Hub, client: &ClientContext, backend: &Backend, params: Option<&Raw>) -> Option<Raw> {
    renamed_in_filter(params, |name| match hub.task_names.resolve(&client.principal, name) {
        Some((server, own)) if server == backend.name() => Some(own.to_owned()),
        _ => None,
    })
}

/// What a server says to one who listens, with the names that the client knows.
pub fn told_by(hub: &Hub, client: &ClientContext, backend: &Backend, method: &str, params: Option<Raw>) -> Option<Raw> {
    match method {
        NOTIFICATION => params.map(|params| named(hub, client, backend, &params)),
        ACKNOWLEDGED => {
            renamed_in_filter(params.as_ref(), |own| Some(hub.task_names.name(&client.principal, backend.name(), own)))
        }
        _ => params,
    }
}

fn renamed_in_filter(params: Option<&Raw>, rename: impl Fn(&str) -> Option<String>) -> Option<Raw> {
    let mut fields = Fields::of(params.map(|raw| &**raw));
    let mut filter = fields.object("notifications");
    let Some(tasks) = filter.read::<Vec<String>>("taskIds") else { return params.cloned() };
    filter.put("taskIds", &tasks.iter().filter_map(|name| rename(name)).collect::<Vec<_>>());
    fields.set("notifications", filter.to_raw());
    Some(fields.to_raw())
}

fn declares(client: &ClientContext) -> bool {
    capabilities::has_tasks(&client.caller.client.capabilities)
}
