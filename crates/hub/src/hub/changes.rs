//! How the list of servers changes: by the configuration, by people for themselves, and by operators for all.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use bowline_protocol::Principal;
use bowline_store::StoreError;
use serde_json::Value;
use tokio::sync::oneshot;

use super::{AddError, Hub};
use crate::backend::{Backend, BackendEvent, Command, Key};
use crate::drive;
use crate::guard;
use crate::servers::Noted;
use crate::spec::{Reach, ServerSpec, check_name};

/// From where a server comes, and so whether it is new.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// From the configuration as it was when we began. It may have been there before.
    Restarted,
    /// From the store, where it was when we began, and whoever was there then has been told.
    Kept,
    Added,
}

/// What became of a server that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    Done,
    /// It is in the configuration, and would come back with it.
    Configured,
    Unknown,
}

impl Hub {
    /// Makes the configured servers these: new ones are started, missing ones removed, changed ones replaced. What was added
    /// at run time stays, unless the configuration has the name now; when it has it no more, it returns.
    pub async fn configure(&self, servers: BTreeMap<String, ServerSpec>) {
        let changing = self.changing.lock().await;
        let names = servers.keys().cloned().collect();
        let before = {
            let mut configured = self.configured.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *configured, names)
        };
        let arrival = if self.begun.swap(true, Ordering::AcqRel) { Arrival::Added } else { Arrival::Restarted };
        for backend in self.all().iter().filter(|backend| backend.key.owner.is_none()) {
            let stays = match servers.get(backend.name()) {
                Some(spec) => *spec == *backend.spec,
                None => !before.contains(backend.name()),
            };
            if !stays {
                self.stop(&backend.key).await;
            }
        }
        for (name, spec) in servers {
            let key = Key { owner: None, name: name.into() };
            if self.backend(&key).is_none() {
                self.launch(key, spec, Reach::Anywhere, arrival).await;
            }
        }
        let dropped = before.iter().any(|name| !self.is_configured(&Key { owner: None, name: name.as_str().into() }));
        drop(changing);
        if dropped && let Err(error) = self.learn().await {
            tracing::warn!(%error, "what was added at run time cannot be read now");
        }
    }

    /// Adds a server at run time, for its owner only. It is kept, and returns after a restart.
    pub async fn add(&self, owner: &Principal, name: &str, value: &Value) -> Result<Backend, AddError> {
        self.add_as(Some(owner), name, value).await
    }

    /// The same for everybody, as only an operator may. The rules of what may be added at run time are the same: a
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
        guard::check(&spec, Reach::of_added(self.options.allow_private))?;
        let _changing = self.changing.lock().await;
        let key = Key { owner: owner.cloned(), name: name.into() };
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
        Ok(self.launch(key, spec, Reach::of_added(self.options.allow_private), Arrival::Added).await)
    }

    /// Removes a server that was added at run time. False if it is not the caller's to remove.
    pub async fn remove(&self, owner: &Principal, name: &str) -> Result<bool, StoreError> {
        let _changing = self.changing.lock().await;
        let key = Key { owner: Some(owner.clone()), name: name.into() };
        let removed = self.kept.note(&key, None).await? == Noted::Done;
        self.stop(&key).await;
        Ok(removed)
    }

    /// Removes a server that an operator added for everybody.
    pub async fn remove_for_all(&self, name: &str) -> Result<Removed, StoreError> {
        let _changing = self.changing.lock().await;
        let key = Key { owner: None, name: name.into() };
        let removed = self.kept.note(&key, None).await? == Noted::Done;
        if self.is_configured(&key) {
            return Ok(Removed::Configured);
        }
        self.stop(&key).await;
        Ok(if removed { Removed::Done } else { Removed::Unknown })
    }

    async fn launch(&self, key: Key, spec: ServerSpec, reach: Reach, arrival: Arrival) -> Backend {
        let remembered = self.memory.recall(&key, &spec).await;
        let is_new = match arrival {
            Arrival::Restarted => remembered.is_none(),
            Arrival::Kept => false,
            Arrival::Added => true,
        };
        let mut around = self.around.clone();
        if reach != Reach::Anywhere {
            around.http = guard::client(reach);
        }
        // Whoever hears of it must find it, and its arrival is told before anything else of it, however fast it connects or fails.
        let told = if is_new { self.around.events.reserve().await.ok() } else { None };
        let mut backends = self.backends.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = told {
            told.send((key.clone(), BackendEvent::Added));
        }
        let backend = drive::backend::start(key.clone(), spec, reach, around, remembered);
        backends.insert(key, backend.clone());
        backend
    }

    /// The server is no more.
    async fn stop(&self, key: &Key) {
        self.halt(key).await;
        self.memory.forget(key).await;
    }

    pub(super) async fn halt(&self, key: &Key) {
        let removed = self.backends.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        if let Some(backend) = removed {
            // Whoever takes its place is told of after it.
            let (told, heard) = oneshot::channel();
            let _ = backend.commands.send(Command::Remove(told)).await;
            let _ = heard.await;
        }
    }

    /// What was added at run time before.
    pub(super) async fn begin(&self) -> Result<(), StoreError> {
        self.learn_as(Arrival::Kept).await
    }

    /// Makes the servers that were added at run time those that the store knows.
    pub(crate) async fn learn(&self) -> Result<(), StoreError> {
        self.learn_as(Arrival::Added).await
    }

    async fn learn_as(&self, arrival: Arrival) -> Result<(), StoreError> {
        let _changing = self.changing.lock().await;
        let kept = self.kept.all().await?;
        let added: Vec<Backend> = self.all().into_iter().filter(|backend| !self.is_configured(&backend.key)).collect();
        for backend in &added {
            if kept.get(&backend.key) != Some(&*backend.spec) {
                self.stop(&backend.key).await;
            }
        }
        for (key, spec) in kept {
            if !self.is_configured(&key) && self.backend(&key).is_none() {
                self.launch(key, spec, Reach::of_added(self.options.allow_private), arrival).await;
            }
        }
        Ok(())
    }
}
