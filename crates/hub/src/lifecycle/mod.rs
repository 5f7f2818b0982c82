//! From the start of the hub to its end: what it takes up, what it listens to and tells its sessions of, what is due without a
//! request, and what it leaves behind.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use bowline_core::process_pool::PoolLimits;
use bowline_mutant::mutant;
use bowline_store::{Holder, LogKind, Store, StoreError};
use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::{broadcast, mpsc};
use tokio_util::task::TaskTracker;

use crate::backend::{BackendEvent, NoObserver, Observer, supervisor};
use crate::call::server_request::SuspendedCalls;
use crate::call::slow_calls::{DIRECT_FOR, SlowCalls};
use crate::config::spec::Reach;
use crate::config::{BackendKey, Options};
use crate::fields::Raw;
use crate::hub::{Happening, Hub, servers};
use crate::message;
use crate::peers::PeerNodes;
use crate::registry::stored::StoredChanges;
use crate::registry::{ForcedReconnects, Memory, Users};
use crate::relay::subscriptions;
use crate::relay::task::{self, TaskRelay};
use crate::seal::Seal;
use crate::session::actor::wants;
use crate::session::registry::{HubSessions, SessionChange};
use crate::session::{HubSession, OWN_STREAM, Route};
use crate::tasks::names::TaskNames;
use crate::tasks::{HubTasks, Orphans};
use crate::upstream::http;

/// Events of backends that may wait to be announced.
const EVENTS_MAX: usize = 4096;
/// How long we wait for our programs when we leave; twice what it takes to ask one and then to kill it.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

impl Hub {
    /// Starts the hub with what the configuration names, and with what was added at run time before.
    pub async fn start(
        options: Options,
        store: Arc<dyn Store>,
        observer: Option<Box<dyn Observer>>,
        peers: Option<Arc<dyn PeerNodes>>,
    ) -> Result<Arc<Hub>, StoreError> {
        let (events, told) = mpsc::channel(EVENTS_MAX);
        let (happenings, _) = broadcast::channel(EVENTS_MAX);
        let observer: Arc<dyn Observer> = observer.map_or_else(|| Arc::new(NoObserver) as _, Arc::from);
        let clock = options.clock;
        let context = supervisor::SupervisorContext {
            clock,
            policy: options.policy,
            health_interval: options.health_interval,
            health_timeout: options.health_timeout,
            http: http::client(Reach::Anywhere, &options.env.network),
            events,
            programs: TaskTracker::new(),
            processes: PoolLimits {
                max: options.processes_per_server_max,
                per_owner_max: options.processes_per_principal_max,
            },
            observer: observer.clone(),
        };
        let seal = Arc::new(Seal::open(&store, &clock).await?);
        let hub = Arc::new(Hub {
            sessions: Arc::new(HubSessions::new(&options, store.clone(), observer.clone(), peers.clone())),
            tasks: Arc::new(HubTasks::new(store.clone(), clock, peers.clone())),
            task_names: TaskNames::new(seal.clone()),
            slow_calls: SlowCalls::new(DIRECT_FOR),
            users: Users::default(),
            forced_reconnects: ForcedReconnects::new(options.forced_reconnects_per_minute_max),
            suspended: SuspendedCalls::new(options.ask_timeout, seal),
            options,
            kept: Arc::new(StoredChanges::open(store.clone(), clock).await?),
            memory: Memory::open(store.clone(), clock).await?,
            begun: AtomicBool::new(false),
            store,
            peers,
            backends: RwLock::default(),
            context,
            happenings,
            observer,
            changing: tokio::sync::Mutex::default(),
            wanted: RwLock::default(),
        });
        hub.tasks.listen(Arc::new(TaskRelay(Arc::downgrade(&hub))));
        tokio::spawn(listen(Arc::downgrade(&hub), told));
        tokio::spawn(for_ever(Arc::downgrade(&hub)));
        hub.sessions.wake_all().await?;
        let (changes, changed) = mpsc::unbounded_channel();
        hub.sessions.report(changes);
        tokio::spawn(follow_sessions(Arc::downgrade(&hub), changed));
        hub.begin().await?;
        if hub.peers.is_some() {
            tokio::spawn(servers::follow(Arc::downgrade(&hub), hub.kept.clone()));
        }
        hub.tasks.take_up(Orphans::LeftBehind).await?;
        Ok(hub)
    }

    /// Ends every backend, so that no child outlives us. Their names stay known: other nodes still carry requests to this one for a while, and
    /// their clients are not to hear that there is no such tool.
    pub async fn close(&self) {
        self.tasks.closing.cancel();
        for backend in self.all() {
            self.memory.keep(&backend).await;
            servers::halt(&backend).await;
            if mutant("deny-what-was-let-go") {
                self.backends.write().unwrap_or_else(PoisonError::into_inner).remove(&backend.key);
            }
        }
        self.context.programs.close();
        if tokio::time::timeout(LEAVE_PATIENCE, self.context.programs.wait()).await.is_err() {
            tracing::warn!("a program does not end, though it was killed");
        }
    }

    /// Another node is dead: its sessions wake up here, which ends the calls that were cut, and so do its tasks, unless a
    /// third was faster.
    pub async fn take_over(self: &Arc<Self>, node: &Holder) -> Result<(), StoreError> {
        for (log, stored) in self.store.list(LogKind::Mcp, None).await? {
            if self.store.holder(&log).await?.as_ref() == Some(node) {
                match self.sessions.find(&stored.owner, log.as_str()).await {
                    Ok(_) | Err(StoreError::Held(_)) => {}
                    Err(error) => tracing::warn!(session = %log, %error, "a session could not be taken over"),
                }
            }
        }
        self.tasks.take_up(Orphans::Dropped).await
    }
}

/// Sessions that wake up while their servers are connected already, and sessions that are let go of.
async fn follow_sessions(hub: Weak<Hub>, mut changed: mpsc::UnboundedReceiver<SessionChange>) {
    while let Some(change) = changed.recv().await {
        let Some(hub) = hub.upgrade() else { return };
        match change {
            SessionChange::Woken(session) => {
                let visible = hub.visible(&session.principal);
                for backend in visible.iter().filter(|backend| backend.snapshot().is_connected()) {
                    subscriptions::renew(&hub, &session, backend);
                }
            }
            // No call uses its sessions at the servers from here any more. Not waited for: a server may itself wait until its
            // message has been delivered.
            SessionChange::LetGo(session) => drop(tokio::spawn(hub.end_at_servers(&session))),
        }
    }
}

/// Sessions that are notified of one event at the same time.
const TELL_AT_ONCE: usize = 256;

impl Hub {
    async fn happened(self: &Arc<Self>, key: BackendKey, event: BackendEvent) {
        // When the hub itself stops, its servers are let go, and what they offer has not changed.
        if matches!(event, BackendEvent::ListChanged(_)) && self.tasks.closing.is_cancelled() {
            return;
        }
        self.observer.backend_event(event.name());
        tracing::info!(server = %key.name, event = event.name(), data = %shown(&event, &key), "an MCP server changed");
        let happening: Happening = Arc::new((key, event));
        let _ = self.happenings.send(happening.clone());
        // When we shut down, the servers stay where they are: no client has lost one.
        if self.tasks.closing.is_cancelled() {
            return;
        }
        self.tell_sessions(&happening).await;
        let (key, event) = &*happening;
        let Some(backend) = self.backend(key) else { return };
        match event {
            BackendEvent::Connected { .. } | BackendEvent::Reconnected { .. } => {
                let awake = self.sessions.awake();
                for session in awake.iter().filter(|session| self.sees(&session.principal, key)) {
                    subscriptions::renew(self, session, &backend);
                }
                self.memory.keep(&backend).await;
            }
            BackendEvent::ListChanged(_) => self.memory.keep(&backend).await,
            _ => {}
        }
    }

    /// Tells every session that may see the backend.
    async fn tell_sessions(&self, happening: &Happening) {
        self.sessions.renew_lost().await;
        let (key, event) = &**happening;
        let awake = self.sessions.awake();
        let said = matches!(event, BackendEvent::Stderr(_) | BackendEvent::Notification { .. });
        if said
            && key.owner.is_none()
            && let Some(first) = awake.first()
        {
            // What a server that several people share sends without an addressee may speak of any of them, and not all of
            // them have sessions.
            let alone = awake.iter().all(|session| session.principal == first.principal);
            if !alone || !self.is_only_used_by(key, &first.principal) {
                return;
            }
        }
        let backend = self.backend(key);
        let concerned = awake.into_iter().filter(|session| {
            // It hears there by itself what is said to all, and has not used a process that others shared.
            let elsewhere = said || matches!(event, BackendEvent::ProcessCrashed(_));
            let apart = elsewhere && backend.as_ref().is_some_and(|backend| backend.has_own(session.id.as_str()));
            let visible = self.sees(&session.principal, key);
            let routed = match &session.record.route {
                Route::All => true,
                Route::One(name) => *name == key.name,
            };
            visible && routed && !apart && event.concerns(session.id.as_str())
        });
        let program = backend.as_ref().is_some_and(|backend| backend.spec.is_stdio());
        // Many at once, so that the store can write them down in one piece. Each is told of one thing after the other all the
        // same, since nothing else is told before this is over.
        let telling = futures_util::stream::iter(concerned).for_each_concurrent(TELL_AT_ONCE, |session| async move {
            let message = self.as_it_is(&session, event, program);
            if let Err(error) = tell(&session, &key.name, event, message.as_ref()).await {
                tracing::warn!(session = %session.id, %error, "cannot notify a session");
            }
        });
        telling.await;
    }

    /// An event as the server's own notification, for those who see its lists, or the server itself as it is. What is said by
    /// anything but a program is said to each of its clients by itself.
    fn as_it_is(&self, session: &HubSession, event: &BackendEvent, program: bool) -> Option<Raw> {
        let alone = session.record.route != Route::All;
        match event {
            BackendEvent::ListChanged(method) if alone || (self.options.expose.direct() && !session.record.handle) => {
                Some(message::notification(method, None))
            }
            BackendEvent::Notification { method, params } if alone && program && wants(session, method, params) => {
                Some(message::notification(method, params.as_ref()))
            }
            _ => None,
        }
    }
}

/// With the message that the client gets besides, if there is one.
async fn tell(session: &HubSession, name: &str, event: &BackendEvent, message: Option<&Raw>) -> Result<(), StoreError> {
    // The server is gone, or what this client had of it.
    if matches!(event, BackendEvent::Disconnected { .. }) || event.is_own_crash() {
        session.reject(name).await?;
    }
    if message.is_none() {
        return session.tell(event.name(), name, &event.data(name)).await.map(drop);
    }
    session.tell_too(name, &event.data(name)).await?;
    session.say(OWN_STREAM, message, false).await.map(drop)
}

/// What may stand in our own log: no content, and no line that a child wrote.
fn shown(event: &BackendEvent, key: &BackendKey) -> Value {
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
pub(super) async fn listen(hub: Weak<Hub>, mut told: mpsc::Receiver<(BackendKey, BackendEvent)>) {
    while let Some((key, event)) = told.recv().await {
        let Some(hub) = hub.upgrade() else { return };
        hub.happened(key, event).await;
    }
}

pub(super) async fn for_ever(hub: Weak<Hub>) {
    loop {
        let shortest = |options: &Options| options.session_ttl.min(options.ask_timeout).min(options.task_result_ttl);
        let Some(every) = hub.upgrade().map(|hub| shortest(&hub.options) / 4) else { return };
        tokio::time::sleep(every.clamp(Duration::from_millis(100), Duration::from_secs(30))).await;
        let Some(hub) = hub.upgrade() else { return };
        hub.sweep().await;
    }
}

impl Hub {
    /// What fails is tried again with the next sweep, and does not keep the rest from being done.
    async fn sweep(self: &Arc<Self>) {
        self.suspended.sweep();
        self.sessions.expire_questions();
        if let Err(error) = self.sweep_tasks().await {
            tracing::warn!(%error, "the hub's tasks could not be swept");
        }
        if let Err(error) = self.sweep_sessions().await {
            tracing::warn!(%error, "the hub's sessions could not be swept");
        }
    }

    async fn sweep_tasks(self: &Arc<Self>) -> Result<(), StoreError> {
        for (id, owner, record) in self.tasks.expire(self.options.task_result_ttl).await? {
            task::tell(self, "task_expired", &id, &owner, &record).await;
        }
        self.tasks.take_up(Orphans::Dropped).await
    }

    async fn sweep_sessions(&self) -> Result<(), StoreError> {
        let ttl_ms = self.options.session_ttl.as_millis() as u64;
        for (log, stored) in self.store.list(LogKind::Mcp, None).await? {
            let awake = self.sessions.get(&log);
            let touched = awake.as_ref().map_or(stored.touched_ms, |session| session.touched_ms());
            let age_ms = self.options.clock.now_ms().saturating_sub(touched);
            if let Some(session) = awake.filter(|session| session.is_read()) {
                // A client that only listens uses its session too. Written seldom, and long before other nodes would
                // take it for quiet.
                if age_ms >= ttl_ms / 4 {
                    session.touch_now().await;
                }
                continue;
            }
            if age_ms < ttl_ms {
                continue;
            }
            match self.sessions.find(&stored.owner, log.as_str()).await {
                Ok(Some(session)) => self.end_session(&session).await,
                Ok(None) => tracing::warn!(session = %log, "a session of the hub that has expired cannot be read"),
                // The node that has it ends it.
                Err(StoreError::Held(_)) => {}
                Err(error) => tracing::warn!(session = %log, %error, "a session that has expired could not be ended"),
            }
        }
        Ok(())
    }
}
