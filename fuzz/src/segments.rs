//! Files of a store as a damaged disk may hold them: opening comes to an end without a panic, and what it decides stays decided.
//!
//! The disk is the model of the store's own crash tests.

#[allow(dead_code, reason = "the crash tests of the store use all of it")]
#[path = "../../crates/store/tests/it/crash_states/disk.rs"]
mod disk;
#[allow(dead_code, reason = "the crash tests of the store use all of it")]
#[path = "../../crates/store/tests/it/crash_states/platter.rs"]
mod platter;

use std::path::PathBuf;
use std::sync::Arc;

use bowline_store::disk::reseal::reseal;
use bowline_store::{DiskOptions, DiskStore, Retention};

use self::disk::TracedDisk;
use self::platter::{Platter, Step};

pub type Files = TracedDisk<()>;

/// A disk with these files on it.
pub fn files_with<'a>(files: impl IntoIterator<Item = (PathBuf, &'a [u8])>) -> Files {
    let mut platter = Platter::default();
    for (path, bytes) in files {
        let inode = platter.new_inode();
        platter.apply(&Step::Create { path, inode });
        platter.apply(&Step::Write { inode, offset: 0, bytes: bytes.to_vec() });
        platter.apply(&Step::Sync { inode });
    }
    platter.apply(&Step::SyncDir);
    TracedDisk::on(platter)
}

/// The first byte says whether checksums are made true, and how many segments the rest is.
pub fn segments(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    let count = 1 + usize::from(how >> 1) % 3;
    let mut pieces: Vec<Vec<u8>> = rest.chunks(rest.len().div_ceil(count).max(1)).map(<[u8]>::to_vec).collect();
    if how & 1 == 1 {
        pieces.iter_mut().for_each(|piece| reseal(piece));
    }
    let named = pieces.iter().enumerate().map(|(at, piece)| {
        let path = PathBuf::from(format!("/data/{:010}.log", at + 1));
        (path, piece.as_slice())
    });
    let files = files_with(named);
    // The first opening may put a file aside, and so make another one the newest.
    let first = open(&files);
    let second = open(&files);
    assert_eq!(first.is_some(), second.is_some());
    assert_eq!(second, open(&files), "what was decided is decided");
}

/// How many logs and events an opening finds.
fn open(files: &Files) -> Option<(u64, u64)> {
    let keep = Retention { events_max: 100, age_max_ms: u64::MAX };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let options = DiskOptions::new("/data", keep).on(Arc::new(files.clone()));
    let opened = runtime.block_on(async { DiskStore::open(options) }).ok();
    // The runtime goes first, and with it the writer, as when a process is killed.
    drop(runtime);
    opened.map(|(_, report)| (report.logs, report.events))
}
