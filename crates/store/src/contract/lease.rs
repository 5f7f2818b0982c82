//! What every store owes to those who want to write: one holder at a time, and fences that only grow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_env::clock;

use super::{Fixture, PLENTY, create, event, id};
use crate::{Claim, Commit, Fence, Holder, Leased, Release, Store, StoreError, WakeSet};

fn who(name: &str) -> Holder {
    Holder::parse(name).expect("tests use sound names")
}

fn claim(by: &str, instead_of: &str) -> Claim {
    Claim { by: who(by), instead_of: Holder::parse(instead_of) }
}

fn one(fence: Fence) -> Commit {
    Commit { events: vec![event("x")], ..Commit::to(id("log"), fence, 0) }
}

async fn granted(store: &dyn Store, claim: &Claim) -> Fence {
    store.lease(&id("log"), claim).await.and_then(Leased::fence).expect("a grant")
}

pub async fn a_lease_is_taken_only_from_the_claimed_holder_or_by_the_holder(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    assert_eq!(store.lease(&id("log"), &claim("a", "")).await, Err(StoreError::NoSuchLog));
    assert_eq!(store.holder(&id("log")).await, Ok(None), "a log that does not exist has no holder");
    store.commit(create("log")).await.expect("a new log");
    assert_eq!(store.holder(&id("log")).await, Ok(None), "to create it is not to hold it");
    let first = granted(&*store, &claim("a", "")).await;
    assert_eq!(store.holder(&id("log")).await, Ok(Some(who("a"))));
    for claim in [claim("b", ""), claim("b", "c"), claim("b", "b")] {
        assert_eq!(store.lease(&id("log"), &claim).await, Ok(Leased::Held(who("a"))));
    }
    store.commit(one(first)).await.expect("those who got nothing changed nothing");
    assert_eq!(store.holder(&id("log")).await, Ok(Some(who("a"))), "and writing does not either");
    let again = granted(&*store, &claim("a", "b")).await;
    assert!(first < again);
    let taken = granted(&*store, &claim("b", "a")).await;
    assert!(again < taken);
    assert_eq!(store.holder(&id("log")).await, Ok(Some(who("b"))));
    let stale = StoreError::StaleFence { given: again, current: taken };
    assert_eq!(store.commit(one(again)).await, Err(stale), "the earlier holder is shut out");
    store.commit(one(taken)).await.expect("the holder writes");
    if let Some(store) = fixture.reopen(store, PLENTY).await {
        let holder = store.holder(&id("log")).await.expect("an answer");
        assert!(holder.is_none_or(|holder| holder == who("b")), "the holder is of this life, or still the same");
        assert!(taken < granted(&*store, &claim("b", "")).await);
        assert_eq!(store.lease(&id("log"), &claim("c", "")).await, Ok(Leased::Held(who("b"))));
    }
}

pub async fn of_many_claims_one_is_granted_each_fence(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let mut fences: BTreeMap<Fence, Holder> = BTreeMap::new();
    let mut holder = String::new();
    for round in 0..20 {
        let claims = (0..12).map(|n| claim(&format!("r{round}n{n}"), &holder));
        let asked = claims.map(|claim| {
            let store: Arc<dyn Store> = store.clone();
            let asked = async move { (store.lease(&id("log"), &claim).await.expect("an answer"), claim.by) };
            tokio::spawn(asked)
        });
        let (mut winners, mut holders) = (Vec::new(), Vec::new());
        for asked in asked.collect::<Vec<_>>() {
            match asked.await.expect("the claim ends") {
                (Leased::Granted(fence), by) => winners.push((fence, by)),
                (Leased::Held(by), _) => holders.push(by),
            }
        }
        let [(fence, winner)] = &winners[..] else { panic!("one of them, and not {winners:?}") };
        assert!(holders.iter().all(|by| by == winner), "the others learn who");
        assert_eq!(store.holder(&id("log")).await.as_ref(), Ok(&Some(winner.clone())));
        assert!(fences.keys().all(|earlier| earlier < fence));
        for stale in fences.keys() {
            let stale = store.commit(one(*stale)).await;
            assert!(matches!(stale, Err(StoreError::StaleFence { current, .. }) if current == *fence));
        }
        store.commit(one(*fence)).await.expect("the winner writes");
        holder = winner.to_string();
        fences.insert(*fence, winner.clone());
    }
    let extent = store.extent(&id("log")).await.expect("an extent");
    assert_eq!(extent.next.get(), 21, "one event for each round");
}

pub async fn a_lease_is_given_back_by_its_holder_only(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let old = granted(&*store, &claim("a", "")).await;
    let new = granted(&*store, &claim("b", "a")).await;
    for (by, fence) in [("a", old), ("a", new), ("b", old), ("c", Fence(0))] {
        store.give_back(&id("log"), &who(by), fence).await.expect("an answer");
        assert_eq!(store.holder(&id("log")).await, Ok(Some(who("b"))), "not by {by} under {fence:?}");
    }
    store.give_back(&id("log"), &who("b"), new).await.expect("an answer");
    assert_eq!(store.holder(&id("log")).await, Ok(None));
    store.commit(one(new)).await.expect("what was under way may still come");
    assert_eq!(store.holder(&id("log")).await, Ok(None), "and claims nothing");
    let next = granted(&*store, &claim("c", "")).await;
    assert!(new < next);
    assert!(matches!(store.commit(one(new)).await, Err(StoreError::StaleFence { .. })));
    store.give_back(&id("log"), &who("b"), new).await.expect("an answer");
    assert_eq!(store.holder(&id("log")).await, Ok(Some(who("c"))), "a second time changes nothing");
    store.give_back(&id("no such log"), &who("b"), new).await.expect("it has no holder, as was asked");
}

pub async fn a_fence_that_was_not_granted_ends_the_holding(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let fence = granted(&*store, &claim("a", "")).await;
    let higher = Fence(fence.0 + 1);
    store.commit(one(higher)).await.expect("a higher fence may write");
    assert_eq!(store.holder(&id("log")).await, Ok(None), "and the holder of the lower one does not hold it");
    assert!(matches!(store.commit(one(fence)).await, Err(StoreError::StaleFence { .. })));
    assert!(granted(&*store, &claim("b", "")).await > higher);
}

pub async fn the_holder_goes_with_the_log_but_not_with_its_contents(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    let fence = granted(&*store, &claim("a", "")).await;
    let commit = Commit { release: Some(Release::Contents), ..one(fence) };
    store.commit(commit).await.expect("a release");
    assert_eq!(store.holder(&id("log")).await, Ok(Some(who("a"))));
    let commit = Commit { release: Some(Release::Log), ..one(fence) };
    store.commit(commit).await.expect("a release");
    assert_eq!(store.holder(&id("log")).await, Ok(None));
    store.commit(create("log")).await.expect("the name is free again");
    assert_eq!(store.holder(&id("log")).await, Ok(None));
    granted(&*store, &claim("b", "")).await;
}

pub async fn whether_a_log_has_waiting_readers_can_be_asked(fixture: &dyn Fixture) {
    let store = fixture.open(PLENTY).await;
    store.commit(create("log")).await.expect("a new log");
    assert_eq!(store.is_awaited(&id("log")).await, Ok(false));
    let wake = WakeSet::new();
    let tail = store.tail(&id("log"), &wake, 0);
    becomes(&*store, true).await;
    drop(tail);
    becomes(&*store, false).await;
}

async fn becomes(store: &dyn Store, awaited: bool) {
    let until = clock::now() + Duration::from_secs(30);
    while store.is_awaited(&id("log")).await != Ok(awaited) {
        assert!(clock::now() < until, "it never became {awaited}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
