//! Files that fail on demand, for tests: the nth read, write or sync, a full disk, a power cut.
#![allow(clippy::disallowed_methods, reason = "it breaks real files")]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_env::files::{Allocated, Files, Lock, Look, OsFiles, ReadableFile, WritableFile, read_start};

use crate::sync::{Mutex, MutexGuard, lock};

/// Disks keep or lose whole sectors.
const SECTOR_BYTES: usize = 512;

/// Real files in a real directory, with a record of what a power cut would leave of them.
#[derive(Clone, Debug)]
pub struct FaultyFiles {
    plan: Arc<Mutex<FaultPlan>>,
    witness_dir: PathBuf,
}

#[derive(Debug, Default)]
struct FaultPlan {
    writes_until_failure: Option<u32>,
    syncs_until_failure: Option<u32>,
    reads_until_failure: Option<u32>,
    full: bool,
    removals_fail: bool,
    removals: u32,
    /// The power is gone; nothing succeeds any more.
    cut: bool,
    files: HashMap<PathBuf, Image>,
    /// What open files are called now.
    renamed: HashMap<PathBuf, PathBuf>,
}

/// What the platter holds of a file.
#[derive(Debug, Default)]
struct Image {
    synced: Vec<u8>,
    /// Whether the directory knows of the file.
    named: bool,
}

impl FaultyFiles {
    /// `witness_dir` stands for the memory that a power cut erases.
    pub fn new(witness_dir: impl Into<PathBuf>) -> FaultyFiles {
        FaultyFiles { plan: Arc::default(), witness_dir: witness_dir.into() }
    }

    /// Lets `good` more writes succeed, then fails one halfway through.
    pub fn fail_write_after(&self, good: u32) {
        lock(&self.plan).writes_until_failure = Some(good);
    }

    /// Lets `good` more syncs succeed, then fails one.
    pub fn fail_sync_after(&self, good: u32) {
        lock(&self.plan).syncs_until_failure = Some(good);
    }

    /// Lets `good` more reads succeed, then fails one.
    pub fn fail_read_after(&self, good: u32) {
        lock(&self.plan).reads_until_failure = Some(good);
    }

    pub fn set_full(&self, full: bool) {
        lock(&self.plan).full = full;
    }

    pub fn set_removals_fail(&self, fail: bool) {
        lock(&self.plan).removals_fail = fail;
    }

    /// How often the removal of a file was tried.
    pub fn removals(&self) -> u32 {
        lock(&self.plan).removals
    }

    /// Cuts the power: of what was not synced, only those sectors stay for which `keep` says so.
    pub fn cut_power(&self, mut keep: impl FnMut() -> bool) -> io::Result<()> {
        let mut plan = lock(&self.plan);
        plan.cut = true;
        for (path, image) in &plan.files {
            if !path.exists() {
                continue;
            }
            if !image.named && !keep() {
                fs::remove_file(path)?;
                continue;
            }
            let mut bytes = fs::read(path)?;
            let cut_off = image.synced.get(bytes.len()..).unwrap_or_default();
            if !cut_off.is_empty() && !keep() {
                bytes.extend_from_slice(cut_off);
            }
            for (at, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
                let start = at * SECTOR_BYTES;
                let synced = image.synced.get(start..).unwrap_or_default();
                let synced = &synced[..synced.len().min(sector.len())];
                if sector[..synced.len()] != *synced || synced.len() < sector.len() {
                    let stays = keep();
                    if !stays {
                        sector.fill(0);
                        sector[..synced.len()].copy_from_slice(synced);
                    }
                }
            }
            fs::write(path, bytes)?;
        }
        for entry in fs::read_dir(&self.witness_dir)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    fn checked(&self) -> io::Result<MutexGuard<'_, FaultPlan>> {
        let plan = lock(&self.plan);
        if plan.cut {
            return Err(io::Error::other("the power is gone"));
        }
        Ok(plan)
    }
}

/// Counts down, and says whether this is the one that fails.
fn is_due(countdown: &mut Option<u32>) -> bool {
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

fn no_space() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

impl Files for FaultyFiles {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let _plan = self.checked()?;
        OsFiles.make_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let _plan = self.checked()?;
        OsFiles.list(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        let _plan = self.checked()?;
        OsFiles.lock(path)
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Lock> {
        let _plan = self.checked()?;
        OsFiles.lock_dir(dir)
    }

    fn look(&self, path: &Path) -> io::Result<Look> {
        let _plan = self.checked()?;
        OsFiles.look(path)
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        read_start(&*self.open_to_read(path)?, bytes_max, &mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let mut plan = self.checked()?;
        let file = OsFiles.create(path)?;
        plan.files.insert(path.to_owned(), Image::default());
        plan.renamed.remove(path);
        Ok(Box::new(FaultyFile { file, path: path.to_owned(), files: self.clone() }))
    }

    /// For what a power cut erases anyway.
    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let _plan = self.checked()?;
        let file = OsFiles.open_or_create(path)?;
        Ok(Box::new(FaultyFile { file, path: path.to_owned(), files: self.clone() }))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn ReadableFile>> {
        let _plan = self.checked()?;
        Ok(Box::new(FaultyFile { file: OsFiles.open_to_read(path)?, path: path.to_owned(), files: self.clone() }))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let mut plan = self.checked()?;
        let file = OsFiles.open_to_write(path)?;
        if !plan.files.contains_key(path) {
            plan.files.insert(path.to_owned(), Image { synced: fs::read(path)?, named: true });
        }
        Ok(Box::new(FaultyFile { file, path: path.to_owned(), files: self.clone() }))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let plan = self.checked()?;
        if plan.full {
            return Err(no_space());
        }
        OsFiles.replace(path, bytes)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut plan = self.checked()?;
        plan.removals += 1;
        if plan.removals_fail {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        plan.files.remove(path);
        OsFiles.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut plan = self.checked()?;
        OsFiles.rename(from, to)?;
        if let Some(image) = plan.files.remove(from) {
            plan.files.insert(to.to_owned(), image);
            plan.renamed.insert(from.to_owned(), to.to_owned());
        }
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        for image in self.checked()?.files.values_mut() {
            image.named = true;
        }
        Ok(())
    }

    fn witness_dir(&self) -> Option<PathBuf> {
        Some(self.witness_dir.clone())
    }
}

struct FaultyFile<F: ?Sized> {
    file: Box<F>,
    path: PathBuf,
    files: FaultyFiles,
}

impl ReadableFile for FaultyFile<dyn ReadableFile> {
    fn size(&self) -> io::Result<u64> {
        let _plan = self.files.checked()?;
        self.file.size()
    }

    fn data_end(&self) -> io::Result<u64> {
        let _plan = self.files.checked()?;
        self.file.data_end()
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if is_due(&mut self.files.checked()?.reads_until_failure) {
            return Err(io::Error::other("the disk did not answer"));
        }
        self.file.read_exact_at(bytes, offset)
    }
}

impl WritableFile for FaultyFile<dyn WritableFile> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut plan = self.files.checked()?;
        if is_due(&mut plan.writes_until_failure) {
            self.file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(no_space());
        }
        self.file.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut plan = self.files.checked()?;
        if is_due(&mut plan.syncs_until_failure) {
            return Err(io::Error::other("the disk did not answer"));
        }
        let path = plan.renamed.get(&self.path).unwrap_or(&self.path).clone();
        let bytes = fs::read(&path)?;
        if let Some(image) = plan.files.get_mut(&path) {
            image.synced = bytes;
        }
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<Allocated> {
        if self.files.checked()?.full {
            return Err(no_space());
        }
        self.file.allocate(len)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let _plan = self.files.checked()?;
        self.file.truncate(len)
    }
}
