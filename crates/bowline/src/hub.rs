//! The MCP hub inside this server: how it starts, what it counts, and when it is swept.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bowline_api::{ToolCall, ToolOutcome, ToolSpec, Tools};
use bowline_core::backend::BackendStatus;
use bowline_env::clock;
use bowline_hub::agent::{self, AgentEnd, Patience};
use bowline_hub::outcome::CallOutcome;
use bowline_hub::peers::PeerNodes;
use bowline_hub::{Backend, BackendKey, CallObserver, Hub, Observer, Options, file_watch};
use bowline_protocol::Principal;
use bowline_store::{Clock, ReadBudget, Store, StoreError};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, HubPeers};
use crate::config::Config;
use crate::metrics::{ByServer, Labelled, Metrics};
use crate::schema;

/// The states of a server's life, in the order in which it meets them.
const STATES: [&str; 5] = [
    BackendStatus::Connecting.as_str(),
    BackendStatus::Connected.as_str(),
    BackendStatus::Reconnecting.as_str(),
    BackendStatus::Disconnected.as_str(),
    BackendStatus::Error.as_str(),
];

/// Counts what the hub does.
struct Counts {
    calls: Labelled,
    seconds: Histogram,
    events: Labelled,
    limits_hit: Labelled,
    calls_of: ByServer<Counter>,
    seconds_of: ByServer<Histogram>,
}

/// Counts the calls to one server. A series of its own begins with the first call that belongs to it.
struct CallsOf {
    server: String,
    /// One for each outcome: the counter of all servers, and that of this one.
    ended: [OnceLock<(Counter, Counter)>; CallOutcome::ALL.len()],
    seconds_of_all: Histogram,
    seconds: OnceLock<Histogram>,
    counts: Arc<Counts>,
}

impl CallObserver for CallsOf {
    fn call_ended(&self, outcome: CallOutcome, seconds: f64) {
        self.seconds_of_all.observe(seconds);
        let labels = || vec![("server", self.server.clone())];
        self.seconds.get_or_init(|| self.counts.seconds_of.get_or_create(&labels()).clone()).observe(seconds);
        let (all, own) = self.ended[outcome.place()].get_or_init(|| {
            let labels = vec![("server", self.server.clone()), ("outcome", outcome.as_str().to_owned())];
            (self.counts.calls.of(outcome.as_str()), self.counts.calls_of.get_or_create(&labels).clone())
        });
        all.inc();
        own.inc();
    }
}

/// What the hub tells of what it does.
struct HubObserver(Arc<Counts>);

impl Observer for HubObserver {
    fn calls_of(&self, key: &BackendKey) -> Arc<dyn CallObserver> {
        Arc::new(CallsOf {
            server: label(key),
            ended: Default::default(),
            seconds_of_all: self.0.seconds.clone(),
            seconds: OnceLock::new(),
            counts: self.0.clone(),
        })
    }

    fn backend_event(&self, name: &'static str) {
        self.0.events.inc(name);
    }

    fn limit_hit(&self, name: &'static str) {
        self.0.limits_hit.inc(name);
    }
}

/// Servers that people add share one name: there may be any number of them, and their names are private.
fn label(key: &BackendKey) -> String {
    if key.owner.is_some() { "(added)".to_owned() } else { key.name.to_string() }
}

/// Starts the hub with the servers of its file, and follows that file.
pub async fn start(
    config: &Config,
    store: Arc<dyn Store>,
    clock: Clock,
    metrics: &Metrics,
    cluster: Option<&Arc<Cluster>>,
) -> Result<Arc<Hub>, StoreError> {
    let counts = Counts {
        calls: metrics.hub_calls.clone(),
        seconds: metrics.hub_call_seconds.clone(),
        events: metrics.backend_events.clone(),
        limits_hit: metrics.limits_hit.clone(),
        calls_of: metrics.backend_calls.clone(),
        seconds_of: metrics.backend_call_seconds.clone(),
    };
    let peers = cluster.map(|cluster| Arc::new(HubPeers(cluster.clone())) as Arc<dyn PeerNodes>);
    let reading = ReadBudget::new(config.half_of_read_memory());
    let options = Options { clock, reading, env: config.env.clone(), ..config.hub.options.clone() };
    let hub = Hub::start(options, store, Some(Box::new(HubObserver(Arc::new(counts)))), peers).await?;
    if let Some(path) = &config.hub.servers_file {
        let seen = file_watch::take(&hub, path).await;
        tokio::spawn(file_watch::follow(Arc::downgrade(&hub), path.clone(), seen));
    }
    Ok(hub)
}

/// Brings the gauges up to date, before they are read.
pub fn measure(hub: &Hub, metrics: &Metrics) {
    for state in STATES {
        let count = hub.all().iter().filter(|backend| backend.snapshot().status.as_str() == state).count();
        metrics.backends.get_or_create(&[("state", state)]).set(count as i64);
    }
    let degraded = hub.all().iter().filter(|backend| backend.snapshot().health == "degraded").count();
    metrics.backends_degraded.set(degraded as i64);
    metrics.hub_sessions.set(hub.sessions.count() as i64);
    let gauges =
        [&metrics.backend_up, &metrics.backend_attempt, &metrics.backend_retry, &metrics.backend_health_failures];
    // A server that is gone has no state.
    gauges.iter().for_each(|gauge| gauge.clear());
    for backend in hub.all().iter().filter(|backend| backend.key.owner.is_none()) {
        let (now, labels) = (backend.snapshot(), vec![("server", label(&backend.key))]);
        let retry = now.next_retry_at.map(|at| at.saturating_duration_since(clock::now()).as_secs());
        let values = [
            i64::from(now.is_connected()),
            i64::from(now.attempt),
            retry.unwrap_or_default() as i64,
            i64::from(now.health_failures),
        ];
        for (gauge, value) in gauges.iter().zip(values) {
            gauge.get_or_create(&labels).set(value);
        }
    }
}

/// All MCP servers, and those of the servers file that were removed.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Backends {
    #[serde(default)]
    pub backends: Vec<BackendView>,
    #[serde(default)]
    pub removed: Vec<RemovedBackendView>,
}

/// An MCP server.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Backend")]
pub(crate) struct BackendView {
    name: String,
    /// Who added it; null if it is for everyone.
    #[serde(default)]
    owner: Option<String>,
    /// Which node shows it, where there can be several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    node: Option<String>,
    /// Whether it is in the servers file. A node of an older version does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    configured: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    command: Option<String>,
    #[schemars(schema_with = "status")]
    status: String,
    connected: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    connected_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    last_error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    reconnect_attempt: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    next_retry_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    health_status: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    consecutive_health_failures: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    protocol_version: Option<String>,
    #[serde(default)]
    tools: usize,
    /// What was called, and how that ended. A node of an older version does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BackendCallsView")]
    calls: Option<BackendCallsView>,
    /// What the server says of itself, as `serverInfo` and `capabilities`; and what a node of a newer version knows of it.
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl BackendView {
    /// The same, as this node shows it.
    pub(crate) fn of_node(mut self, node: &str) -> BackendView {
        self.node = Some(node.to_owned());
        self
    }
}

/// Calls of one server since this node began.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "BackendCalls")]
struct BackendCallsView {
    total: u64,
    /// Under way now.
    open: u64,
    outcomes: BTreeMap<String, u64>,
    /// Null before the first has ended.
    mean_ms: Option<f64>,
    last_ms: Option<f64>,
}

/// An MCP server of the servers file that was removed.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "RemovedBackend")]
pub(crate) struct RemovedBackendView {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    command: Option<String>,
    #[schemars(schema_with = "schema::time")]
    removed_at: String,
}

/// How a server stands, in the words of its life. A node of a newer version may know another.
pub(crate) fn status(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": STATES })
}

/// All backends, as operators see them, and those of the servers file that were removed.
pub(crate) fn backend_views(hub: &Hub) -> Backends {
    let removed = hub.removed().into_iter().map(|removed| serde_json::from_value(removed.to_value()));
    Backends {
        backends: hub.all().iter().map(|backend| backend_view(hub, backend)).filter_map(readable).collect(),
        removed: removed.filter_map(readable).collect(),
    }
}

fn readable<T>(read: serde_json::Result<T>) -> Option<T> {
    read.inspect_err(|error| tracing::error!(%error, "what a server shows cannot be read")).ok()
}

/// One of them. What the hub shows is read as what another node's shows is, so that there is one shape.
pub(crate) fn backend_view(hub: &Hub, backend: &Backend) -> serde_json::Result<BackendView> {
    let mut view = backend.shown().to_value();
    view["configured"] = hub.is_configured(&backend.key).into();
    view["calls"] = backend.counts.shown();
    view["owner"] = json!(backend.key.owner);
    let catalogue = backend.catalogue();
    view["tools"] = catalogue.list(bowline_hub::catalogue::ListKind::Tools).len().into();
    serde_json::from_value(view)
}

/// The hub's servers as tools for agents.
#[derive(Debug)]
pub struct HubTools(pub Arc<Hub>);

#[async_trait]
impl Tools for HubTools {
    async fn list(&self, owner: &Principal) -> Vec<ToolSpec> {
        let one = |tool: agent::AgentTool| ToolSpec {
            name: tool.name,
            server: tool.server,
            tool: tool.tool,
            description: tool.description,
            input_schema: tool.input_schema,
        };
        agent::tools(&self.0, owner).into_iter().map(one).collect()
    }

    async fn server(&self, owner: &Principal, server: &str) -> Option<Map<String, Value>> {
        let backend = self.0.find(owner, server)?;
        let reached = backend.spec.shown().map(|(kind, target)| (kind.to_owned(), json!(target)));
        Some(reached.into_iter().collect())
    }

    async fn call(&self, call: ToolCall, cancel: CancellationToken) -> ToolOutcome {
        let arguments = Value::Object(call.args);
        let patience = if call.to_the_end { Patience::Endless } else { Patience::Usual };
        let calling = agent::call(&self.0, &call.owner, call.session.as_str(), &call.name, &arguments, patience);
        match cancel.run_until_cancelled(calling).await {
            Some(AgentEnd::Success { text, result }) => ToolOutcome::Success { text, data: Some(result) },
            Some(AgentEnd::Failed { error, result }) => {
                ToolOutcome::Failed { error, data: Some(result).filter(|result| !result.is_null()) }
            }
            Some(AgentEnd::Unknown { error }) => ToolOutcome::Unknown { error },
            // It was on its way, so it is not known whether it ran.
            None => ToolOutcome::Unknown { error: "The call was cancelled while it was under way.".into() },
        }
    }
}
