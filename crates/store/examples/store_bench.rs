//! How fast the disk store is: durable events per second, beside what the disk itself can do, and how fast it reopens.
//!
//! Two limits stand beside it. *Bare*: as many tasks, which hand a channel to one thread; it copies 200 bytes for each,
//! writes them in one piece, syncs, and answers each. That is a group commit and nothing else: no numbers, no checksums, no
//! index, nothing that could be read or recovered. *Raw*: the same writes and syncs, and nobody who waits.
//!
//! `cargo run --release -p bowline-store --example store_bench -- [directory [1|100|1000|reopen]]`
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "an example is no part of a node")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "this prints a table, and may just stop")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bowline_protocol::event::{Draft, names};
use bowline_protocol::{Epoch, LogId, Seq, SessionId, Unnumbered};
use bowline_store::disk::Sync;
use bowline_store::{Claim, Commit, Directory, DiskOptions, DiskStore, EventLog, Fence, Leased, Retention, Start};
use tokio::sync::oneshot;

const KEEP: Retention = Retention { events_max: 10_000_000, age_max_ms: u64::MAX };

/// About 200 bytes once it is numbered.
fn event() -> Unnumbered {
    Draft::new(names::THINKING, &"x".repeat(20)).seal(&SessionId::from_random(1), "2026-01-01T00:00:00Z")
}

fn log(n: usize) -> LogId {
    LogId::parse(&format!("sess_{n:032x}")).unwrap()
}

async fn create(store: &DiskStore, log: &LogId) -> Fence {
    let create = Some(Start { epoch: Epoch::from_random(1), after: Seq::ZERO });
    let commit = Commit { create, ..Commit::to(log.clone(), Fence(0), 0) };
    store.commit(commit).await.unwrap();
    store.lease(log, &Claim::alone()).await.and_then(Leased::fence).unwrap()
}

/// The processor time that this process has used, in seconds. The kernel counts it in hundredths.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Events per second, and microseconds of processor time for each.
struct Rate {
    per_second: f64,
    cpu_us: f64,
}

impl Rate {
    fn of(done: u64, started: Instant, cpu_before: f64) -> Rate {
        let done = done as f64;
        Rate { per_second: done / started.elapsed().as_secs_f64(), cpu_us: (cpu_seconds() - cpu_before) * 1e6 / done }
    }
}

/// Each committer has a log of its own and waits for each answer before its next commit.
async fn committers(dir: &Path, sync: Sync, count: usize, span: Duration) -> Rate {
    let options = DiskOptions { sync, ..DiskOptions::new(dir, KEEP) };
    let store = Arc::new(DiskStore::open(options).unwrap().0);
    let mut fences = Vec::new();
    for n in 0..count {
        fences.push(create(&store, &log(n)).await);
    }
    let (started, cpu_before) = (Instant::now(), cpu_seconds());
    let tasks: Vec<_> = fences
        .into_iter()
        .enumerate()
        .map(|(n, fence)| {
            let store = store.clone();
            tokio::spawn(async move {
                let (log, event, mut done) = (log(n), event(), 0u64);
                while started.elapsed() < span {
                    let commit = Commit { events: vec![event.clone()], ..Commit::to(log.clone(), fence, 0) };
                    store.commit(commit).await.unwrap();
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    let rate = Rate::of(done, started, cpu_before);
    store.close().await;
    rate
}

/// As many tasks as above, and a thread that only writes, syncs and answers.
async fn bare(dir: &Path, count: usize, span: Duration) -> Rate {
    let path = dir.join("bare");
    let file = prepared(&path);
    let (queue, requests) = mpsc::channel::<oneshot::Sender<()>>();
    let writer = std::thread::spawn(move || {
        let record = vec![7; event().len_max()];
        let (mut group, mut waiting, mut at) = (Vec::new(), Vec::new(), 0);
        while let Ok(first) = requests.recv() {
            waiting.push(first);
            waiting.extend(requests.try_iter());
            group.clear();
            waiting.iter().for_each(|_| group.extend_from_slice(&record));
            file.write_all_at(&group, at).unwrap();
            file.sync_data().unwrap();
            at = (at + group.len() as u64) % PREPARED_USED;
            for answer in waiting.drain(..) {
                let _ = answer.send(());
            }
        }
    });
    let (started, cpu_before) = (Instant::now(), cpu_seconds());
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let mut done = 0u64;
                while started.elapsed() < span {
                    let (answer, answered) = oneshot::channel();
                    queue.send(answer).unwrap();
                    answered.await.unwrap();
                    done += 1;
                }
                done
            })
        })
        .collect();
    drop(queue);
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    let rate = Rate::of(done, started, cpu_before);
    writer.join().unwrap();
    std::fs::remove_file(path).unwrap();
    rate
}

/// So much of a prepared file is written over and over; the rest is room for the last write.
const PREPARED_USED: u64 = 24 << 20;

/// A file whose blocks have all been written once, so that a sync has nothing to do but to write them again.
fn prepared(path: &Path) -> File {
    let file = File::create(path).unwrap();
    file.write_all_at(&vec![1; 32 << 20], 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// What the disk does when `count` events are written in one piece and synced, again and again, by nobody else.
fn raw(dir: &Path, count: usize, span: Duration) -> f64 {
    let path = dir.join("raw");
    let file = prepared(&path);
    let group = vec![7; count * event().len_max()];
    let (started, mut at, mut done) = (Instant::now(), 0, 0);
    while started.elapsed() < span {
        file.write_all_at(&group, at).unwrap();
        file.sync_data().unwrap();
        at = (at + group.len() as u64) % PREPARED_USED;
        done += count;
    }
    let rate = done as f64 / started.elapsed().as_secs_f64();
    std::fs::remove_file(path).unwrap();
    rate
}

async fn reopen(dir: &Path, events: usize, per_commit: usize) -> (Duration, u64) {
    let (store, _) = DiskStore::open(DiskOptions::new(dir, KEEP)).unwrap();
    let store = Arc::new(store);
    let tasks: Vec<_> = (0..100)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let fence = create(&store, &log(n)).await;
                for _ in 0..events / 100 / per_commit {
                    let commit = Commit { events: vec![event(); per_commit], ..Commit::to(log(n), fence, 0) };
                    store.commit(commit).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    store.close().await;
    drop(store);
    let (_, report) = DiskStore::open(DiskOptions::new(dir, KEEP)).unwrap();
    assert_eq!(report.events as usize, events);
    (report.elapsed, report.bytes)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let root = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let root = tempfile::tempdir_in(root).unwrap();
    let only = std::env::args().nth(2);
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    let span = Duration::from_secs(2);
    println!("durable events/s, {} bytes each", event().len_max());
    let head = ["committers", "always", "CPU µs", "interval", "CPU µs", "bare", "CPU µs", "raw", "÷ bare", "÷ raw"];
    println!("{}", head.map(|word| format!("{word:>10}")).join(" "));
    for count in [1, 100, 1000] {
        if !wanted(&count.to_string()) {
            continue;
        }
        let dir = |name: &str| root.path().join(format!("{name}-{count}"));
        let disk = raw(root.path(), count, span);
        let always = committers(&dir("always"), Sync::Always, count, span).await;
        let interval = committers(&dir("interval"), Sync::INTERVAL, count, span).await;
        let bare = bare(root.path(), count, span).await;
        print!("{count:>10}");
        for rate in [&always, &interval, &bare] {
            print!(" {:>10.0} {:>10.2}", rate.per_second, rate.cpu_us);
        }
        println!(" {disk:>10.0} {:>10.2} {:>10.2}", always.per_second / bare.per_second, always.per_second / disk);
    }
    for per_commit in [1, 10] {
        if !wanted("reopen") {
            break;
        }
        let dir = root.path().join(format!("reopen-{per_commit}"));
        let (elapsed, bytes) = reopen(&dir, 1_000_000, per_commit).await;
        let mib = bytes >> 20;
        println!("reopening 1 000 000 events, {per_commit} to a commit, {mib} MiB: {} ms", elapsed.as_millis());
    }
}
