//! Tools for clients that cannot answer servers by themselves.

use serde_json::json;

use super::{HubToolOutcome, ToolInvocation};
use crate::fields::{Fields, raw};
use crate::message;
use crate::session::server_request::ServerRequestKind;

fn kind_of(name: &str) -> ServerRequestKind {
    if name.contains("sampling") { ServerRequestKind::Sampling } else { ServerRequestKind::Elicitation }
}

pub(crate) async fn list(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let server = call.arguments.text("server");
    let pending = match call.known_session().await? {
        Some(session) => session.pending(Some(kind_of(name))),
        None => Vec::new(),
    };
    let wanted = |one: &Fields| server.is_none() || one.text("server") == server;
    let pending: Vec<Fields> = pending.into_iter().filter(wanted).collect();
    Ok(HubToolOutcome::Exact(Fields::default().and("requests", &pending).to_raw()))
}

pub(crate) async fn respond(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let id = call.text("id")?;
    let result = match kind_of(name) {
        ServerRequestKind::Sampling => {
            call.arguments.get("result").map(ToOwned::to_owned).ok_or("`result` is missing")?
        }
        _ => {
            let action = call.text("action")?;
            if !["accept", "decline", "cancel"].contains(&action.as_str()) {
                return Err("`action` must be accept, decline or cancel".into());
            }
            let mut result = Fields::default();
            result.put("action", &action);
            if let Some(content) = call.arguments.get("content") {
                result.set("content", content.to_owned());
            }
            result.to_raw()
        }
    };
    settle(call, kind_of(name), &id, Ok(result)).await
}

pub(crate) async fn cancel(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let id = call.text("id")?;
    let reason = call.arguments.text("reason").unwrap_or_else(|| "the client refused".into());
    let answer = match kind_of(name) {
        ServerRequestKind::Sampling => Err(message::error(-1, &reason)),
        _ => Ok(raw(&json!({ "action": "cancel" }))),
    };
    settle(call, kind_of(name), &id, answer).await
}

/// An answer counts once; the second one gets an error.
async fn settle(
    call: &ToolInvocation<'_>,
    kind: ServerRequestKind,
    id: &str,
    answer: message::RpcResult,
) -> Result<HubToolOutcome, String> {
    let session = call.known_session().await?.ok_or("`handle` is missing")?;
    if session.answer_as(kind, id, answer) {
        Ok(HubToolOutcome::Facts(json!({ "answered": true, "id": id })))
    } else {
        Err(format!("{id} is not waiting for an answer any more"))
    }
}
