//! What load balancers, Prometheus and operators ask for.

use bowline_protocol::ErrorCode::{SessionNotFound, TaskNotFound};
use serde_json::{Value, json};

use super::schemas::log_cursor;
use super::{Access, ApiOperation, named};
use crate::config::EffectiveSettings;
use crate::http::admin::node::NodeFacts;
use crate::http::admin::sessions::{AllSessions, AnySession};
use crate::http::admin::tasks::AllTasks;
use crate::http::health::ReadinessReport;
use crate::http::problem::ProblemBody;
use crate::http::servers::{Reconnected, Removed};
use crate::hub::{BackendView, Backends};

fn server(path: &'static str, id: &str, summary: &str) -> ApiOperation {
    ApiOperation::new(Access::Open, "get", path, id, summary, "server")
}

fn admin(path: &'static str, id: &str, summary: &str) -> ApiOperation {
    ApiOperation::new(Access::Admin, "get", path, id, summary, "admin")
}

fn text(kind: &str) -> Value {
    let mut content = json!({});
    content[kind] = json!({ "schema": { "type": "string" } });
    content
}

pub fn operations() -> [ApiOperation; 16] {
    let page = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX });
    [
        server("/healthz", "isAlive", "Whether the process answers").answers_content(
            200,
            "It does",
            text("text/plain"),
        ),
        server("/readyz", "isReady", "Whether the server takes traffic")
            .answers::<ReadinessReport>(200, "It does")
            .answers::<ReadinessReport>(503, "It does not: it is starting or leaving, or the store takes no events"),
        server("/metrics", "getMetrics", "Metrics for Prometheus").answers_content(
            200,
            "In the OpenMetrics text format",
            text("application/openmetrics-text"),
        ),
        admin("/api/admin/node", "getNode", "This server: version, store, counts")
            .answers::<NodeFacts>(200, "The server"),
        admin("/api/admin/metrics", "getMetricsAsAdmin", "The same as `/metrics`, for operators").answers_content(
            200,
            "In the OpenMetrics text format",
            text("application/openmetrics-text"),
        ),
        admin("/api/admin/config", "getConfig", "The settings in force, without secrets")
            .answers::<EffectiveSettings>(200, "The settings"),
        admin("/api/admin/sessions", "listAllSessions", "All principals' sessions, the newest activity first")
            .query("limit", "How many; 100 if left out, at most 1000", &page)
            .query("offset", "How many to skip", &page)
            .answers::<AllSessions>(200, "Some of them, and how many there are"),
        admin("/api/admin/sessions/{id}", "getAnySession", "One session, with how full its buffer is")
            .path("id", "The session")
            .answers::<AnySession>(200, "The session")
            .refuses(&[SessionNotFound]),
        admin("/api/admin/sessions/{id}/events", "tailSession", "A session's log, live")
            .path("id", "The session")
            .header("LastEventIdOfLog")
            .query("from", "The cursor; the header wins", &log_cursor())
            .answers_content(
                200,
                "Events as they are logged; `event: end` when the session is over",
                json!({ "text/event-stream": { "schema": named("StreamEvent") } }),
            )
            .refuses(&[SessionNotFound]),
        admin("/api/admin/backends", "listBackends", "Every MCP server, with its status")
            .answers::<Backends>(200, "All of them, and under `removed` those of the servers file that were removed"),
        ApiOperation::new(
            Access::Admin,
            "post",
            "/api/admin/backends",
            "addBackend",
            "Adds an MCP server for all clients; it returns after a restart",
            "admin",
        )
        .takes("NewBackend", true, &json!({ "name": "search", "url": "https://search.example/mcp" }))
        .answers::<BackendView>(201, "The server, as it is after its first dial")
        .answers::<ProblemBody>(409, "There is a server of this name"),
        ApiOperation::new(
            Access::Admin,
            "delete",
            "/api/admin/backends/{name}",
            "removeBackend",
            "Removes an MCP server on all nodes; one of the servers file until its entry changes or it is restored",
            "admin",
        )
        .path("name", "The server")
        .query("owner", "Whose it is; that of all clients if left out", &json!({ "type": "string" }))
        .answers::<Removed>(200, "It is removed")
        .answers::<ProblemBody>(404, "There is no server of this name"),
        ApiOperation::new(
            Access::Admin,
            "post",
            "/api/admin/backends/{name}/restore",
            "restoreBackend",
            "Brings back an MCP server of the servers file that was removed, on all nodes",
            "admin",
        )
        .path("name", "The server")
        .answers::<BackendView>(200, "The server, as it is after its first dial")
        .answers::<ProblemBody>(404, "No server of this name was removed")
        .answers::<ProblemBody>(409, "There is a server of this name, which was added since"),
        ApiOperation::new(
            Access::Admin,
            "post",
            "/api/admin/backends/{name}/reconnect",
            "reconnectBackend",
            "Dials an MCP server now and answers when that is over",
            "admin",
        )
        .path("name", "The server")
        .query("owner", "Whose it is, if it was added at run time", &json!({ "type": "string" }))
        .answers::<Reconnected>(200, "How it went")
        .answers::<ProblemBody>(404, "There is no server of this name"),
        admin("/api/admin/tasks", "listAllTasks", "All principals' tasks with a log of their own, the newest first")
            .query("limit", "How many; 100 if left out, at most 1000", &page)
            .query("offset", "How many to skip", &page)
            .answers::<AllTasks>(200, "Some of them, and how many there are"),
        admin(
            "/api/admin/tasks/{id}/events",
            "tailTask",
            "A task's log, live; a turn's is its session's from there on",
        )
        .path("id", "The task")
        .header("LastEventIdOfLog")
        .query("from", "The cursor; the header wins", &log_cursor())
        .answers_content(
            200,
            "Events as they are logged; `event: end` when the task is over",
            json!({ "text/event-stream": { "schema": named("StreamEvent") } }),
        )
        .refuses(&[SessionNotFound, TaskNotFound]),
    ]
}
