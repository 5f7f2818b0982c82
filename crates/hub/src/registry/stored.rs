//! What changes the list of servers at run time, kept in the store and the same on every node that shares it: servers that were added,
//! with their owners, and entries of the configuration that an operator removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_env::entropy;
use bowline_protocol::{Epoch, LogId, Principal, Seq};
use bowline_store::{
    Changed, Clock, Commit, Fence, Item, LeasedLog, LogKind, Record, SharedLessor, Start, Store, StoreError, TailGuard,
    WakeSet,
};
use bytes::Bytes;

use crate::config::file::Removal;
use crate::config::key::BackendKey;
use crate::config::spec::ServerSpec;
use crate::fields::raw;

/// The log in which they are kept.
const LOG: &str = "hub_servers";
/// What the items of removals begin with.
const REMOVED: &str = "removed:";

pub struct StoredChanges {
    store: Arc<dyn Store>,
    clock: Clock,
    log: LogId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    Done,
    /// There is one of this name already, or none to remove.
    Refused,
}

/// What the log holds.
#[derive(Debug, Default)]
pub struct Stored {
    pub added: BTreeMap<BackendKey, ServerSpec>,
    /// Servers of the configuration that an operator removed, by their names.
    pub removed: BTreeMap<String, Removal>,
}

impl StoredChanges {
    pub async fn open(store: Arc<dyn Store>, clock: Clock) -> Result<StoredChanges, StoreError> {
        let log = own_log(&store, &clock, LOG).await?;
        Ok(StoredChanges { store, clock, log })
    }

    /// Adds one, or removes it.
    pub async fn note(&self, key: &BackendKey, spec: Option<&ServerSpec>) -> Result<Noted, StoreError> {
        let item = item(key);
        self.change(&[&item], |now| match (spec, &now[0]) {
            (Some(spec), None) => vec![Item::put(item.clone(), spec.write().to_string().into_bytes())],
            (None, Some(_)) => vec![Item::delete(item.clone())],
            (Some(_), Some(_)) | (None, None) => Vec::new(),
        })
        .await
    }

    /// Removes the shared server of this name: what was added, and with `removal` also the entry of the configuration.
    pub async fn remove_shared(&self, name: &str, removal: Option<&Removal>) -> Result<Noted, StoreError> {
        let (added, removed) = (item(&BackendKey::shared(name)), removal_item(name));
        self.change(&[&added], |now| {
            let deleted = now[0].as_ref().map(|_| Item::delete(added.clone()));
            let noted = removal.map(|removal| Item::put(removed.clone(), raw(removal).get().as_bytes().to_vec()));
            deleted.into_iter().chain(noted).collect()
        })
        .await
    }

    /// Forgets that an entry of the configuration was removed; not if another one was meanwhile.
    pub async fn restore(&self, name: &str, removal: &Removal) -> Result<Noted, StoreError> {
        let removed = removal_item(name);
        self.change(&[&removed], |now| {
            let same = now[0].as_deref().and_then(|value| serde_json::from_slice::<Removal>(value).ok());
            let same = same.is_some_and(|same| same.mark == removal.mark);
            same.then(|| Item::delete(removed.clone())).into_iter().collect()
        })
        .await
    }

    /// The list is read and changed under a lease, so that two nodes cannot both add a name. `decide` says what is to be
    /// changed, given what the items of `read` hold now.
    async fn change(&self, read: &[&str], decide: impl Fn(&[Option<Bytes>]) -> Vec<Item>) -> Result<Noted, StoreError> {
        let attempted = tokio::sync::Mutex::new(Vec::<Item>::new());
        let (decide, attempted) = (&decide, &attempted);
        let look = |doubted: bool| async move {
            let mut attempted = attempted.lock().await;
            // In doubt, what is there now may be what was just written.
            if doubted && self.holds(&attempted).await? {
                return Ok(None);
            }
            let mut now = Vec::new();
            for item in read {
                now.push(self.store.item(&self.log, item).await?);
            }
            let mut commit = Commit::to(self.log.clone(), Fence::OPEN, self.clock.now_ms());
            commit.items = decide(&now);
            if commit.items.is_empty() {
                return Err(StoreError::Exists);
            }
            attempted.clone_from(&commit.items);
            Ok(Some(commit))
        };
        match shared(&self.store, &self.log).change(look).await {
            Ok(Changed::Made | Changed::Unneeded) => Ok(Noted::Done),
            Err(StoreError::Exists) => Ok(Noted::Refused),
            Err(error) => Err(error),
        }
    }

    /// Whether the log holds these items as they are.
    async fn holds(&self, items: &[Item]) -> Result<bool, StoreError> {
        for item in items {
            if self.store.item(&self.log, &item.key).await? != item.value {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Wakes its reader when another node has changed the list.
    pub fn tail(&self, wake: &Arc<WakeSet>) -> TailGuard {
        self.store.tail(&self.log, wake, 0)
    }

    pub async fn all(&self) -> Result<Stored, StoreError> {
        let mut stored = Stored::default();
        for (item, value) in self.store.items(&self.log, "").await? {
            if let Some(name) = item.strip_prefix(REMOVED) {
                match serde_json::from_slice(&value) {
                    Ok(removal) => drop(stored.removed.insert(name.to_owned(), removal)),
                    Err(error) => tracing::error!(server = name, %error, "the removal of a server cannot be read"),
                }
                continue;
            }
            let Some((name, owner)) = item.split_once('/') else { continue };
            let spec = serde_json::from_slice(&value).ok().and_then(|value| ServerSpec::read(&value, &|_| None).ok());
            // Without an owner, all clients share it.
            let owner = if owner.is_empty() { Some(None) } else { Principal::parse(owner).map(Some) };
            match (spec, owner) {
                (Some(spec), Some(owner)) => drop(stored.added.insert(BackendKey { owner, name: name.into() }, spec)),
                _ => tracing::error!(server = name, "a server that was added before cannot be read; it is left alone"),
            }
        }
        Ok(stored)
    }
}

/// What the removal of an entry is called. No name of a server has a colon, and no item of an added one is without a slash.
fn removal_item(name: &str) -> String {
    format!("{REMOVED}{name}")
}

/// A log of the hub's own, made when it is first wanted.
pub(crate) async fn own_log(store: &Arc<dyn Store>, clock: &Clock, name: &str) -> Result<LogId, StoreError> {
    let (Some(log), Some(hub_principal)) = (LogId::parse(name), Principal::parse("hub")) else {
        return Err(StoreError::NoSuchLog);
    };
    if store.record(&log).await?.is_none() {
        let now = clock.now_ms();
        let mut commit = Commit::to(log.clone(), Fence::OPEN, now);
        commit.create = Some(Start { epoch: Epoch::from_random(entropy::u128() as u64), after: Seq::ZERO });
        commit.record =
            Some(Record { kind: LogKind::Hub, owner: hub_principal, touched_ms: now, body: Vec::new().into() });
        match store.commit(commit).await {
            // Another node was faster.
            Ok(_) | Err(StoreError::Exists | StoreError::StaleFence { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(log)
}

/// What a server's item is called in such a log.
pub(crate) fn item(key: &BackendKey) -> String {
    format!("{}/{}", key.name, key.owner.as_ref().map_or("", |owner| owner.as_str()))
}

/// Changes an item, whatever it was before. Others may do the same at once; the last one counts.
pub(crate) async fn change(store: &Arc<dyn Store>, clock: &Clock, log: &LogId, item: &Item) -> Result<(), StoreError> {
    let decide = |_doubted: bool| {
        let mut commit = Commit::to(log.clone(), Fence::OPEN, clock.now_ms());
        commit.items = vec![item.clone()];
        std::future::ready(Ok(Some(commit)))
    };
    shared(store, log).change(decide).await.map(drop)
}

/// A log that all nodes change, each for a moment.
fn shared(store: &Arc<dyn Store>, log: &LogId) -> LeasedLog {
    LeasedLog::new(store.clone(), Arc::new(SharedLessor(store.clone())), log.clone())
}

impl std::fmt::Debug for StoredChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoredChanges")
    }
}
