//! Space is given back: endless appends fit into a bounded directory, and idle logs lose nothing by it.

use std::path::Path;

use bowline_store::contract::{append_at, id};
use bowline_store::{Claim, Commit, Directory, DiskOptions, DiskStore, EventLog, Item, Leased, Retention};

use crate::common::*;

const SEGMENT_BYTES: u64 = 64 << 10;

fn small(dir: &Path, events_max: u64, age_max_ms: u64) -> DiskStore {
    with_segments_of(SEGMENT_BYTES, dir, Retention { events_max, age_max_ms })
}

fn with_segments_of(segment_bytes: u64, dir: &Path, retention: Retention) -> DiskStore {
    let options = DiskOptions { segment_bytes, cache_bytes: 16 << 10, ..DiskOptions::new(dir, retention) };
    let (store, report) = opened(|| DiskStore::open(options.clone()));
    assert_eq!(report.damage, Vec::<String>::new());
    store
}

fn dir_bytes(dir: &Path) -> u64 {
    segments(dir).iter().map(|path| path.metadata().map_or(0, |found| found.len())).sum()
}

#[tokio::test]
async fn endless_appends_stay_bounded_and_an_idle_log_keeps_everything() {
    let dir = scratch();
    let path = |life: usize| dir.path().join(life.to_string());
    let mut life = 0;
    let mut store = small(&path(life), 50, u64::MAX);
    let large = "L".repeat(3_000);
    for log in ["idle", "busy", "deleted"] {
        create(&store, log).await.unwrap();
    }
    append(&store, "idle", &["one", &large]).await.unwrap();
    let commit = Commit {
        items: vec![Item::put("large", large.clone()), Item::put("small", "s")],
        ..Commit::to(id("idle"), store.lease(&id("idle"), &Claim::alone()).await.and_then(Leased::fence).unwrap(), 0)
    };
    store.commit(commit).await.unwrap();
    let commit = Commit {
        release: Some(bowline_store::Release::Log),
        ..Commit::to(
            id("deleted"),
            store.lease(&id("deleted"), &Claim::alone()).await.and_then(Leased::fence).unwrap(),
            0,
        )
    };
    store.commit(commit).await.unwrap();
    let idle = look(&store, "idle").await.unwrap();
    let (mut written, mut largest) = (0, 0);
    let text = "x".repeat(900);
    for round in 0..3_000 {
        append(&store, "busy", &[&text]).await.unwrap();
        if round % 100 == 50 {
            let commit = Commit {
                items: vec![Item::put("mark", format!("{round}")), Item::put("big", large.clone())],
                ..Commit::to(
                    id("busy"),
                    store.lease(&id("busy"), &Claim::alone()).await.and_then(Leased::fence).unwrap(),
                    0,
                )
            };
            store.commit(commit).await.unwrap();
        }
        written += text.len() as u64;
        largest = largest.max(dir_bytes(&path(life)));
        if round % 100 == 99 {
            killed(store, &path(life), &path(life + 1));
            life += 1;
            store = small(&path(life), 50, u64::MAX);
            assert_eq!(store.health().bytes, dir_bytes(&path(life)), "round {round}");
            assert_eq!(look(&store, "idle").await.unwrap(), idle, "round {round}");
        }
    }
    let segments_written = written / SEGMENT_BYTES;
    assert!(segments_written > 30);
    assert!(largest < 8 * SEGMENT_BYTES, "{largest} bytes on disk at worst, for {written} written");
    let busy = look(&store, "busy").await.unwrap();
    assert_eq!((busy.next, busy.events.len()), (3_001, 50));
    assert_eq!(busy.items.len(), 3);
    assert!(look(&store, "deleted").await.is_err());
    assert_eq!(store.health().problems, Vec::<String>::new());
}

/// A kill, as the next process finds it: the directory as it is while the store is still open.
fn killed(store: DiskStore, from: &Path, to: &Path) {
    copy_dir(from, to);
    drop(store);
    std::fs::remove_dir_all(from).unwrap();
}

#[tokio::test]
async fn fifty_kills_take_no_more_room_than_what_was_written() {
    let dir = scratch();
    let path = |round: usize| dir.path().join(round.to_string());
    let store = small(&path(0), 1_000, u64::MAX);
    create(&store, "log").await.unwrap();
    killed(store, &path(0), &path(1));
    for round in 1..=50 {
        let store = small(&path(round), 1_000, u64::MAX);
        let sealed = dir_bytes(&path(round));
        assert!(sealed < 1_000 * round as u64, "{sealed} bytes after {round} kills");
        assert_eq!(store.health().bytes, sealed);
        append(&store, "log", &["one more"]).await.unwrap();
        assert_eq!(store.health().bytes, dir_bytes(&path(round)), "the newest is reserved as a whole");
        killed(store, &path(round), &path(round + 1));
    }
    let store = small(&path(51), 1_000, u64::MAX);
    assert_eq!(look(&store, "log").await.unwrap().events.len(), 50);
}

#[tokio::test]
async fn restarts_without_end_leave_a_bounded_number_of_files() {
    let dir = scratch();
    let few = Retention { events_max: 3, age_max_ms: u64::MAX };
    let open = || with_segments_of(1 << 20, dir.path(), few);
    let store = open();
    for log in ["idle", "busy"] {
        create(&store, log).await.unwrap();
    }
    let idle = look(&store, "idle").await.unwrap();
    drop(store);
    for _ in 0..400 {
        let store = open();
        append(&store, "busy", &["one more"]).await.unwrap();
    }
    let files = segments(dir.path()).len();
    assert!(files < 100, "{files} files for a handful of commits");
    let store = open();
    assert_eq!(look(&store, "idle").await.unwrap(), idle);
    assert_eq!(look(&store, "busy").await.unwrap().next, 401);
}

#[tokio::test]
async fn a_tail_that_was_never_written_is_not_read() {
    let dir = scratch();
    let store = small(dir.path(), 50, u64::MAX);
    create(&store, "log").await.unwrap();
    store.close().await;
    drop(store);
    let newest = segments(dir.path()).pop().unwrap();
    let len = newest.metadata().unwrap().len();
    // More than any memory holds.
    std::fs::File::options().write(true).open(&newest).unwrap().set_len(1 << 42).unwrap();
    let store = small(dir.path(), 50, u64::MAX);
    assert!(look(&store, "log").await.is_ok());
    assert_eq!(newest.metadata().unwrap().len(), len);
}

#[tokio::test]
async fn a_sweep_frees_the_segments_of_what_it_let_go() {
    let dir = scratch();
    let store = small(dir.path(), u64::MAX >> 12, 1_000);
    let text = "x".repeat(900);
    for n in 0..20 {
        create(&store, &format!("log-{n}")).await.unwrap();
    }
    for round in 0..1_000 {
        append_at(&store, &format!("log-{}", round % 20), 5, &[&text]).await.unwrap();
    }
    let before = dir_bytes(dir.path());
    assert!(before > 12 * SEGMENT_BYTES, "{before}");
    assert_eq!(store.sweep(2_000).await.unwrap().len(), 20);
    // Compaction goes on behind the answer; a close waits for nothing, so it is waited for here.
    while dir_bytes(dir.path()) > 4 * SEGMENT_BYTES {
        tokio::task::yield_now().await;
    }
    store.close().await;
    drop(store);
    let store = small(dir.path(), 1_000, 1_000);
    for n in 0..20 {
        let look = look(&store, &format!("log-{n}")).await.unwrap();
        assert_eq!((look.first, look.next, look.items.len()), (51, 51, 1));
    }
}
