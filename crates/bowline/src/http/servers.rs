//! `/api/admin/backends`: operators add MCP servers for everybody, and remove them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_hub::{AddError, Removed};
use bowline_protocol::{ErrorCode, Principal, Refusal};
use bytes::Bytes;
use serde_json::{Value, json};

use super::admin::{Admin, Asked, Owner, bad_query};
use super::chat::read::Name;
use super::problem::Problem;
use crate::hub;
use crate::node::{self, Shared};

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

fn refused(error: AddError) -> Problem {
    let refusal = Refusal::new(ErrorCode::InvalidPayload, format!("{error}."));
    match error {
        AddError::Store(error) => node::store_refusal(&error).into(),
        AddError::Exists(_) => Problem::with_status(StatusCode::CONFLICT, refusal),
        AddError::Spec(_) | AddError::StdioForbidden | AddError::TooMany => refusal.into(),
    }
}

/// Removes one that was added at run time: everybody's, or that of `?owner=`.
pub async fn remove(
    _: Admin,
    State(shared): State<Arc<Shared>>,
    Name(name): Name,
    asked: Asked<Owner>,
) -> Result<Json<Value>, Problem> {
    let Owner { owner } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let removed = match owner.as_deref().map(Principal::parse) {
        None => shared.hub.remove_for_all(&name).await,
        Some(None) => Ok(Removed::Unknown),
        Some(Some(owner)) => {
            let removed = shared.hub.remove(&owner, &name).await;
            removed.map(|removed| if removed { Removed::Done } else { Removed::Unknown })
        }
    };
    match removed.map_err(|error| node::store_refusal(&error))? {
        Removed::Done => Ok(Json(json!({ "removed": true, "name": name }))),
        Removed::Unknown => Err(unknown(&name)),
        Removed::Configured => {
            let text = format!("{name} is in the file of `hub.servers_file`. Remove it there.");
            Err(Problem::with_status(StatusCode::CONFLICT, Refusal::new(ErrorCode::InvalidPayload, text)))
        }
    }
}

pub fn unknown(name: &str) -> Problem {
    let refusal = Refusal::new(ErrorCode::InvalidPayload, format!("There is no server named {name}."));
    Problem::with_status(StatusCode::NOT_FOUND, refusal)
}
