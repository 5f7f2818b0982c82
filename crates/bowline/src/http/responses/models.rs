//! `/v1/models`: the agents of this server, under the name that the API has for what answers.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bowline_protocol::{ErrorCode, Refusal};
use serde_json::{Value, json};

use super::super::chat::Owner;
use super::super::chat::read::Name;
use super::super::problem::Problem;
use crate::session::Sessions;

pub async fn list(_: Owner, State(sessions): State<Arc<Sessions>>) -> Response {
    let models: Vec<Value> = sessions.agents.keys().map(|name| model(name)).collect();
    Json(json!({ "object": "list", "data": models })).into_response()
}

pub async fn show(_: Owner, State(sessions): State<Arc<Sessions>>, Name(name): Name) -> Result<Response, Problem> {
    if sessions.agents.contains_key(&name) {
        return Ok(Json(model(&name)).into_response());
    }
    Err(Refusal::new(ErrorCode::TaskNotFound, "There is no such model: `/v1/models` lists the agents.").into())
}

/// When an agent was made is not known, so it is as old as time.
fn model(name: &str) -> Value {
    json!({ "id": name, "object": "model", "created": 0, "owned_by": "bowline" })
}
