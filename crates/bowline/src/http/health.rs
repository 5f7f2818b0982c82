//! `/healthz`, `/readyz`, `/metrics`: for load balancers and Prometheus; and the metrics again for operators.

use std::sync::Arc;

use axum::extract::{FromRef, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bowline_hub::Hub;
use schemars::JsonSchema;
use serde::Serialize;

use super::admin::Admin;
use super::admission::AdmissionRules;
use super::endpoints;
use super::sorted::Sorted;
use crate::metrics::Metrics;
use crate::readiness::{Readiness, StoreHealth};

/// What these endpoints are made of.
#[derive(Clone, Debug, FromRef)]
pub struct HealthState {
    pub admission: Arc<AdmissionRules>,
    pub hub: Arc<Hub>,
    pub metrics: Arc<Metrics>,
    pub readiness: Arc<Readiness>,
}

endpoints! {
    HealthState;
    "/healthz" => get(healthz),
    "/readyz" => get(readyz),
    "/metrics" => get(metrics),
    "/api/admin/metrics" => get(metrics_for_admins),
}

/// Whether the server takes traffic.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Readiness")]
pub(crate) struct ReadinessReport {
    ready: bool,
    draining: bool,
    store: StoreHealth,
    /// Null where a server shares its store with no other.
    node: Option<NodeHealth>,
}

/// This server among those on the same store.
#[derive(Serialize, JsonSchema)]
struct NodeHealth {
    name: String,
    incarnation: u64,
    /// Why the others cannot see it.
    trouble: Option<String>,
}

/// Alive: the process answers.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Ready: recovered, the store takes events, the other nodes can see this one, not draining.
async fn readyz(State(readiness): State<Arc<Readiness>>) -> Response {
    let ready = readiness.is_ready();
    let node = readiness.cluster.as_ref().map(|cluster| NodeHealth {
        name: cluster.name.as_str().to_owned(),
        incarnation: cluster.incarnation(),
        trouble: cluster.heartbeat_failure(),
    });
    let report = ReadinessReport {
        ready,
        draining: readiness.lifecycle.is_draining(),
        store: readiness.store.health().into(),
        node,
    };
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Sorted(report)).into_response()
}

async fn metrics(State(HealthState { hub, metrics, readiness, .. }): State<HealthState>) -> Response {
    crate::hub::measure(&hub, &metrics);
    let health = readiness.store.health();
    metrics.store_bytes.set(health.bytes as i64);
    metrics.store_logs.set(health.logs as i64);
    metrics.store_quarantined.set(health.quarantined.len() as i64);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics.render()).into_response()
}

/// What `/metrics` says, for those whose `/metrics` is closed to the outside.
async fn metrics_for_admins(_: Admin, state: State<HealthState>) -> Response {
    metrics(state).await
}
