//! The seam to the file system: everything that makes bytes durable goes through here, so that tests can make it fail.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

/// Where `/dev/shm` is a real tmpfs it outlives this process but no power cut, which is what a witness must do.
const WITNESS_DIR: &str = "/dev/shm";
const TMPFS_MAGIC: i64 = 0x0102_1994;

pub trait Files: Send + Sync + fmt::Debug {
    /// Makes a new file for writing; it must not exist.
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>>;

    /// Opens a file that exists, to cut it and to make it durable.
    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>>;

    /// Puts `bytes` in the place of what is at `path`, durably, all or nothing.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Where to keep what must survive this process but not a power cut.
    fn witness_dir(&self) -> Option<PathBuf>;
}

/// A segment while it is written.
pub trait SegmentFile: Send {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    fn sync_data(&self) -> io::Result<()>;

    /// Reserves space for `len` bytes, so that later writes below that cannot run out of it.
    fn allocate(&self, len: u64) -> io::Result<Allocated>;

    /// Cuts the file to `len` bytes and frees what lay behind.
    fn truncate(&self, len: u64) -> io::Result<()>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocated {
    Reserved,
    /// The file system cannot reserve; the file just grows.
    Unsupported,
}

/// The operating system's own files.
#[derive(Debug)]
pub struct OsFiles;

impl Files for OsFiles {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(OsSegment(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Box::new(OsSegment(file)))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let draft = path.with_extension("new");
        let mut file = File::create(&draft)?;
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

struct OsSegment(File);

impl SegmentFile for OsSegment {
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

/// Whether an error means "no space", which heals, rather than "broken", which may not.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Where the last byte that was ever written to the file may lie; what is behind that only reads as zeros.
pub fn data_end(file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut end = 0;
    loop {
        match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => return Ok(end),
            // A file system that does not know its holes has none.
            Err(_) => return Ok(len),
            Ok(data) => match rustix::fs::seek(file, SeekFrom::Hole(data)) {
                Ok(hole) if hole > end => end = hole,
                _ => return Ok(len),
            },
        }
    }
}
