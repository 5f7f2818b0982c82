//! `/api/admin/backends`: operators add MCP servers for everybody, remove any, and bring those of the servers file back.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_hub::{AddError, RemoveError};
use bowline_protocol::{ErrorCode, Principal, Refusal};
use bytes::Bytes;
use serde_json::{Value, json};

use super::admin::{Admin, Asked, Owner, bad_query};
use super::chat::read::Name;
use super::problem::Problem;
use crate::hub;
use crate::refusals;
use crate::server::Shared;

/// Long enough for a server that is there; one that is not goes on being dialled.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// Adds a server for everybody. It returns after a restart.
pub async fn add(
    _: Admin,
    State(shared): State<Arc<Shared>>,
    body: Bytes,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let entry: Value = serde_json::from_slice(&body)
        .map_err(|error| Refusal::new(ErrorCode::InvalidJson, format!("The body is not JSON: {error}.")))?;
    let Some(name) = entry.get("name").and_then(Value::as_str) else {
        return Err(Refusal::new(ErrorCode::InvalidPayload, "`name` is missing or not text.").into());
    };
    let backend = shared.hub.add_for_all(name, &entry).await.map_err(refused)?;
    backend.settled(SETTLES_WITHIN).await;
    Ok((StatusCode::CREATED, Json(hub::one_shown(&shared.hub, &backend))))
}

/// Brings back a server of the servers file that was removed.
pub async fn restore(_: Admin, State(shared): State<Arc<Shared>>, Name(name): Name) -> Result<Json<Value>, Problem> {
    let backend = shared.hub.restore(&name).await.map_err(refused)?;
    backend.settled(SETTLES_WITHIN).await;
    Ok(Json(hub::one_shown(&shared.hub, &backend)))
}

fn refused(error: AddError) -> Problem {
    let refusal = Refusal::new(ErrorCode::InvalidPayload, format!("{error}."));
    match error {
        AddError::Store(error) => refusals::of_store(&error).into(),
        AddError::Exists(_) => Problem::with_status(StatusCode::CONFLICT, refusal),
        AddError::NotRemoved(_) => Problem::with_status(StatusCode::NOT_FOUND, refusal),
        AddError::Spec(_) | AddError::StdioForbidden | AddError::TooMany => refusal.into(),
    }
}

/// Removes any server: everybody's, or the one that the principal of `?owner=` added.
pub async fn remove(
    _: Admin,
    State(shared): State<Arc<Shared>>,
    Name(name): Name,
    asked: Asked<Owner>,
) -> Result<Json<Value>, Problem> {
    let Owner { owner } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let removed = match owner.as_deref().map(Principal::parse) {
        None => shared.hub.remove_for_all(&name).await,
        Some(None) => Err(RemoveError::Unknown(name.clone())),
        Some(Some(owner)) => shared.hub.remove_of(&owner, &name).await,
    };
    match removed {
        Ok(()) => Ok(Json(json!({ "removed": true, "name": name }))),
        Err(RemoveError::Store(error)) => Err(refusals::of_store(&error).into()),
        Err(RemoveError::Unknown(_) | RemoveError::OperatorsOnly(_)) => Err(unknown(&name)),
    }
}

pub fn unknown(name: &str) -> Problem {
    let refusal = Refusal::new(ErrorCode::InvalidPayload, format!("There is no server named {name}."));
    Problem::with_status(StatusCode::NOT_FOUND, refusal)
}
