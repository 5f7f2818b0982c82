//! The hub: all backends and all clients, and who may see what.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use bowline_core::backend::Policy;
use bowline_protocol::Principal;
use bowline_store::{Holder, Kind, Store, StoreError};
use serde_json::Value;
use tokio::sync::{broadcast, mpsc};

use crate::backend::{Backend, BackendEvent, Command, Key};
use crate::clock;
use crate::drive;
use crate::guard;
use crate::neighbours::Neighbours;
use crate::parked::ParkedCalls;
use crate::servers::{self, Kept, Noted};
use crate::sessions::Sessions;
use crate::spec::{ServerSpec, SpecError, check_name};
use crate::tasks::Tasks;

/// Events of backends that may wait to be told.
const EVENTS_MAX: usize = 4096;

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
}

impl Default for Options {
    fn default() -> Options {
        Options {
            expose: Expose::Both,
            prefix: Prefix::Always,
            allow_private: true,
            allow_stdio_add: false,
            retry_idempotent: false,
            call_timeout: Duration::from_secs(120),
            ask_timeout: Duration::from_secs(600),
            health_interval: Duration::from_secs(120),
            health_timeout: Duration::from_secs(60),
            policy: Policy::default(),
            session_ttl: Duration::from_secs(24 * 3600),
            task_result_ttl: Duration::from_secs(3600),
            servers_per_principal_max: 100,
            sessions_per_principal_max: 1000,
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
    #[error("the store cannot keep the server now: {0}")]
    Store(StoreError),
}

/// What the hub counts, for whoever measures.
pub trait Observer: Send + Sync {
    fn call_ended(&self, backend: &Backend, outcome: &'static str, seconds: f64);
    fn backend_event(&self, name: &'static str);
}

struct NoObserver;

impl Observer for NoObserver {
    fn call_ended(&self, _backend: &Backend, _outcome: &'static str, _seconds: f64) {}
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
    pub parked: ParkedCalls,
    pub tasks: Tasks,
    around: drive::backend::Around,
    happenings: broadcast::Sender<Happening>,
    pub observer: Box<dyn Observer>,
    /// Changes of the list of servers, one at a time.
    changing: tokio::sync::Mutex<()>,
    kept: Arc<Kept>,
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
        let around = drive::backend::Around {
            policy: options.policy,
            health_interval: options.health_interval,
            health_timeout: options.health_timeout,
            http: guard::client(true),
            events,
        };
        let hub = Arc::new(Hub {
            sessions: Sessions::new(options.sessions_per_principal_max, neighbours.clone()),
            tasks: Tasks::new(store.clone(), neighbours.clone()),
            options,
            kept: Arc::new(Kept::open(store.clone()).await?),
            store,
            neighbours,
            backends: RwLock::default(),
            parked: ParkedCalls::default(),
            around,
            happenings,
            observer: observer.unwrap_or_else(|| Box::new(NoObserver)),
            changing: tokio::sync::Mutex::default(),
        });
        tokio::spawn(listen(Arc::downgrade(&hub), told));
        tokio::spawn(sweep_for_ever(Arc::downgrade(&hub)));
        hub.learn().await?;
        if hub.neighbours.is_some() {
            tokio::spawn(servers::follow(Arc::downgrade(&hub), hub.kept.clone()));
        }
        drive::task::take_up(&hub).await?;
        Ok(hub)
    }

    /// Everything that happens to backends from now on.
    pub fn happenings(&self) -> broadcast::Receiver<Happening> {
        self.happenings.subscribe()
    }

    /// The backends that this principal may use: everybody's and its own.
    pub fn visible(&self, principal: &Principal) -> Vec<Backend> {
        let backends = self.backends.read().unwrap_or_else(PoisonError::into_inner);
        let mine = |key: &Key| key.owner.as_ref().is_none_or(|owner| owner == principal);
        backends.iter().filter(|(key, _)| mine(key)).map(|(_, backend)| backend.clone()).collect()
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

    /// All of them, for operators.
    pub fn all(&self) -> Vec<Backend> {
        let backends = self.backends.read().unwrap_or_else(PoisonError::into_inner);
        backends.values().cloned().collect()
    }

    /// Makes the configured servers these: new ones are started, missing ones removed, changed ones replaced.
    pub async fn configure(&self, servers: BTreeMap<String, ServerSpec>) {
        let _changing = self.changing.lock().await;
        let configured: Vec<Backend> = self.all().into_iter().filter(|backend| backend.key.owner.is_none()).collect();
        for backend in &configured {
            if servers.get(backend.name()) != Some(&*backend.spec) {
                self.stop(&backend.key).await;
            }
        }
        for (name, spec) in servers {
            let key = Key { owner: None, name: name.as_str().into() };
            if self.backend(&key).is_none() {
                // Whoever writes the configuration may reach whatever this machine can.
                self.launch(key, spec, true).await;
            }
        }
    }

    /// Adds a server at run time, for its owner only. It is kept, and returns after a restart.
    pub async fn add(&self, owner: &Principal, name: &str, value: &Value) -> Result<Backend, AddError> {
        let _changing = self.changing.lock().await;
        check_name(name)?;
        // Variables are the operator's, so a stranger's entry does not get to read them.
        let spec = ServerSpec::read(value, &|_| None)?;
        if spec.is_stdio() && !self.options.allow_stdio_add {
            return Err(AddError::StdioForbidden);
        }
        guard::check(&spec, self.options.allow_private).await?;
        if self.find(owner, name).is_some() {
            return Err(AddError::Exists(name.to_owned()));
        }
        let own = self.visible(owner).iter().filter(|backend| backend.key.owner.is_some()).count();
        if own >= self.options.servers_per_principal_max {
            return Err(AddError::TooMany);
        }
        let key = Key { owner: Some(owner.clone()), name: name.into() };
        if self.kept.note(&key, Some(&spec)).await.map_err(AddError::Store)? == Noted::Refused {
            return Err(AddError::Exists(name.to_owned()));
        }
        Ok(self.launch(key, spec, self.options.allow_private).await)
    }

    /// Removes a server that was added at run time. False if it is not the caller's to remove.
    pub async fn remove(&self, owner: &Principal, name: &str) -> Result<bool, StoreError> {
        let _changing = self.changing.lock().await;
        let key = Key { owner: Some(owner.clone()), name: name.into() };
        let removed = self.kept.note(&key, None).await? == Noted::Done;
        self.stop(&key).await;
        Ok(removed)
    }

    fn backend(&self, key: &Key) -> Option<Backend> {
        self.backends.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    async fn launch(&self, key: Key, spec: ServerSpec, allow_private: bool) -> Backend {
        let mut around = self.around.clone();
        if !allow_private {
            around.http = guard::client(false);
        }
        let backend = drive::backend::start(key.clone(), spec, allow_private, around);
        self.backends.write().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), backend.clone());
        let _ = self.around.events.send((key, BackendEvent::Added)).await;
        backend
    }

    async fn stop(&self, key: &Key) {
        let removed = self.backends.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        if let Some(backend) = removed {
            let _ = backend.commands.send(Command::Remove).await;
        }
    }

    /// Ends every backend, so that no child outlives us.
    pub async fn close(&self) {
        self.tasks.closing.cancel();
        let keys: Vec<Key> = self.all().into_iter().map(|backend| backend.key).collect();
        for key in keys {
            self.stop(&key).await;
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
        drive::task::take_up(self).await
    }

    /// Makes the servers that were added at run time those that the store knows.
    pub(crate) async fn learn(&self) -> Result<(), StoreError> {
        let _changing = self.changing.lock().await;
        let kept = self.kept.all().await?;
        let added: Vec<Backend> = self.all().into_iter().filter(|backend| backend.key.owner.is_some()).collect();
        for backend in &added {
            if kept.get(&backend.key) != Some(&*backend.spec) {
                self.stop(&backend.key).await;
            }
        }
        for (key, spec) in kept {
            if self.backend(&key).is_none() {
                self.launch(key, spec, self.options.allow_private).await;
            }
        }
        Ok(())
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        for session in self.sessions.awake() {
            session.expire(self.options.ask_timeout).await?;
        }
        for (id, owner, record) in self.tasks.expire(self.options.task_result_ttl).await? {
            drive::task::tell(self, "task_expired", &id, &owner, &record).await;
        }
        let ttl_ms = self.options.session_ttl.as_millis() as u64;
        for (log, stored) in self.store.list(Kind::Mcp, None).await? {
            let awake = self.sessions.awake().into_iter().find(|session| session.id == log);
            let touched = awake.as_ref().map_or(stored.touched_ms, |session| session.touched_ms());
            if clock::now_ms().saturating_sub(touched) < ttl_ms {
                continue;
            }
            match self.sessions.find(&self.store, &stored.owner, log.as_str()).await {
                Ok(Some(session)) => self.sessions.end(self, &session).await,
                Ok(None) => tracing::warn!(session = %log, "a session of the hub that has expired cannot be read"),
                // The node that has it ends it.
                Err(StoreError::Held(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn happened(&self, key: Key, event: BackendEvent) {
        self.observer.backend_event(event.name());
        tracing::info!(server = %key.name, event = event.name(), data = %shown(&event, &key), "backend");
        let happening: Happening = Arc::new((key, event));
        let _ = self.happenings.send(happening.clone());
        self.sessions.told(&happening).await;
    }
}

/// What may stand in our own log: no content, and no line that a child wrote.
fn shown(event: &BackendEvent, key: &Key) -> Value {
    match event {
        BackendEvent::Notification { method, .. } => method.as_str().into(),
        BackendEvent::Stderr(_) | BackendEvent::Connected { .. } => Value::Null,
        BackendEvent::Reconnected { attempts_taken, down, .. } => {
            serde_json::json!({ "attemptsTaken": attempts_taken, "downMs": down.as_millis() as u64 })
        }
        event => event.data(&key.name),
    }
}

/// Tells what happens to everyone whom it concerns, in the order in which it happened.
async fn listen(hub: Weak<Hub>, mut told: mpsc::Receiver<(Key, BackendEvent)>) {
    while let Some((key, event)) = told.recv().await {
        let Some(hub) = hub.upgrade() else { return };
        hub.happened(key, event).await;
    }
}

/// Takes back questions that waited too long, and ends sessions that nobody used.
async fn sweep_for_ever(hub: Weak<Hub>) {
    loop {
        let shortest = |options: &Options| options.session_ttl.min(options.ask_timeout).min(options.task_result_ttl);
        let Some(every) = hub.upgrade().map(|hub| shortest(&hub.options) / 4) else { return };
        tokio::time::sleep(every.clamp(Duration::from_millis(100), Duration::from_secs(30))).await;
        let Some(hub) = hub.upgrade() else { return };
        if let Err(error) = hub.sweep().await {
            tracing::warn!(%error, "the hub's sweep failed; it will be tried again");
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub({} backends)", self.all().len())
    }
}
