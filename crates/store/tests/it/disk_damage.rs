//! Cut and flipped bytes: what is torn is cut, what is damaged is told, and the rest is as it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bowline_store::contract::{ALL, id, seq};
use bowline_store::{
    Claim, Commit, Directory, DiskOptions, DiskStore, EventLog, Item, Leased, OpenError, Release, Retention, StoreError,
};

use crate::common::*;

const LOGS: [&str; 4] = ["idle", "busy", "other", "gone"];

type Snapshot = BTreeMap<String, Result<Look, StoreError>>;

/// A store with a closed segment and a newest one; what it held after each commit to the newest.
async fn history(dir: &Path) -> Vec<Snapshot> {
    let (store, _) = open(dir);
    for log in LOGS {
        create(&store, log).await.unwrap();
        append(&store, log, &["one", "two"]).await.unwrap();
    }
    store.close().await;
    drop(store);
    let (store, _) = open(dir);
    let mut snapshots = vec![look_at_all(&store, &LOGS).await];
    for step in 0..2 {
        append(&store, "busy", &["b", &format!("step {step}")]).await.unwrap();
        snapshots.push(look_at_all(&store, &LOGS).await);
        let commit = Commit {
            items: vec![Item::put("item", format!("written over {step} {}", "w".repeat(70)))],
            ..Commit::to(
                id("busy"),
                store.lease(&id("busy"), &Claim::alone()).await.and_then(Leased::fence).unwrap(),
                0,
            )
        };
        store.commit(commit).await.unwrap();
        snapshots.push(look_at_all(&store, &LOGS).await);
        let commit = Commit {
            items: vec![Item::put(format!("k{step}"), "v".repeat(80)), Item::delete("item")],
            ..Commit::to(
                id("other"),
                store.lease(&id("other"), &Claim::alone()).await.and_then(Leased::fence).unwrap(),
                0,
            )
        };
        store.commit(commit).await.unwrap();
        snapshots.push(look_at_all(&store, &LOGS).await);
    }
    let commit = Commit {
        release: Some(Release::Log),
        ..Commit::to(id("gone"), store.lease(&id("gone"), &Claim::alone()).await.and_then(Leased::fence).unwrap(), 0)
    };
    store.commit(commit).await.unwrap();
    snapshots.push(look_at_all(&store, &LOGS).await);
    drop(store);
    snapshots
}

/// How much of a segment was ever written; the rest is reserved.
fn written(segment: &Path) -> u64 {
    fs::read(segment).unwrap().iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1
}

/// The header, which a segment has before it has its name.
const HEADER: u64 = 128;

#[tokio::test]
async fn a_newest_segment_that_was_written_in_part_keeps_every_commit_before_the_end() {
    let dir = scratch();
    let original = dir.path().join("original");
    let snapshots = history(&original).await;
    let newest = segments(&original).pop().unwrap();
    let (len, written) = (fs::metadata(&newest).unwrap().len(), written(&newest));
    let mut reached = 0;
    for cut in HEADER..=written {
        let copy = dir.path().join("copy");
        copy_dir(&original, &copy);
        let file = fs::File::options().write(true).open(copy.join(newest.file_name().unwrap())).unwrap();
        // A crash leaves the file as long as it was made.
        file.set_len(cut).unwrap();
        file.set_len(len).unwrap();
        let (store, report) = open(&copy);
        assert_eq!((report.damage, report.epochs_changed), (vec![], 0), "cut at {cut}");
        let found = look_at_all(&store, &LOGS).await;
        let at = snapshots.iter().rposition(|snapshot| *snapshot == found);
        let at = at.unwrap_or_else(|| panic!("cut at {cut}: {found:?} never was"));
        assert!(at == reached || at == reached + 1, "cut at {cut}: {at} after {reached}");
        reached = at;
        let next = found["busy"].as_ref().unwrap().next;
        assert_eq!(append(&store, "busy", &["after"]).await, Ok(next), "it can be written");
        if cut % 16 == 0 {
            drop(store);
            let (store, _) = open(&copy);
            let look = look(&store, "busy").await.unwrap();
            assert_eq!(look.events.last().unwrap(), &(next, "after".to_owned()));
        }
        fs::remove_dir_all(&copy).unwrap();
    }
    assert_eq!(reached, snapshots.len() - 1);
}

#[tokio::test]
async fn a_newest_segment_that_was_cut_is_told_and_no_number_is_given_again_in_its_epoch() {
    let dir = scratch();
    let original = dir.path().join("original");
    history(&original).await;
    let newest = segments(&original).pop().unwrap();
    let (len, written) = (fs::metadata(&newest).unwrap().len(), written(&newest));
    assert!(len > written, "it was reserved");
    let cuts = (0..written).step_by(97).chain([HEADER, written, len - 1]);
    for cut in cuts {
        let copy = dir.path().join("copy");
        copy_dir(&original, &copy);
        let file = fs::File::options().write(true).open(copy.join(newest.file_name().unwrap())).unwrap();
        file.set_len(cut).unwrap();
        let (store, report) = open(&copy);
        assert!(!report.damage.is_empty(), "cut at {cut}: it is told");
        assert_eq!(report.epochs_changed, report.logs, "cut at {cut}: all logs may have lost something");
        assert!(!store.health().problems.is_empty(), "cut at {cut}: an operator sees it");
        drop(store);
        // The verdict was written down: the next opening finds nothing new.
        let (store, report) = open(&copy);
        assert_eq!(report.epochs_changed, 0, "cut at {cut}");
        drop(store);
        fs::remove_dir_all(&copy).unwrap();
    }
}

#[tokio::test]
async fn a_segment_that_was_closed_or_only_opened_is_not_taken_for_cut() {
    let dir = scratch();
    let (store, _) = open(dir.path());
    create(&store, "log").await.unwrap();
    append(&store, "log", &["kept"]).await.unwrap();
    store.close().await;
    drop(store);
    // Closed: it was cut to what it needs. Then opened again and again and killed, without a word written.
    for _ in 0..3 {
        let (store, report) = open(dir.path());
        assert_eq!((report.damage, report.epochs_changed), (vec![], 0));
        drop(store);
    }
    let newest = segments(dir.path()).pop().unwrap();
    let len = fs::metadata(&newest).unwrap().len();
    fs::File::options().write(true).open(&newest).unwrap().set_len(len - 1).unwrap();
    let (store, report) = open(dir.path());
    assert_eq!((report.damage.is_empty(), report.epochs_changed), (false, 1), "what was there when it began is missed");
    drop(store);
    // Segments that are full are followed by others, and cut then.
    let (store, _) = open(dir.path());
    while segments(dir.path()).len() < 4 {
        append(&store, "log", &[&"x".repeat(20_000)]).await.unwrap();
    }
    drop(store);
    let (_, report) = open(dir.path());
    assert_eq!((report.damage, report.epochs_changed), (vec![], 0));
}

#[tokio::test]
async fn a_flipped_bit_hurts_one_log_at_most_and_is_told() {
    let dir = scratch();
    let original = dir.path().join("original");
    history(&original).await;
    let (store, _) = open(&original);
    append(&store, "busy", &["newest"]).await.unwrap();
    flip_bits(dir.path(), store, 400).await;
}

#[tokio::test]
async fn a_flipped_bit_in_what_was_carried_forward_is_told_as_well() {
    let dir = scratch();
    let original = dir.path().join("original");
    history(&original).await;
    let few = Retention { events_max: 6, age_max_ms: u64::MAX };
    let options = DiskOptions { segment_bytes: 4 << 10, ..DiskOptions::new(&original, few) };
    let (store, _) = opened(|| DiskStore::open(options.clone()));
    let oldest = segments(&original)[0].clone();
    let text = "x".repeat(300);
    while oldest.exists() {
        append(&store, "busy", &[&text]).await.unwrap();
    }
    for log in ["idle", "other"] {
        append(&store, log, &["later"]).await.unwrap();
    }
    flip_bits(dir.path(), store, 300).await;
}

/// Flips bits in copies of the store in `dir/original`, one at a time.
async fn flip_bits(dir: &Path, store: DiskStore, rounds: usize) {
    let original = dir.join("original");
    let whole = look_at_all(&store, &LOGS).await;
    store.close().await;
    drop(store);
    let files = segments(&original);
    let mut dice = Dice(0x5eed);
    let (mut gaps, mut epochs, mut quarantined) = (0, 0, 0);
    for round in 0..rounds {
        let copy = dir.join("copy");
        copy_dir(&original, &copy);
        let file = copy.join(files[round % files.len()].file_name().unwrap());
        let mut bytes = fs::read(&file).unwrap();
        let at = dice.roll(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << dice.roll(8);
        fs::write(&file, bytes).unwrap();
        let (store, report) = open(&copy);
        let found = look_at_all(&store, &LOGS).await;
        let told = !report.damage.is_empty();
        let mut hurt = Vec::new();
        for (log, before) in &whole {
            let (Ok(before), after) = (before, &found[log]) else {
                // The frame that released it is unreadable, so it is back; that must at least be told.
                assert!(found[log].is_err() || told, "flip at {at} of {file:?}");
                continue;
            };
            match after {
                Ok(after) => {
                    let same = Look { epoch: before.epoch.clone(), ..after.clone() } == *before;
                    assert!(told || after == before, "flip at {at} of {file:?}: {log} changed in silence");
                    assert!(
                        after.next >= before.next || after.epoch != before.epoch,
                        "flip at {at} of {file:?}: numbers of {log} would be given out again"
                    );
                    for event in &after.events {
                        // The frame that let go of an old one may be what was lost; then it is back.
                        let known = event.0 < before.first || before.events.contains(event);
                        assert!(known, "flip at {at}: {log} has {event:?}");
                    }
                    let facts = (&after.items, &after.record) == (&before.items, &before.record);
                    assert!(facts || after.epoch != before.epoch, "flip at {at} of {file:?}: {log} has stale facts");
                    assert_eq!(after.events.len() as u64, after.next - after.first, "no holes");
                    hurt.extend((!same).then_some(log));
                    gaps += u32::from(after.first > before.first);
                    epochs += u32::from(after.epoch != before.epoch);
                }
                Err(StoreError::Quarantined(_)) => {
                    assert!(told && store.health().quarantined.contains(&id(log)));
                    hurt.push(log);
                    quarantined += 1;
                }
                Err(StoreError::NoSuchLog) => {
                    assert!(told, "flip at {at} of {file:?}: {log} is gone in silence");
                    hurt.push(log);
                }
                Err(error) => panic!("flip at {at} of {file:?}: {log}: {error}"),
            }
        }
        assert!(hurt.len() <= 1, "flip at {at} of {file:?} hurt {hurt:?}: {:?}", report.damage);
        // Whatever was decided is decided: the next opening finds the same.
        store.close().await;
        drop(store);
        let (store, again) = open(&copy);
        assert_eq!(again.epochs_changed, 0, "flip at {at} of {file:?}");
        assert_eq!(look_at_all(&store, &LOGS).await, found, "flip at {at} of {file:?}");
        drop(store);
        fs::remove_dir_all(&copy).unwrap();
    }
    assert!(gaps > 5 && epochs > 5 && quarantined > 5, "{gaps} {epochs} {quarantined}");
}

#[tokio::test]
async fn damage_under_a_running_store_costs_the_log_what_is_before_it() {
    let dir = scratch();
    let cold = DiskOptions { cache_bytes: 0, ..options(dir.path()) };
    let (store, _) = opened(|| DiskStore::open(cold.clone()));
    for log in ["events", "items", "well"] {
        create(&store, log).await.unwrap();
        append(&store, log, &["before"]).await.unwrap();
    }
    append(&store, "events", &["FLIPEVENT"]).await.unwrap();
    append(&store, "events", &["after"]).await.unwrap();
    let commit = Commit {
        items: vec![Item::put("k", "FLIPITEM".repeat(20))],
        ..Commit::to(id("items"), store.lease(&id("items"), &Claim::alone()).await.and_then(Leased::fence).unwrap(), 0)
    };
    store.commit(commit).await.unwrap();
    let file = segments(dir.path()).pop().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    for needle in ["FLIPEVENT", "FLIPITEM"] {
        let at = bytes.windows(needle.len()).position(|window| window == needle.as_bytes());
        bytes[at.unwrap()] ^= 1;
    }
    fs::write(&file, bytes).unwrap();

    let batch = store.read(&id("events"), seq(1), ALL).await.unwrap();
    assert_eq!((batch.first, batch.events.len()), (seq(3), 1), "the reader is told a gap");
    assert!(matches!(store.items(&id("items"), "").await, Err(StoreError::Quarantined(_))));
    assert!(matches!(append(&store, "items", &["x"]).await, Err(StoreError::Quarantined(_))));
    assert_eq!(store.health().quarantined, [id("items")]);
    assert_eq!(store.health().problems.len(), 2);
    assert_eq!(append(&store, "events", &["x"]).await, Ok(4));
    assert_eq!(append(&store, "well", &["x"]).await, Ok(2));
    store.close().await;
    drop(store);

    let (store, report) = open(dir.path());
    assert!(!report.damage.is_empty());
    assert_eq!(store.health().quarantined, [id("items")]);
    assert_eq!(look(&store, "events").await.unwrap().first, 3);
    assert_eq!(look(&store, "well").await.unwrap().events.len(), 2);
}

#[tokio::test]
async fn a_missing_state_file_means_that_nothing_is_sure() {
    let dir = scratch();
    history(dir.path()).await;
    fs::remove_file(dir.path().join("STATE")).unwrap();
    let (store, report) = open(dir.path());
    assert_eq!((report.epochs_changed, report.logs), (3, 3));
    assert_eq!(look(&store, "idle").await.unwrap().events.len(), 2, "but nothing is thrown away");
}

#[tokio::test]
async fn a_directory_of_a_later_version_is_refused_and_left_alone() {
    let dir = scratch();
    history(dir.path()).await;
    let state = dir.path().join("STATE");
    let text = "bowline-store 2 something else";
    fs::write(&state, format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()))).unwrap();
    let refused = DiskStore::open(options(dir.path())).unwrap_err();
    assert!(matches!(&refused, OpenError::Newer { found, .. } if found == "2"), "{refused}");
}

#[tokio::test]
async fn a_directory_is_for_one_process_and_one_user() {
    use std::os::unix::fs::PermissionsExt;
    let dir = scratch();
    let data = dir.path().join("a/b");
    let (store, _) = open(&data);
    assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    let refused = DiskStore::open(options(&data)).unwrap_err();
    assert!(matches!(refused, OpenError::Locked(_)), "{refused}");
    drop(store);
    open(&data);
}

#[tokio::test]
async fn any_bytes_are_opened_without_a_panic() {
    let dir = scratch();
    let original = dir.path().join("original");
    history(&original).await;
    let mut dice = Dice(0x0bad);
    for round in 0..100 {
        let copy = dir.path().join("copy");
        copy_dir(&original, &copy);
        for file in segments(&copy) {
            let mut bytes = fs::read(&file).unwrap();
            let at = dice.roll(bytes.len() as u64) as usize;
            let to = (at + dice.roll(600) as usize).min(bytes.len());
            match dice.roll(3) {
                0 => bytes[at..to].iter_mut().for_each(|byte| *byte = dice.roll(256) as u8),
                1 => drop(bytes.drain(at..to)),
                _ => bytes.extend_from_within(at..to),
            }
            fs::write(&file, bytes).unwrap();
        }
        let (store, _) = open(&copy);
        look_at_all(&store, &LOGS).await;
        create(&store, &format!("new-{round}")).await.unwrap();
        drop(store);
        let (store, _) = open(&copy);
        assert!(look(&store, &format!("new-{round}")).await.is_ok(), "round {round}");
        drop(store);
        fs::remove_dir_all(&copy).unwrap();
    }
}
