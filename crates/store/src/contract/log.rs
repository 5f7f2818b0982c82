//! What every store owes as an event log: numbers, limits, wake-ups, concurrency.

use bowline_protocol::{Epoch, Seq};
use bytes::Bytes;

use super::{ALL, Fixture, PLENTY, append, create, event, id, owned, record, seq, texts};
use crate::{
    Claim, Commit, Fence, Followed, Follower, Item, Leased, ReadLimit, Release, Start, Store, StoreError, WakeSet,
};

pub async fn events_are_numbered_from_where_the_log_starts(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    let start = Start { epoch: Epoch::from_random(3), after: seq(41) };
    let commit = Commit { create: Some(start.clone()), events: vec![event("a"), event("b")], ..create("log") };
    let done = store.commit(commit).await.expect("a new log");
    assert_eq!((done.first, done.next, &done.epoch), (seq(42), seq(44), &start.epoch));
    let none = append(&*store, "log", &[]).await.expect("an empty commit");
    assert_eq!((none.first, none.next), (seq(44), seq(44)));
    append(&*store, "log", &["c"]).await.expect("a commit");
    assert_eq!(texts(&*store, "log").await, owned(&[(42, "a"), (43, "b"), (44, "c")]));
    let extent = store.extent(&id("log")).await.expect("an extent");
    assert_eq!((extent.epoch_first, extent.first, extent.next), (seq(42), seq(42), seq(45)));
    let batch = store.read(&id("log"), seq(99), ALL).await.expect("past the end");
    assert!(batch.events.is_empty() && batch.next == seq(45));
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        assert_eq!(store.extent(&id("log")).await, Ok(extent));
        assert_eq!(texts(&*store, "log").await, owned(&[(42, "a"), (43, "b"), (44, "c")]));
    }
}

pub async fn a_log_is_created_once_and_must_exist(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    assert_eq!(store.extent(&id("log")).await, Err(StoreError::NoSuchLog));
    assert_eq!(store.read(&id("log"), Seq::ZERO, ALL).await, Err(StoreError::NoSuchLog));
    assert_eq!(store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence), Err(StoreError::NoSuchLog));
    assert_eq!(store.items(&id("log"), "").await, Err(StoreError::NoSuchLog));
    assert_eq!(store.item(&id("log"), "k").await, Ok(None));
    assert_eq!(store.record(&id("log")).await, Ok(None));
    let commit = Commit::to(id("log"), Fence(u64::MAX), 0);
    assert_eq!(store.commit(commit).await, Err(StoreError::NoSuchLog));
    store.commit(create("log")).await.expect("a new log");
    assert_eq!(store.commit(create("log")).await, Err(StoreError::Exists));
    let extent = store.extent(&id("log")).await.expect("an empty log has an extent");
    assert_eq!((extent.first, extent.next), (seq(1), seq(1)));
}

pub async fn reads_keep_to_their_limits_but_give_at_least_one_event(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let long = "x".repeat(10_000);
    append(&*store, "log", &["a", &long, "b"]).await.expect("a commit");
    append(&*store, "log", &["c", "d"]).await.expect("a commit");
    let read = async |store: &dyn Store, from, events, bytes| {
        let limit = ReadLimit { events, bytes };
        let batch = store.read(&id("log"), seq(from), limit).await.expect("a read");
        batch.events.iter().map(|event| event.seq.get()).collect::<Vec<_>>()
    };
    let small = event("a").len_max() + 20;
    let check = async |store: &dyn Store| {
        assert_eq!(read(store, 0, 2, usize::MAX).await, [1, 2]);
        assert_eq!(read(store, 1, 100, 5_000).await, [1], "the long one does not fit");
        assert_eq!(read(store, 2, 100, 1).await, [2], "one comes whatever its size");
        assert_eq!(read(store, 3, 100, 3 * small).await, [3, 4, 5]);
        assert_eq!(read(store, 3, 2, 3 * small).await, [3, 4]);
        assert_eq!(read(store, 1, 0, usize::MAX).await, [0; 0]);
        assert_eq!(read(store, 5, 9, usize::MAX).await, [5]);
    };
    check(&*store).await;
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        check(&*store).await;
    }
}

pub async fn a_reader_that_subscribes_and_then_looks_misses_nothing(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let wake = WakeSet::new();
    let guard = store.tail(&id("log"), &wake, 9);
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for n in 0..50 {
                append(&*store, "log", &[&n.to_string()]).await.expect("a commit");
            }
        }
    });
    let mut seen = 0;
    while seen < 50 {
        let next = store.extent(&id("log")).await.expect("an extent").last().get();
        if next == seen {
            wake.woken().await;
            assert_eq!(wake.take(), [9]);
        }
        seen = next;
    }
    writer.await.expect("the writer ends");
    drop(guard);
    wake.take();
    append(&*store, "log", &["unheard"]).await.expect("a commit");
    assert!(wake.take().is_empty());
}

pub async fn a_follower_sees_each_commit_after_its_wake_up(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let (wake, mut read) = (WakeSet::new(), Vec::new());
    let epoch = store.extent(&id("log")).await.expect("an extent").epoch;
    let mut follower = Follower::new(&store, &id("log"), (&epoch, Seq::FIRST), &wake, 9);
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for n in 0..50 {
                append(&*store, "log", &[&n.to_string(), "again"]).await.expect("a commit");
            }
        }
    });
    while read.len() < 100 {
        match follower.next(ReadLimit { events: 3, bytes: 1 << 20 }).await.expect("a read") {
            Followed::Events(events) => {
                assert!(!events.is_empty() && events.len() <= 3);
                read.extend(events);
            }
            Followed::Idle => {
                assert_eq!(wake.changed().await, [9]);
                follower.wake();
            }
            other => panic!("{other:?} where nothing is lost"),
        }
    }
    writer.await.expect("the writer ends");
    assert_eq!(read, store.read(&id("log"), Seq::ZERO, ALL).await.expect("a read").events);
}

pub async fn a_follower_learns_that_its_log_goes_on_in_another_epoch(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    append(&*store, "log", &["one", "two"]).await.expect("a commit");
    let wake = WakeSet::new();
    let extent = store.extent(&id("log")).await.expect("an extent");
    let mut follower = Follower::new(&store, &id("log"), (&extent.epoch, seq(2)), &wake, 0);
    let count = |followed| if let Ok(Followed::Events(events)) = followed { events.len() } else { 0 };
    assert_eq!((count(follower.next(ALL).await), follower.end()), (1, seq(3)));
    let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease");
    let gone = Commit { release: Some(Release::Log), ..Commit::to(id("log"), fence, 0) };
    store.commit(gone).await.expect("the log goes");
    follower.wake();
    assert_eq!(follower.next(ALL).await, Err(StoreError::NoSuchLog));
    let other = Epoch::from_random(0xabc);
    let anew = Commit { create: Some(Start { epoch: other.clone(), after: Seq::ZERO }), ..create("log") };
    store.commit(anew).await.expect("a new log");
    append(&*store, "log", &["another one", "another two"]).await.expect("a commit");
    for position in [3, 2] {
        follower.seek(seq(position));
        let Ok(Followed::Epoch(extent)) = follower.next(ALL).await else { panic!("its number means something else") };
        assert_eq!((extent.epoch, extent.next), (other.clone(), seq(3)));
    }
    follower.enter(&other);
    follower.seek(seq(1));
    assert_eq!((count(follower.next(ALL).await), follower.end()), (2, seq(3)));
}

pub async fn concurrent_commits_get_numbers_without_holes(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("a lease");
    let tasks: Vec<_> = (0..40u64)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut firsts = Vec::new();
                for n in 0..5 {
                    let commit = Commit {
                        events: vec![event(&format!("{task}/{n}/a")), event(&format!("{task}/{n}/b"))],
                        ..Commit::to(id("log"), fence, 0)
                    };
                    firsts.push(store.commit(commit).await.expect("a commit").first);
                }
                firsts
            })
        })
        .collect();
    let mut firsts = Vec::new();
    for task in tasks {
        let given = task.await.expect("the task ends");
        assert!(given.is_sorted(), "one caller's commits keep their order");
        firsts.extend(given);
    }
    firsts.sort();
    assert_eq!(firsts, (0..200).map(|n| seq(2 * n + 1)).collect::<Vec<_>>());
    let all = texts(&*store, "log").await;
    assert!(all.iter().map(|(n, _)| *n).eq(1..=400));
    for pair in all.chunks(2) {
        let (a, b) = (&pair[0].1, &pair[1].1);
        assert_eq!(a.strip_suffix("/a"), b.strip_suffix("/b"), "a commit's events stay together");
    }
}

pub async fn many_logs_can_be_written_at_once(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    let names: Vec<String> = (0..100).map(|n| format!("log-{n}")).collect();
    let created = names.iter().map(|name| {
        let commit = Commit {
            events: vec![event(name)],
            record: Some(record("ann", name)),
            items: vec![Item::put("name", name.clone())],
            ..create(name)
        };
        let store = store.clone();
        tokio::spawn(async move { store.commit(commit).await })
    });
    for task in created.collect::<Vec<_>>() {
        task.await.expect("the task ends").expect("a new log");
    }
    let check = async |store: &dyn Store| {
        for name in &names {
            assert_eq!(texts(store, name).await, owned(&[(1, name)]));
            assert_eq!(store.item(&id(name), "name").await, Ok(Some(Bytes::from(name.clone()))));
        }
    };
    check(&*store).await;
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        check(&*store).await;
    }
}
