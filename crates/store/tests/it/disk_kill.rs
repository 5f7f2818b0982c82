//! kill -9 at random moments: whatever was answered is there afterwards, unchanged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bowline_store::contract::{event, id, texts};
use bowline_store::disk::Sync;
use bowline_store::disk::faults::FaultyFiles;
use bowline_store::{Claim, Commit, Directory, DiskOptions, DiskStore, EventLog, Leased, Retention};

use crate::common::*;

const CHILD: &str = "STORE_KILL_CHILD";
const LOGS: [&str; 4] = ["k0", "k1", "k2", "k3"];

fn open_for(dir: &Path, sync: Sync) -> (DiskStore, bowline_store::OpenReport) {
    let retention = Retention { events_max: 200, age_max_ms: u64::MAX };
    let options = DiskOptions {
        sync,
        // Small, so that the process also dies while segments come and go.
        segment_bytes: 64 << 10,
        ..DiskOptions::new(dir.join("data"), retention)
    };
    open_with(&options, &FaultyFiles::new(dir.join("memory")))
}

fn sync_of(name: &str) -> Sync {
    match name {
        "always" => Sync::Always,
        _ => Sync::INTERVAL,
    }
}

/// The process that is killed: commits without end and says what was answered. Does nothing in an ordinary run.
#[test]
fn child_process() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (sync, dir) = what.split_once(' ').unwrap();
    let (store, _) = open_for(Path::new(dir), sync_of(sync));
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

async fn killed_again_and_again(sync: &str) {
    let dir = scratch();
    std::fs::create_dir(dir.path().join("memory")).unwrap();
    let mut dice = Dice(0xa11ce);
    let mut answered: BTreeMap<(String, u64), String> = BTreeMap::new();
    let mut epochs = BTreeMap::new();
    for round in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "disk_kill::child_process", "--nocapture", "--quiet"])
            .env(CHILD, format!("{sync} {}", dir.path().display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let lines = lines.lines().map_while(Result::ok);
            // A line that was cut by the kill has fewer parts, or ends early; its commit was answered all the same.
            let parts = lines.filter_map(|line| {
                let mut parts = line.splitn(3, '\t').map(str::to_owned);
                let (log, seq) = (parts.next()?, parts.next()?.parse::<u64>().ok()?);
                Some(((log.rsplit(' ').next()?.to_owned(), seq), parts.next()?))
            });
            parts.collect::<Vec<_>>()
        });
        std::thread::sleep(Duration::from_millis(30 + dice.roll(120)));
        child.kill().unwrap();
        child.wait().unwrap();
        answered.extend(reader.join().unwrap());

        let (store, report) = open_for(dir.path(), sync_of(sync));
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
        }
        drop(store);
    }
    assert!(answered.len() > 200, "only {} commits were answered", answered.len());
}

#[tokio::test]
async fn a_killed_process_loses_nothing_with_sync_always() {
    killed_again_and_again("always").await;
}

#[tokio::test]
async fn a_killed_process_loses_nothing_with_an_interval() {
    killed_again_and_again("interval").await;
}
