//! `/openapi.json`: what the server answers to, for programs. What it answers follows from the types of the answers; the rest is written
//! here beside the router, and tests hold the two together.

mod chat;
mod operation;
mod operator;
mod responses;
mod schemas;
mod tasks;

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRef, State};
use axum::routing::get;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::endpoints;
use super::problem::ProblemBody;
use crate::auth::Authenticator;
use crate::session::Sessions;
use operation::{Access, ApiOperation, named};

/// What the document depends on.
#[derive(Clone, Debug, FromRef)]
pub struct OpenApiState {
    pub auth: Arc<Authenticator>,
    pub sessions: Arc<Sessions>,
}

endpoints! {
    OpenApiState;
    "/openapi.json" => get(show),
}

/// The document, as it is true for this server.
pub async fn show(State(auth): State<Arc<Authenticator>>, State(sessions): State<Arc<Sessions>>) -> Json<Value> {
    let agents: Vec<&str> = sessions.agents.keys().map(String::as_str).collect();
    Json(document(auth.is_required(), &agents))
}

fn operations() -> impl Iterator<Item = ApiOperation> {
    chat::operations()
        .into_iter()
        .chain(tasks::operations())
        .chain(responses::operations())
        .chain(operator::operations())
}

/// The schemas of all answers, by their names, as they follow from their types.
pub fn answers() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    // Any operation may be refused.
    drop(generator.subschema_for::<ProblemBody>());
    operations().flat_map(|operation| operation.types).for_each(|add| add(&mut generator));
    generator.take_definitions(true)
}

/// The document for a server that asks for a credential, or does not, and has these agents.
pub fn document(auth_required: bool, agents: &[&str]) -> Value {
    let own = ApiOperation::new(Access::Open, "get", "/openapi.json", "getDocument", "This document", "server")
        .answers_content(200, "The document", json!({ "application/json": { "schema": { "type": "object" } } }));
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations().chain([own]) {
        let (path, method) = (operation.path, operation.method);
        let place = paths.entry(path).or_insert_with(|| json!({}));
        place[method] = operation.shown(auth_required);
    }
    let mut schemas = answers();
    schemas.extend(schemas::requests(agents));
    let mut components = json!({
        "schemas": schemas,
        "parameters": schemas::parameters(),
        "headers": { "RetryAfter": {
            "description": "`retry_after_ms` in whole seconds, rounded up.",
            "schema": { "type": "string", "pattern": "^[0-9]+$" },
        } },
    });
    if auth_required {
        let about = "A static token or a JSON Web Token, as the server is configured.";
        components["securitySchemes"] =
            json!({ "bearer": { "type": "http", "scheme": "bearer", "description": about } });
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Bowline",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Agent sessions that stay whole when any link breaks: tasks and their streams over HTTP.",
            "description": ABOUT,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "tags": [
            { "name": "sessions", "description": "Conversations, and the turns in them." },
            { "name": "tasks", "description": "Turns and background operations: how they stand, and their streams." },
            { "name": "producers", "description": "Programs outside that do work, push its chunks and end it." },
            { "name": "ai-sdk", "description": "The two requests that the Vercel AI SDK's own transport makes." },
            { "name": "responses", "description": "The OpenAI Responses API, for any agent." },
            { "name": "server", "description": "For load balancers, Prometheus and programmers." },
            { "name": "admin", "description": "For operators." },
        ],
        "paths": paths,
        "components": components,
    })
}

const ABOUT: &str = "\
A task is work with a stream: one chat turn, or one background operation. It survives every disconnect; readers come and go.

Streams are server-sent events in the UI message stream of the Vercel AI SDK. `id:` is a cursor: come back with it as \
`Last-Event-ID` or `last_message_id`, and exactly what follows is sent. `data: [DONE]` is the last line; a stream that ends \
without it was cut.

In request bodies `null` means the same as leaving a field out, and unknown fields are ignored. An error has the body \
`{code, message, recovery_action, retry_after_ms?, details?}`; a name that does not exist and one that is another principal's are \
answered alike. Endpoints of the Responses API word it as `{error: {message, type, param, code, recovery_action}}`.

Beside this there are three WebSockets: `/ws` for sessions, `/produce` for busy producers, and `/v1/responses` for many responses over one connection.";
