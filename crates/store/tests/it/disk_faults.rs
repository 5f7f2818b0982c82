//! A disk that fails, fills up or loses power: nothing that was answered is lost, nothing that was not is shown.

use std::sync::Arc;

use bowline_store::contract::{ALL, event, id, texts};
use bowline_store::disk::Sync;
use bowline_store::disk::faults::FaultyFiles;
use bowline_store::{Claim, Commit, Directory, DiskOptions, DiskStore, EventLog, Leased, OpenError, StoreError};

use crate::common::*;

struct Bench {
    dir: tempfile::TempDir,
    files: FaultyFiles,
}

impl Bench {
    fn new() -> Bench {
        let dir = scratch();
        std::fs::create_dir(dir.path().join("memory")).unwrap();
        let files = FaultyFiles::new(dir.path().join("memory"));
        Bench { dir, files }
    }

    fn options(&self, sync: Sync) -> DiskOptions {
        DiskOptions { sync, ..options(&self.dir.path().join("data")) }
    }

    fn open(&self, sync: Sync) -> (DiskStore, bowline_store::OpenReport) {
        open_with(&self.options(sync), &self.files)
    }

    /// The machine comes back, with a disk that works again.
    fn reopen(&mut self, sync: Sync) -> (DiskStore, bowline_store::OpenReport) {
        self.files = FaultyFiles::new(self.dir.path().join("memory"));
        self.open(sync)
    }
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_written_and_everything_is_served() {
    let mut bench = Bench::new();
    let (store, _) = bench.open(Sync::Always);
    create(&store, "log").await.unwrap();
    append(&store, "log", &["kept"]).await.unwrap();
    bench.files.fail_sync_after(0);
    let failed = append(&store, "log", &["never seen"]).await;
    assert!(matches!(failed, Err(StoreError::ReadOnly(_))), "{failed:?}");
    let again = append(&store, "log", &["nor this"]).await;
    assert!(matches!(again, Err(StoreError::ReadOnly(_))), "a sync is not retried: {again:?}");
    let health = store.health();
    assert!(!health.writable && health.problems[0].contains("the disk did not answer"), "{health:?}");
    assert_eq!(texts(&store, "log").await, [(1, "kept".to_owned())]);
    store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    store.close().await;
    drop(store);
    let (store, report) = bench.reopen(Sync::Always);
    assert_eq!((report.damage, report.epochs_changed), (vec![], 0));
    assert_eq!(texts(&store, "log").await, [(1, "kept".to_owned())]);
    assert_eq!(append(&store, "log", &["next"]).await, Ok(2));
}

#[tokio::test]
async fn a_full_disk_refuses_and_heals_by_itself() {
    let bench = Bench::new();
    let (store, _) = bench.open(Sync::Always);
    create(&store, "log").await.unwrap();
    bench.files.set_full(true);
    let big = "x".repeat(20_000);
    let mut kept = 0;
    let refused = loop {
        match append(&store, "log", &[&big]).await {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Full(_)), "{refused}");
    assert!(!store.health().writable);
    assert_eq!(look(&store, "log").await.unwrap().events.len(), kept, "reading goes on");
    store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease needs no space");
    bench.files.set_full(false);
    store.sweep(0).await.unwrap();
    assert!(store.health().writable, "a sweep notices that there is space again");
    assert_eq!(append(&store, "log", &["y"]).await, Ok(kept as u64 + 1));
    drop(store);
    let (store, report) = bench.open(Sync::Always);
    assert_eq!((report.damage, report.torn_bytes), (vec![], 0));
    assert_eq!(look(&store, "log").await.unwrap().events.len(), kept + 1);
}

#[tokio::test]
async fn a_write_that_fails_halfway_leaves_nothing_behind() {
    for sync in [Sync::Always, Sync::INTERVAL] {
        let bench = Bench::new();
        let (store, _) = bench.open(sync);
        create(&store, "log").await.unwrap();
        for round in 1..=10 {
            append(&store, "log", &["good"]).await.unwrap();
            bench.files.fail_write_after(0);
            let failed = append(&store, "log", &["bad"]).await;
            assert!(matches!(failed, Err(StoreError::Full(_))), "{failed:?}");
            assert_eq!(look(&store, "log").await.unwrap().next, round + 1);
        }
        drop(store);
        let (store, report) = bench.open(sync);
        assert_eq!((report.damage, report.epochs_changed), (vec![], 0));
        assert_eq!(report.segments, 10, "what failed is never written over");
        let all = texts(&store, "log").await;
        assert!(all.len() == 10 && all.iter().all(|(_, text)| text == "good"), "{all:?}");
    }
}

/// Commits from many tasks at once until the power goes; returns what was answered.
async fn commit_until_the_cut(store: DiskStore, bench: &Bench, dice: &mut Dice) -> Vec<(String, u64, String)> {
    let store = Arc::new(store);
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let log = format!("log-{}", task % 3);
                let Ok(fence) = store.lease(&id(&log), &Claim::alone()).await.and_then(Leased::fence) else {
                    return vec![];
                };
                let mut answered = Vec::new();
                for n in 0.. {
                    let text = format!("{task}/{n} {}", "p".repeat(n % 900));
                    let commit = Commit { events: vec![event(&text)], ..Commit::to(id(&log), fence, 0) };
                    match store.commit(commit).await {
                        Ok(done) => answered.push((log.clone(), done.first.get(), text)),
                        // The lease of the task next to this one came later.
                        Err(StoreError::StaleFence { .. }) if n == 0 => return vec![],
                        Err(_) => return answered,
                    }
                }
                answered
            })
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_micros(500 + dice.roll(4_000)));
    bench.files.cut_power(|| dice.roll(2) == 0).unwrap();
    let mut answered = Vec::new();
    for task in tasks {
        answered.extend(task.await.unwrap());
    }
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_sync_always_a_power_cut_loses_nothing_that_was_answered() {
    let mut dice = Dice(0xdead_beef);
    let mut bench = Bench::new();
    let (mut store, _) = bench.open(Sync::Always);
    for log in ["log-0", "log-1", "log-2"] {
        create(&store, log).await.unwrap();
    }
    let mut answered = Vec::new();
    for round in 0..40 {
        answered.extend(commit_until_the_cut(store, &bench, &mut dice).await);
        let report;
        (store, report) = bench.reopen(Sync::Always);
        assert_eq!((report.damage, report.epochs_changed), (vec![], 0), "round {round}");
        for log in ["log-0", "log-1", "log-2"] {
            let all = texts(&store, log).await;
            assert!(all.iter().map(|(n, _)| *n).eq(1..=all.len() as u64), "round {round}");
            for (_, n, text) in answered.iter().filter(|(of, ..)| of == log) {
                assert_eq!(all.get(*n as usize - 1).map(|(_, text)| text), Some(text), "round {round}");
            }
        }
    }
    assert!(answered.len() > 200, "only {} commits were tried", answered.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_interval_a_power_cut_changes_the_epoch_so_no_number_means_two_things() {
    let mut dice = Dice(0xfeed);
    let mut bench = Bench::new();
    let (mut store, _) = bench.open(Sync::INTERVAL);
    for log in ["log-0", "log-1", "log-2"] {
        create(&store, log).await.unwrap();
    }
    store.close().await;
    drop(store);
    (store, _) = bench.reopen(Sync::INTERVAL);
    for round in 0..20 {
        let before = look(&store, "log-0").await.unwrap();
        commit_until_the_cut(store, &bench, &mut dice).await;
        let report;
        (store, report) = bench.reopen(Sync::INTERVAL);
        assert_eq!((report.damage, report.epochs_changed), (vec![], 3), "round {round}");
        let after = look(&store, "log-0").await.unwrap();
        assert_ne!(before.epoch, after.epoch);
        assert!(after.next >= before.next);
        store.close().await;
        drop(store);
        (store, _) = bench.reopen(Sync::INTERVAL);
    }
}

#[tokio::test]
async fn with_an_interval_a_crash_of_the_process_alone_changes_no_epoch() {
    let mut bench = Bench::new();
    let (store, _) = bench.open(Sync::INTERVAL);
    create(&store, "log").await.unwrap();
    append(&store, "log", &["a"]).await.unwrap();
    let before = look(&store, "log").await.unwrap();
    drop(store);
    let (store, report) = bench.reopen(Sync::INTERVAL);
    assert_eq!((report.epochs_changed, look(&store, "log").await), (0, Ok(before)));
    append(&store, "log", &["b"]).await.unwrap();
    drop(store);
    // The same crash, but the last commit is not there any more although the machine never stopped.
    let newest = segments(&bench.dir.path().join("data")).pop().unwrap();
    let len = std::fs::metadata(&newest).unwrap().len();
    std::fs::File::options().write(true).open(&newest).unwrap().set_len(len - 1).unwrap();
    let (_, report) = bench.reopen(Sync::INTERVAL);
    assert_eq!(report.epochs_changed, 1);
}

#[tokio::test]
async fn an_interval_store_syncs_soon_after_and_then_rests() {
    let bench = Bench::new();
    let (store, _) = bench.open(Sync::Interval { every: std::time::Duration::from_millis(1) });
    create(&store, "log").await.unwrap();
    append(&store, "log", &["seen at once"]).await.unwrap();
    bench.files.fail_sync_after(0);
    // The next sync fails, and comes although nobody asks for it.
    append(&store, "log", &["seen too"]).await.ok();
    while store.health().writable {
        tokio::task::yield_now().await;
    }
    assert!(look(&store, "log").await.unwrap().events.len() <= 2, "what was seen stays");
}

/// What is put down while a group is being written stands on it, and must fail with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_fails_takes_with_it_what_was_put_down_meanwhile() {
    for sync in [Sync::Always, Sync::INTERVAL] {
        let bench = Bench::new();
        let store = Arc::new(bench.open(sync).0);
        for round in 0..30 {
            let log = format!("log-{round}");
            create(&store, &log).await.unwrap();
            let fence = store.lease(&id(&log), &Claim::alone()).await.and_then(Leased::fence).unwrap();
            bench.files.fail_write_after(round % 4);
            let tasks: Vec<_> = (0..16)
                .map(|n| {
                    let (store, log) = (store.clone(), log.clone());
                    tokio::spawn(async move {
                        let text = format!("{n}");
                        let commit = Commit { events: vec![event(&text)], ..Commit::to(id(&log), fence, 0) };
                        store.commit(commit).await.map(|done| (done.first.get(), text))
                    })
                })
                .collect();
            let mut answered = Vec::new();
            for task in tasks {
                match task.await.unwrap() {
                    Ok(done) => answered.push(done),
                    Err(error) => assert!(matches!(error, StoreError::Full(_)), "{error}"),
                }
            }
            answered.sort();
            assert_eq!(texts(&*store, &log).await, answered, "round {round}: what was answered, and nothing else");
            // The lease outlived the failure, and the numbers go on.
            bench.files.fail_write_after(u32::MAX);
            let commit = Commit { events: vec![event("after")], ..Commit::to(id(&log), fence, 0) };
            let next = answered.len() as u64 + 1;
            assert_eq!(store.commit(commit).await.map(|done| done.first.get()), Ok(next));
        }
        drop(Arc::into_inner(store).unwrap());
        let report = bench.open(sync).1;
        assert_eq!((report.damage, report.logs), (vec![], 30));
        // With an interval, the write that failed may have been the witness's, and without one a crash is a power cut.
        assert!(sync == Sync::INTERVAL || report.epochs_changed == 0);
    }
}

#[tokio::test]
async fn a_read_that_fails_is_told_and_is_no_damage() {
    let bench = Bench::new();
    let (store, _) = open_with(&DiskOptions { cache_bytes: 0, ..bench.options(Sync::Always) }, &bench.files);
    create(&store, "log").await.unwrap();
    append(&store, "log", &["kept"]).await.unwrap();
    // The header of the segment is read first, then the frame.
    for good in 0..2 {
        bench.files.fail_read_after(good);
        let failed = store.read(&id("log"), bowline_protocol::Seq::ZERO, ALL).await;
        assert!(matches!(failed, Err(StoreError::Io(_))), "{failed:?}");
        assert_eq!(texts(&store, "log").await, [(1, "kept".to_owned())], "the next one finds everything");
    }
    assert_eq!(store.health().problems, Vec::<String>::new());
}

#[tokio::test]
async fn an_opening_that_cannot_read_is_refused_and_changes_nothing() {
    let bench = Bench::new();
    let (store, _) = bench.open(Sync::Always);
    create(&store, "log").await.unwrap();
    append(&store, "log", &["kept"]).await.unwrap();
    let before = look(&store, "log").await;
    store.close().await;
    drop(store);
    let options = DiskOptions { files: Arc::new(bench.files.clone()), ..bench.options(Sync::Always) };
    for good in 0.. {
        bench.files.fail_read_after(good);
        match DiskStore::open(options.clone()) {
            Err(OpenError::Io { error, .. }) => assert_eq!(error.to_string(), "the disk did not answer"),
            Err(refused) => panic!("after {good} reads: {refused}"),
            Ok((store, report)) => {
                assert_eq!((report.damage, report.epochs_changed), (vec![], 0), "after {good} reads");
                assert!(good >= 3, "the state, a header and a segment are read");
                bench.files.fail_read_after(u32::MAX);
                assert_eq!(look(&store, "log").await, before);
                break;
            }
        }
    }
}

/// Appends until the oldest segment is given up.
async fn outlive_a_segment(store: &DiskStore, bench: &Bench) {
    create(store, "log").await.unwrap();
    let text = "x".repeat(900);
    let removals = bench.files.removals();
    while bench.files.removals() == removals {
        append(store, "log", &[&text]).await.unwrap();
    }
}

impl Bench {
    fn open_keeping(&self, events_max: u64) -> DiskStore {
        let retention = bowline_store::Retention { events_max, age_max_ms: u64::MAX }.into();
        open_with(&DiskOptions { retention, ..self.options(Sync::Always) }, &self.files).0
    }

    fn segments(&self) -> Vec<std::path::PathBuf> {
        segments(&self.dir.path().join("data"))
    }
}

#[tokio::test]
async fn a_segment_is_removed_once() {
    let bench = Bench::new();
    let store = bench.open_keeping(5);
    outlive_a_segment(&store, &bench).await;
    for _ in 0..50 {
        append(&store, "log", &["x"]).await.unwrap();
    }
    let newest: u32 = bench.segments().pop().unwrap().file_stem().unwrap().to_str().unwrap().parse().unwrap();
    assert_eq!(bench.files.removals() + bench.segments().len() as u32, newest);
    assert_eq!(store.health().problems, Vec::<String>::new());
}

#[tokio::test]
async fn a_segment_that_another_program_removed_is_not_missed() {
    let bench = Bench::new();
    let store = bench.open_keeping(50);
    create(&store, "log").await.unwrap();
    let text = "x".repeat(900);
    while bench.segments().len() < 2 {
        append(&store, "log", &[&text]).await.unwrap();
    }
    std::fs::remove_file(&bench.segments()[0]).unwrap();
    // The record and the item are carried from a file that is gone, so these must go first.
    let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    let all = bowline_store::Release::Log;
    store.commit(Commit { release: Some(all), ..Commit::to(id("log"), fence, 0) }).await.unwrap();
    while bench.files.removals() == 0 {
        store.sweep(0).await.unwrap();
    }
    store.sweep(0).await.unwrap();
    assert_eq!((store.health().problems, bench.files.removals()), (vec![], 1));
    let on_disk: u64 = bench.segments().iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(store.health().bytes, on_disk);
}

#[tokio::test]
async fn a_segment_that_cannot_be_removed_is_reported_once_and_stops_no_commit() {
    let bench = Bench::new();
    let store = bench.open_keeping(5);
    bench.files.set_removals_fail(true);
    let started = std::time::Instant::now();
    outlive_a_segment(&store, &bench).await;
    let text = "x".repeat(900);
    for _ in 0..200 {
        append(&store, "log", &[&text]).await.unwrap();
    }
    let tries = u64::from(bench.files.removals());
    assert!(tries <= 1 + started.elapsed().as_secs() / 2, "{tries} tries");
    let health = store.health();
    assert!(health.writable && health.problems.len() == 1, "{health:?}");
    assert!(health.problems[0].contains("could not be removed"), "{health:?}");
    let kept = bench.segments().len();
    assert!(kept > 3, "no later one is removed before it");

    bench.files.set_removals_fail(false);
    while bench.segments().len() >= kept {
        append(&store, "log", &["x"]).await.unwrap();
    }
    while !store.health().problems.is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_power_cut_does_not_bring_back_the_tail_of_a_finished_segment() {
    let bench = Bench::new();
    let store = bench.open_keeping(1_000);
    create(&store, "log").await.unwrap();
    while bench.segments().len() < 2 {
        append(&store, "log", &[&"x".repeat(20_000)]).await.unwrap();
    }
    let finished = bench.segments()[0].metadata().unwrap().len();
    bench.files.cut_power(|| false).unwrap();
    drop(store);
    assert_eq!(bench.segments()[0].metadata().unwrap().len(), finished);
    assert!(finished < 64 << 10);
}

/// The loss window is said as it is.
#[test]
fn the_loss_window_is_told() {
    let bench = Bench::new();
    let (store, _) = bench.open(Sync::Always);
    let always = store.health().loss_window;
    assert_eq!(always, "none: every event is synced to disk before a client sees it");
    drop(store);
    let (store, _) = bench.open(Sync::INTERVAL);
    let interval = "a power cut can lose up to 50 ms (then the epoch changes); kill -9 loses nothing";
    assert_eq!(store.health().loss_window, interval);
}
