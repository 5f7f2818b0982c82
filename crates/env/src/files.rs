//! The seam to the file system: every file of a node is made, read, written and removed through here, so that tests can
//! make it fail and a simulation can put a model of a disk in its place.
//!
//! The store works on files that it holds open; settings, keys and certificates are small, read whole and looked at again.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the one place that opens files")]

use std::any::Any;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

/// Where `/dev/shm` is a real tmpfs it outlives this process but no power cut, which is what a witness must do.
const WITNESS_DIR: &str = "/dev/shm";
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// What is read whole as text is written by hand or by other programs, and far smaller.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// The files that a node sees.
pub trait Files: Send + Sync + fmt::Debug {
    /// Makes the directory and those above it, for this user alone; it may exist.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;

    /// What is in the directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;

    /// Takes the lock that this file stands for, and makes the file if need be. It is held until the guard is dropped or
    /// the process ends. `None` if another has it.
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>>;

    /// Takes the lock of a directory that exists, when those who came before have let it go.
    fn lock_dir(&self, dir: &Path) -> io::Result<Lock>;

    /// What can be seen of a file without reading it.
    fn look(&self, path: &Path) -> io::Result<Look>;

    /// A file from its beginning, up to `bytes_max` bytes. It may be one without a length, such as a pipe.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>>;

    /// Makes a new file for writing; it must not exist.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>>;

    /// Opens a file for writing, as it is, or makes it.
    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>>;

    /// Opens a file that exists, to cut it and to make it durable.
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn WritableFile>>;

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn ReadableFile>>;

    /// Puts `bytes` in the place of what is at `path`, durably, all or nothing. Only this user can read them, at any moment.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Where to keep what must survive this process but not a power cut.
    fn witness_dir(&self) -> Option<PathBuf>;

    /// How a store should use these files.
    fn profile(&self) -> FilesProfile {
        FilesProfile::default()
    }

    /// How long what is written next takes to be durable: for a simulated disk, whose operations return at once.
    fn latency(&self) -> Duration {
        Duration::ZERO
    }
}

/// How a store should use its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesProfile {
    /// Whether an operation may keep its thread waiting. If none does, a store needs no threads of its own, and a simulation
    /// can repeat what it does.
    pub blocks: bool,
    /// How large a file of the store should be.
    pub segment_bytes: u64,
}

impl Default for FilesProfile {
    fn default() -> FilesProfile {
        FilesProfile { blocks: true, segment_bytes: 32 << 20 }
    }
}

/// A lock that is held for as long as this lives.
pub type Lock = Box<dyn Any + Send>;

/// How a file looks from outside. Two looks that are alike mean that it was neither written nor replaced between them, nor
/// given other permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub len: u64,
    /// Who may read and write it, in the nine bits of Unix.
    pub mode: u32,
    pub inode: u64,
    /// Seconds and nanoseconds of the last write.
    pub modified: (i64, i64),
    /// Seconds and nanoseconds of the last change of anything.
    pub changed: (i64, i64),
}

/// A file that is written.
pub trait WritableFile: Send {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    fn sync_data(&self) -> io::Result<()>;

    /// Reserves space for `len` bytes, so that later writes below that cannot run out of it.
    fn allocate(&self, len: u64) -> io::Result<Allocated>;

    /// Cuts the file to `len` bytes and frees what lay behind.
    fn truncate(&self, len: u64) -> io::Result<()>;
}

/// A file that is read.
pub trait ReadableFile: Send {
    fn size(&self) -> io::Result<u64>;

    /// Where the last byte that was ever written may lie; what is behind that only reads as zeros.
    fn data_end(&self) -> io::Result<u64>;

    /// Fills `bytes`, or fails with `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocated {
    Reserved,
    /// The file system cannot reserve; the file just grows.
    Unsupported,
}

/// Reads the beginning of a file, up to `len` bytes, into `out`, in place of what that holds.
pub fn read_start(file: &dyn ReadableFile, len: u64, out: &mut Vec<u8>) -> io::Result<()> {
    let len = usize::try_from(len.min(file.size()?)).map_err(io::Error::other)?;
    out.truncate(len);
    out.try_reserve_exact(len - out.len())?;
    out.resize(len, 0);
    file.read_exact_at(out, 0)
}

/// A text, whole.
pub fn read_text(files: &dyn Files, path: &Path) -> io::Result<String> {
    let bytes = files.read(path, TEXT_BYTES_MAX + 1)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is far too large"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Whether an error means "no space", which heals, rather than "broken", which may not.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// The operating system's own files.
#[derive(Debug)]
pub struct OsFiles;

impl Files for OsFiles {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Lock> {
        let file = File::open(dir)?;
        file.lock()?;
        Ok(Box::new(file))
    }

    fn look(&self, path: &Path) -> io::Result<Look> {
        let seen = fs::metadata(path)?;
        Ok(Look {
            len: seen.len(),
            mode: seen.mode() & 0o777,
            inode: seen.ino(),
            modified: (seen.mtime(), seen.mtime_nsec()),
            changed: (seen.ctime(), seen.ctime_nsec()),
        })
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(OsFile(file)))
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        Ok(Box::new(OsFile(file)))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Box::new(OsFile(file)))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn ReadableFile>> {
        Ok(Box::new(OsFile(File::open(path)?)))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let draft = path.with_extension("new");
        // One that was left behind could be readable by others.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        path.parent().map_or(Ok(()), |dir| self.sync_dir(dir))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn witness_dir(&self) -> Option<PathBuf> {
        let stat = rustix::fs::statfs(WITNESS_DIR).ok()?;
        (stat.f_type == TMPFS_MAGIC).then(|| WITNESS_DIR.into())
    }
}

struct OsFile(File);

impl WritableFile for OsFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn allocate(&self, len: u64) -> io::Result<Allocated> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(Allocated::Reserved),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(Allocated::Unsupported),
            Err(errno) => Err(errno.into()),
        }
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

impl ReadableFile for OsFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn data_end(&self) -> io::Result<u64> {
        let len = self.size()?;
        let mut end = 0;
        loop {
            match rustix::fs::seek(&self.0, SeekFrom::Data(end)) {
                Err(Errno::NXIO) => return Ok(end),
                // A file system that does not know its holes has none.
                Err(_) => return Ok(len),
                Ok(data) => match rustix::fs::seek(&self.0, SeekFrom::Hole(data)) {
                    Ok(hole) if hole > end => end = hole,
                    _ => return Ok(len),
                },
            }
        }
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }
}
