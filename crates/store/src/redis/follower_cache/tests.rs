//! What the follower cache promises, without a Redis.

use bowline_protocol::Epoch;

use super::*;
use crate::contract::{event, id, seq};

fn extent(first: u64, next: u64) -> Extent {
    Extent { epoch: Epoch::from_random(7), epoch_first: seq(1), first: seq(first), next: seq(next) }
}

fn recorded(from: u64, to: u64) -> Vec<Recorded> {
    let bytes = |n| event("x").number(&Epoch::from_random(7), seq(n));
    (from..to).map(|n| Recorded { seq: seq(n), bytes: bytes(n) }).collect()
}

/// What a reader is given from memory, if it is there; otherwise it is read from a log that holds `1 .. next`.
fn ask(cache: &Arc<FollowerCache>, log: &str, from: u64, next: u64) -> Option<u64> {
    let (mut since, limit) = (None, ReadLimit { events: 100, bytes: usize::MAX });
    loop {
        match cache.read(&id(log), &mut since, seq(from), limit) {
            CacheAnswer::Cold => return None,
            CacheAnswer::Warm(batch) => return Some(batch.unwrap().events.len() as u64),
            CacheAnswer::Wait(_) => panic!("there is no other fetch"),
            CacheAnswer::Fetch(flight) => {
                let from = flight.from.unwrap_or(seq(next));
                let events = recorded(from.get(), next);
                flight.land(Ok(Fetched { extent: extent(1, next), from, events })).unwrap();
            }
        }
    }
}

fn bytes_of_all(cache: &FollowerCache) -> usize {
    let bytes = |entry: &CacheEntry| match &entry.state {
        State::Known(known) => known.events.iter().map(cost).sum(),
        State::Unknown | State::Gone { .. } => 0,
    };
    lock(&cache.logs).entries.values().map(bytes).sum()
}

#[test]
fn memory_is_bounded_and_the_oldest_goes_first() {
    let cache = FollowerCache::new(100 * cost(&recorded(1000, 1001)[0]));
    let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    for name in &names {
        cache.note_subscribed(&[id(name)]);
        ask(&cache, name, 1000, 1000);
        cache.note_change(&id(name), None);
        assert_eq!(ask(&cache, name, 1000, 1010), Some(10));
        assert!(bytes_of_all(&cache) <= cache.bytes_max);
    }
    assert_eq!(ask(&cache, "0", 1000, 1010), None, "long gone, and to be asked of Redis");
    assert_eq!(ask(&cache, "19", 1000, 1010), Some(10));
    assert!(lock(&cache.logs).order.len() <= 100);
}

#[test]
fn a_reader_gets_nothing_that_was_asked_before_the_last_change() {
    let cache = FollowerCache::new(64 << 20);
    assert_eq!(ask(&cache, "log", 5, 9), None, "the log is not subscribed to, so Redis must be asked");
    cache.note_subscribed(&[id("log")]);
    ask(&cache, "log", 5, 5);
    let mut since = None;
    cache.note_change(&id("log"), None);
    let CacheAnswer::Fetch(early) = cache.extent(&id("log"), &mut since) else { panic!("it has changed") };
    // It changes again while that is under way.
    cache.note_change(&id("log"), None);
    let mut later = None;
    assert!(matches!(cache.extent(&id("log"), &mut later), CacheAnswer::Wait(_)));
    early.land(Ok(Fetched { extent: extent(1, 6), from: seq(5), events: recorded(5, 6) })).unwrap();
    assert!(
        matches!(cache.extent(&id("log"), &mut since), CacheAnswer::Warm(_)),
        "new enough for a reader that asked before"
    );
    let CacheAnswer::Fetch(dropped) = cache.extent(&id("log"), &mut later) else {
        panic!("too old for a reader that came after")
    };
    assert_eq!(dropped.from, Some(seq(6)));
    drop(dropped);
    assert!(matches!(cache.extent(&id("log"), &mut later), CacheAnswer::Fetch(_)), "another reader fetches then");
}

#[test]
fn an_answer_from_before_the_subscription_is_not_kept() {
    let cache = FollowerCache::new(64 << 20);
    cache.note_subscribed(&[id("log")]);
    let CacheAnswer::Fetch(flight) = cache.extent(&id("log"), &mut None) else { panic!("nothing is known") };
    cache.clear();
    cache.note_subscribed(&[id("log")]);
    flight.land(Ok(Fetched { extent: extent(1, 6), from: seq(6), events: Vec::new() })).unwrap();
    assert!(matches!(cache.extent(&id("log"), &mut None), CacheAnswer::Fetch(_)));
}

#[test]
fn only_news_are_news() {
    let cache = FollowerCache::new(64 << 20);
    cache.note_subscribed(&[id("log")]);
    ask(&cache, "log", 5, 5);
    let is_warm = || matches!(cache.extent(&id("log"), &mut None), CacheAnswer::Warm(_));
    let said = format!("4f.7; {} 1 5", Epoch::from_random(7));
    let (id_of, mut news) = News::parse(&said).unwrap();
    assert_eq!(id_of, "4f.7;");
    cache.note_change(&id("log"), Some(&news));
    assert!(is_warm(), "that much is known");
    news.first = seq(2);
    cache.note_change(&id("log"), Some(&news));
    assert!(!is_warm(), "it was trimmed");
    assert_eq!(News::parse(""), None);
}
