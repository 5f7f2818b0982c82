//! The hub: all backends and all clients, and who may see what.

pub mod file_watch;
pub(crate) mod servers;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bowline_env::clock;
use bowline_protocol::Principal;
use bowline_store::{Store, StoreError};
use tokio::sync::broadcast;

use crate::backend::{Backend, BackendEvent, Observer, supervisor};
use crate::call::Requester;
use crate::call::server_request::SuspendedCalls;
use crate::call::slow_calls::SlowCalls;
use crate::config::spec::SpecError;
use crate::config::{BackendKey, Options};
use crate::peers::PeerNodes;
use crate::registry::stored::{DesiredServers, StoredChanges};
use crate::registry::{ForcedReconnects, Memory, Users};
use crate::session::HubSession;
use crate::session::registry::HubSessions;
use crate::tasks::HubTasks;
use crate::tasks::names::TaskNames;

pub use self::servers::RemoveError;

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

/// Something that happened to a backend.
pub type Happening = Arc<(BackendKey, BackendEvent)>;

pub struct Hub {
    pub options: Options,
    pub store: Arc<dyn Store>,
    /// Other nodes on the same store, where there can be any.
    pub peers: Option<Arc<dyn PeerNodes>>,
    pub(crate) backends: RwLock<BTreeMap<BackendKey, Backend>>,
    pub sessions: Arc<HubSessions>,
    pub(crate) users: Users,
    pub suspended: SuspendedCalls,
    pub tasks: Arc<HubTasks>,
    pub task_names: TaskNames,
    pub slow_calls: Arc<SlowCalls>,
    pub(crate) context: supervisor::SupervisorContext,
    pub(crate) happenings: broadcast::Sender<Happening>,
    pub observer: Arc<dyn Observer>,
    /// Changes of the list of servers happen under this lock, one at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Apart from the lock of changes, which may wait for a store, so that readers do not wait with them.
    pub(crate) wanted: RwLock<DesiredServers>,
    pub(crate) forced_reconnects: ForcedReconnects,
    pub(crate) kept: Arc<StoredChanges>,
    pub(crate) memory: Memory,
    /// The configuration was taken for the first time: what comes from now on is new.
    pub(crate) begun: AtomicBool,
}

impl Hub {
    /// Everything that happens to backends from now on.
    pub fn happenings(&self) -> broadcast::Receiver<Happening> {
        self.happenings.subscribe()
    }

    /// The backends that this principal may use: the shared ones and its own. Of two with the same name it is its own.
    pub fn visible(&self, principal: &Principal) -> Vec<Backend> {
        let backends = self.backends.read().unwrap_or_else(PoisonError::into_inner);
        let seen = backends.iter().filter(|(key, _)| sees(&backends, principal, key));
        seen.map(|(_, backend)| backend.clone()).collect()
    }

    /// Whether this is what the principal means by the name, also if the backend was removed just now.
    pub fn sees(&self, principal: &Principal, key: &BackendKey) -> bool {
        sees(&self.backends.read().unwrap_or_else(PoisonError::into_inner), principal, key)
    }

    /// A principal is about to use a backend.
    pub(crate) fn used(&self, backend: &Backend, principal: &Principal) {
        self.users.note(&backend.key, principal);
    }

    /// Whether this principal alone has used it since we started.
    pub(crate) fn is_only_used_by(&self, key: &BackendKey, principal: &Principal) -> bool {
        self.users.are_only(key, principal)
    }

    pub fn find(&self, principal: &Principal, name: &str) -> Option<Backend> {
        let backends = self.backends.read().unwrap_or_else(PoisonError::into_inner);
        let mut key = BackendKey::of(principal, name);
        let own = backends.get(&key);
        own.or_else(|| {
            key.owner = None;
            backends.get(&key)
        })
        .cloned()
    }

    /// The same, also if another node has only just added it.
    pub async fn find_anywhere(&self, principal: &Principal, name: &str) -> Option<Backend> {
        if let Some(backend) = self.find(principal, name) {
            return Some(backend);
        }
        if self.peers.is_some()
            && let Err(error) = Box::pin(self.learn()).await
        {
            tracing::debug!(%error, "the list of servers cannot be read now");
        }
        self.find(principal, name)
    }

    /// Dials a server now, whatever its state, and says whether that worked. Others use a shared server too, so who is not its operator
    /// may do so only now and then: after the time that is returned.
    pub async fn force_reconnect(&self, who: &Requester, backend: &Backend) -> Result<bool, Duration> {
        let taken = self.forced_reconnects.take(who, &backend.key, clock::now());
        taken.inspect_err(|_| self.observer.limit_hit("hub.forced_reconnects_per_minute_max"))?;
        Ok(backend.reconnect().await)
    }

    /// All of them, for operators.
    pub fn all(&self) -> Vec<Backend> {
        let backends = self.backends.read().unwrap_or_else(PoisonError::into_inner);
        backends.values().cloned().collect()
    }

    /// Whether the server is in the configuration, and not one that was added at run time.
    pub fn is_configured(&self, key: &BackendKey) -> bool {
        key.owner.is_none() && self.wanted().configured(&key.name).is_some()
    }

    pub(crate) fn backend(&self, key: &BackendKey) -> Option<Backend> {
        self.backends.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Calls of clients that are under way, at all servers, but for those that wait for a person.
    pub fn calls_at_work(&self) -> usize {
        let open: usize = self.all().iter().map(|backend| backend.counts.open()).sum();
        let asked: usize = self.sessions.awake().iter().map(|session| session.pending(None).len()).sum();
        open.saturating_sub(asked + self.suspended.count())
    }

    /// Ends a session for good, and what it has at its servers.
    pub(crate) async fn end_session(&self, session: &Arc<HubSession>) {
        self.sessions.end(session).await;
        self.end_at_servers(session).await;
    }

    /// Ends a client's own sessions at its servers.
    pub(crate) fn end_at_servers(&self, session: &HubSession) -> impl Future<Output = ()> + Send + use<> {
        let (session_name, mut backends): (Arc<str>, _) = (session.id.as_str().into(), self.all());
        // Also at those that it does not see any more, since it has a server of that name itself.
        backends.retain(|backend| backend.key.owner.as_ref().is_none_or(|owner| *owner == session.principal));
        async move {
            for backend in backends {
                backend.end_backend_session(session_name.clone()).await;
            }
        }
    }

    /// Fires when we leave.
    pub fn closing(&self) -> &tokio_util::sync::CancellationToken {
        &self.tasks.closing
    }
}

fn sees(backends: &BTreeMap<BackendKey, Backend>, principal: &Principal, key: &BackendKey) -> bool {
    let own = || BackendKey { owner: Some(principal.clone()), name: key.name.clone() };
    match &key.owner {
        Some(owner) => owner == principal,
        None => !backends.contains_key(&own()),
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.sessions.leave();
        self.tasks.closing.cancel();
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub({} backends)", self.all().len())
    }
}
