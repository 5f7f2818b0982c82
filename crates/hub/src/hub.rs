//! The hub: all backends and all clients, and who may see what.

mod changes;
mod sweep;
mod wanted;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use bowline_core::backend::Policy;
use bowline_core::seats::SeatLimits;
use bowline_protocol::Principal;
use bowline_store::{Clock, Holder, Kind, ReadBudget, Store, StoreError};
use serde_json::Value;
use tokio::sync::{broadcast, mpsc};
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, BackendEvent, Key};
use crate::drive;
use crate::forced_reconnects::ForcedReconnects;
use crate::front::renew;
use crate::guard;
use crate::memory::Memory;
use crate::neighbours::Neighbours;
use crate::outcome::CallOutcome;
use crate::parked::ParkedCalls;
use crate::requester::Requester;
use crate::seal::Seal;
use crate::servers::{self, Kept};
use crate::session::Session;
use crate::sessions::Sessions;
use crate::spec::{Reach, SpecError};
use crate::task_names::TaskNames;
use crate::tasks::{Orphans, Tasks};
use crate::users::Users;

pub use changes::RemoveError;
use wanted::Wanted;

/// Events of backends that may wait to be told.
const EVENTS_MAX: usize = 4096;
/// How long we wait for our programs when we leave; twice what it takes to ask one and then to kill it.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// What `/mcp` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expose {
    /// The hub's own tools.
    Meta,
    /// The backends' tools, resources and prompts.
    Direct,
    Both,
}

impl Expose {
    pub fn meta(self) -> bool {
        self != Expose::Direct
    }

    pub fn direct(self) -> bool {
        self != Expose::Meta
    }
}

/// When a backend's names get its own name in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    Always,
    /// Only where two would be the same.
    Conditional,
    Never,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// What lifetimes count on. All parts of a node share it.
    pub clock: Clock,
    /// What readers may hold in memory, those of the server around the hub included.
    pub reading: Arc<ReadBudget>,
    pub expose: Expose,
    pub prefix: Prefix,
    /// Servers that are added at run time may be on private and loopback addresses.
    pub allow_private: bool,
    /// Programs may be added at run time.
    pub allow_stdio_add: bool,
    /// Tools that say that they are read-only or idempotent are called again when their wire broke.
    pub retry_idempotent: bool,
    /// How long a call may take before it becomes a task.
    pub call_timeout: Duration,
    /// How long a call may run at a backend.
    pub call_limit: Duration,
    /// How long a backend's question waits for a person.
    pub ask_timeout: Duration,
    pub health_interval: Duration,
    pub health_timeout: Duration,
    pub policy: Policy,
    pub session_ttl: Duration,
    /// How long a finished task's result is kept.
    pub task_result_ttl: Duration,
    pub servers_per_principal_max: usize,
    pub sessions_per_principal_max: usize,
    /// How many processes of one program there may be, so that clients of it have one each.
    pub processes_per_server_max: usize,
    /// How many of them may be one principal's.
    pub processes_per_principal_max: usize,
    /// How often in a minute one principal may force a reconnect of a server that is everybody's.
    pub forced_reconnects_per_minute_max: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clock: Clock::start(),
            reading: ReadBudget::new(64 << 20),
            expose: Expose::Both,
            prefix: Prefix::Always,
            allow_private: true,
            allow_stdio_add: false,
            retry_idempotent: false,
            call_timeout: Duration::from_secs(120),
            call_limit: Duration::from_secs(24 * 3600),
            ask_timeout: Duration::from_secs(600),
            health_interval: Duration::from_secs(120),
            health_timeout: Duration::from_secs(60),
            policy: Policy::default(),
            session_ttl: Duration::from_secs(24 * 3600),
            task_result_ttl: Duration::from_secs(3600),
            servers_per_principal_max: 100,
            sessions_per_principal_max: 1000,
            processes_per_server_max: 16,
            processes_per_principal_max: 16,
            forced_reconnects_per_minute_max: 6,
        }
    }
}

/// Why a server cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    #[error("{0}")]
    Spec(#[from] SpecError),
    #[error("there is a server named {0} already; remove it first or choose another name")]
    Exists(String),
    #[error("programs cannot be added at run time here; an operator can allow it with `hub.allow_stdio_add`")]
    StdioForbidden,
    #[error("there are as many servers as one client may add")]
    TooMany,
    #[error("no server named {0} was removed")]
    NotRemoved(String),
    #[error("the store cannot keep the server now: {0}")]
    Store(StoreError),
}

/// What the hub counts, for whoever measures.
pub trait Observer: Send + Sync {
    fn call_ended(&self, backend: &Backend, outcome: CallOutcome, seconds: f64);
    fn backend_event(&self, name: &'static str);
    /// A limit was reached; the name is that of its setting.
    fn limit_hit(&self, _name: &'static str) {}
}

pub(crate) struct NoObserver;

impl Observer for NoObserver {
    fn call_ended(&self, _backend: &Backend, _outcome: CallOutcome, _seconds: f64) {}
    fn backend_event(&self, _name: &'static str) {}
}

pub type Happening = Arc<(Key, BackendEvent)>;

pub struct Hub {
    pub options: Options,
    pub store: Arc<dyn Store>,
    /// Other nodes on the same store, where there can be any.
    pub neighbours: Option<Arc<dyn Neighbours>>,
    backends: RwLock<BTreeMap<Key, Backend>>,
    pub sessions: Sessions,
    users: Users,
    pub parked: ParkedCalls,
    pub tasks: Tasks,
    pub task_names: TaskNames,
    around: drive::backend::Around,
    happenings: broadcast::Sender<Happening>,
    pub observer: Arc<dyn Observer>,
    /// Changes of the list of servers happen under this lock, one at a time.
    changing: tokio::sync::Mutex<()>,
    /// Apart from the lock of changes, which may wait for a store, so that whoever only looks does not wait with them.
    wanted: RwLock<Wanted>,
    forced_reconnects: ForcedReconnects,
    kept: Arc<Kept>,
    memory: Memory,
    /// The configuration was taken for the first time: what comes from now on is new.
    begun: AtomicBool,
}

impl Hub {
    /// Starts the hub with what the configuration names, and with what was added at run time before.
    pub async fn start(
        options: Options,
        store: Arc<dyn Store>,
        observer: Option<Box<dyn Observer>>,
        neighbours: Option<Arc<dyn Neighbours>>,
    ) -> Result<Arc<Hub>, StoreError> {
        let (events, told) = mpsc::channel(EVENTS_MAX);
        let (happenings, _) = broadcast::channel(EVENTS_MAX);
        let observer: Arc<dyn Observer> = observer.map_or_else(|| Arc::new(NoObserver) as _, Arc::from);
        let clock = options.clock;
        let around = drive::backend::Around {
            clock,
            policy: options.policy,
            health_interval: options.health_interval,
            health_timeout: options.health_timeout,
            http: guard::client(Reach::Anywhere),
            events,
            programs: TaskTracker::new(),
            processes: SeatLimits {
                max: options.processes_per_server_max,
                per_owner_max: options.processes_per_principal_max,
            },
            observer: observer.clone(),
        };
        let (woken, waking) = mpsc::unbounded_channel();
        let seal = Arc::new(Seal::open(&store, &clock).await?);
        let hub = Arc::new(Hub {
            sessions: Sessions::new(&options, neighbours.clone(), woken),
            tasks: Tasks::new(store.clone(), clock, neighbours.clone()),
            task_names: TaskNames::new(seal.clone()),
            users: Users::default(),
            forced_reconnects: ForcedReconnects::new(options.forced_reconnects_per_minute_max),
            parked: ParkedCalls::new(options.ask_timeout, seal),
            options,
            kept: Arc::new(Kept::open(store.clone(), clock).await?),
            memory: Memory::open(store.clone(), clock).await?,
            begun: AtomicBool::new(false),
            store,
            neighbours,
            backends: RwLock::default(),
            around,
            happenings,
            observer,
            changing: tokio::sync::Mutex::default(),
            wanted: RwLock::default(),
        });
        tokio::spawn(listen(Arc::downgrade(&hub), told));
        tokio::spawn(sweep::for_ever(Arc::downgrade(&hub)));
        tokio::spawn(renew_woken(Arc::downgrade(&hub), waking));
        hub.sessions.wake_all(&hub.store).await?;
        hub.begin().await?;
        if hub.neighbours.is_some() {
            tokio::spawn(servers::follow(Arc::downgrade(&hub), hub.kept.clone()));
        }
        drive::task::take_up(&hub, Orphans::LeftBehind).await?;
        Ok(hub)
    }

    /// Everything that happens to backends from now on.
    pub fn happenings(&self) -> broadcast::Receiver<Happening> {
        self.happenings.subscribe()
    }

    /// The backends that this principal may use: everybody's and its own. Of two with the same name it is its own.
    pub fn visible(&self, principal: &Principal) -> Vec<Backend> {
        let backends = self.backends.read().unwrap_or_else(PoisonError::into_inner);
        let seen = backends.iter().filter(|(key, _)| sees(&backends, principal, key));
        seen.map(|(_, backend)| backend.clone()).collect()
    }

    /// Whether this is what the principal means by the name, also if the backend was removed just now.
    pub fn sees(&self, principal: &Principal, key: &Key) -> bool {
        sees(&self.backends.read().unwrap_or_else(PoisonError::into_inner), principal, key)
    }

    /// Somebody is about to use a backend.
    pub(crate) fn used(&self, backend: &Backend, principal: &Principal) {
        self.users.note(&backend.key, principal);
    }

    /// Whether nobody but this principal has used it since we began.
    pub(crate) fn is_only_used_by(&self, key: &Key, principal: &Principal) -> bool {
        self.users.are_only(key, principal)
    }

    pub fn find(&self, principal: &Principal, name: &str) -> Option<Backend> {
        let backends = self.backends.read().unwrap_or_else(PoisonError::into_inner);
        let key = |owner: Option<&Principal>| Key { owner: owner.cloned(), name: name.into() };
        backends.get(&key(Some(principal))).or_else(|| backends.get(&key(None))).cloned()
    }

    /// The same, also if another node has only just added it.
    pub async fn find_anywhere(&self, principal: &Principal, name: &str) -> Option<Backend> {
        if let Some(backend) = self.find(principal, name) {
            return Some(backend);
        }
        if self.neighbours.is_some()
            && let Err(error) = self.learn().await
        {
            tracing::debug!(%error, "the list of servers cannot be read now");
        }
        self.find(principal, name)
    }

    /// Dials a server now, whatever its state, and says whether that worked. Others use a shared server too, so who is not its operator
    /// may do so only now and then: after the time that is returned.
    pub async fn force_reconnect(&self, who: &Requester, backend: &Backend) -> Result<bool, Duration> {
        let taken = self.forced_reconnects.take(who, &backend.key, Instant::now());
        taken.inspect_err(|_| self.observer.limit_hit("hub.forced_reconnects_per_minute_max"))?;
        Ok(backend.reconnect().await)
    }

    /// All of them, for operators.
    pub fn all(&self) -> Vec<Backend> {
        let backends = self.backends.read().unwrap_or_else(PoisonError::into_inner);
        backends.values().cloned().collect()
    }

    /// Whether the server is in the configuration, and not one that was added at run time.
    pub fn is_configured(&self, key: &Key) -> bool {
        key.owner.is_none() && self.wanted().configured(&key.name).is_some()
    }

    pub(crate) fn backend(&self, key: &Key) -> Option<Backend> {
        self.backends.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Calls of clients that are under way, at all servers, but for those that wait for a person.
    pub fn calls_at_work(&self) -> usize {
        let open: usize = self.all().iter().map(|backend| backend.counts.open()).sum();
        let asked: usize = self.sessions.awake().iter().map(|session| session.pending(None).len()).sum();
        open.saturating_sub(asked + self.parked.count())
    }

    /// Fires when we leave.
    pub fn closing(&self) -> &tokio_util::sync::CancellationToken {
        &self.tasks.closing
    }

    /// Ends every backend, so that no child outlives us.
    pub async fn close(&self) {
        self.tasks.closing.cancel();
        for backend in self.all() {
            self.memory.keep(&backend).await;
            self.halt(&backend.key).await;
        }
        self.around.programs.close();
        if tokio::time::timeout(LEAVE_PATIENCE, self.around.programs.wait()).await.is_err() {
            tracing::warn!("a program does not end, though it was killed");
        }
    }

    /// Another node is dead: its sessions wake up here, which ends the calls that were cut, and so do its tasks, unless a
    /// third was faster.
    pub async fn take_over(self: &Arc<Self>, node: &Holder) -> Result<(), StoreError> {
        for (log, stored) in self.store.list(Kind::Mcp, None).await? {
            if self.store.holder(&log).await?.as_ref() == Some(node) {
                match self.sessions.find(&self.store, &stored.owner, log.as_str()).await {
                    Ok(_) | Err(StoreError::Held(_)) => {}
                    Err(error) => tracing::warn!(session = %log, %error, "a session could not be taken over"),
                }
            }
        }
        drive::task::take_up(self, Orphans::Dropped).await
    }

    async fn happened(self: &Arc<Self>, key: Key, event: BackendEvent) {
        // When the hub itself stops, its servers are let go, and what they offer has not changed.
        if matches!(event, BackendEvent::ListChanged(_)) && self.tasks.closing.is_cancelled() {
            return;
        }
        self.observer.backend_event(event.name());
        tracing::info!(server = %key.name, event = event.name(), data = %shown(&event, &key), "backend");
        let happening: Happening = Arc::new((key, event));
        let _ = self.happenings.send(happening.clone());
        // When we leave, the servers stay where they are: nobody has lost one.
        if self.tasks.closing.is_cancelled() {
            return;
        }
        self.sessions.told(self, &happening).await;
        let (key, event) = &*happening;
        let Some(backend) = self.backend(key) else { return };
        match event {
            BackendEvent::Connected { .. } | BackendEvent::Reconnected { .. } => {
                let awake = self.sessions.awake();
                for session in awake.iter().filter(|session| self.sees(&session.principal, key)) {
                    renew::renew(self, session, &backend);
                }
                self.memory.keep(&backend).await;
            }
            BackendEvent::ListChanged(_) => self.memory.keep(&backend).await,
            _ => {}
        }
    }
}

fn sees(backends: &BTreeMap<Key, Backend>, principal: &Principal, key: &Key) -> bool {
    let own = || Key { owner: Some(principal.clone()), name: key.name.clone() };
    match &key.owner {
        Some(owner) => owner == principal,
        None => !backends.contains_key(&own()),
    }
}

/// What may stand in our own log: no content, and no line that a child wrote.
fn shown(event: &BackendEvent, key: &Key) -> Value {
    match event {
        BackendEvent::Notification { method, .. } => method.as_str().into(),
        BackendEvent::Stderr(_) | BackendEvent::Connected { .. } => Value::Null,
        BackendEvent::OfClient { event, .. } => shown(event, key),
        BackendEvent::Reconnected { attempts_taken, down, .. } => {
            serde_json::json!({ "attemptsTaken": attempts_taken, "downMs": down.as_millis() as u64 })
        }
        event => event.data(&key.name).to_value(),
    }
}

/// Tells what happens to everyone whom it concerns, in the order in which it happened.
async fn listen(hub: Weak<Hub>, mut told: mpsc::Receiver<(Key, BackendEvent)>) {
    while let Some((key, event)) = told.recv().await {
        let Some(hub) = hub.upgrade() else { return };
        hub.happened(key, event).await;
    }
}

/// Sessions that wake up while their servers are connected already.
async fn renew_woken(hub: Weak<Hub>, mut waking: mpsc::UnboundedReceiver<Arc<Session>>) {
    while let Some(session) = waking.recv().await {
        let Some(hub) = hub.upgrade() else { return };
        for backend in hub.visible(&session.principal).iter().filter(|backend| backend.snapshot().is_connected()) {
            renew::renew(&hub, &session, backend);
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub({} backends)", self.all().len())
    }
}
