//! kill -9 and power cuts at random moments: whatever was answered is there afterwards, unchanged.
//!
//! `STORE_KILLS=10000` kills so often instead of 20 times. `STORE_POWER_CUTS=300` cuts the power so often, which needs root and a
//! loop device: the store lies in a file system on an image, whose backing file is copied as it is while the process is
//! stopped; the copy goes on. `drills/run` sets both.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bowline_store::contract::{event, id, texts};
use bowline_store::disk::Sync;
use bowline_store::disk::faults::FaultyFiles;
use bowline_store::{Claim, Commit, Directory, DiskOptions, DiskStore, EventLog, Leased, Retention};

use crate::common::*;

const CHILD: &str = "STORE_KILL_CHILD";
const LOGS: [&str; 4] = ["k0", "k1", "k2", "k3"];

fn open_for(dir: &Path, how: &str) -> (DiskStore, bowline_store::OpenReport) {
    let retention = Retention { events_max: 200, age_max_ms: u64::MAX };
    let options = DiskOptions {
        sync: if how == "interval" { Sync::INTERVAL } else { Sync::Always },
        // Small, so that the process also dies while segments come and go.
        segment_bytes: 64 << 10,
        ..DiskOptions::new(dir.join("data"), retention)
    };
    match how {
        // A sync must be one: these are the operating system's files.
        "power" => opened(|| DiskStore::open(options.clone())),
        _ => open_with(&options, &FaultyFiles::new(dir.join("memory"))),
    }
}

fn times(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// The process that is killed: commits without end and says what was answered. Does nothing in an ordinary run.
#[test]
fn child_process() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (how, dir) = what.split_once(' ').unwrap();
    let (store, _) = open_for(Path::new(dir), how);
    let store = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks = LOGS.map(|log| {
            let store = store.clone();
            tokio::spawn(async move {
                if store.extent(&id(log)).await.is_err() {
                    create(&store, log).await.unwrap();
                }
                let fence = store.lease(&id(log), &Claim::alone()).await.and_then(Leased::fence).unwrap();
                for n in 0u64.. {
                    let text = format!("{} {n} {}", std::process::id(), "x".repeat(n as usize % 700));
                    let commit = Commit { events: vec![event(&text)], ..Commit::to(id(log), fence, 0) };
                    let done = store.commit(commit).await.unwrap();
                    let line = format!("{log}\t{}\t{text}\n", done.first);
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Where the store lies, and how it crashes.
trait CrashScene {
    fn dir(&self) -> &Path;

    /// Ends the process, and leaves what a crash of this kind leaves.
    fn crash(&mut self, child: &mut Child);
}

struct Killed(tempfile::TempDir);

impl CrashScene for Killed {
    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn crash(&mut self, child: &mut Child) {
        child.kill().unwrap();
    }
}

/// A file system on an image that is mounted through a loop device.
struct Powered {
    scratch: tempfile::TempDir,
    mounted: PathBuf,
    cuts: u64,
}

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Powered {
    fn new() -> Powered {
        let scratch = scratch();
        let powered = Powered { mounted: scratch.path().join("mounted"), scratch, cuts: 0 };
        std::fs::create_dir(&powered.mounted).unwrap();
        let image = powered.image();
        std::fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]);
        powered.mount();
        powered
    }

    fn image(&self) -> PathBuf {
        self.scratch.path().join(format!("image{}", self.cuts))
    }

    /// What no one syncs stays in memory for minutes, so that a power cut costs as much as it can.
    fn mount(&self) {
        run("mount", &["-o", "loop,commit=300", self.image().to_str().unwrap(), self.mounted.to_str().unwrap()]);
    }
}

impl CrashScene for Powered {
    fn dir(&self) -> &Path {
        &self.mounted
    }

    fn crash(&mut self, child: &mut Child) {
        let process = child.id().to_string();
        run("kill", &["-STOP", &process]);
        let until = Instant::now() + Duration::from_secs(10);
        while !std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap().contains(") T ") {
            assert!(Instant::now() < until, "the process does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = self.image();
        self.cuts += 1;
        std::fs::copy(&before, self.image()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        run("umount", &[self.mounted.to_str().unwrap()]);
        std::fs::remove_file(before).unwrap();
        self.mount();
    }
}

impl Drop for Powered {
    fn drop(&mut self) {
        run("umount", &[self.mounted.to_str().unwrap()]);
    }
}

async fn crashed_again_and_again(mut scene: impl CrashScene, how: &str, rounds: u64) {
    let mut dice = Dice(0xa11ce);
    let mut answered: BTreeMap<(String, u64), String> = BTreeMap::new();
    let (mut epochs, mut total) = (BTreeMap::new(), 0);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "disk_kill::child_process", "--nocapture", "--quiet"])
            .env(CHILD, format!("{how} {}", scene.dir().display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let (send, answers) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let lines = lines.lines().map_while(Result::ok);
            // A line that was cut by the kill has fewer parts, or ends early; its commit was answered all the same.
            let parts = lines.filter_map(|line| {
                let mut parts = line.splitn(3, '\t').map(str::to_owned);
                let (log, seq) = (parts.next()?, parts.next()?.parse::<u64>().ok()?);
                let answer = ((log.rsplit(' ').next()?.to_owned(), seq), parts.next()?);
                // The other side listens for the first one only.
                let _ = send.send(());
                Some(answer)
            });
            parts.collect::<Vec<_>>()
        });
        // Most die while they commit, some before that, in the middle of an opening.
        if dice.roll(4) > 0 {
            answers.recv_timeout(Duration::from_secs(60)).expect("it commits");
        }
        std::thread::sleep(Duration::from_millis(dice.roll(60)));
        scene.crash(&mut child);
        child.wait().unwrap();
        let more = reader.join().unwrap();
        total += more.len();
        answered.extend(more);

        let (store, report) = open_for(scene.dir(), how);
        assert_eq!((report.damage, report.epochs_changed), (vec![], 0), "round {round}");
        for log in LOGS {
            let Ok(look) = look(&store, log).await else {
                assert!(!answered.keys().any(|(of, _)| of == log), "round {round}: {log} is gone");
                continue;
            };
            let epoch = epochs.entry(log).or_insert(look.epoch.clone());
            assert_eq!(*epoch, look.epoch);
            let found: BTreeMap<u64, String> = texts(&store, log).await.into_iter().collect();
            for ((_, seq), text) in answered.range((log.to_owned(), 0)..=(log.to_owned(), u64::MAX)) {
                assert!(*seq < look.next, "round {round}: {log} {seq} was answered and is lost");
                let there = found.get(seq).is_none_or(|found| found.starts_with(text));
                assert!(there, "round {round}: {log} {seq} changed");
                assert!(found.contains_key(seq) || *seq < look.first, "round {round}: {log} {seq} is missing");
            }
            // Those were trimmed.
            answered.retain(|(of, seq), _| of != log || *seq >= look.first);
        }
        drop(store);
        if round % 100 == 99 {
            println!("{how}: {} crashes, {} commits answered, none lost or changed", round + 1, total);
        }
    }
    assert!(total as u64 > 2 * rounds, "only {total} commits were answered");
}

#[tokio::test]
async fn a_killed_process_loses_nothing_with_sync_always() {
    crashed_again_and_again(killed(), "always", times("STORE_KILLS").unwrap_or(20)).await;
}

#[tokio::test]
async fn a_killed_process_loses_nothing_with_an_interval() {
    crashed_again_and_again(killed(), "interval", times("STORE_KILLS").unwrap_or(20)).await;
}

/// Does nothing in an ordinary run, which has no right to mount anything.
#[tokio::test]
async fn a_power_cut_loses_nothing_with_sync_always() {
    if let Some(cuts) = times("STORE_POWER_CUTS") {
        crashed_again_and_again(Powered::new(), "power", cuts).await;
    }
}

fn killed() -> Killed {
    let dir = scratch();
    std::fs::create_dir(dir.path().join("memory")).unwrap();
    Killed(dir)
}
