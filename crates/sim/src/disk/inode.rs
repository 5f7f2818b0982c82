//! One file: what a process reads of it, and what the platter holds.

use std::collections::BTreeSet;

const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug, Default)]
pub struct Inode {
    /// What a process reads; behind it, up to `len`, are zeros.
    pub data: Vec<u8>,
    pub len: u64,
    durable: Vec<u8>,
    durable_len: u64,
    /// Sectors that were written since the last sync.
    pub dirty: BTreeSet<usize>,
    /// The least length that the file had since the last sync: what the platter has beyond it is void.
    cut: Option<u64>,
    /// It lies where a power cut erases it.
    pub is_memory: bool,
}

impl Inode {
    /// A new file; `is_memory` if it lies where a power cut erases it.
    pub fn new(is_memory: bool) -> Inode {
        Inode { is_memory, ..Inode::default() }
    }

    pub fn write(&mut self, bytes: &[u8], offset: u64) {
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        if self.data.len() < to {
            self.data.resize(to, 0);
        }
        self.data[from..to].copy_from_slice(bytes);
        self.len = self.len.max(to as u64);
        self.dirty.extend(from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES));
    }

    pub fn truncate(&mut self, len: u64) {
        if len < self.len {
            self.cut = Some(self.cut.unwrap_or(len).min(len));
        }
        self.data.truncate(len as usize);
        self.len = len;
    }

    /// What is dirty goes to the platter, and nothing else: what a failed sync forgot stays forgotten.
    pub fn sync(&mut self) {
        if let Some(cut) = self.cut.take() {
            self.durable.truncate(cut as usize);
        }
        for sector in std::mem::take(&mut self.dirty) {
            let (from, to) = (sector * SECTOR_BYTES, ((sector + 1) * SECTOR_BYTES).min(self.data.len()));
            if from < to {
                put(&mut self.durable, &self.data[from..to], from);
            }
        }
        self.durable_len = self.len;
    }

    /// What the platter holds after a power cut; says how many sectors are lost.
    pub fn lose(&mut self, keep: &mut dyn FnMut(usize) -> bool) -> u64 {
        if self.len != self.durable_len && !keep(usize::MAX) {
            self.len = self.durable_len;
        }
        let mut lost = 0;
        let mut platter = std::mem::take(&mut self.durable);
        if let Some(cut) = self.cut.take()
            && keep(usize::MAX)
        {
            platter.truncate(cut as usize);
        }
        for sector in std::mem::take(&mut self.dirty) {
            let (from, to) = (sector * SECTOR_BYTES, ((sector + 1) * SECTOR_BYTES).min(self.data.len()));
            if from >= to {
                continue;
            }
            if keep(sector) {
                put(&mut platter, &self.data[from..to], from);
            } else {
                lost += 1;
            }
        }
        platter.truncate(self.len as usize);
        self.data.clone_from(&platter);
        (self.durable, self.durable_len) = (platter, self.len);
        lost
    }
}

fn put(into: &mut Vec<u8>, bytes: &[u8], at: usize) {
    let end = at + bytes.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[at..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_any_sector_of_the_rest() {
        let mut inode = Inode::new(false);
        inode.write(&[1; 1024], 0);
        inode.sync();
        inode.write(&[2; 1024], 0);
        let lost = inode.lose(&mut |sector| sector == 1);
        assert_eq!((lost, &inode.data[..512], &inode.data[512..]), (1, &[1; 512][..], &[2; 512][..]));
    }

    #[test]
    fn what_a_failed_sync_forgot_stays_lost_though_the_next_one_succeeds() {
        let mut inode = Inode::new(false);
        inode.write(&[1; 512], 0);
        inode.sync();
        inode.write(&[2; 512], 0);
        // As a sync does that fails.
        inode.dirty.clear();
        inode.write(&[3; 512], 512);
        inode.sync();
        assert_eq!(inode.data[0], 2, "a process still reads it");
        inode.lose(&mut |_| false);
        assert_eq!((inode.data[0], inode.data[512]), (1, 3));
    }

    #[test]
    fn a_file_that_was_cut_and_not_synced_may_have_its_end_again() {
        let mut inode = Inode::new(false);
        inode.write(&[1; 1024], 0);
        inode.sync();
        inode.truncate(100);
        let mut kept = inode.clone();
        kept.lose(&mut |_| true);
        inode.lose(&mut |_| false);
        assert_eq!((kept.len, inode.len), (100, 1024));
    }
}
