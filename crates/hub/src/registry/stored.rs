//! What changes the list of servers at run time, kept in the store and the same on every node that shares it: servers that were added,
//! with their owners, and entries of the configuration that an operator removed. Which servers there should be follows from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_env::entropy;
use bowline_protocol::{Epoch, LogId, Principal, Seq};
use bowline_store::{
    Changed, Clock, Commit, Fence, Item, LeasedLog, LogKind, Record, SharedLessor, Start, Store, StoreError, TailGuard,
    WakeSet,
};
use bytes::Bytes;

use crate::config::BackendKey;
use crate::config::file::{FileEntry, Removal};
use crate::config::spec::{Reach, ServerSpec};
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

#[derive(Debug, Default)]
pub struct DesiredServers {
    configured: BTreeMap<String, FileEntry>,
    stored: Stored,
}

impl DesiredServers {
    /// Takes what the store knows now.
    pub fn learn(&mut self, stored: Stored) {
        self.stored = stored;
    }

    /// Takes the configuration as it is now. What it returns are removals of entries that are not the same any more, and so come back:
    /// those that have changed since this node read them last, or since they were removed if it reads them for the first time.
    pub fn configure(&mut self, servers: BTreeMap<String, FileEntry>) -> Vec<(String, Removal)> {
        let before = std::mem::replace(&mut self.configured, servers);
        let mark_in =
            |entries: &BTreeMap<String, FileEntry>, name: &str| entries.get(name).map(|entry| entry.mark.clone());
        let mut outdated = Vec::new();
        for (name, removal) in &self.stored.removed {
            let (was, is) = (mark_in(&before, name), mark_in(&self.configured, name));
            if was != is && is.as_ref() != Some(&removal.mark) {
                outdated.push((name.clone(), removal.clone()));
            }
        }
        outdated.iter().for_each(|(name, _)| drop(self.stored.removed.remove(name)));
        outdated
    }

    pub fn add(&mut self, key: BackendKey, spec: ServerSpec) {
        self.stored.added.insert(key, spec);
    }

    /// Forgets one that was added.
    pub fn drop_added(&mut self, key: &BackendKey) {
        self.stored.added.remove(key);
    }

    pub fn remove(&mut self, name: &str, removal: Removal) {
        self.stored.removed.insert(name.to_owned(), removal);
    }

    pub fn restore(&mut self, name: &str) {
        self.stored.removed.remove(name);
    }

    /// The entry of the configuration under this name that is in force.
    pub fn configured(&self, name: &str) -> Option<&FileEntry> {
        self.configured.get(name).filter(|entry| !self.is_removed_entry(name, entry))
    }

    /// How the entry of this name was removed, if it was.
    pub fn removal(&self, name: &str) -> Option<Removal> {
        self.removed().find(|(its, ..)| *its == name).map(|(.., removal)| removal.clone())
    }

    pub fn removed(&self) -> impl Iterator<Item = (&str, &FileEntry, &Removal)> {
        self.stored.removed.iter().filter_map(|(name, removal)| {
            let entry = self.configured.get(name).filter(|entry| entry.mark == removal.mark)?;
            Some((name.as_str(), entry, removal))
        })
    }

    /// All servers that should be there, and where each may be. Of an added one and one of the configuration the latter counts.
    pub fn servers(&self, reach_of_added: Reach) -> BTreeMap<BackendKey, (ServerSpec, Reach)> {
        let added = self.stored.added.iter().map(|(key, spec)| (key.clone(), (spec.clone(), reach_of_added)));
        let configured = self.configured.iter().filter(|(name, entry)| !self.is_removed_entry(name, entry));
        let configured =
            configured.map(|(name, entry)| (BackendKey::shared(name), (entry.spec.clone(), Reach::Anywhere)));
        added.chain(configured).collect()
    }

    /// A removal is of an entry as it is written: another text under the same name is another entry.
    fn is_removed_entry(&self, name: &str, entry: &FileEntry) -> bool {
        self.stored.removed.get(name).is_some_and(|removal| removal.mark == entry.mark)
    }
}

#[cfg(test)]
mod desired_tests {
    use super::*;
    use serde_json::json;

    fn file(url: Option<&str>) -> BTreeMap<String, FileEntry> {
        let entry = |url: &str| FileEntry::read("b", &json!({ "url": url }), &|_| None);
        url.map(|url| ("b".to_owned(), entry(url))).into_iter().collect()
    }

    fn removed(wanted: &DesiredServers) -> Vec<String> {
        wanted.removed().map(|(name, ..)| name.to_owned()).collect()
    }

    fn with_removal(url: &str) -> DesiredServers {
        let mut wanted = DesiredServers::default();
        wanted.configure(file(Some(url)));
        let mark = wanted.configured("b").unwrap().mark.clone();
        wanted.remove("b", Removal { mark, at_ms: 1 });
        wanted
    }

    #[test]
    fn a_removal_lasts_until_its_entry_changes() {
        let mut wanted = with_removal("http://x/");
        assert!(wanted.servers(Reach::Public).is_empty() && wanted.removal("b").is_some());
        assert!(wanted.configure(file(Some("http://x/"))).is_empty(), "the file was read again");
        assert_eq!(removed(&wanted), ["b"]);
        assert_eq!(wanted.configure(file(Some("http://y/"))).len(), 1);
        assert!(wanted.configured("b").is_some() && removed(&wanted).is_empty());
        assert!(wanted.configure(file(Some("http://x/"))).is_empty());
        assert!(wanted.configured("b").is_some(), "what was forgotten does not come back with the old text");
    }

    #[test]
    fn an_entry_that_is_taken_out_and_written_again_is_there_again() {
        let mut wanted = with_removal("http://x/");
        assert_eq!(wanted.configure(file(None)).len(), 1);
        wanted.configure(file(Some("http://x/")));
        assert!(wanted.configured("b").is_some());
    }

    #[test]
    fn after_a_restart_only_an_entry_that_has_changed_meanwhile_comes_back() {
        for (url, comes_back) in [("http://x/", false), ("http://y/", true)] {
            let mut wanted = DesiredServers::default();
            wanted.learn(std::mem::take(&mut with_removal("http://x/").stored));
            wanted.configure(file(Some(url)));
            assert_eq!(wanted.configured("b").is_some(), comes_back, "{url}");
        }
        // A node whose configuration never had the entry says nothing about it.
        let mut other = DesiredServers::default();
        other.learn(std::mem::take(&mut with_removal("http://x/").stored));
        assert!(other.configure(file(None)).is_empty());
    }

    #[test]
    fn an_added_server_takes_the_name_of_a_removed_one() {
        let mut wanted = with_removal("http://x/");
        let spec = ServerSpec::read(&json!({ "url": "http://z/" }), &|_| None).unwrap();
        wanted.add(BackendKey::shared("b"), spec.clone());
        assert_eq!(wanted.servers(Reach::Public)[&BackendKey::shared("b")], (spec, Reach::Public));
        wanted.restore("b");
        assert_eq!(wanted.servers(Reach::Public)[&BackendKey::shared("b")].1, Reach::Anywhere);
    }
}
