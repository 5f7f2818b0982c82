//! Servers that were added at run time: kept in the store with their owners, and the same on every node that shares it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_protocol::{Epoch, LogId, Principal, Seq};
use bowline_store::{
    Changed, Clock, Commit, Fence, Item, Kind, LeasedLog, Record, SharedLessor, Start, Store, StoreError, WakeSet,
};

use crate::backend::Key;
use crate::clock::random_bits;
use crate::spec::ServerSpec;

/// The log in which they are kept.
const LOG: &str = "hub_servers";
/// A change that nobody was woken for is seen after this time.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub struct Kept {
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

impl Kept {
    pub async fn open(store: Arc<dyn Store>, clock: Clock) -> Result<Kept, StoreError> {
        let log = own_log(&store, &clock, LOG).await?;
        Ok(Kept { store, clock, log })
    }

    /// Adds one, or removes it. The list is read and changed under a fence of its own, so two nodes cannot both add a name.
    pub async fn note(&self, key: &Key, spec: Option<&ServerSpec>) -> Result<Noted, StoreError> {
        let item = item(key);
        let wanted = spec.map(|spec| spec.write().to_string().into_bytes());
        let (item, wanted) = (&item, &wanted);
        let decide = |doubted: bool| async move {
            let found = self.store.item(&self.log, item).await?;
            // In doubt, what is there now may be what was just written.
            let is_ours = doubted && found.as_deref() == wanted.as_deref();
            if !is_ours && found.is_some() == wanted.is_some() {
                return Err(StoreError::Exists);
            }
            let mut commit = Commit::to(self.log.clone(), Fence::OPEN, self.clock.now_ms());
            commit.items = vec![match wanted {
                Some(spec) => Item::put(item.clone(), spec.clone()),
                None => Item::delete(item.clone()),
            }];
            Ok((!is_ours).then_some(commit))
        };
        match shared(&self.store, &self.log).change(decide).await {
            Ok(Changed::Made | Changed::Unneeded) => Ok(Noted::Done),
            Err(StoreError::Exists) => Ok(Noted::Refused),
            Err(error) => Err(error),
        }
    }

    pub async fn all(&self) -> Result<BTreeMap<Key, ServerSpec>, StoreError> {
        let mut servers = BTreeMap::new();
        for (item, value) in self.store.items(&self.log, "").await? {
            let Some((name, owner)) = item.split_once('/') else { continue };
            let spec = serde_json::from_slice(&value).ok().and_then(|value| ServerSpec::read(&value, &|_| None).ok());
            // Without an owner it is everybody's.
            let owner = if owner.is_empty() { Some(None) } else { Principal::parse(owner).map(Some) };
            match (spec, owner) {
                (Some(spec), Some(owner)) => drop(servers.insert(Key { owner, name: name.into() }, spec)),
                _ => tracing::error!(server = name, "a server that was added before cannot be read; it is left alone"),
            }
        }
        Ok(servers)
    }
}

/// A log of the hub's own, made when it is first wanted.
pub(crate) async fn own_log(store: &Arc<dyn Store>, clock: &Clock, name: &str) -> Result<LogId, StoreError> {
    let (Some(log), Some(nobody)) = (LogId::parse(name), Principal::parse("hub")) else {
        return Err(StoreError::NoSuchLog);
    };
    if store.record(&log).await?.is_none() {
        let now = clock.now_ms();
        let mut commit = Commit::to(log.clone(), Fence::OPEN, now);
        commit.create = Some(Start { epoch: Epoch::from_random(random_bits() as u64), after: Seq::ZERO });
        commit.record = Some(Record { kind: Kind::Hub, owner: nobody, touched_ms: now, body: Vec::new().into() });
        match store.commit(commit).await {
            // Another node was faster.
            Ok(_) | Err(StoreError::Exists | StoreError::StaleFence { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(log)
}

/// What a server's item is called in such a log.
pub(crate) fn item(key: &Key) -> String {
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

/// Takes over what other nodes add and remove.
pub async fn follow(hub: Weak<crate::hub::Hub>, kept: Arc<Kept>) {
    let wake = WakeSet::new();
    let _tail = kept.store.tail(&kept.log, &wake, 0);
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

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}
