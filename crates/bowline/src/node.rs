//! One running server: how it is put together, starts, recovers, sweeps, drains and stops.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use bowline_api::{Agent, Tools};
use bowline_env::{clock, entropy};
use bowline_store::disk::{DiskOptions, DiskStore, Sync};
use bowline_store::memory::MemoryStore;
use bowline_store::{Directory, RedisOptions, RedisStore, Retention, Retentions, Store};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actor::Router;
use crate::agent;
use crate::agent_host::agent_host;
use crate::auth::Authenticator;
use crate::cluster::{Cluster, ClusterRouter};
use crate::config::{Config, Loaded, Reread, StoreConfig, StoreUrl, SyncMode};
use crate::hub::HubTools;
use crate::keys::Keys;
use crate::logs::Logs;
use crate::logs::placement::{Placement, SingleNode};
use crate::metrics::Metrics;
use crate::ring::LiveRing;
use crate::server::Shared;
use crate::session::Sessions;
use crate::session::actor::SessionActor;
use crate::session::registry::SessionParts;
use crate::task::Tasks;
use crate::task::actor::TaskActor;
use crate::tls::Tls;
use crate::{drive, format, http, hub, upkeep};

/// With `store.sync = "interval"`, how much a power cut can lose.
const SYNC_INTERVAL: Duration = Duration::from_millis(50);

/// How long a node that leaves may take to see who stays. A store that is away must not keep clients from being told.
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
    pub shared: Arc<Shared>,
    pub address: SocketAddr,
    listener: TcpListener,
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
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}: choose another address with --listen"))?;
        let metrics = Arc::new(Metrics::new());
        let configured = agent::configured(&config, &agent_host(&metrics.limits_hit))?;
        let cluster = match config.store.url {
            StoreUrl::Redis(_) => {
                Some(Arc::new(Cluster::new(store.clone(), clock, config.lease.ttl, config.lease.answer_timeout)?))
            }
            StoreUrl::Memory | StoreUrl::Disk(_) => None,
        };
        let hub = hub::start(&config, store.clone(), clock, &metrics, cluster.as_ref()).await?;
        let draining = CancellationToken::new();
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
            ring: LiveRing::new(load_keys(&config)?),
            draining: draining.clone(),
        });
        let shared = Arc::new(Shared {
            effective: loaded.effective(),
            metrics,
            hub: hub.clone(),
            clock,
            reading: hub.options.reading.clone(),
            live: Arc::default(),
            auth: Arc::new(Authenticator::new(&config)?),
            sessions,
            tasks,
            logs,
            cluster,
            naming: tokio::sync::Mutex::default(),
            draining,
            closing: CancellationToken::new(),
            connections: TaskTracker::new(),
            address: listener.local_addr()?,
            tls: config.tls.clone().map(Tls::load).transpose()?,
            ready: AtomicBool::new(false),
            store,
            config,
        });
        if let Some(cluster) = &shared.cluster {
            drive::cluster::enter(&shared, cluster).await?;
            tokio::spawn(drive::cluster::inbox(shared.clone(), cluster.clone()));
            tokio::spawn(drive::cluster::pulse(shared.clone(), cluster.clone()));
            tokio::spawn(drive::cluster::deadlines(cluster.clone()));
            tokio::spawn(upkeep::share_time_for_ever(shared.clone()));
        }
        upkeep::recover(&shared).await?;
        shared.auth.begin().await;
        shared.ready.store(true, Ordering::Release);
        Ok(Node { address: shared.address, shared, listener, reread: loaded.reread })
    }

    /// Serves until `stop` completes, then drains.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Node { shared, listener, reread, .. } = self;
        let sweeper = tokio::spawn(upkeep::sweep_for_ever(shared.clone()));
        let follower = tokio::spawn({
            let shared = shared.clone();
            async move { shared.auth.follow().await }
        });
        let settings = reread.map(|reread| {
            let (auth, in_force) = (shared.auth.clone(), shared.config.auth.clone());
            tokio::spawn(drive::settings::follow(auth, reread, in_force))
        });
        let doors = tokio::spawn(http::serve(shared.clone(), listener));
        stop.await;
        drain(&shared).await;
        sweeper.abort();
        follower.abort();
        settings.into_iter().for_each(|settings| settings.abort());
        shared.closing.cancel();
        shared.hub.close().await;
        shared.connections.close();
        let _ = tokio::time::timeout(Duration::from_secs(5), shared.connections.wait()).await;
        let _ = tokio::time::timeout(Duration::from_secs(5), doors).await;
        if let Some(cluster) = &shared.cluster
            && let Err(error) = drive::cluster::show(&shared, cluster, u64::MAX, true).await
        {
            tracing::warn!(%error, "the other nodes could not be told goodbye; they will notice");
        }
        shared.store.close().await;
    }
}

fn load_keys(config: &Config) -> anyhow::Result<Keys> {
    let keys = Keys::load(config)?;
    if let Some(warning) = keys.warning() {
        tracing::warn!("{warning}");
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
    let hot_bytes = config.limits.half_of_read_memory();
    match &config.store.url {
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new(retention))),
        StoreUrl::Disk(dir) => open_disk(dir.clone(), config.store.sync, retention, hot_bytes).await,
        StoreUrl::Redis(url) => {
            let StoreConfig { wait_replicas, timeout, .. } = config.store;
            let options =
                RedisOptions { wait_replicas, timeout, hot_bytes, ..RedisOptions::new(url.clone(), retention) };
            let store = RedisStore::open(options).await?;
            tracing::info!(%url, logs = store.health().logs, "opened the store");
            Ok(Arc::new(store))
        }
    }
}

async fn open_disk(
    dir: PathBuf,
    sync: SyncMode,
    retention: Retentions,
    hot_bytes: usize,
) -> anyhow::Result<Arc<dyn Store>> {
    let sync = match sync {
        SyncMode::Always => Sync::Always,
        SyncMode::Interval => Sync::Interval { every: SYNC_INTERVAL },
    };
    let options = DiskOptions { sync, hot_bytes, ..DiskOptions::new(dir, retention) };
    let (store, report) = tokio::task::spawn_blocking(move || DiskStore::open(options)).await??;
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

/// Tells everybody, and lets runs finish for a while.
async fn drain(shared: &Arc<Shared>) {
    if let Some(cluster) = &shared.cluster {
        // Whoever is to go on with what is here may have come since the last look.
        let _ = tokio::time::timeout(LAST_LOOK, drive::cluster::look_around(shared, cluster)).await;
    }
    shared.draining.cancel();
    let until = clock::now() + shared.config.drain.timeout;
    // A run that waits for a person needs no process, so it is not waited for.
    let working = || shared.sessions.at_work() + shared.tasks.at_work() + shared.hub.calls_at_work();
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
