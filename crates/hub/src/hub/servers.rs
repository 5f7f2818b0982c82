//! How the list of servers changes: by the configuration, by people for themselves, and by operators for all.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use bowline_env::clock;
use bowline_protocol::Principal;
use bowline_store::{StoreError, WakeSet};
use serde_json::Value;
use tokio::sync::oneshot;

use super::{AddError, Hub};
use crate::backend::{Backend, BackendCommand, BackendEvent, supervisor};
use crate::call::{Requester, RequesterRole};
use crate::config::BackendKey;
use crate::config::file::FileEntry;
use crate::config::spec::{Reach, ServerSpec, check_name};
use crate::fields::Fields;
use crate::registry::stored::{DesiredServers, Noted, StoredChanges};
use crate::upstream::http;

/// A change whose wake-up was lost is seen after this time.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// From where a server comes, and so whether it is new.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// From the configuration as it was when we began. It may have been there before.
    Restarted,
    /// From the store, where it was when we started; the clients of that time have been notified.
    Kept,
    Added,
}

/// Why a server cannot be removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    #[error("there is no server named {0}")]
    Unknown(String),
    #[error(
        "{0} is shared by all clients, so only an operator may remove it: with the credential of an admin, by remove_server, in the \
         console, or by DELETE /api/admin/backends/{0}"
    )]
    OperatorsOnly(String),
    #[error("the store cannot keep the removal now: {0}")]
    Store(#[from] StoreError),
}

/// Lets a server go. Who calls it from here on learns that it is disconnected.
pub(crate) async fn halt(backend: &Backend) {
    let (told, heard) = oneshot::channel();
    let _ = backend.commands.send(BackendCommand::Remove(told)).await;
    let _ = heard.await;
}

impl Hub {
    /// Makes the configured servers these: new ones are started, missing ones removed, changed ones replaced; those that an operator
    /// removed stay away until their entry changes. What was added at run time stays, unless the configuration has the name now; when
    /// it has it no more, it returns.
    pub async fn configure(&self, servers: BTreeMap<String, ServerSpec>) {
        self.take_file(servers.into_iter().map(|(name, spec)| (name, spec.into())).collect()).await;
    }

    /// The same with the entries of a file.
    pub async fn take_file(&self, servers: BTreeMap<String, FileEntry>) {
        let _changing = self.changing.lock().await;
        let arrival = if self.begun.swap(true, Ordering::AcqRel) { Arrival::Added } else { Arrival::Restarted };
        let outdated = self.wanted_mut().configure(servers);
        for (name, removal) in outdated {
            tracing::info!(server = name, "the entry of a removed server has changed, so the server is back");
            if let Err(error) = self.kept.restore(&name, &removal).await {
                // It is back all the same: the mark that was kept is another entry's.
                tracing::warn!(server = name, %error, "the removal of a server could not be forgotten");
            }
        }
        self.reconcile(arrival).await;
    }

    /// Adds a server at run time, for its owner only. It is kept, and returns after a restart.
    pub async fn add(&self, owner: &Principal, name: &str, value: &Value) -> Result<Backend, AddError> {
        self.add_as(Some(owner), name, value).await
    }

    /// The same for all clients, which only an operator may do. The rules of what may be added at run time are the same: a
    /// credential that leaks must not become a way into the network, nor a way to run programs.
    pub async fn add_for_all(&self, name: &str, value: &Value) -> Result<Backend, AddError> {
        self.add_as(None, name, value).await
    }

    async fn add_as(&self, owner: Option<&Principal>, name: &str, value: &Value) -> Result<Backend, AddError> {
        check_name(name)?;
        // Variables are the operator's, so a stranger's entry does not get to read them.
        let spec = ServerSpec::read(value, &|_| None)?;
        if spec.is_stdio() && !self.options.allow_stdio_add {
            return Err(AddError::StdioForbidden);
        }
        http::check(&spec, self.reach_of_added())?;
        let _changing = self.changing.lock().await;
        let key = BackendKey { owner: owner.cloned(), name: name.into() };
        let taken = owner.map_or_else(|| self.backend(&key), |owner| self.find(owner, name));
        if taken.is_some() {
            return Err(AddError::Exists(name.to_owned()));
        }
        if let Some(owner) = owner {
            let own = self.visible(owner).iter().filter(|backend| backend.key.owner.is_some()).count();
            if own >= self.options.servers_per_principal_max {
                self.observer.limit_hit("hub.servers_per_principal_max");
                return Err(AddError::TooMany);
            }
        }
        if self.kept.note(&key, Some(&spec)).await.map_err(AddError::Store)? == Noted::Refused {
            return Err(AddError::Exists(name.to_owned()));
        }
        self.wanted_mut().add(key.clone(), spec.clone());
        Ok(self.launch(key, spec, self.reach_of_added(), Arrival::Added).await)
    }

    /// Removes the server that the name means to the requester, whatever its state: its own, or, for an operator, a shared one.
    pub async fn remove(&self, who: &Requester, name: &str) -> Result<(), RemoveError> {
        match (self.remove_of(&who.principal, name).await, who.role) {
            (Err(RemoveError::Unknown(_)), RequesterRole::Operator) => self.remove_for_all(name).await,
            (Err(RemoveError::Unknown(_)), RequesterRole::User)
                if self.find_anywhere(&who.principal, name).await.is_some() =>
            {
                Err(RemoveError::OperatorsOnly(name.to_owned()))
            }
            (done, _) => done,
        }
    }

    /// Removes a server that its owner added.
    pub async fn remove_of(&self, owner: &Principal, name: &str) -> Result<(), RemoveError> {
        let unknown = || RemoveError::Unknown(name.to_owned());
        check_name(name).map_err(|_| unknown())?;
        let _changing = self.changing.lock().await;
        let key = BackendKey::of(owner, name);
        let noted = self.kept.note(&key, None).await?;
        self.wanted_mut().drop_added(&key);
        self.reconcile(Arrival::Added).await;
        if noted == Noted::Done { Ok(()) } else { Err(unknown()) }
    }

    /// Removes a server that all clients share: one that an operator added, and one of the configuration until its entry changes.
    pub async fn remove_for_all(&self, name: &str) -> Result<(), RemoveError> {
        let unknown = || RemoveError::Unknown(name.to_owned());
        check_name(name).map_err(|_| unknown())?;
        let _changing = self.changing.lock().await;
        let removal = self.wanted().configured(name).map(|entry| entry.removal(self.options.clock.now_ms()));
        if self.kept.remove_shared(name, removal.as_ref()).await? == Noted::Refused {
            return Err(unknown());
        }
        {
            let mut wanted = self.wanted_mut();
            wanted.drop_added(&BackendKey::shared(name));
            if let Some(removal) = removal {
                wanted.remove(name, removal);
            }
        }
        self.reconcile(Arrival::Added).await;
        Ok(())
    }

    /// Brings back a server of the configuration that an operator removed.
    pub async fn restore(&self, name: &str) -> Result<Backend, AddError> {
        if self.peers.is_some() {
            self.learn().await.map_err(AddError::Store)?;
        }
        let _changing = self.changing.lock().await;
        let key = BackendKey::shared(name);
        let Some(removal) = self.wanted().removal(name) else { return Err(AddError::NotRemoved(name.to_owned())) };
        if self.backend(&key).is_some() {
            return Err(AddError::Exists(name.to_owned()));
        }
        self.kept.restore(name, &removal).await.map_err(AddError::Store)?;
        self.wanted_mut().restore(name);
        self.reconcile(Arrival::Added).await;
        self.backend(&key).ok_or_else(|| AddError::NotRemoved(name.to_owned()))
    }

    /// The servers of the configuration that are removed, as operators see them.
    pub fn removed(&self) -> Vec<Fields> {
        let wanted = self.wanted();
        let gone = wanted.removed().filter(|(name, ..)| self.backend(&BackendKey::shared(name)).is_none());
        gone.map(|(name, entry, removal)| {
            let mut shown = Fields::default().and("name", name);
            if let Some((kind, target)) = entry.spec.shown() {
                shown.put(kind, &target);
            }
            shown.and("removedAt", &clock::rfc3339(removal.at_ms))
        })
        .collect()
    }

    /// Stops the servers that should not be there, or not as they are, and starts those that should.
    async fn reconcile(&self, arrival: Arrival) {
        let wanted = self.wanted().servers(self.reach_of_added());
        for backend in self.all() {
            let stays = |(spec, reach): &(ServerSpec, Reach)| *spec == *backend.spec && *reach == backend.reach;
            if !wanted.get(&backend.key).is_some_and(stays) {
                self.stop(&backend.key).await;
            }
        }
        for (key, (spec, reach)) in wanted {
            if self.backend(&key).is_none() {
                self.launch(key, spec, reach, arrival).await;
            }
        }
    }

    fn reach_of_added(&self) -> Reach {
        Reach::of_added(self.options.allow_private)
    }

    async fn launch(&self, key: BackendKey, spec: ServerSpec, reach: Reach, arrival: Arrival) -> Backend {
        let remembered = self.memory.recall(&key, &spec).await;
        let is_new = match arrival {
            Arrival::Restarted => remembered.is_none(),
            Arrival::Kept => false,
            Arrival::Added => true,
        };
        let mut context = self.context.clone();
        if reach != Reach::Anywhere {
            context.http = http::client(reach, &self.options.env.network);
        }
        if key.owner.is_some() {
            // Its only user takes nothing from others.
            context.processes.per_owner_max = context.processes.max;
        }
        // A client that is notified of it must find it, and its arrival is announced before anything else about it, however fast it connects or fails.
        let told = if is_new { self.context.events.reserve().await.ok() } else { None };
        let mut backends = self.backends.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = told {
            told.send((key.clone(), BackendEvent::Added));
        }
        let backend = supervisor::start(key.clone(), spec, reach, context, remembered);
        backends.insert(key, backend.clone());
        backend
    }

    /// The server is no more.
    async fn stop(&self, key: &BackendKey) {
        let removed = self.backends.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        if let Some(backend) = removed {
            // Its replacement is announced after it.
            halt(&backend).await;
        }
        self.memory.forget(key).await;
    }

    /// What was added at run time before.
    pub(crate) async fn begin(&self) -> Result<(), StoreError> {
        self.learn_as(Arrival::Kept).await
    }

    /// Takes over what the store knows: servers that were added or removed at run time.
    pub(crate) async fn learn(&self) -> Result<(), StoreError> {
        self.learn_as(Arrival::Added).await
    }

    async fn learn_as(&self, arrival: Arrival) -> Result<(), StoreError> {
        let _changing = self.changing.lock().await;
        let stored = self.kept.all().await?;
        self.wanted_mut().learn(stored);
        self.reconcile(arrival).await;
        Ok(())
    }

    pub(super) fn wanted(&self) -> RwLockReadGuard<'_, DesiredServers> {
        self.wanted.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted_mut(&self) -> RwLockWriteGuard<'_, DesiredServers> {
        self.wanted.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes over what other nodes add and remove.
pub(crate) async fn follow(hub: Weak<Hub>, kept: Arc<StoredChanges>) {
    let wake = WakeSet::new();
    let _tail = kept.tail(&wake);
    loop {
        let Some(hub) = hub.upgrade() else { return };
        if let Err(error) = hub.learn().await {
            tracing::debug!(%error, "the list of servers cannot be read now");
        }
        drop(hub);
        if tokio::time::timeout(LOOK_EVERY, wake.woken()).await.is_ok() {
            wake.take();
        }
    }
}
