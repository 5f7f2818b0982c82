//! The MCP hub inside this server: how it starts, what it counts, and when it is swept.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{ToolCall, ToolOutcome, ToolSpec, Tools};
use bowline_env::clock;
use bowline_hub::agent::{self, AgentEnd, Patience};
use bowline_hub::outcome::CallOutcome;
use bowline_hub::peers::PeerNodes;
use bowline_hub::{Backend, Hub, Observer, Options, file_watch};
use bowline_protocol::Principal;
use bowline_store::{Clock, ReadBudget, Store, StoreError};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, HubPeers};
use crate::config::Config;
use crate::metrics::{ByServer, Labelled, Metrics};

/// Counts what the hub does.
struct Counts {
    calls: Labelled,
    seconds: Histogram,
    events: Labelled,
    limits_hit: Labelled,
    calls_of: ByServer<Counter>,
    seconds_of: ByServer<Histogram>,
}

impl Observer for Counts {
    fn call_ended(&self, backend: &Backend, outcome: CallOutcome, seconds: f64) {
        self.calls.inc(outcome.as_str());
        self.seconds.observe(seconds);
        let server = ("server", label(backend));
        self.seconds_of.get_or_create(&vec![server.clone()]).observe(seconds);
        self.calls_of.get_or_create(&vec![server, ("outcome", outcome.as_str().to_owned())]).inc();
    }

    fn backend_event(&self, name: &'static str) {
        self.events.inc(name);
    }

    fn limit_hit(&self, name: &'static str) {
        self.limits_hit.inc(name);
    }
}

/// Servers that people add share one name: there may be any number of them, and their names are private.
fn label(backend: &Backend) -> String {
    if backend.key.owner.is_some() { "(added)".to_owned() } else { backend.name().to_owned() }
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
    let neighbours = cluster.map(|cluster| Arc::new(HubPeers(cluster.clone())) as Arc<dyn PeerNodes>);
    let reading = ReadBudget::new(config.half_of_read_memory());
    let options = Options { clock, reading, env: config.env.clone(), ..config.hub.options.clone() };
    let hub = Hub::start(options, store, Some(Box::new(counts)), neighbours).await?;
    if let Some(path) = &config.hub.servers_file {
        let seen = file_watch::take(&hub, path).await;
        tokio::spawn(file_watch::follow(Arc::downgrade(&hub), path.clone(), seen));
    }
    Ok(hub)
}

/// Brings the gauges up to date, before they are read.
pub fn measure(hub: &Hub, metrics: &Metrics) {
    for state in ["connecting", "connected", "reconnecting", "disconnected", "error"] {
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
        let (now, labels) = (backend.snapshot(), vec![("server", label(backend))]);
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

/// All backends, as operators see them, and those of the servers file that were removed.
pub fn shown(hub: &Hub) -> Value {
    json!({
        "backends": hub.all().iter().map(|backend| one_shown(hub, backend)).collect::<Vec<_>>(),
        "removed": hub.removed().iter().map(|removed| removed.to_value()).collect::<Vec<_>>(),
    })
}

/// One of them.
pub fn one_shown(hub: &Hub, backend: &Backend) -> Value {
    let mut shown = backend.shown().to_value();
    shown["configured"] = hub.is_configured(&backend.key).into();
    shown["calls"] = backend.counts.shown();
    shown["owner"] = json!(backend.key.owner);
    let catalogue = backend.catalogue();
    shown["tools"] = catalogue.list(bowline_hub::catalogue::ListKind::Tools).len().into();
    shown
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
