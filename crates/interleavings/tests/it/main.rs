//! Interleavings of the store's commit queue, claims and wake-ups: the real disk store on a disk in memory, its writer and its callers on
//! threads of shuttle, which switches between them at every lock, every wait and every wake-up, and notices when all wait for each other.
//!
//! `SHUTTLE_ITERATIONS=100000` tries so many schedules of each test instead of a few.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node")]

#[allow(dead_code, reason = "the crash tests of the store use all of it")]
#[path = "../../../store/tests/it/crash_states/disk.rs"]
mod disk;
#[allow(dead_code, reason = "the crash tests of the store use all of it")]
#[path = "../../../store/tests/it/crash_states/platter.rs"]
mod platter;

use std::sync::Arc;

use bowline_interleavings::contract::{PLENTY, create, event, id, texts};
use bowline_interleavings::disk::Runs;
use bowline_interleavings::{
    Claim, Commit, Directory, DiskOptions, DiskStore, EventLog, Followed, Follower, Holder, Leased, ReadLimit, Store,
    StoreError, WakeSet,
};
use bowline_protocol::Seq;
use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use self::disk::TracedDisk;
use self::platter::Platter;

/// So many schedules of each test by chance, and as many by PCT, which looks for bugs that need few switches.
const ITERATIONS: usize = 150;
/// How many switches a bug may need.
const DEPTH: usize = 4;

fn explore(test: fn()) {
    let given = std::env::var("SHUTTLE_ITERATIONS").ok().map(|text| text.parse().expect("a number"));
    let iterations = given.unwrap_or(ITERATIONS);
    let mut config = Config::new();
    // A debug build's frames are large.
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new_from_seed(1, iterations), config.clone()).run(test);
    Runner::new(PctScheduler::new_from_seed(1, DEPTH, iterations), config).run(test);
}

fn opened(disk: &TracedDisk<()>) -> Arc<DiskStore> {
    let options = DiskOptions { runs: Runs::OnThreads, ..DiskOptions::new("/data", PLENTY).on(Arc::new(disk.clone())) };
    Arc::new(DiskStore::open(options).unwrap().0)
}

/// What a restart finds. Its reads go to the disk, so the store runs where it is asked.
fn after_a_restart(disk: &TracedDisk<()>, log: &str) -> Vec<(u64, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let options = DiskOptions::new("/data", PLENTY).on(Arc::new(disk.clone()));
        let (store, _) = DiskStore::open(options).unwrap();
        texts(&store, log).await
    })
}

fn with_log(log: &str) -> (TracedDisk<()>, Arc<DiskStore>) {
    let disk = TracedDisk::on(Platter::default());
    let store = opened(&disk);
    block_on(store.commit(create(log))).unwrap();
    (disk, store)
}

fn one_event(log: &str, text: &str, fence: bowline_interleavings::Fence) -> Commit {
    Commit { events: vec![event(text)], ..Commit::to(id(log), fence, 0) }
}

#[test]
fn commits_of_many_threads_get_each_number_once_and_stay() {
    explore(|| {
        let (disk, store) = with_log("log");
        let fence = block_on(store.lease(&id("log"), &Claim::alone())).unwrap().fence().unwrap();
        let callers = ["a", "b", "c"].map(|name| {
            let store = store.clone();
            thread::spawn(move || {
                [1, 2].map(|nth| {
                    let text = format!("{name}{nth}");
                    let done = block_on(store.commit(one_event("log", &text, fence))).unwrap();
                    let found = block_on(texts(&*store, "log"));
                    assert!(found.contains(&(done.first.get(), text.clone())), "what was answered can be read");
                    (done.first.get(), text)
                })
            })
        });
        let mut answered: Vec<(u64, String)> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        answered.sort();
        assert_eq!(answered.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        drop(store);
        assert_eq!(after_a_restart(&disk, "log"), answered, "and is there after a restart");
    });
}

#[test]
fn of_claims_at_once_one_is_granted_and_a_fence_that_was_overtaken_cannot_write() {
    explore(|| {
        let (_disk, store) = with_log("log");
        let claims = ["x", "y", "z"].map(|name| {
            let store = store.clone();
            thread::spawn(move || {
                let holder = Holder::parse(name).unwrap();
                let leased = block_on(store.lease(&id("log"), &Claim::by(holder.clone()))).unwrap();
                let Leased::Granted(fence) = leased else { return None };
                // While it holds the log, no other can: its commit is taken.
                block_on(store.commit(one_event("log", name, fence))).unwrap();
                block_on(store.give_back(&id("log"), &holder, fence)).unwrap();
                Some(fence)
            })
        });
        let mut granted: Vec<_> = claims.into_iter().filter_map(|one| one.join().unwrap()).collect();
        assert!(!granted.is_empty(), "one of them is granted");
        assert_eq!(block_on(texts(&*store, "log")).len(), granted.len());
        granted.sort();
        granted.windows(2).for_each(|pair| assert!(pair[0] < pair[1], "each grant is higher"));
        let oldest = granted[0];
        block_on(store.lease(&id("log"), &Claim::alone())).unwrap().fence().unwrap();
        let stale = block_on(store.commit(one_event("log", "stale", oldest)));
        assert!(matches!(stale, Err(StoreError::StaleFence { .. })), "{stale:?}");
    });
}

#[test]
fn a_follower_that_waits_is_woken_for_every_event() {
    explore(|| {
        let (_disk, store) = with_log("log");
        let fence = block_on(store.lease(&id("log"), &Claim::alone())).unwrap().fence().unwrap();
        let readers = [1, 2].map(|token| {
            let store: Arc<dyn Store> = store.clone();
            thread::spawn(move || {
                block_on(async move {
                    let epoch = store.extent(&id("log")).await.unwrap().epoch;
                    let wake = WakeSet::new();
                    let mut follower = Follower::new(&store, &id("log"), (&epoch, Seq::FIRST), &wake, token);
                    let mut seen = Vec::new();
                    while seen.len() < 4 {
                        match follower.next(ReadLimit { events: 3, bytes: 1 << 20 }).await.unwrap() {
                            Followed::Events(events) => seen.extend(events.iter().map(|event| event.seq.get())),
                            // If a wake-up is lost here, all threads wait, and shuttle says so.
                            Followed::Idle => {
                                assert_eq!(wake.changed().await, [token]);
                                follower.wake();
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                    assert_eq!(seen, [1, 2, 3, 4]);
                });
            })
        });
        let writers = ["a", "b"].map(|name| {
            let store = store.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    block_on(store.commit(one_event("log", name, fence))).unwrap();
                }
            })
        });
        readers.into_iter().chain(writers).for_each(|one| one.join().unwrap());
    });
}

#[test]
fn a_commit_beside_a_close_is_stored_or_refused_and_never_left_waiting() {
    explore(|| {
        let (disk, store) = with_log("log");
        let fence = block_on(store.lease(&id("log"), &Claim::alone())).unwrap().fence().unwrap();
        let callers = ["a", "b"].map(|text| {
            let store = store.clone();
            thread::spawn(move || match block_on(store.commit(one_event("log", text, fence))) {
                Ok(done) => Some((done.first.get(), text.to_owned())),
                Err(StoreError::Closed) => None,
                Err(other) => panic!("{other}"),
            })
        });
        block_on(store.close());
        let mut answered: Vec<_> = callers.into_iter().filter_map(|caller| caller.join().unwrap()).collect();
        answered.sort();
        drop(store);
        assert_eq!(after_a_restart(&disk, "log"), answered, "all that was answered, and nothing else");
    });
}
