//! `/api/admin/node`: this server, with its store and its counts.

use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::sorted::Sorted;
use super::{Admin, AdminState};
use crate::config::{StoreUrl, SyncMode};
use crate::readiness::StoreHealth;
use crate::session::record::SessionState;
use crate::task::status::Status;

/// This server: version, store, counts.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Node")]
pub(crate) struct NodeFacts {
    version: &'static str,
    uptime_seconds: u64,
    /// Where it listens.
    listen: String,
    ready: bool,
    draining: bool,
    default_agent: String,
    agents: Vec<String>,
    store: NodeStore,
    connections: i64,
    sessions: SessionCounts,
    tasks: TaskCounts,
    streams: i64,
    runs_active: i64,
    events_appended: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct NodeStore {
    url: String,
    sync: StoreSync,
    #[serde(flatten)]
    health: StoreHealth,
    bytes: u64,
    logs: u64,
}

/// When what was stored is safe from a power cut.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum StoreSync {
    Always,
    Interval,
    #[serde(rename = "by Redis")]
    ByRedis,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct SessionCounts {
    idle: i64,
    running: i64,
    waiting: i64,
    ended: i64,
    held: i64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct TaskCounts {
    running: i64,
    completed: i64,
    failed: i64,
    cancelled: i64,
}

pub async fn node(_: Admin, State(state): State<AdminState>) -> Sorted<NodeFacts> {
    let AdminState { settings, logs, metrics, readiness, sessions, .. } = state;
    let health = logs.store.health();
    let config = &settings.config;
    let session_count = |state: SessionState| metrics.session_state(state.as_str()).get();
    let task_count = |status: Status| metrics.task_state(status.as_str()).get();
    Sorted(NodeFacts {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: logs.clock.uptime().as_secs(),
        listen: settings.address.to_string(),
        ready: readiness.is_ready(),
        draining: readiness.lifecycle.is_draining(),
        default_agent: config.default_agent.clone(),
        agents: sessions.agents.keys().cloned().collect(),
        store: NodeStore {
            url: config.store.url.to_string(),
            sync: match (&config.store.url, config.store.sync) {
                (StoreUrl::Redis(_), _) => StoreSync::ByRedis,
                (_, SyncMode::Always) => StoreSync::Always,
                (_, SyncMode::Interval) => StoreSync::Interval,
            },
            bytes: health.bytes,
            logs: health.logs,
            health: health.into(),
        },
        connections: metrics.connections.get(),
        sessions: SessionCounts {
            idle: session_count(SessionState::Idle),
            running: session_count(SessionState::Running),
            waiting: session_count(SessionState::Waiting),
            ended: session_count(SessionState::Ended),
            held: metrics.sessions_held.get(),
        },
        tasks: TaskCounts {
            running: task_count(Status::Running),
            completed: task_count(Status::Completed),
            failed: task_count(Status::Failed),
            cancelled: task_count(Status::Cancelled),
        },
        streams: metrics.streams.get(),
        runs_active: metrics.runs_active.get(),
        events_appended: metrics.events_appended.get(),
    })
}
