//! A disk in memory that knows what a power cut would leave of it, and that fails on demand.
//!
//! The model: a write is in the page cache until its file is synced, and of what is not synced, each sector of 512 bytes is
//! on the platter or not. Names are journalled: of the creations, renames and removals since the directory was
//! last synced, a power cut keeps the first few. A sync that fails forgets what it should have written, as Linux does: the next
//! one says "ok" and writes nothing of it. A process that dies loses nothing.

mod file;
mod inode;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_env::files::{Files, FilesProfile, Lock, Look, ReadableFile, WritableFile, read_start};

use self::file::SimFile;
use self::inode::Inode;
use crate::dice::Dice;
use crate::trace::Trace;

/// The file system tells holes apart in blocks.
const BLOCK_BYTES: u64 = 4096;
const WITNESS_DIR: &str = "/witness";

/// How a machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// kill -9: the page cache stays.
    Killed,
    /// The power is cut: what was not synced may be lost.
    PowerCut,
}

/// What the disk does wrong next. Each counts down operations of its kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// So many writes, syncs and changes of names from now, the machine stops in the middle of one.
    pub death: Option<(u64, Death)>,
    /// So many syncs from now one fails.
    pub sync_fails: Option<u64>,
    /// So many writes from now one fails halfway.
    pub write_fails: Option<u64>,
    /// So many reads from now one fails.
    pub read_fails: Option<u64>,
    /// There is no more space.
    pub is_full: bool,
    /// How long each group of commits takes to reach the disk.
    pub latency_ms: u64,
}

/// A disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Disk>>);

#[derive(Debug)]
struct Disk {
    dice: Dice,
    trace: Trace,
    segment_bytes: u64,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    /// What changed names since they were last durable.
    journal: Vec<Rename>,
    locks: BTreeSet<PathBuf>,
    /// Grows with each boot; files that were opened before are dead.
    life: u64,
    died: Option<Death>,
    plan: Plan,
    /// A sync has failed since the last boot: what is on the platter is not what the store believes.
    is_untrue: bool,
    /// What an operator wrote.
    installed: BTreeMap<PathBuf, String>,
}

/// `None` as the first is a creation, as the second a removal.
#[derive(Clone, Debug)]
struct Rename {
    removed: Option<PathBuf>,
    made: Option<(PathBuf, u64)>,
}

fn gone() -> io::Error {
    io::Error::other("the machine is off")
}

fn no_space() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

fn broken() -> io::Error {
    io::Error::other("the disk did not answer")
}

/// Counts down, and says whether this is the one.
fn is_due(countdown: &mut Option<u64>) -> bool {
    match countdown {
        None => false,
        Some(0) => {
            *countdown = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
    }
}

impl SimDisk {
    pub fn new(dice: Dice, trace: Trace, segment_bytes: u64) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(Disk {
            dice,
            trace,
            segment_bytes,
            inodes: BTreeMap::new(),
            next_inode: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            journal: Vec::new(),
            locks: BTreeSet::new(),
            life: 0,
            died: None,
            plan: Plan::default(),
            is_untrue: false,
            installed: BTreeMap::new(),
        })))
    }

    /// Lays a file down that an operator wrote before all this began. Nothing happens to it.
    pub fn install(&self, path: &str, text: String) {
        self.disk().installed.insert(path.into(), text);
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what goes wrong next.
    pub fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.disk().plan);
    }

    /// How the machine died in the middle of an operation, if it did.
    pub fn died(&self) -> Option<Death> {
        self.disk().died
    }

    /// Whether a sync has failed, so that a person has to look at the disk and start the server anew.
    pub fn is_untrue(&self) -> bool {
        self.disk().is_untrue
    }

    /// The machine stops now, unless it has stopped already.
    pub fn stop(&self, death: Death) {
        let mut disk = self.disk();
        disk.died.get_or_insert(death);
    }

    /// The machine starts again, with what is left.
    pub fn boot(&self) {
        let mut disk = self.disk();
        if disk.died == Some(Death::PowerCut) {
            disk.lose_what_was_not_synced();
        }
        disk.died = None;
        disk.life += 1;
        disk.locks.clear();
        disk.is_untrue = false;
        let Plan { is_full, latency_ms, .. } = disk.plan;
        disk.plan = Plan { is_full, latency_ms, ..Plan::default() };
    }

    fn open(&self, disk: &MutexGuard<'_, Disk>, inode: u64) -> SimFile {
        SimFile { disk: self.clone(), inode, life: disk.life }
    }
}

impl Disk {
    fn check(&self, life: u64) -> io::Result<()> {
        if self.died.is_some() || life != self.life { Err(gone()) } else { Ok(()) }
    }

    /// One operation that changes something: it may be the machine's last.
    fn step(&mut self) -> io::Result<()> {
        if self.died.is_some() {
            return Err(gone());
        }
        if let Some((left, death)) = &mut self.plan.death {
            if *left == 0 {
                let death = *death;
                self.died = Some(death);
                return Err(gone());
            }
            *left -= 1;
        }
        Ok(())
    }

    fn change_names(&mut self, change: Rename) {
        change.apply(&mut self.names);
        self.journal.push(change);
    }

    fn lose_what_was_not_synced(&mut self) {
        let kept = self.dice.below(self.journal.len() as u64 + 1) as usize;
        for change in self.journal.drain(..).take(kept) {
            change.apply(&mut self.durable_names);
        }
        self.names = self.durable_names.clone();
        self.names.retain(|path, _| !path.starts_with(WITNESS_DIR));
        self.durable_names = self.names.clone();
        let mut lost_sectors = 0;
        for inode in self.inodes.values_mut() {
            let dice = &mut self.dice;
            // All, none, or any of the sectors: each disk orders its writes as it likes.
            let mood = dice.below(4);
            let mut keep = |_: usize| match mood {
                0 => false,
                1 => true,
                _ => dice.percent(50),
            };
            lost_sectors += inode.lose(&mut keep);
        }
        if lost_sectors > 0 {
            self.trace.fault("lost sectors", "disk", lost_sectors);
        }
        let living: BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|inode, _| living.contains(inode));
    }
}

impl Rename {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        if let Some(removed) = &self.removed {
            names.remove(removed);
        }
        if let Some((path, inode)) = &self.made {
            names.insert(path.clone(), *inode);
        }
    }
}

impl Files for SimDisk {
    fn make_dir(&self, _: &Path) -> io::Result<()> {
        let disk = self.disk();
        disk.check(disk.life)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let disk = self.disk();
        disk.check(disk.life)?;
        Ok(disk.names.keys().filter(|path| path.parent() == Some(dir)).cloned().collect())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        let mut disk = self.disk();
        disk.check(disk.life)?;
        let life = disk.life;
        let taken = disk.locks.insert(path.to_owned());
        let lock = HeldLock { disk: self.clone(), path: path.to_owned(), life };
        Ok(taken.then(|| Box::new(lock) as Box<dyn Any + Send>))
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Lock> {
        self.lock(dir)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn look(&self, path: &Path) -> io::Result<Look> {
        // Of small files a node has only what an operator wrote: its settings are made in code.
        let disk = self.disk();
        let text = disk.installed.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Look { len: text.len() as u64, mode: 0o600, inode: 1, modified: (0, 0), changed: (0, 0) })
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        if let Some(text) = self.disk().installed.get(path) {
            return Ok(text.clone().into_bytes());
        }
        let mut bytes = Vec::new();
        read_start(&*self.open_to_read(path)?, bytes_max, &mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        if self.disk().names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.open_or_create(path)
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let mut disk = self.disk();
        disk.step()?;
        let inode = match disk.names.get(path) {
            Some(inode) => *inode,
            None => {
                disk.next_inode += 1;
                let inode = disk.next_inode;
                let is_memory = path.starts_with(WITNESS_DIR);
                disk.inodes.insert(inode, Inode::new(is_memory));
                disk.change_names(Rename { removed: None, made: Some((path.to_owned(), inode)) });
                inode
            }
        };
        Ok(Box::new(self.open(&disk, inode)))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let disk = self.disk();
        disk.check(disk.life)?;
        let inode = *disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(self.open(&disk, inode)))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn ReadableFile>> {
        let disk = self.disk();
        disk.check(disk.life)?;
        let inode = *disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(self.open(&disk, inode)))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let draft = path.with_extension("new");
        let file = self.open_or_create(&draft)?;
        file.truncate(0)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        self.rename(&draft, path)?;
        path.parent().map_or(Ok(()), |dir| self.sync_dir(dir))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step()?;
        if !disk.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.change_names(Rename { removed: Some(path.to_owned()), made: None });
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step()?;
        let inode = *disk.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        disk.change_names(Rename { removed: Some(from.to_owned()), made: Some((to.to_owned(), inode)) });
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step()?;
        if is_due(&mut disk.plan.sync_fails) {
            disk.is_untrue = true;
            disk.trace.fault("sync fails", "disk", "of the directory");
            return Err(broken());
        }
        disk.journal.clear();
        disk.durable_names = disk.names.clone();
        Ok(())
    }

    fn witness_dir(&self) -> Option<PathBuf> {
        Some(WITNESS_DIR.into())
    }

    fn profile(&self) -> FilesProfile {
        FilesProfile { blocks: false, segment_bytes: self.disk().segment_bytes }
    }

    fn latency(&self) -> Duration {
        let disk = self.disk();
        if disk.plan.latency_ms > 0 {
            disk.trace.fault("slow disk", "disk", disk.plan.latency_ms);
        }
        Duration::from_millis(disk.plan.latency_ms)
    }
}

struct HeldLock {
    disk: SimDisk,
    path: PathBuf,
    life: u64,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let mut disk = self.disk.disk();
        if disk.life == self.life {
            disk.locks.remove(&self.path);
        }
    }
}
