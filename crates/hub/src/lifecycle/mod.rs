//! From the start of the hub to its end: what it takes up, what it listens to, and what it leaves behind.

mod events;
mod maintenance;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;

use bowline_core::process_pool::PoolLimits;
use bowline_store::{Holder, LogKind, Store, StoreError};
use tokio::sync::{broadcast, mpsc};
use tokio_util::task::TaskTracker;

use crate::backend::observer::{NoObserver, Observer};
use crate::backend::supervisor;
use crate::call::suspended::SuspendedCalls;
use crate::config::options::Options;
use crate::config::spec::Reach;
use crate::hub::{Hub, servers};
use crate::peers::PeerNodes;
use crate::registry::forced_reconnects::ForcedReconnects;
use crate::registry::remembered::Memory;
use crate::registry::stored::StoredChanges;
use crate::registry::users::Users;
use crate::relay::{resubscribe, task};
use crate::seal::Seal;
use crate::session::HubSession;
use crate::session::registry::HubSessions;
use crate::tasks::names::TaskNames;
use crate::tasks::{HubTasks, Orphans};
use crate::upstream::address_guard;

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
        neighbours: Option<Arc<dyn PeerNodes>>,
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
            http: address_guard::client(Reach::Anywhere, &options.env.network),
            events,
            programs: TaskTracker::new(),
            processes: PoolLimits {
                max: options.processes_per_server_max,
                per_owner_max: options.processes_per_principal_max,
            },
            observer: observer.clone(),
        };
        let (woken, waking) = mpsc::unbounded_channel();
        let seal = Arc::new(Seal::open(&store, &clock).await?);
        let hub = Arc::new(Hub {
            sessions: HubSessions::new(&options, store.clone(), observer.clone(), neighbours.clone(), woken),
            tasks: HubTasks::new(store.clone(), clock, neighbours.clone()),
            task_names: TaskNames::new(seal.clone()),
            users: Users::default(),
            forced_reconnects: ForcedReconnects::new(options.forced_reconnects_per_minute_max),
            suspended: SuspendedCalls::new(options.ask_timeout, seal),
            options,
            kept: Arc::new(StoredChanges::open(store.clone(), clock).await?),
            memory: Memory::open(store.clone(), clock).await?,
            begun: AtomicBool::new(false),
            store,
            neighbours,
            backends: RwLock::default(),
            context,
            happenings,
            observer,
            changing: tokio::sync::Mutex::default(),
            wanted: RwLock::default(),
        });
        tokio::spawn(events::listen(Arc::downgrade(&hub), told));
        tokio::spawn(maintenance::for_ever(Arc::downgrade(&hub)));
        tokio::spawn(renew_woken(Arc::downgrade(&hub), waking));
        hub.sessions.wake_all().await?;
        hub.begin().await?;
        if hub.neighbours.is_some() {
            tokio::spawn(servers::follow(Arc::downgrade(&hub), hub.kept.clone()));
        }
        task::take_up(&hub, Orphans::LeftBehind).await?;
        Ok(hub)
    }

    /// Ends every backend, so that no child outlives us.
    pub async fn close(&self) {
        self.tasks.closing.cancel();
        for backend in self.all() {
            self.memory.keep(&backend).await;
            self.halt(&backend.key).await;
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
        task::take_up(self, Orphans::Dropped).await
    }
}

/// Sessions that wake up while their servers are connected already.
async fn renew_woken(hub: Weak<Hub>, mut waking: mpsc::UnboundedReceiver<Arc<HubSession>>) {
    while let Some(session) = waking.recv().await {
        let Some(hub) = hub.upgrade() else { return };
        for backend in hub.visible(&session.principal).iter().filter(|backend| backend.snapshot().is_connected()) {
            resubscribe::renew(&hub, &session, backend);
        }
    }
}
