//! `/healthz`, `/readyz`, `/metrics`: for load balancers and Prometheus.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::server::Shared;

/// Alive: the process answers.
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Ready: recovered, the store takes events, the other nodes can see this one, not draining.
pub async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let health = shared.store.health();
    let ready = shared.is_ready();
    let mute = shared.cluster.as_ref().and_then(|cluster| cluster.mute());
    let node = shared
        .cluster
        .as_ref()
        .map(|cluster| json!({ "name": cluster.name.as_str(), "incarnation": cluster.incarnation(), "trouble": mute }));
    let body = json!({
        "ready": ready,
        "draining": shared.is_draining(),
        "store": {
            "writable": health.writable,
            "loss_window": health.loss_window,
            "troubles": health.troubles,
            "quarantined": health.quarantined,
        },
        "node": node,
    });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    crate::hub::measure(&shared.hub, &shared.metrics);
    let health = shared.store.health();
    shared.metrics.store_bytes.set(health.bytes as i64);
    shared.metrics.store_logs.set(health.logs as i64);
    shared.metrics.store_quarantined.set(health.quarantined.len() as i64);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], shared.metrics.render()).into_response()
}
