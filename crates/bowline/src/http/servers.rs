//! `/api/admin/backends`: operators add MCP servers for all clients, remove any, and bring those of the servers file back.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use bowline_hub::{AddError, Backend, Hub, RemoveError};
use bowline_protocol::{ErrorCode, Principal, Refusal};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::admin::{Admin, QueryResult, bad_query};
use super::admission::AdmissionRules;
use super::chat::read::Name;
use super::endpoints;
use super::problem::Problem;
use super::sorted::Sorted;
use crate::cluster::Cluster;
use crate::drive;
use crate::hub::{self, BackendView, Backends, backend_view, backend_views};
use crate::refusals;
use crate::schema;

/// Long enough for a server that is there; one that is not goes on being dialled.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// What these endpoints are made of.
#[derive(Clone, Debug, FromRef)]
pub struct ServersState {
    pub admission: Arc<AdmissionRules>,
    pub cluster: Option<Arc<Cluster>>,
    pub hub: Arc<Hub>,
}

endpoints! {
    ServersState;
    "/api/admin/backends" => get(backends).post(add),
    "/api/admin/backends/{name}" => delete(remove),
    "/api/admin/backends/{name}/reconnect" => post(reconnect),
    "/api/admin/backends/{name}/restore" => post(restore),
}

/// The backends of this node, and those of the others as they showed them last; and which of the servers file were removed.
async fn backends(
    _: Admin,
    State(hub): State<Arc<Hub>>,
    State(cluster): State<Option<Arc<Cluster>>>,
) -> Sorted<Backends> {
    let mut views = backend_views(&hub);
    let Some(cluster) = &cluster else { return Sorted(views) };
    views.backends = views.backends.into_iter().map(|backend| backend.of_node(cluster.name.as_str())).collect();
    match drive::cluster::others(cluster).await {
        Ok(others) => {
            let alive = others.into_iter().filter(|(node, record)| !record.left && !cluster.is_dead(node));
            for (node, record) in alive.filter(|(_, record)| !record.backends.is_null()) {
                match serde_json::from_value::<Backends>(record.backends) {
                    Ok(theirs) => {
                        views
                            .backends
                            .extend(theirs.backends.into_iter().map(|backend| backend.of_node(node.as_str())));
                    }
                    Err(error) => tracing::warn!(%node, %error, "the backends of another node cannot be read"),
                }
            }
        }
        Err(error) => tracing::warn!(%error, "the backends of other nodes cannot be seen"),
    }
    Sorted(views)
}

/// How a dial went that was asked for.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BackendReconnected")]
pub(crate) struct Reconnected {
    success: bool,
    #[schemars(schema_with = "hub::status")]
    status: &'static str,
}

/// A server is removed.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BackendRemoved")]
pub(crate) struct Removed {
    #[schemars(schema_with = "schema::only_true")]
    removed: bool,
    name: String,
}

fn answered(hub: &Hub, backend: &Backend) -> Result<Sorted<BackendView>, Problem> {
    backend_view(hub, backend).map(Sorted).map_err(|error| {
        tracing::error!(%error, server = backend.name(), "what a server shows cannot be read");
        Refusal::new(ErrorCode::Internal, "What this server shows cannot be read; the log says why.").into()
    })
}

#[derive(Debug, Deserialize)]
pub struct OwnerQuery {
    pub owner: Option<String>,
}

/// Dials a backend now, and answers when that is over.
async fn reconnect(
    _: Admin,
    State(hub): State<Arc<Hub>>,
    Name(name): Name,
    asked: QueryResult<OwnerQuery>,
) -> Result<Sorted<Reconnected>, Problem> {
    let OwnerQuery { owner } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let wanted = |backend: &Backend| {
        backend.name() == name && backend.key.owner.as_ref().map(|owner| owner.as_str()) == owner.as_deref()
    };
    let Some(backend) = hub.all().into_iter().find(wanted) else { return Err(unknown(&name)) };
    let success = backend.reconnect().await;
    Ok(Sorted(Reconnected { success, status: backend.snapshot().status.as_str() }))
}

/// Adds a server for all clients. It returns after a restart.
async fn add(_: Admin, State(hub): State<Arc<Hub>>, body: Bytes) -> Result<(StatusCode, Sorted<BackendView>), Problem> {
    let entry: Value = serde_json::from_slice(&body)
        .map_err(|error| Refusal::new(ErrorCode::InvalidJson, format!("The body is not JSON: {error}.")))?;
    let Some(name) = entry.get("name").and_then(Value::as_str) else {
        return Err(Refusal::new(ErrorCode::InvalidPayload, "`name` is missing or not text.").into());
    };
    let backend = hub.add_for_all(name, &entry).await.map_err(refused)?;
    backend.settled(SETTLES_WITHIN).await;
    Ok((StatusCode::CREATED, answered(&hub, &backend)?))
}

/// Brings back a server of the servers file that was removed.
async fn restore(_: Admin, State(hub): State<Arc<Hub>>, Name(name): Name) -> Result<Sorted<BackendView>, Problem> {
    let backend = hub.restore(&name).await.map_err(refused)?;
    backend.settled(SETTLES_WITHIN).await;
    answered(&hub, &backend)
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

/// Removes any server: a shared one, or the one that the principal of `?owner=` added.
async fn remove(
    _: Admin,
    State(hub): State<Arc<Hub>>,
    Name(name): Name,
    asked: QueryResult<OwnerQuery>,
) -> Result<Sorted<Removed>, Problem> {
    let OwnerQuery { owner } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let removed = match owner.as_deref().map(Principal::parse) {
        None => hub.remove_for_all(&name).await,
        Some(None) => Err(RemoveError::Unknown(name.clone())),
        Some(Some(owner)) => hub.remove_of(&owner, &name).await,
    };
    match removed {
        Ok(()) => Ok(Sorted(Removed { removed: true, name })),
        Err(RemoveError::Store(error)) => Err(refusals::of_store(&error).into()),
        Err(RemoveError::Unknown(_) | RemoveError::OperatorsOnly(_)) => Err(unknown(&name)),
    }
}

fn unknown(name: &str) -> Problem {
    let refusal = Refusal::new(ErrorCode::InvalidPayload, format!("There is no server named {name}."));
    Problem::with_status(StatusCode::NOT_FOUND, refusal)
}
