//! An open file of the simulated disk, and the faults that strike it.

use std::io;

use bowline_env::files::{Allocated, ReadableFile, WritableFile};

use super::inode::Inode;
use super::{BLOCK_BYTES, Death, SimDisk, broken, gone, is_due, no_space};

pub struct SimFile {
    pub disk: SimDisk,
    pub inode: u64,
    pub life: u64,
}

impl SimFile {
    fn with<T>(&self, look: impl FnOnce(&Inode) -> io::Result<T>) -> io::Result<T> {
        let disk = self.disk.disk();
        disk.check(self.life)?;
        look(disk.inodes.get(&self.inode).ok_or_else(gone)?)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inode) -> T) -> io::Result<T> {
        let mut disk = self.disk.disk();
        disk.check(self.life)?;
        disk.step()?;
        Ok(change(disk.inodes.get_mut(&self.inode).ok_or_else(gone)?))
    }
}

impl WritableFile for SimFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.check(self.life)?;
        let stepped = disk.step();
        // What stands for memory does not fail.
        let is_memory = disk.inodes.get(&self.inode).is_some_and(|inode| inode.is_memory);
        let fails = stepped.is_ok() && !is_memory && is_due(&mut disk.plan.write_fails);
        let reserved = disk.inodes.get(&self.inode).map_or(0, |inode| inode.len);
        let full = disk.plan.is_full && !is_memory && offset + bytes.len() as u64 > reserved;
        let len = bytes.len() as u64;
        let part = match (stepped.is_err(), fails) {
            (false, false) => bytes.len(),
            // A process dies between two pages that it writes, and not within one.
            _ if disk.died == Some(Death::Killed) => {
                let end = offset + disk.dice.below(len);
                (end - end % BLOCK_BYTES).saturating_sub(offset) as usize
            }
            _ => disk.dice.below(len) as usize,
        };
        if full {
            disk.trace.fault("disk full", "disk", "a write");
            return Err(no_space());
        }
        if let Some(inode) = disk.inodes.get_mut(&self.inode) {
            inode.write(&bytes[..part], offset);
        }
        stepped?;
        if fails {
            disk.trace.fault("write fails", "disk", format_args!("after {part} of {len} bytes"));
            return Err(broken());
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.check(self.life)?;
        disk.step()?;
        if is_due(&mut disk.plan.sync_fails) {
            disk.is_untrue = true;
            disk.trace.fault("sync fails", "disk", "of a file");
            if let Some(inode) = disk.inodes.get_mut(&self.inode) {
                inode.dirty.clear();
            }
            return Err(broken());
        }
        disk.inodes.get_mut(&self.inode).map_or_else(
            || Err(gone()),
            |inode| {
                inode.sync();
                Ok(())
            },
        )
    }

    fn allocate(&self, len: u64) -> io::Result<Allocated> {
        let is_full = self.disk.disk().plan.is_full;
        if is_full {
            self.disk.disk().trace.fault("disk full", "disk", "an allocation");
            return Err(no_space());
        }
        self.change(|inode| inode.len = inode.len.max(len))?;
        Ok(Allocated::Reserved)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.change(|inode| inode.truncate(len))
    }
}

impl ReadableFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        self.with(|inode| Ok(inode.len))
    }

    fn data_end(&self) -> io::Result<u64> {
        self.with(|inode| Ok((inode.data.len() as u64).next_multiple_of(BLOCK_BYTES).min(inode.len)))
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.check(self.life)?;
        if is_due(&mut disk.plan.read_fails) {
            disk.trace.fault("read fails", "disk", format_args!("at {offset}"));
            return Err(broken());
        }
        let inode = disk.inodes.get(&self.inode).ok_or_else(gone)?;
        let end = offset + bytes.len() as u64;
        if end > inode.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.fill(0);
        let from = (offset as usize).min(inode.data.len());
        let there = &inode.data[from..(end as usize).min(inode.data.len())];
        bytes[..there.len()].copy_from_slice(there);
        Ok(())
    }
}
