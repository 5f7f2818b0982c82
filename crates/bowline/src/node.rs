//! One running server: how it is put together, starts, recovers, sweeps, drains and stops.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bowline_actor::Router;
use bowline_api::{Agent, Tools};
use bowline_env::net::Listener;
use bowline_env::{clock, entropy};
use bowline_store::disk::{DiskOptions, DiskStore, Runs, Sync};
use bowline_store::memory::MemoryStore;
use bowline_store::{Directory, RedisOptions, RedisStore, Retention, Retentions, Store};

use crate::agent;
use crate::agent_host::agent_host;
use crate::alias::Naming;
use crate::auth::Authenticator;
use crate::cluster::{Cluster, ClusterRouter};
use crate::config::{Config, Loaded, Reread, StoreConfig, StoreUrl, SyncMode};
use crate::connection::ConnectionContext;
use crate::drive::cluster::ClusterMember;
use crate::http::admin::{AdminState, Settings};
use crate::http::admission::AdmissionRules;
use crate::http::chat::ChatState;
use crate::http::health::HealthState;
use crate::http::limits::RequestLimits;
use crate::http::mcp::McpState;
use crate::http::openapi::OpenApiState;
use crate::http::produce::{ProduceContext, ProduceState};
use crate::http::responses;
use crate::http::servers::ServersState;
use crate::http::ws::WsState;
use crate::http::{Acceptor, Endpoints};
use crate::hub::HubTools;
use crate::keys::LoadedKeys;
use crate::lifecycle::Lifecycle;
use crate::live_keyring::LiveKeyring;
use crate::logs::Logs;
use crate::logs::{Placement, SingleNode};
use crate::maintenance::Maintenance;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::session::Sessions;
use crate::session::actor::SessionActor;
use crate::session::registry::SessionParts;
use crate::stream::Streams;
use crate::stream::reader::ReaderContext;
use crate::task::Tasks;
use crate::task::actor::TaskActor;
use crate::tls::Tls;
use crate::{drive, format, hub};

/// With `store.sync = "interval"`, how much a power cut can lose.
const SYNC_INTERVAL: Duration = Duration::from_millis(50);

/// How long a node that leaves may take to see who stays. A store that is away must not keep clients from their notice.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// What a program that runs a server of its own brings along.
#[derive(Clone, Default)]
pub struct Own {
    /// Agents by name, beside the configured ones.
    pub agents: BTreeMap<String, Arc<dyn Agent>>,
    /// What all agents may call.
    pub tools: Option<Arc<dyn Tools>>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Own({:?})", self.agents.keys())
    }
}

/// The same router, as each of those who need it knows it.
type Routers = (Arc<dyn Placement>, Arc<dyn Router<SessionActor>>, Arc<dyn Router<TaskActor>>);

/// A server that was started and listens.
#[derive(Debug)]
pub struct Node {
    pub address: SocketAddr,
    pub lifecycle: Arc<Lifecycle>,
    pub maintenance: Arc<Maintenance>,
    /// This node among the others on its store, where there can be any.
    member: Option<Arc<ClusterMember>>,
    auth: Arc<Authenticator>,
    acceptor: Acceptor,
    listener: Box<dyn Listener>,
    reread: Option<Reread>,
}

impl Node {
    /// Opens the store, ends what a crash cut, and binds the address. Traffic is served by [`run`](Node::run).
    pub async fn start(loaded: Loaded) -> anyhow::Result<Node> {
        Node::start_with(loaded, Own::default()).await
    }

    /// The same, with agents and tools of the caller's own.
    pub async fn start_with(loaded: Loaded, own: Own) -> anyhow::Result<Node> {
        let config = Arc::new(loaded.config.clone());
        let store = open_store(&config).await?;
        // Nodes that share a store date alike, whatever their wall clocks say.
        let clock = bowline_store::clock_of(store.as_ref()).await?;
        format::check(&store, clock.now_ms()).await?;
        let listen = config.listen;
        let listener = config
            .env
            .network
            .listen(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}: choose another address with --listen"))?;
        let address = listener.local_addr()?;
        let metrics = Arc::new(Metrics::new());
        let configured = agent::configured(&config, &agent_host(&metrics.limits_hit))?;
        let cluster = match config.store.url {
            StoreUrl::Redis(_) => {
                Some(Arc::new(Cluster::new(store.clone(), clock, config.lease.ttl, config.lease.answer_timeout)?))
            }
            StoreUrl::Memory | StoreUrl::Disk(_) => None,
        };
        let hub = hub::start(&config, store.clone(), clock, &metrics, cluster.as_ref()).await?;
        let lifecycle = Arc::new(Lifecycle::default());
        let (placement, session_router, task_router): Routers = match &cluster {
            Some(cluster) => {
                let router = Arc::new(ClusterRouter(cluster.clone()));
                (router.clone(), router.clone(), router)
            }
            None => {
                let router = Arc::new(SingleNode(store.clone()));
                (router.clone(), router.clone(), router)
            }
        };
        let logs = Arc::new(Logs::new(store.clone(), clock, placement, metrics.clone()));
        let draining = lifecycle.draining.clone();
        let tasks = Tasks::new(config.clone(), logs.clone(), metrics.clone(), task_router, draining.clone());
        let tasks = Arc::new(tasks);
        let sessions = Sessions::new(SessionParts {
            config: config.clone(),
            logs: logs.clone(),
            metrics: metrics.clone(),
            router: session_router,
            tasks: tasks.clone(),
            agents: configured.into_iter().chain(own.agents).collect(),
            tools: own.tools.unwrap_or_else(|| Arc::new(HubTools(hub.clone()))),
            webhooks: responses::announcer(&config, &logs, &metrics, &lifecycle.closing),
            ring: LiveKeyring::new(load_keys(&config)?, config.env.files.clone()),
            draining,
        });
        let auth = Arc::new(Authenticator::new(&config)?);
        let tls = config.tls.clone().map(|tls| Tls::load(tls, &config.env.files)).transpose()?.map(Arc::new);
        let maintenance = Arc::new(Maintenance {
            config: config.clone(),
            logs: logs.clone(),
            metrics: metrics.clone(),
            sessions: sessions.clone(),
            tasks: tasks.clone(),
            hub: hub.clone(),
        });
        let readers = Arc::new(ReaderContext {
            logs: logs.clone(),
            metrics: metrics.clone(),
            budget: hub.options.reading.clone(),
            live: Arc::default(),
            closing: lifecycle.closing.clone(),
        });
        let streams = Arc::new(Streams {
            config: config.clone(),
            sessions: sessions.clone(),
            tasks: tasks.clone(),
            readers: readers.clone(),
        });
        let admission = Arc::new(AdmissionRules { config: config.clone(), auth: auth.clone(), is_tls: tls.is_some() });
        let limits = Arc::new(RequestLimits { config: config.clone(), metrics: metrics.clone() });
        let readiness =
            Arc::new(Readiness { lifecycle: lifecycle.clone(), store: store.clone(), cluster: cluster.clone() });
        let endpoints = Endpoints {
            admin: AdminState {
                admission: admission.clone(),
                settings: Arc::new(Settings { config: config.clone(), effective: loaded.effective(), address }),
                logs: logs.clone(),
                metrics: metrics.clone(),
                readers: readers.clone(),
                readiness: readiness.clone(),
                sessions: sessions.clone(),
            },
            chat: ChatState {
                admission: admission.clone(),
                limits: limits.clone(),
                config: config.clone(),
                logs: logs.clone(),
                naming: Arc::new(Naming::new(logs)),
                sessions: sessions.clone(),
                tasks: tasks.clone(),
                streams: streams.clone(),
            },
            health: HealthState { admission: admission.clone(), hub: hub.clone(), metrics: metrics.clone(), readiness },
            mcp: McpState {
                admission: admission.clone(),
                config: config.clone(),
                hub: hub.clone(),
                lifecycle: lifecycle.clone(),
                metrics: metrics.clone(),
            },
            openapi: OpenApiState { auth: auth.clone(), sessions: sessions.clone() },
            produce: ProduceState {
                admission: admission.clone(),
                context: Arc::new(ProduceContext {
                    auth: auth.clone(),
                    lifecycle: lifecycle.clone(),
                    limits,
                    streams: streams.clone(),
                }),
            },
            servers: ServersState { admission: admission.clone(), cluster: cluster.clone(), hub: hub.clone() },
            ws: WsState {
                admission,
                context: Arc::new(ConnectionContext {
                    config: config.clone(),
                    metrics: metrics.clone(),
                    auth: auth.clone(),
                    lifecycle: lifecycle.clone(),
                    sessions: sessions.clone(),
                    streams,
                    readers,
                }),
            },
        };
        let closing = lifecycle.closing.clone();
        let acceptor = Acceptor { service: endpoints.service(), tls, config, metrics: metrics.clone(), closing };
        let member = cluster.map(|cluster| {
            Arc::new(ClusterMember {
                cluster,
                address,
                lifecycle: lifecycle.clone(),
                metrics,
                sessions,
                tasks,
                hub,
                maintenance: maintenance.clone(),
            })
        });
        let node = Node { address, lifecycle, maintenance, member, auth, acceptor, listener, reread: loaded.reread };
        node.recover().await?;
        Ok(node)
    }

    /// Shows itself to the other nodes, and continues or ends what an earlier process left behind.
    async fn recover(&self) -> anyhow::Result<()> {
        if let Some(member) = &self.member {
            drive::cluster::join(member).await?;
            tokio::spawn(drive::cluster::inbox(member.clone()));
            tokio::spawn(drive::cluster::heartbeats(member.clone()));
            tokio::spawn(drive::cluster::deadlines(member.cluster.clone()));
            let maintenance = self.maintenance.clone();
            tokio::spawn(async move { maintenance.share_time_for_ever().await });
        }
        self.maintenance.recover().await?;
        self.auth.begin().await;
        self.lifecycle.handle_recovered();
        Ok(())
    }

    /// `http`, or with TLS `https`.
    pub fn scheme(&self) -> &'static str {
        if self.acceptor.tls.is_some() { "https" } else { "http" }
    }

    /// Serves until `stop` completes, then drains.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Node { lifecycle, maintenance, member, auth, acceptor, listener, reread, .. } = self;
        let sweeper = tokio::spawn({
            let maintenance = maintenance.clone();
            async move { maintenance.sweep_for_ever().await }
        });
        let follower = tokio::spawn({
            let auth = auth.clone();
            async move { auth.follow().await }
        });
        let in_force = maintenance.config.auth.clone();
        let settings = reread.map(|reread| tokio::spawn(drive::settings::follow(auth, reread, in_force)));
        let endpoints = tokio::spawn(acceptor.serve(listener));
        stop.await;
        drain(&lifecycle, &maintenance, member.as_ref()).await;
        sweeper.abort();
        follower.abort();
        settings.into_iter().for_each(|settings| settings.abort());
        lifecycle.closing.cancel();
        maintenance.hub.close().await;
        lifecycle.connections.close();
        let _ = tokio::time::timeout(Duration::from_secs(5), lifecycle.connections.wait()).await;
        let _ = tokio::time::timeout(Duration::from_secs(5), endpoints).await;
        if let Some(member) = &member
            && let Err(error) = drive::cluster::send_heartbeat(member, u64::MAX, true).await
        {
            tracing::warn!(%error, "the last heartbeat could not be written; other nodes will declare this one dead");
        }
        maintenance.logs.store.close().await;
    }
}

fn load_keys(config: &Config) -> anyhow::Result<LoadedKeys> {
    let keys = LoadedKeys::load(config)?;
    if keys.is_volatile() {
        tracing::warn!("the key that signs states ends with this process; set `state.keys`, or use a store on disk");
    }
    Ok(keys)
}

pub async fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let retention = Retentions {
        sessions: Retention {
            events_max: config.buffer.events_max,
            age_max_ms: config.buffer.age_max.as_millis() as u64,
        },
        // A task's events do not age: they go together, some time after its end.
        tasks: Retention { events_max: config.stream.events_max, age_max_ms: u64::MAX },
        nodes: Retention::NODES,
    };
    let cache_bytes = config.half_of_read_memory();
    match &config.store.url {
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new(retention))),
        StoreUrl::Disk(dir) => open_disk(dir.clone(), config, retention, cache_bytes).await,
        StoreUrl::Redis(url) => {
            let StoreConfig { wait_replicas, timeout, .. } = config.store;
            let network = config.env.network.clone();
            let options = RedisOptions {
                wait_replicas,
                timeout,
                cache_bytes,
                network,
                ..RedisOptions::new(url.clone(), retention)
            };
            let store = RedisStore::open(options).await?;
            tracing::info!(%url, logs = store.health().logs, "opened the store");
            Ok(Arc::new(store))
        }
    }
}

async fn open_disk(
    dir: PathBuf,
    config: &Config,
    retention: Retentions,
    cache_bytes: usize,
) -> anyhow::Result<Arc<dyn Store>> {
    let sync = match config.store.sync {
        SyncMode::Always => Sync::Always,
        SyncMode::Interval => Sync::Interval { every: SYNC_INTERVAL },
    };
    let options = DiskOptions { sync, cache_bytes, ..DiskOptions::new(dir, retention).on(config.env.files.clone()) };
    let (store, report) = match options.runs {
        Runs::OnThreads => tokio::task::spawn_blocking(move || DiskStore::open(options)).await??,
        Runs::OnRuntime => DiskStore::open(options)?,
    };
    tracing::info!(
        logs = report.logs,
        events = report.events,
        bytes = report.bytes,
        segments = report.segments,
        torn_bytes = report.torn_bytes,
        epochs_changed = report.epochs_changed,
        ms = report.elapsed.as_millis() as u64,
        "opened the store"
    );
    for damage in &report.damage {
        tracing::error!(%damage, "the store is damaged");
    }
    Ok(Arc::new(store))
}

/// Notifies clients and nodes, and lets runs finish for a while.
async fn drain(lifecycle: &Lifecycle, maintenance: &Maintenance, member: Option<&Arc<ClusterMember>>) {
    if let Some(member) = member {
        // A node that can take over what is here may have joined since the last look.
        let _ = tokio::time::timeout(LAST_LOOK, drive::cluster::look_at_peers(member)).await;
    }
    lifecycle.draining.cancel();
    let until = clock::now() + maintenance.config.drain.timeout;
    // A run that waits for a person needs no process, so it is not waited for.
    let Maintenance { sessions, tasks, hub, .. } = maintenance;
    let working = || sessions.at_work() + tasks.at_work() + hub.calls_at_work();
    while working() > 0 && clock::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = working();
    if left > 0 {
        tracing::warn!(left, "drain.timeout is over; these runs and calls are cut and will be ended at the next start");
    }
    // A moment for the notice and the last events to reach the sockets; a crowd comes back at different times.
    tokio::time::sleep(Duration::from_millis(50 + (entropy::chance() * 50.0) as u64)).await;
}
