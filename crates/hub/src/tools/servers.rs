//! Tools about the servers themselves.

use std::time::Duration;

use bowline_protocol::ErrorCode;
use serde_json::{Value, json};

use super::{HubToolOutcome, ToolInvocation};
use crate::backend::Backend;
use crate::fields::Fields;
use crate::hub::AddError;
use crate::requester::RequesterRole;

pub(crate) async fn add(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let name = call.text("name")?;
    let entry: Value = serde_json::from_str(call.arguments.to_raw().get()).unwrap_or_default();
    let restored = restore(call, &name, &entry).await?;
    let added = match restored {
        Some(restored) => restored,
        None => call.hub.add(&call.client.principal, &name, &entry).await.map_err(|error| error.to_string())?,
    };
    // Long enough for a server that is there; one that is not goes on being dialled.
    added.settled(Duration::from_secs(10)).await;
    Ok(HubToolOutcome::Exact(added.shown().to_raw()))
}

/// The name alone brings back what an operator removed of the configuration, which is the only thing that knows where it leads.
async fn restore(call: &ToolInvocation<'_>, name: &str, entry: &Value) -> Result<Option<Backend>, String> {
    let name_alone = entry.as_object().is_some_and(|members| members.keys().all(|member| member == "name"));
    if !name_alone || call.client.role != RequesterRole::Operator {
        return Ok(None);
    }
    match call.hub.restore(name).await {
        Ok(restored) => Ok(Some(restored)),
        Err(AddError::NotRemoved(_)) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) async fn remove(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let name = call.text("name")?;
    call.hub.remove(&call.client.requester(), &name).await.map_err(|error| error.to_string())?;
    Ok(HubToolOutcome::Facts(json!({ "removed": true, "name": name })))
}

pub(crate) fn list(call: &ToolInvocation<'_>) -> HubToolOutcome {
    let servers: Vec<Fields> = call.hub.visible(&call.client.principal).iter().map(|backend| backend.shown()).collect();
    HubToolOutcome::Exact(Fields::default().and("servers", &servers).to_raw())
}

pub(crate) async fn reconnect(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let name = call.text("name")?;
    let backend = call.hub.find_anywhere(&call.client.principal, &name).await;
    let backend = backend.ok_or_else(|| format!("there is no server named {name}"))?;
    let success = match call.hub.force_reconnect(&call.client.requester(), &backend).await {
        Ok(success) => success,
        Err(retry_after) => return Ok(HubToolOutcome::RateLimited(limited(&name, retry_after))),
    };
    let snapshot = backend.snapshot();
    Ok(HubToolOutcome::Facts(
        json!({ "success": success, "status": snapshot.status.as_str(), "lastError": snapshot.last_error }),
    ))
}

fn limited(name: &str, retry_after: Duration) -> Value {
    let seconds = retry_after.as_secs() + 1;
    let error = format!(
        "{name} is shared by all clients, and you have forced its reconnect too often; try again in {seconds} s, or ask an operator. \
         While it is away, the hub dials it again by itself"
    );
    let ms = retry_after.as_millis() as u64 + 1;
    json!({ "error": error, "code": ErrorCode::RateLimited.as_str(), "retryAfterMs": ms, "limit": "hub.forced_reconnects_per_minute_max" })
}
