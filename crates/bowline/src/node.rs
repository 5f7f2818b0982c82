//! One running server: what its parts share, how it starts, recovers, sweeps, drains and stops.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bowline_core::scrub::Scrubber;
use bowline_protocol::{Cursor, Epoch, ErrorCode, LogId, Refusal, Seq, SessionId};
use bowline_store::disk::{DiskOptions, DiskStore, Sync};
use bowline_store::memory::MemoryStore;
use bowline_store::{
    Batch, Claim, Commit, Committed, Directory, Fence, FollowError, Follower, Leased, ReadBudget, ReadLimit,
    RedisOptions, RedisStore, Retention, Retentions, Store, StoreError, Trimmed, WakeSet,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::{Agent, Tools, roster};
use crate::auth::Authenticator;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::config::{Config, Loaded, Reread, StoreConfig, StoreUrl, SyncMode};
use crate::hub::HubTools;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::ring::LiveRing;
use crate::session::Registry;
use crate::session::record::keys;
use crate::task::Tasks;
use crate::tls::Tls;
use crate::{alias, dice, drive, format, http, hub, upkeep};

/// With `store.sync = "interval"`, how much a power cut can lose.
const SYNC_INTERVAL: Duration = Duration::from_millis(50);

/// How long a node that leaves may take to see who stays. A store that is away must not keep clients from being told.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// What every part of the server may reach.
pub struct Shared {
    pub config: Config,
    /// The effective settings with secrets hidden, for the admin API.
    pub effective: Value,
    pub store: Arc<dyn Store>,
    /// All MCP servers and their clients.
    pub hub: Arc<bowline_hub::Hub>,
    pub metrics: Metrics,
    pub clock: Clock,
    /// What readers hold in memory, all together.
    pub reading: Arc<ReadBudget>,
    pub auth: Arc<Authenticator>,
    /// What signed states are sealed with.
    pub ring: LiveRing,
    pub scrubber: Scrubber,
    /// Held while a state is restored.
    pub restoring: tokio::sync::Mutex<()>,
    pub agents: BTreeMap<String, Arc<dyn Agent>>,
    /// What agents may call.
    pub tools: Arc<dyn Tools>,
    pub registry: Registry,
    pub tasks: Tasks,
    /// The other nodes on this store, where there can be any.
    pub cluster: Option<Arc<Cluster>>,
    /// Held while a client's own name for a chat is given to a session.
    pub naming: tokio::sync::Mutex<()>,
    /// Fires when the server wants to leave: clients are told, nothing new is accepted.
    pub draining: CancellationToken,
    /// Fires when it does leave: connections close.
    pub closing: CancellationToken,
    /// Every open WebSocket, so that the server leaves only after each was told.
    pub connections: TaskTracker,
    /// Where it listens; the port that was asked for may have been 0.
    pub address: SocketAddr,
    /// Where TLS is served: with what.
    pub tls: Option<Tls>,
    ready: AtomicBool,
}

impl Shared {
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Whether recovery is done and the server may be sent traffic.
    pub fn is_ready(&self) -> bool {
        let mute = self.cluster.as_ref().is_some_and(|cluster| cluster.mute().is_some());
        self.ready.load(Ordering::Acquire) && !self.is_draining() && self.store.health().writable && !mute
    }

    /// `http`, or with TLS `https`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// A commit, measured.
    pub async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let started = Instant::now();
        let committed = self.store.commit(commit).await;
        self.metrics.store_commit_seconds.observe(started.elapsed().as_secs_f64());
        committed.inspect_err(|error| self.metrics.store_errors.inc(error_kind(error)))
    }

    /// Follows a log in one epoch.
    pub fn follow(&self, log: &LogId, epoch: &Epoch, wake: &Arc<WakeSet>, token: u64) -> Follower {
        Follower::new(&self.store, log, epoch, wake, token)
    }

    /// A read by a reader that follows its log, measured.
    pub async fn read(&self, follower: &Follower, from: Seq, limit: ReadLimit) -> Result<Batch, FollowError> {
        let started = Instant::now();
        let batch = follower.read(from, limit).await;
        self.metrics.store_read_seconds.observe(started.elapsed().as_secs_f64());
        batch
    }

    /// The right to write to a log, unless another node has it.
    pub async fn take_up(&self, log: &LogId) -> Result<Leased, StoreError> {
        match &self.cluster {
            Some(cluster) => cluster.lease(log).await,
            None => self.store.lease(log, &Claim::alone()).await,
        }
    }

    /// Lets other nodes have a log that nothing here needs any more.
    pub async fn give_back(&self, log: &LogId, fence: Fence) {
        if let Some(cluster) = &self.cluster
            && let Err(error) = self.store.give_back(log, &cluster.name, fence).await
        {
            // Until then others ask here for it.
            tracing::debug!(%log, %error, "a lease could not be given back; this node will try again");
            cluster.give_back_later(log, fence);
        }
    }

    /// Writes once to a log that nobody has in hand for long. If another node has it just now, that is waited for.
    pub async fn write_once(&self, commit: Commit) -> Result<Committed, StoreError> {
        let log = commit.log.clone();
        for _ in 0..50 {
            match self.take_up(&log).await? {
                Leased::Held(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Leased::Granted(fence) => {
                    let committed = self.commit(Commit { fence, ..commit }).await;
                    self.give_back(&log, fence).await;
                    return committed;
                }
            }
        }
        self.take_up(&log).await.and_then(Leased::fence).and_then(|_| Err(StoreError::Unavailable("held".into())))
    }

    /// Does something that only one may do at a time, on this node and on all others.
    pub async fn alone<T>(
        &self,
        here: &tokio::sync::Mutex<()>,
        what: &str,
        work: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let _turn = here.lock().await;
        let Some(cluster) = &self.cluster else { return work.await };
        let name = LogId::parse(&format!("lock_{:032x}", alias::digest(what))).ok_or_else(not_found)?;
        let lock = cluster.lock(&name).await?;
        let done = work.await;
        lock.unlock().await;
        done
    }

    /// Counts what retention let go of, by whether the holder had acknowledged it.
    pub fn count_trimmed(&self, trimmed: &Trimmed, acked: Seq) {
        let boundary = acked.next().max(trimmed.from).min(trimmed.to);
        self.metrics.events_trimmed.inc_by("true", trimmed.from.until(boundary));
        self.metrics.events_trimmed.inc_by("false", boundary.until(trimmed.to));
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:?})", self.registry)
    }
}

/// What this server can do, as clients are told.
pub fn capabilities() -> Value {
    json!([
        "reconnect",
        "replay",
        "observe",
        "take_over",
        "idempotent_messages",
        "confirmations",
        "plans",
        "authenticate",
        "signed_state",
        "checkpoints",
        "watch_task",
        "operations"
    ])
}

/// Unknown and foreign sessions are answered with exactly this.
pub fn not_found() -> Refusal {
    Refusal::new(ErrorCode::SessionNotFound, "There is no such session. Create a new one.")
}

/// Unknown and foreign tasks are answered with exactly this.
pub fn task_not_found() -> Refusal {
    Refusal::new(ErrorCode::TaskNotFound, "There is no such task.")
}

pub fn task_expired() -> Refusal {
    Refusal::new(ErrorCode::TaskExpired, "The task's stream was kept for a while after its end, and is gone.")
}

/// What a store's trouble means to somebody who asks for a task.
pub fn task_refusal(error: &StoreError) -> Refusal {
    match error {
        StoreError::NoSuchLog => task_not_found(),
        error => store_refusal(error),
    }
}

/// What it means to a client that a task cannot be followed.
pub fn follow_refusal(error: &FollowError) -> Refusal {
    match error {
        FollowError::Store(error) => task_refusal(error),
        FollowError::EpochChanged => {
            let message = "The log has just begun a new epoch. Ask again, with the same position.";
            Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(100)
        }
    }
}

pub fn draining() -> Refusal {
    Refusal::new(ErrorCode::ServerDraining, "The server is shutting down. Try again in a moment.").retry_after_ms(2000)
}

/// What a store's trouble means to a client.
pub fn store_refusal(error: &StoreError) -> Refusal {
    match error {
        StoreError::NoSuchLog => not_found(),
        StoreError::Quarantined(_) => {
            let message = "The session's log is damaged and was set aside. An operator has to look at it.";
            Refusal::new(ErrorCode::StoreUnavailable, message).details(json!({ "quarantined": true }))
        }
        StoreError::TooLarge { .. } => {
            Refusal::new(ErrorCode::MessageTooLarge, "This is more than the store takes at once.")
        }
        StoreError::InDoubt(_) => {
            let message = "The store was lost while it kept this, so it may or may not have been accepted. Look, or try \
                           again under the same id.";
            Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(1000).details(json!({ "in_doubt": true }))
        }
        _ => {
            let message = "The store cannot keep this now, so it was not accepted. Try again.";
            Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(1000)
        }
    }
}

fn error_kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::NoSuchLog => "no_such_log",
        StoreError::Exists => "exists",
        StoreError::StaleFence { .. } => "stale_fence",
        StoreError::Held(_) => "held",
        StoreError::Full(_) => "full",
        StoreError::ReadOnly(_) => "read_only",
        StoreError::Quarantined(_) => "quarantined",
        StoreError::TooLarge { .. } => "too_large",
        StoreError::Unavailable(_) => "unavailable",
        StoreError::InDoubt(_) => "in_doubt",
        StoreError::Closed => "closed",
        StoreError::Io(_) => "io",
    }
}

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
        let config = loaded.config.clone();
        let store = open_store(&config).await?;
        // Nodes that share a store date alike, whatever their wall clocks say.
        let clock = Clock::of(store.as_ref()).await?;
        format::check(&store, clock.now_ms()).await?;
        let listen = config.listen;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}: choose another address with --listen"))?;
        let metrics = Metrics::new();
        let configured = roster::configured(&config, &metrics)?;
        let cluster = match config.store.url {
            StoreUrl::Redis(_) => {
                Some(Arc::new(Cluster::new(store.clone(), clock, config.lease_ttl, config.answer_timeout)?))
            }
            StoreUrl::Memory | StoreUrl::Disk(_) => None,
        };
        let hub = hub::start(&config, store.clone(), clock, &metrics, cluster.as_ref()).await?;
        let shared = Arc::new(Shared {
            effective: loaded.effective(),
            metrics,
            hub: hub.clone(),
            clock,
            reading: hub.options.reading.clone(),
            auth: Arc::new(Authenticator::new(&config)?),
            ring: LiveRing::new(load_keys(&config)?),
            scrubber: Scrubber::new(&config.state.scrub),
            restoring: tokio::sync::Mutex::default(),
            agents: configured.into_iter().chain(own.agents).collect(),
            tools: own.tools.unwrap_or_else(|| Arc::new(HubTools(hub.clone()))),
            registry: Registry::default(),
            tasks: Tasks::default(),
            cluster,
            naming: tokio::sync::Mutex::default(),
            draining: CancellationToken::new(),
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

/// What the holder of a session has acknowledged, whether or not the session is awake.
pub async fn acked(shared: &Shared, log: &LogId) -> Seq {
    if let Some(presence) = shared.registry.presence(&SessionId::from(log)) {
        return Seq::new(presence.acked.load(Ordering::Relaxed)).unwrap_or(Seq::ZERO);
    }
    let mark = shared.store.item(log, keys::MARK).await.ok().flatten();
    let mark = mark.and_then(|bytes| Cursor::parse(std::str::from_utf8(&bytes).ok()?));
    mark.map_or(Seq::ZERO, |mark| mark.seq)
}

/// Tells everybody, and lets runs finish for a while.
async fn drain(shared: &Arc<Shared>) {
    if let Some(cluster) = &shared.cluster {
        // Whoever is to go on with what is here may have come since the last look.
        let _ = tokio::time::timeout(LAST_LOOK, drive::cluster::look_around(shared, cluster)).await;
    }
    shared.draining.cancel();
    let until = Instant::now() + shared.config.drain_timeout;
    // A run that waits for a person needs no process, so it is not waited for.
    let working = || shared.registry.at_work() + shared.tasks.at_work() + shared.hub.calls_at_work();
    while working() > 0 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = working();
    if left > 0 {
        tracing::warn!(left, "drain.timeout is over; these runs and calls are cut and will be ended at the next start");
    }
    // A moment for the notice and the last events to reach the sockets; a crowd comes back at different times.
    tokio::time::sleep(Duration::from_millis(50 + (dice::chance() * 50.0) as u64)).await;
}
