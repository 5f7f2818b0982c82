//! Tools about the servers themselves.

use serde_json::{Value, json};

use super::{Call, Outcome};
use crate::fields::Fields;

pub(crate) async fn add(call: &Call<'_>) -> Result<Outcome, String> {
    let name = call.text("name")?;
    let entry: Value = serde_json::from_str(call.arguments.to_raw().get()).unwrap_or_default();
    let added = call.hub.add(&call.client.principal, &name, &entry).await.map_err(|error| error.to_string())?;
    // Long enough for a server that is there; one that is not goes on being dialled.
    added.settled(std::time::Duration::from_secs(10)).await;
    Ok(Outcome::Exact(added.shown().to_raw()))
}

pub(crate) async fn remove(call: &Call<'_>) -> Result<Outcome, String> {
    let name = call.text("name")?;
    let removed = call.hub.remove(&call.client.principal, &name).await.map_err(|error| error.to_string())?;
    if removed {
        return Ok(Outcome::Facts(json!({ "removed": true, "name": name })));
    }
    match call.hub.find_anywhere(&call.client.principal, &name).await {
        Some(_) => Err(format!("{name} is in the configuration; only an operator can remove it")),
        None => Err(format!("there is no server named {name}")),
    }
}

pub(crate) fn list(call: &Call<'_>) -> Outcome {
    let servers: Vec<Fields> = call.hub.visible(&call.client.principal).iter().map(|backend| backend.shown()).collect();
    Outcome::Exact(Fields::default().and("servers", &servers).to_raw())
}

pub(crate) async fn reconnect(call: &Call<'_>) -> Result<Outcome, String> {
    let name = call.text("name")?;
    let backend = call.hub.find_anywhere(&call.client.principal, &name).await;
    let backend = backend.ok_or_else(|| format!("there is no server named {name}"))?;
    let success = backend.reconnect().await;
    let snapshot = backend.snapshot();
    Ok(Outcome::Facts(
        json!({ "success": success, "status": snapshot.status.as_str(), "lastError": snapshot.last_error }),
    ))
}
