//! What every store owes as a directory: fences, retention, release, items and records.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bowline_protocol::{LogId, Principal};
use bytes::Bytes;

use super::{ALL, Fixture, PLENTY, append, append_at, create, event, id, owned, record, seq, texts};
use crate::{
    Claim, Commit, Fence, Item, Leased, LogKind, Record, Release, Retention, Retentions, Store, StoreError, Trimmed,
};

pub async fn the_newest_fence_wins(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let old = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease");
    let new = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a second lease");
    assert!(old < new);
    let by = |fence| Commit {
        events: vec![event("x")],
        record: Some(record("ann", "x")),
        ..Commit::to(id("log"), fence, 0)
    };
    let stale = Err(StoreError::StaleFence { given: old, current: new });
    assert_eq!(store.commit(by(old)).await, stale);
    assert_eq!(store.record(&id("log")).await, Ok(None), "a stale commit changes nothing");
    store.commit(by(new)).await.expect("the newest holder");
    assert_eq!(store.commit(by(old)).await, stale);
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        let after = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease");
        assert!(after > new, "a fence from before the restart is shut out");
        assert!(matches!(store.commit(by(new)).await, Err(StoreError::StaleFence { .. })));
        store.commit(by(after)).await.expect("the newest holder");
    }
}

pub async fn the_fence_of_the_creator_holds_until_a_higher_one_comes(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    let commit = Commit { fence: Fence(5), ..create("log") };
    store.commit(commit).await.expect("any fence may create");
    let by = async |fence| store.commit(Commit::to(id("log"), Fence(fence), 0)).await;
    by(5).await.expect("the creator goes on");
    assert!(matches!(by(4).await, Err(StoreError::StaleFence { .. })));
    by(9).await.expect("a higher one");
    let stale = StoreError::StaleFence { given: Fence(5), current: Fence(9) };
    assert_eq!(by(5).await, Err(stale), "which shuts the creator out");
    assert!(store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease") > Fence(9));
}

pub async fn retention_by_count_lets_go_of_the_oldest(fixture: &dyn Fixture) {
    let retention = Retention { events_max: 3, ..PLENTY.sessions }.into();
    let store = fixture.open(retention).await;
    store.commit(create("log")).await.expect("a new log");
    let done = append(&*store, "log", &["a", "b"]).await.expect("a commit");
    assert_eq!(done.trimmed, None);
    let done = append(&*store, "log", &["c", "d", "e"]).await.expect("a commit");
    let trimmed = Trimmed { log: id("log"), from: seq(1), to: seq(3) };
    assert_eq!(done.trimmed, Some(trimmed));
    let batch = store.read(&id("log"), seq(1), ALL).await.expect("a read");
    assert_eq!((batch.first, batch.next, batch.events[0].seq), (seq(3), seq(6), seq(3)));
    if let Some(store) = fixture.reopen(store, retention).await {
        assert_eq!(texts(&*store, "log").await, owned(&[(3, "c"), (4, "d"), (5, "e")]));
    }
}

pub async fn retention_by_age_lets_go_when_swept(fixture: &dyn Fixture) {
    let retention = Retention { age_max_ms: 100, ..PLENTY.sessions }.into();
    let store = fixture.open(retention).await;
    for log in ["log", "other"] {
        store.commit(create(log)).await.expect("a new log");
    }
    append_at(&*store, "log", 10, &["a", "b"]).await.expect("a commit");
    append_at(&*store, "log", 60, &["c"]).await.expect("a commit");
    append_at(&*store, "other", 60, &["z"]).await.expect("a commit");
    assert_eq!(store.sweep(110).await, Ok(vec![]), "exactly as old as allowed may stay");
    let trimmed = Trimmed { log: id("log"), from: seq(1), to: seq(3) };
    assert_eq!(store.sweep(111).await, Ok(vec![trimmed]));
    assert_eq!(texts(&*store, "log").await, owned(&[(3, "c")]));
    if let Some(store) = fixture.reopen(store, retention).await {
        assert_eq!(texts(&*store, "log").await, owned(&[(3, "c")]), "what was swept stays away");
        assert_eq!(store.sweep(10_000).await.map(|trimmed| trimmed.len()), Ok(2));
        assert_eq!(append(&*store, "log", &["d"]).await.map(|done| done.first), Ok(seq(4)));
    }
}

pub async fn tasks_and_nodes_have_a_retention_of_their_own(fixture: &dyn Fixture) {
    let retention = Retentions {
        sessions: Retention { events_max: 2, age_max_ms: 100 },
        tasks: Retention { events_max: 3, age_max_ms: u64::MAX },
        nodes: Retention { events_max: 1, age_max_ms: 50 },
    };
    let store = fixture.open(retention).await;
    for (log, kind) in [("session", LogKind::Session), ("task", LogKind::Task), ("node", LogKind::Node)] {
        let record = Record { kind, ..record("ann", log) };
        let four = ["a", "b", "c", "d"].map(event).into();
        // The record that comes with the events counts already.
        let commit = Commit { record: Some(record), events: four, at_ms: 1, ..create(log) };
        store.commit(commit).await.expect("a new log");
    }
    let bare = Commit { events: ["a", "b", "c", "d"].map(event).into(), at_ms: 1, ..create("bare") };
    store.commit(bare).await.expect("a log without a record");
    assert_eq!(texts(&*store, "session").await, owned(&[(3, "c"), (4, "d")]));
    assert_eq!(texts(&*store, "task").await, owned(&[(2, "b"), (3, "c"), (4, "d")]));
    assert_eq!(texts(&*store, "node").await, owned(&[(4, "d")]));
    assert_eq!(texts(&*store, "bare").await, owned(&[(3, "c"), (4, "d")]), "as a session's");
    let store = match fixture.reopen(store.clone(), retention).await {
        Some(store) => store,
        None => store,
    };
    let trimmed = Trimmed { log: id("node"), from: seq(4), to: seq(5) };
    assert_eq!(store.sweep(52).await, Ok(vec![trimmed]), "a message is soon too old");
    let swept = store.sweep(1_000_000).await.expect("a sweep");
    let swept: BTreeSet<_> = swept.iter().map(|trimmed| trimmed.log.to_string()).collect();
    assert_eq!(swept, BTreeSet::from(["bare".into(), "session".into()]), "a task's events do not age");
    append_at(&*store, "task", 1_000_000, &["e"]).await.expect("a commit");
    assert_eq!(texts(&*store, "task").await, owned(&[(3, "c"), (4, "d"), (5, "e")]));
}

pub async fn releasing_contents_keeps_the_record_and_the_numbers(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    let commit = Commit {
        record: Some(record("ann", "one")),
        items: vec![Item::put("k", "v")],
        events: vec![event("a"), event("b")],
        ..create("log")
    };
    store.commit(commit).await.expect("a new log");
    let commit = Commit {
        events: vec![event("last")],
        record: Some(record("ann", "tombstone")),
        items: vec![Item::put("late", "v")],
        release: Some(Release::Contents),
        ..Commit::to(
            id("log"),
            store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease"),
            0,
        )
    };
    let done = store.commit(commit).await.expect("a release");
    assert_eq!((done.first, done.next), (seq(3), seq(4)));
    let check = async |store: &dyn Store, next| {
        let extent = store.extent(&id("log")).await.expect("it is still there");
        assert_eq!((extent.first, extent.next), (seq(next), seq(next)));
        assert_eq!(store.items(&id("log"), "").await, Ok(vec![]));
        assert_eq!(store.record(&id("log")).await, Ok(Some(record("ann", "tombstone"))));
    };
    check(&*store, 4).await;
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        check(&*store, 4).await;
        assert_eq!(append(&*store, "log", &["c"]).await.map(|done| done.first), Ok(seq(4)));
    }
}

pub async fn releasing_the_log_leaves_nothing(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    let commit = Commit {
        record: Some(record("ann", "one")),
        items: vec![Item::put("k", "v")],
        events: vec![event("a")],
        ..create("log")
    };
    store.commit(commit).await.expect("a new log");
    let commit = Commit {
        release: Some(Release::Log),
        ..Commit::to(
            id("log"),
            store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease"),
            0,
        )
    };
    store.commit(commit).await.expect("a release");
    let gone = async |store: &dyn Store| {
        assert_eq!(store.extent(&id("log")).await, Err(StoreError::NoSuchLog));
        assert_eq!(store.record(&id("log")).await, Ok(None));
        assert_eq!(store.count(LogKind::Session, None).await, Ok(0));
    };
    gone(&*store).await;
    let store = match fixture.reopen(store.clone(), PLENTY).await {
        Some(store) => store,
        None => store,
    };
    gone(&*store).await;
    let commit = Commit { events: vec![event("new")], ..create("log") };
    store.commit(commit).await.expect("the name is free again");
    assert_eq!(texts(&*store, "log").await, owned(&[(1, "new")]));
    assert_eq!(store.items(&id("log"), "").await, Ok(vec![]));
}

pub async fn items_come_by_key_and_by_prefix_in_order(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    let large = "L".repeat(5_000);
    let items = [("m/2", "two"), ("m/10", "ten"), ("m/1", large.as_str()), ("n", "other"), ("l", "before")];
    let commit = Commit {
        items: items.iter().map(|(key, value)| Item::put(*key, (*value).to_owned())).collect(),
        ..create("log")
    };
    store.commit(commit).await.expect("a new log");
    let commit = Commit {
        items: vec![
            Item::put("m/2", "TWO"),
            Item::delete("n"),
            Item::delete("never there"),
            Item::put("twice", "1"),
            Item::put("twice", "2"),
            Item::put("brief", "1"),
            Item::delete("brief"),
        ],
        ..Commit::to(
            id("log"),
            store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease"),
            0,
        )
    };
    store.commit(commit).await.expect("a commit");
    let check = async |store: &dyn Store| {
        let found = store.items(&id("log"), "m/").await.expect("items");
        let expected = [("m/1", large.as_str()), ("m/10", "ten"), ("m/2", "TWO")];
        let expected: Vec<_> =
            expected.iter().map(|(key, value)| ((*key).to_owned(), Bytes::copy_from_slice(value.as_bytes()))).collect();
        assert_eq!(found, expected);
        assert_eq!(store.item(&id("log"), "n").await, Ok(None));
        let keys = ["m/2", "n", "m/1", "m/3"].map(str::to_owned);
        let expected = [("m/2", "TWO"), ("m/1", large.as_str())];
        let expected: Vec<_> =
            expected.iter().map(|(key, value)| ((*key).to_owned(), Bytes::copy_from_slice(value.as_bytes()))).collect();
        assert_eq!(store.items_at(&id("log"), &keys).await, Ok(expected), "those that are there, as asked for");
        assert_eq!(store.items_at(&id("log"), &[]).await, Ok(vec![]));
        assert_eq!(store.items_at(&id("none"), &keys).await, Ok(vec![]));
        assert_eq!(store.item(&id("log"), "brief").await, Ok(None));
        assert_eq!(store.item(&id("log"), "twice").await, Ok(Some(Bytes::from("2"))));
        assert_eq!(store.item(&id("log"), "m").await, Ok(None), "a prefix is not a key");
        assert_eq!(store.items(&id("log"), "").await.map(|items| items.len()), Ok(5));
    };
    check(&*store).await;
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        check(&*store).await;
    }
}

pub async fn records_are_listed_and_counted_by_owner_and_kind(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    for (log, owner, kind) in [
        ("s1", "ann", LogKind::Session),
        ("s2", "ann", LogKind::Session),
        ("s3", "bob", LogKind::Session),
        ("t1", "ann", LogKind::Task),
    ] {
        let record = Record { kind, ..record(owner, log) };
        let commit = Commit { record: Some(record), ..create(log) };
        store.commit(commit).await.expect("a new log");
    }
    store.commit(create("bare")).await.expect("a log without a record");
    let ann = Principal::parse("ann");
    let check = async |store: &dyn Store| {
        for (kind, owner, expected) in [
            (LogKind::Session, ann.as_ref(), vec!["s1", "s2"]),
            (LogKind::Session, None, vec!["s1", "s2", "s3"]),
            (LogKind::Task, ann.as_ref(), vec!["t1"]),
            (LogKind::Task, Principal::parse("bob").as_ref(), vec![]),
        ] {
            let listed = store.list(kind, owner).await.expect("a list");
            let bodies: BTreeSet<_> = listed.iter().map(|(id, record)| (id.to_string(), record.body.clone())).collect();
            let expected: BTreeSet<_> = expected.iter().map(|id| ((*id).to_owned(), Bytes::from(*id))).collect();
            assert_eq!(bodies, expected);
            assert_eq!(store.count(kind, owner).await, Ok(expected.len()));
        }
        assert_eq!(store.health().logs, 5);
    };
    check(&*store).await;
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        check(&*store).await;
    }
}

/// Owners, touches, ends and new beginnings in a fixed but irregular order; after each the visit is compared with the list.
pub async fn records_are_visited_in_the_order_of_their_last_touch(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    let owners = ["ann", "bob"];
    let mut made = BTreeSet::new();
    for step in 0u64..120 {
        let pick = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let name = format!("log{}", pick % 12);
        // Each touch has a time of its own, and not in the order of the steps.
        let touched_ms = 1 + (step * 37) % 127;
        let kind = if pick % 5 == 0 { LogKind::Task } else { LogKind::Session };
        let record = Record { kind, touched_ms, ..record(owners[pick as usize / 12 % 2], &name) };
        let commit = match (made.contains(&name), pick % 7) {
            (true, 0) => {
                made.remove(&name);
                Commit { release: Some(Release::Log), ..Commit::to(id(&name), Fence(0), 0) }
            }
            (true, _) => Commit { record: Some(record), ..Commit::to(id(&name), Fence(0), 0) },
            (false, _) => {
                made.insert(name.clone());
                Commit { record: Some(record), ..create(&name) }
            }
        };
        store.commit(commit).await.expect("a change of a record");
        if step % 3 == 0 {
            visits_agree(&*store).await;
        }
    }
    visits_agree(&*store).await;
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        visits_agree(&*store).await;
    }
}

async fn visits_agree(store: &dyn Store) {
    let (ann, bob) = (Principal::parse("ann"), Principal::parse("bob"));
    for (kind, owner) in [
        (LogKind::Session, None),
        (LogKind::Session, ann.as_ref()),
        (LogKind::Session, bob.as_ref()),
        (LogKind::Task, None),
    ] {
        let mut listed = store.list(kind, owner).await.expect("a list");
        listed.sort_by_key(|(_, record)| std::cmp::Reverse(record.touched_ms));
        let mut visited = Vec::new();
        let mut visit = |log: &LogId, record: &Record| {
            visited.push((log.clone(), record.clone()));
            ControlFlow::Continue(())
        };
        store.newest(kind, owner, &mut visit).await.expect("a visit");
        assert_eq!(visited, listed);
        assert_eq!(store.count(kind, owner).await, Ok(listed.len()));
        let mut first = None;
        let mut visit = |log: &LogId, _: &Record| {
            assert_eq!(first.replace(log.clone()), None, "a visit that broke off goes on");
            ControlFlow::Break(())
        };
        store.newest(kind, owner, &mut visit).await.expect("a visit");
        assert_eq!(first.as_ref(), listed.first().map(|(log, _)| log));
    }
}
