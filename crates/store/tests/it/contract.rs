//! The stores in memory and on disk pass the suite that every store passes.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_store::contract::Fixture;
use bowline_store::disk::faults::FaultyFiles;
use bowline_store::disk::{Runs, Sync};
use bowline_store::memory::MemoryStore;
use bowline_store::{DiskOptions, Retentions, Store};

use crate::common::open_with;

struct Memory;

#[async_trait]
impl Fixture for Memory {
    async fn open(&self, retention: Retentions) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(retention))
    }

    async fn reopen(&self, _: Arc<dyn Store>, _: Retentions) -> Option<Arc<dyn Store>> {
        None
    }
}

struct Disk {
    dir: tempfile::TempDir,
    sync: Sync,
    /// Nothing stays in memory, so that every read is a cold one.
    cache_bytes: usize,
    runs: Runs,
}

impl Disk {
    fn start(&self, retention: Retentions) -> Arc<dyn Store> {
        let options = DiskOptions {
            sync: self.sync,
            cache_bytes: self.cache_bytes,
            runs: self.runs,
            segment_bytes: 64 << 10,
            ..DiskOptions::new(PathBuf::from(self.dir.path()).join("data"), retention)
        };
        let memory = self.dir.path().join("memory");
        std::fs::create_dir_all(&memory).unwrap();
        let (store, report) = open_with(&options, &FaultyFiles::new(memory));
        assert_eq!((report.damage, report.epochs_changed), (vec![], 0));
        Arc::new(store)
    }
}

#[async_trait]
impl Fixture for Disk {
    async fn open(&self, retention: Retentions) -> Arc<dyn Store> {
        self.start(retention)
    }

    async fn reopen(&self, store: Arc<dyn Store>, retention: Retentions) -> Option<Arc<dyn Store>> {
        store.close().await;
        assert_eq!(store.sweep(0).await, Err(bowline_store::StoreError::Closed));
        drop(store);
        Some(self.start(retention))
    }
}

fn disk(sync: Sync, cache_bytes: usize) -> Disk {
    let dir = tempfile::tempdir().unwrap();
    Disk { dir, sync, cache_bytes, runs: Runs::OnThreads }
}

fn disk_on_runtime(sync: Sync, cache_bytes: usize) -> Disk {
    Disk { runs: Runs::OnRuntime, ..disk(sync, cache_bytes) }
}

macro_rules! suite {
    ($name:ident, $fixture:expr) => {
        mod $name {
            use super::*;
            macro_rules! each {
                ($test:ident) => {
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $test() {
                        bowline_store::contract::$test(&$fixture).await;
                    }
                };
            }
            bowline_store::contract!(each);
        }
    };
}

suite!(memory, Memory);
suite!(disk_always, disk(Sync::Always, 64 << 20));
suite!(disk_interval, disk(Sync::INTERVAL, 64 << 20));
suite!(disk_cold, disk(Sync::Always, 0));
suite!(disk_on_runtime, super::disk_on_runtime(Sync::Always, 0));
suite!(disk_on_runtime_interval, super::disk_on_runtime(Sync::INTERVAL, 64 << 20));
