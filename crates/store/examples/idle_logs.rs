//! What a log costs in memory while nobody uses it.
//!
//! `cargo run --release -p bowline-store --example idle_logs -- [directory]`
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "an example is no part of a node")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "this prints a table, and may just stop")]

use bowline_protocol::{Epoch, LogId, Principal, Seq};
use bowline_store::{Commit, DiskOptions, DiskStore, EventLog, Fence, Item, LogKind, Record, Retention, Start};

const LOGS: u64 = 10_000;
const KEEP: Retention = Retention { events_max: 10_000, age_max_ms: u64::MAX };

/// The resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn commit(n: u64) -> Commit {
    let log = LogId::parse(&format!("sess_{n:032x}")).unwrap();
    let record = Record {
        kind: LogKind::Session,
        owner: Principal::parse(&format!("user-{}@example.org", n % 1_000)).unwrap(),
        touched_ms: n,
        body: vec![b'r'; 300].into(),
    };
    Commit {
        create: Some(Start { epoch: Epoch::from_random(n), after: Seq::ZERO }),
        record: Some(record),
        items: vec![Item::put("mark", "1234")],
        ..Commit::to(log, Fence(0), 0)
    }
}

fn tell(what: &str, before: u64) {
    println!("{what}: {} bytes for each of {LOGS} logs", resident_bytes().saturating_sub(before) / LOGS);
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let root = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(root).unwrap();
    let options = DiskOptions { sync: bowline_store::disk::Sync::INTERVAL, ..DiskOptions::new(dir.path(), KEEP) };
    // Reopened in a process of its own, since what this one has once used it seldom gives back.
    if let Some(filled) = std::env::var_os("IDLE_LOGS_REOPEN") {
        let before = resident_bytes();
        let _store = DiskStore::open(DiskOptions { dir: filled.into(), ..options }).unwrap();
        tell("after reopening", before);
        return;
    }
    let (store, _) = DiskStore::open(options).unwrap();
    let before = resident_bytes();
    for n in 0..LOGS {
        store.commit(commit(n)).await.unwrap();
    }
    tell("after creating", before);
    store.close().await;
    drop(store);
    let me = std::env::current_exe().unwrap();
    std::process::Command::new(me).env("IDLE_LOGS_REOPEN", dir.path()).status().unwrap();
}
