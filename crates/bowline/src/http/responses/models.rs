//! `/v1/models`: the agents of this server, under the name that the API has for what answers.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bowline_protocol::{ErrorCode, Refusal};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::chat::Owner;
use super::super::chat::read::Name;
use super::super::problem::Problem;
use super::super::sorted::Sorted;
use crate::session::Sessions;

/// An agent, as the API tells of a model.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Model {
    id: String,
    object: ModelObject,
    /// When an agent was made is not known, so it is as old as time.
    created: u64,
    owned_by: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ModelObject {
    Model,
}

/// The agents of this server.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Models")]
pub(crate) struct ModelList {
    object: ListObject,
    data: Vec<Model>,
}

/// What the API calls any list.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum ListObject {
    List,
}

pub async fn list(_: Owner, State(sessions): State<Arc<Sessions>>) -> Response {
    let data = sessions.agents.keys().map(|name| model(name)).collect();
    Sorted(ModelList { object: ListObject::List, data }).into_response()
}

pub async fn show(_: Owner, State(sessions): State<Arc<Sessions>>, Name(name): Name) -> Result<Response, Problem> {
    if sessions.agents.contains_key(&name) {
        return Ok(Sorted(model(&name)).into_response());
    }
    Err(Refusal::new(ErrorCode::TaskNotFound, "There is no such model: `/v1/models` lists the agents.").into())
}

fn model(name: &str) -> Model {
    Model { id: name.to_owned(), object: ModelObject::Model, created: 0, owned_by: "bowline" }
}
