//! Which servers there should be: those of the configuration without those that an operator removed, and those that were added at run
//! time.

use std::collections::BTreeMap;

use super::stored::Stored;
use crate::config::file::{FileEntry, Removal};
use crate::config::key::BackendKey;
use crate::config::spec::{Reach, ServerSpec};

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
mod tests {
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
