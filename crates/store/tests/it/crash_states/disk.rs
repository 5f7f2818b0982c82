//! The files of a store on a [`Platter`], with a record of everything that was done to them.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_env::files::{Allocated, Files, FilesProfile, Lock, Look, ReadableFile, WritableFile, read_start};

use super::platter::{Platter, Step, WITNESS_DIR};

/// The least that a store takes, so that segments come and go in small histories.
pub const SEGMENT_BYTES: u64 = 4096;
const BLOCK_BYTES: u64 = 4096;

/// What happened, in order: to the disk, and to those who use the store on it.
#[derive(Clone, Debug)]
pub enum Entry<N> {
    Disk(Step),
    Note(N),
}

/// Clones are the same disk.
#[derive(Debug)]
pub struct TracedDisk<N>(Arc<Mutex<Inner<N>>>);

#[derive(Debug)]
struct Inner<N> {
    platter: Platter,
    entries: Vec<Entry<N>>,
    locks: BTreeSet<PathBuf>,
}

impl<N> Clone for TracedDisk<N> {
    fn clone(&self) -> TracedDisk<N> {
        TracedDisk(self.0.clone())
    }
}

impl<N> TracedDisk<N> {
    pub fn on(platter: Platter) -> TracedDisk<N> {
        TracedDisk(Arc::new(Mutex::new(Inner { platter, entries: Vec::new(), locks: BTreeSet::new() })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner<N>> {
        self.0.lock().unwrap()
    }

    pub fn note(&self, note: N) {
        self.inner().entries.push(Entry::Note(note));
    }

    pub fn platter(&self) -> Platter {
        self.inner().platter.clone()
    }

    pub fn take_entries(&self) -> Vec<Entry<N>> {
        std::mem::take(&mut self.inner().entries)
    }

    fn step(&self, step: Step) {
        let mut inner = self.inner();
        inner.platter.apply(&step);
        inner.entries.push(Entry::Disk(step));
    }

    fn find(&self, path: &Path) -> io::Result<TracedFile<N>> {
        let inode = *self.inner().platter.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(TracedFile { disk: self.clone(), inode })
    }
}

impl<N: Send + std::fmt::Debug + 'static> Files for TracedDisk<N> {
    fn make_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.inner().platter.names.keys().filter(|path| path.parent() == Some(dir)).cloned().collect())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        let taken = self.inner().locks.insert(path.to_owned());
        let held = HeldLock { disk: self.clone(), path: path.to_owned() };
        Ok(taken.then(|| Box::new(held) as Box<dyn Any + Send>))
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Lock> {
        self.lock(dir)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn look(&self, _: &Path) -> io::Result<Look> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        read_start(&self.find(path)?, bytes_max, &mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        if self.inner().platter.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = self.inner().platter.new_inode();
        self.step(Step::Create { path: path.to_owned(), inode });
        Ok(Box::new(TracedFile { disk: self.clone(), inode }))
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.find(path).map_or_else(|_| self.create(path), |file| Ok(Box::new(file)))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.find(path)?))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn ReadableFile>> {
        Ok(Box::new(self.find(path)?))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let draft = path.with_extension("new");
        if self.find(&draft).is_ok() {
            self.remove(&draft)?;
        }
        let file = self.create(&draft)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        self.rename(&draft, path)?;
        path.parent().map_or(Ok(()), |dir| self.sync_dir(dir))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.find(path)?;
        self.step(Step::Remove { path: path.to_owned() });
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.find(from)?;
        self.step(Step::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.step(Step::SyncDir);
        Ok(())
    }

    fn witness_dir(&self) -> Option<PathBuf> {
        Some(WITNESS_DIR.into())
    }

    fn profile(&self) -> FilesProfile {
        FilesProfile { blocks: false, segment_bytes: SEGMENT_BYTES }
    }
}

struct HeldLock<N> {
    disk: TracedDisk<N>,
    path: PathBuf,
}

impl<N> Drop for HeldLock<N> {
    fn drop(&mut self) {
        self.disk.inner().locks.remove(&self.path);
    }
}

struct TracedFile<N> {
    disk: TracedDisk<N>,
    inode: u64,
}

impl<N> TracedFile<N> {
    fn with<T>(&self, look: impl FnOnce(&super::platter::Content) -> T) -> io::Result<T> {
        let inner = self.disk.inner();
        inner.platter.cached.get(&self.inode).map(look).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl<N: Send> WritableFile for TracedFile<N> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !bytes.is_empty() {
            self.disk.step(Step::Write { inode: self.inode, offset, bytes: bytes.to_vec() });
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.step(Step::Sync { inode: self.inode });
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<Allocated> {
        let len = self.with(|content| content.len.max(len))?;
        self.disk.step(Step::Resize { inode: self.inode, len });
        Ok(Allocated::Reserved)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.disk.step(Step::Resize { inode: self.inode, len });
        Ok(())
    }
}

impl<N: Send> ReadableFile for TracedFile<N> {
    fn size(&self) -> io::Result<u64> {
        self.with(|content| content.len)
    }

    fn data_end(&self) -> io::Result<u64> {
        self.with(|content| (content.data.len() as u64).next_multiple_of(BLOCK_BYTES).min(content.len))
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        if end > self.size()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.with(|content| {
            bytes.fill(0);
            let from = (offset as usize).min(content.data.len());
            let there = &content.data[from..(end as usize).min(content.data.len())];
            bytes[..there.len()].copy_from_slice(there);
        })
    }
}
