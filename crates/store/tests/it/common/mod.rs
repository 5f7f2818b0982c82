//! What the disk tests share: a directory, stores in it, and a look at everything a store holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_store::contract::{self, PLENTY, id, texts};
use bowline_store::disk::faults::FaultyFiles;
use bowline_store::{Commit, DiskOptions, DiskStore, Item, OpenError, OpenReport, Store, StoreError};

use crate::limit;

/// A directory in memory where there is one: these tests are about what is written, not about how fast.
pub fn scratch() -> tempfile::TempDir {
    limit::limit();
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

pub fn options(dir: &Path) -> DiskOptions {
    DiskOptions { segment_bytes: 64 << 10, ..DiskOptions::new(dir, PLENTY) }
}

pub fn open(dir: &Path) -> (DiskStore, OpenReport) {
    opened(|| DiskStore::open(options(dir)))
}

pub fn open_with(options: &DiskOptions, files: &FaultyFiles) -> (DiskStore, OpenReport) {
    let options = DiskOptions { files: Arc::new(files.clone()), ..options.clone() };
    opened(|| DiskStore::open(options.clone()))
}

pub fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "log")).collect();
    found.sort();
    found
}

pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A log with a record and an item of more than a few bytes.
pub async fn create(store: &DiskStore, log: &str) -> Result<(), StoreError> {
    let commit = Commit {
        record: Some(contract::record("ann", log)),
        items: vec![Item::put("item", format!("{log} {}", "i".repeat(100)))],
        ..contract::create(log)
    };
    store.commit_it(commit).await
}

pub async fn append(store: &DiskStore, log: &str, texts: &[&str]) -> Result<u64, StoreError> {
    contract::append(store, log, texts).await.map(|done| done.first.get())
}

/// Everything that one log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    pub epoch: String,
    pub first: u64,
    pub next: u64,
    pub events: Vec<(u64, String)>,
    pub items: Vec<(String, Vec<u8>)>,
    pub record: Option<Vec<u8>>,
}

pub async fn look(store: &dyn Store, log: &str) -> Result<Look, StoreError> {
    // Read first: what is found damaged on the way shows in the extent.
    let items = store.items(&id(log), "").await?;
    let from = bowline_protocol::Seq::ZERO;
    store.read(&id(log), from, contract::ALL).await?;
    let events = texts(store, log).await;
    let extent = store.extent(&id(log)).await?;
    Ok(Look {
        epoch: extent.epoch.to_string(),
        first: extent.first.get(),
        next: extent.next.get(),
        events,
        items: items.into_iter().map(|(key, value)| (key, value.to_vec())).collect(),
        record: store.record(&id(log)).await?.map(|record| record.body.to_vec()),
    })
}

pub async fn look_at_all(store: &DiskStore, logs: &[&str]) -> BTreeMap<String, Result<Look, StoreError>> {
    let mut all = BTreeMap::new();
    for log in logs {
        let found = look(store, log).await.map_err(|error| match error {
            // Why it was set aside may be told differently the next time.
            StoreError::Quarantined(_) => StoreError::Quarantined(String::new()),
            error => error,
        });
        all.insert((*log).to_owned(), found);
    }
    all
}

/// Lets a test commit without importing the trait.
pub trait CommitIt {
    fn commit_it(&self, commit: Commit) -> impl Future<Output = Result<(), StoreError>>;
}

impl CommitIt for DiskStore {
    async fn commit_it(&self, commit: Commit) -> Result<(), StoreError> {
        bowline_store::EventLog::commit(self, commit).await.map(drop)
    }
}

/// Numbers that look random and are the same in every run.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Opens a store whose lock may still be held for a moment: a child process that another test is starting has a copy of
/// every open file until it begins its own program.
pub fn opened(open: impl Fn() -> Result<(DiskStore, OpenReport), OpenError>) -> (DiskStore, OpenReport) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match open() {
            Err(OpenError::Locked(_)) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            opened => return opened.unwrap(),
        }
    }
}
