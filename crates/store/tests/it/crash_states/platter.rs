//! A machine's disk, as a process sees it and as a power cut leaves it: what is synced, what is not, and which states that allows.
//!
//! The model: of a file that was not synced, each sector of 512 bytes may hold any version since the last sync, and so may the length.
//! Names are journalled: of the creations, renames and removals since the directory was last synced, a power cut keeps
//! the first few. What lies in the folder of witnesses is memory, which only a power cut erases.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

pub const WITNESS_DIR: &str = "/witness";
const SECTOR_BYTES: usize = 512;

/// One thing that a process did to the disk.
#[derive(Clone, Debug)]
pub enum Step {
    Create { path: PathBuf, inode: u64 },
    Rename { from: PathBuf, to: PathBuf },
    Remove { path: PathBuf },
    SyncDir,
    Write { inode: u64, offset: u64, bytes: Vec<u8> },
    Resize { inode: u64, len: u64 },
    Sync { inode: u64 },
}

/// A file's content; behind `data`, up to `len`, are zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content {
    pub data: Vec<u8>,
    pub len: u64,
}

impl Content {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[offset..end].copy_from_slice(bytes);
        self.len = self.len.max(end as u64);
    }

    fn resize(&mut self, len: u64) {
        self.data.truncate(len as usize);
        self.len = len;
    }

    fn sector(&self, sector: usize) -> Vec<u8> {
        let end = ((sector + 1) * SECTOR_BYTES).min(self.data.len());
        self.data.get(sector * SECTOR_BYTES..end).unwrap_or_default().to_vec()
    }
}

/// What a file was since it was last synced, version by version.
#[derive(Clone, Debug, Default)]
struct Unsynced {
    lens: Vec<u64>,
    sectors: BTreeMap<usize, Vec<Vec<u8>>>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Made(PathBuf, u64),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            NameChange::Made(path, inode) => drop(names.insert(path.clone(), *inode)),
            NameChange::Renamed(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            NameChange::Removed(path) => drop(names.remove(path)),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Platter {
    pub names: BTreeMap<PathBuf, u64>,
    pub cached: BTreeMap<u64, Content>,
    durable_names: BTreeMap<PathBuf, u64>,
    durable: BTreeMap<u64, Content>,
    journal: Vec<NameChange>,
    unsynced: BTreeMap<u64, Unsynced>,
    memory: BTreeSet<u64>,
    next_inode: u64,
}

fn is_memory(path: &Path) -> bool {
    path.starts_with(WITNESS_DIR)
}

impl Platter {
    pub fn new_inode(&mut self) -> u64 {
        self.next_inode += 1;
        self.next_inode
    }

    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Create { path, inode } => {
                self.next_inode = self.next_inode.max(*inode);
                self.cached.insert(*inode, Content::default());
                if is_memory(path) {
                    self.memory.insert(*inode);
                }
                self.rename(NameChange::Made(path.clone(), *inode), is_memory(path));
            }
            Step::Rename { from, to } => {
                self.rename(NameChange::Renamed(from.clone(), to.clone()), is_memory(to));
            }
            Step::Remove { path } => self.rename(NameChange::Removed(path.clone()), is_memory(path)),
            Step::SyncDir => {
                for change in std::mem::take(&mut self.journal) {
                    change.apply(&mut self.durable_names);
                }
            }
            Step::Write { inode, offset, bytes } => {
                let content = self.cached.entry(*inode).or_default();
                let len_before = content.len;
                content.write(bytes, *offset as usize);
                if self.memory.contains(inode) {
                    return;
                }
                let unsynced = self.unsynced.entry(*inode).or_default();
                if content.len != len_before {
                    unsynced.lens.push(content.len);
                }
                let (first, end) = (*offset as usize / SECTOR_BYTES, *offset as usize + bytes.len());
                for sector in first..end.div_ceil(SECTOR_BYTES) {
                    unsynced.sectors.entry(sector).or_default().push(content.sector(sector));
                }
            }
            Step::Resize { inode, len } => {
                let content = self.cached.entry(*inode).or_default();
                if content.len != *len {
                    content.resize(*len);
                    self.unsynced.entry(*inode).or_default().lens.push(*len);
                }
            }
            Step::Sync { inode } => {
                if let Some(unsynced) = self.unsynced.remove(inode) {
                    let content = self.durable.entry(*inode).or_default();
                    for (sector, versions) in &unsynced.sectors {
                        put(content, *sector, versions.last());
                    }
                    content.resize(self.cached.get(inode).map_or(0, |cached| cached.len));
                }
            }
        }
    }

    fn rename(&mut self, change: NameChange, is_memory: bool) {
        change.apply(&mut self.names);
        if !is_memory {
            self.journal.push(change);
        }
    }

    /// Whether a power cut now could lose nothing.
    pub fn is_synced(&self) -> bool {
        self.journal.is_empty() && self.unsynced.is_empty()
    }

    /// How many ways each thing that is not synced can go: the names first, then each length and each sector.
    pub fn choices(&self) -> Vec<usize> {
        let files = self.unsynced.values().flat_map(|unsynced| {
            let sectors = unsynced.sectors.values().map(|versions| versions.len() + 1);
            std::iter::once(unsynced.lens.len() + 1).chain(sectors)
        });
        std::iter::once(self.journal.len() + 1).chain(files).collect()
    }

    /// The disk after a power cut, by one number below each of [`choices`](Platter::choices): `0` is as it was synced, the highest
    /// as a process saw it last.
    pub fn after_power_cut(&self, chosen: &[usize]) -> Platter {
        let mut chosen = chosen.iter().copied();
        let mut next = || chosen.next().unwrap_or(0);
        let mut names = self.durable_names.clone();
        for change in self.journal.iter().take(next()) {
            change.apply(&mut names);
        }
        let mut files = self.durable.clone();
        for (inode, unsynced) in &self.unsynced {
            let content = files.entry(*inode).or_default();
            let len = next().checked_sub(1).map_or(content.len, |version| unsynced.lens[version]);
            for (sector, versions) in &unsynced.sectors {
                put(content, *sector, next().checked_sub(1).map(|version| &versions[version]));
            }
            content.resize(len);
        }
        files.retain(|inode, _| names.values().any(|named| named == inode));
        for inode in names.values() {
            files.entry(*inode).or_default();
        }
        Platter {
            names: names.clone(),
            cached: files.clone(),
            durable_names: names,
            durable: files,
            next_inode: self.next_inode,
            ..Platter::default()
        }
    }

    /// The disk in other words: what a process that starts now can read.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (path, inode) in &self.names {
            (path, self.cached.get(inode)).hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn put(content: &mut Content, sector: usize, bytes: Option<&Vec<u8>>) {
    if let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) {
        content.write(bytes, sector * SECTOR_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(platter: &mut Platter, byte: u8, len: usize) {
        platter.apply(&Step::Write { inode: 1, offset: 0, bytes: vec![byte; len] });
    }

    #[test]
    fn each_sector_keeps_any_version_since_the_last_sync_and_names_keep_their_order() {
        let mut platter = Platter::default();
        let path = PathBuf::from("/a");
        platter.apply(&Step::Create { path: path.clone(), inode: 1 });
        platter.apply(&Step::SyncDir);
        written(&mut platter, 1, 1024);
        platter.apply(&Step::Sync { inode: 1 });
        assert!(platter.is_synced());
        written(&mut platter, 2, 1024);
        written(&mut platter, 3, 512);
        platter.apply(&Step::Rename { from: path, to: "/b".into() });
        // The rename; the length, which did not change; two writes of one sector; one of the other.
        assert_eq!(platter.choices(), [2, 1, 3, 2]);
        let left = platter.after_power_cut(&[0, 0, 2, 0]);
        let content = &left.cached[&left.names[Path::new("/a")]];
        assert_eq!((content.data[0], content.data[512], content.len), (3, 1, 1024));
        assert!(left.is_synced());
        assert!(platter.after_power_cut(&[1, 0, 0, 0]).names.contains_key(Path::new("/b")));
    }
}
