//! What becomes of logs when Redis forgets, restarts, hangs, fills up or is replaced: nothing is lost without a word, and
//! nothing is done twice.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_protocol::Seq;
use bowline_store::contract::{ALL, append, create, event, id, record, seq, texts};
use bowline_store::{
    Changed, Claim, Commit, Directory, EventLog, Fence, Holder, Item, Leased, LeasedLog, LogKind, RedisOptions,
    RedisStore, Release, SharedLessor, Store, StoreError, WakeSet,
};

use crate::real_redis;
use crate::real_redis::{Proxy, Redis, options};

/// So that being told takes no five seconds.
async fn open_hasty(redis: &Redis) -> RedisStore {
    RedisStore::open(hasty(redis)).await.unwrap()
}

fn hasty(redis: &Redis) -> RedisOptions {
    RedisOptions { timeout: Duration::from_millis(800), ..redis.options() }
}

async fn started(store: &dyn Store, texts: &[&str]) -> Fence {
    store.commit(Commit { record: Some(record("ann", "body")), ..create("log") }).await.unwrap();
    let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    add(store, fence, texts).await.unwrap();
    fence
}

async fn add(store: &dyn Store, fence: Fence, texts: &[&str]) -> Result<Seq, StoreError> {
    let events = texts.iter().map(|text| event(text)).collect();
    store.commit(Commit { events, ..Commit::to(id("log"), fence, 0) }).await.map(|done| done.first)
}

/// Tries until it is answered; what is refused because the store is away is tried again.
async fn insist<T>(mut act: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match act().await {
            Ok(done) => return done,
            Err(StoreError::Unavailable(_) | StoreError::InDoubt(_)) if Instant::now() < until => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn an_event_is_the_same_bytes_as_in_every_other_store() {
    let redis = Redis::start(&[]);
    let store = redis.open().await;
    let unnumbered = event("a \"text\" with {braces} and \u{2028} é\n");
    let commit = Commit { events: vec![unnumbered.clone()], ..create("log") };
    let done = store.commit(commit).await.unwrap();
    let batch = store.read(&id("log"), Seq::ZERO, ALL).await.unwrap();
    assert_eq!(batch.events[0].bytes, unnumbered.number(&done.epoch, done.first));
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn after_flushall_there_is_no_such_log_and_fences_from_before_are_shut_out() {
    let redis = Redis::start(&[]);
    let store = redis.open().await;
    let old = started(&store, &["a", "b"]).await;
    let before = store.extent(&id("log")).await.unwrap();
    redis.cli(&["flushall"]);
    assert_eq!(store.extent(&id("log")).await, Err(StoreError::NoSuchLog));
    assert_eq!(add(&store, old, &["lost"]).await, Err(StoreError::NoSuchLog));
    assert_eq!(store.record(&id("log")).await, Ok(None));
    assert_eq!(store.count(LogKind::Session, None).await, Ok(0));
    let start = bowline_store::Start { epoch: bowline_protocol::Epoch::from_random(8), after: Seq::ZERO };
    let commit = Commit { create: Some(start), record: Some(record("ann", "body")), ..create("log") };
    store.commit(commit).await.unwrap();
    let new = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    assert!(new > old);
    assert!(matches!(add(&store, old, &["zombie"]).await, Err(StoreError::StaleFence { .. })));
    assert_ne!(store.extent(&id("log")).await.unwrap().epoch, before.epoch);
    assert_eq!(store.list(LogKind::Session, None).await.unwrap().len(), 1, "it is listed again although it was before");
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_deleted_stream_is_a_gap_and_numbers_go_on() {
    let redis = Redis::start(&[]);
    let store = redis.open().await;
    let fence = started(&store, &["a", "b", "c"]).await;
    redis.cli(&["del", "bowline:{log}:e"]);
    let batch = store.read(&id("log"), seq(1), ALL).await.unwrap();
    assert_eq!((batch.events.len(), batch.first, batch.next), (0, seq(4), seq(4)));
    assert_eq!(add(&store, fence, &["d"]).await, Ok(seq(4)));
    assert_eq!(texts(&store, "log").await, [(4, "d".to_owned())]);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn an_event_that_was_deleted_is_a_gap_for_readers_that_have_not_read_it() {
    let redis = Redis::start(&[]);
    let store = redis.open().await;
    started(&store, &["a", "b", "c", "d"]).await;
    redis.cli(&["xdel", "bowline:{log}:e", "2-0"]);
    let batch = store.read(&id("log"), seq(1), ALL).await.unwrap();
    assert_eq!((batch.events.len(), batch.first), (1, seq(1)), "up to the hole");
    let batch = store.read(&id("log"), seq(2), ALL).await.unwrap();
    assert_eq!((batch.events.len(), batch.first, batch.events[0].seq), (2, seq(3), seq(3)), "behind it, and told so");
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_deleted_head_is_no_log_and_its_leftovers_do_not_come_back() {
    let redis = Redis::start(&[]);
    let store = redis.open().await;
    started(&store, &["old"]).await;
    redis.cli(&["del", "bowline:{log}:h"]);
    assert_eq!(store.read(&id("log"), Seq::ZERO, ALL).await, Err(StoreError::NoSuchLog));
    store.commit(Commit { events: vec![event("new")], ..create("log") }).await.unwrap();
    assert_eq!(texts(&store, "log").await, [(1, "new".to_owned())]);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn what_a_stranger_wrote_to_our_stream_is_not_ours() {
    let redis = Redis::start(&[]);
    let store = redis.open().await;
    let fence = started(&store, &["a"]).await;
    redis.cli(&["xadd", "bowline:{log}:e", "99-0", "x", "y"]);
    assert_eq!(add(&store, fence, &["b"]).await, Ok(seq(2)));
    assert_eq!(texts(&store, "log").await, [(2, "b".to_owned())]);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_restart_without_persistence_leaves_no_log() {
    let mut redis = Redis::start(&[]);
    let store = redis.open().await;
    let fence = started(&store, &["a"]).await;
    redis.kill();
    redis.start_again();
    let found = insist(async || match store.extent(&id("log")).await {
        Err(StoreError::NoSuchLog) => Ok(true),
        other => other.map(|_| false),
    });
    assert!(found.await);
    let added = insist(async || match add(&store, fence, &["b"]).await {
        Err(StoreError::NoSuchLog) => Ok(None),
        other => other.map(Some),
    });
    assert_eq!(added.await, None);
}

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_server_that_syncs_before_it_answers_may_be_killed_and_nothing_is_reset() {
    let mut redis = Redis::start(ALWAYS);
    let store = redis.open().await;
    assert!(store.health().loss_window.contains("loses nothing"), "{}", store.health().loss_window);
    let fence = started(&store, &["a", "b"]).await;
    let before = store.extent(&id("log")).await.unwrap();
    redis.kill();
    redis.start_again();
    assert_eq!(insist(async || add(&store, fence, &["c"]).await).await, seq(3));
    let after = store.extent(&id("log")).await.unwrap();
    assert_eq!((&after.epoch, after.next), (&before.epoch, seq(4)));
    assert_eq!(texts(&store, "log").await.len(), 3);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_server_that_syncs_each_second_may_have_lost_something_so_its_restart_is_a_new_epoch() {
    let mut redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let store = redis.open().await;
    assert!(store.health().loss_window.contains("about the last second"), "{}", store.health().loss_window);
    let fence = started(&store, &["a", "b"]).await;
    let before = store.extent(&id("log")).await.unwrap();
    redis.kill();
    redis.start_again();
    let first = insist(async || add(&store, fence, &["c"]).await).await;
    let after = store.extent(&id("log")).await.unwrap();
    assert_ne!(after.epoch, before.epoch);
    assert_eq!(after.epoch_first, first, "the new epoch begins with the first event after the restart");
    assert_eq!(add(&store, fence, &["d"]).await, Ok(first.next()));
    assert_eq!(store.extent(&id("log")).await.unwrap().epoch, after.epoch, "once for each restart");
}

/// What was sent on a connection that was given up may arrive after it was sent again on another one, and others have followed.
#[tokio::test]
#[ignore = "needs Redis"]
async fn a_copy_of_a_commit_that_comes_late_is_not_done_once_more() {
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port).await;
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let store = RedisStore::open(options(&url, bowline_store::contract::PLENTY)).await.unwrap();
    let fence = started(&store, &[]).await;
    add(&store, fence, &["delayed"]).await.unwrap();
    add(&store, fence, &["second"]).await.unwrap();
    let mut late = std::net::TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
    late.write_all(&proxy.last_sent("delayed")).unwrap();
    let mut answer = [0; 64];
    let read = late.read(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer[..read]).contains("late"), "{answer:?}");
    add(&store, fence, &["third"]).await.unwrap();
    let found: Vec<String> = texts(&store, "log").await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(found, ["delayed", "second", "third"]);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_restart_from_an_old_snapshot_gives_no_number_twice_within_an_epoch() {
    let mut redis = Redis::start(&[]);
    let store = redis.open().await;
    let fence = started(&store, &["a", "b"]).await;
    redis.cli(&["save"]);
    add(&store, fence, &["c", "d"]).await.unwrap();
    let before = store.extent(&id("log")).await.unwrap();
    redis.kill();
    redis.start_again();
    let fence = insist(async || store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence)).await;
    assert_eq!(insist(async || add(&store, fence, &["other"]).await).await, seq(3));
    let after = store.extent(&id("log")).await.unwrap();
    assert_ne!(after.epoch, before.epoch, "3 was `c` before, and is `other` now");
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn who_builds_on_what_a_restart_has_lost_is_refused_and_has_to_look_again() {
    let mut redis = Redis::start(&[]);
    let store = redis.open().await;
    let fence = started(&store, &["a"]).await;
    redis.cli(&["save"]);
    add(&store, fence, &["b"]).await.unwrap();
    redis.kill();
    redis.start_again();
    insist(async || store.extent(&id("log")).await).await;
    // What it believes has `b` in it. It is told what one is told whose commit is in doubt, as often as it tries.
    for _ in 0..2 {
        assert!(matches!(add(&store, fence, &["c"]).await, Err(StoreError::InDoubt(_))));
    }
    assert_eq!(texts(&store, "log").await.len(), 1, "nothing of it was done");
    let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    assert_eq!(add(&store, fence, &["c"]).await, Ok(seq(2)));
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_restart_from_an_old_snapshot_does_not_bring_an_earlier_holder_back() {
    let mut redis = Redis::start(&[]);
    let store = redis.open().await;
    let who = |name| Holder::parse(name).unwrap();
    let lease = async |claim: Claim| store.lease(&id("log"), &claim).await;
    store.commit(create("log")).await.unwrap();
    let first = lease(Claim::by(who("first"))).await.unwrap().fence().unwrap();
    redis.cli(&["save"]);
    let second = Claim { by: who("second"), instead_of: Some(who("first")) };
    let second = lease(second).await.unwrap().fence().unwrap();
    redis.kill();
    redis.start_again();
    insist(async || store.holder(&id("log")).await).await;
    assert_eq!(store.holder(&id("log")).await, Ok(Some(who("first"))), "it knows no better");
    add(&store, second, &["a"]).await.unwrap();
    assert_eq!(store.holder(&id("log")).await, Ok(None), "until it is shown");
    assert!(matches!(add(&store, first, &["b"]).await, Err(StoreError::StaleFence { .. })));
    let third = lease(Claim::by(who("third"))).await.unwrap().fence().unwrap();
    assert!(third > second);
    assert_eq!(lease(Claim::by(who("first"))).await, Ok(Leased::Held(who("third"))));
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn another_era_is_another_epoch() {
    let mut redis = Redis::start(ALWAYS);
    let store = redis.open().await;
    started(&store, &["a"]).await;
    let before = store.extent(&id("log")).await.unwrap();
    store.close().await;
    redis.kill();
    redis.start_again();
    let url = format!("{}?era=2", redis.url());
    let store = RedisStore::open(options(&url, bowline_store::contract::PLENTY)).await.unwrap();
    append(&store, "log", &["b"]).await.unwrap();
    assert_ne!(store.extent(&id("log")).await.unwrap().epoch, before.epoch);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_server_that_hangs_leaves_a_doubt_that_is_told_and_cannot_become_two() {
    let redis = Redis::start(&[]);
    let store = open_hasty(&redis).await;
    let fence = started(&store, &["a"]).await;
    redis.cli(&["client", "pause", "3000", "all"]);
    assert!(matches!(add(&store, fence, &["doubt"]).await, Err(StoreError::InDoubt(_))));
    assert!(!store.health().writable);
    assert!(matches!(store.extent(&id("log")).await, Err(StoreError::Unavailable(_))), "nobody waits for ever");
    // Under the same fence nothing more is taken, also when the server is back.
    let burnt = add(&store, fence, &["b"]).await;
    assert!(matches!(burnt, Err(StoreError::InDoubt(_))), "{burnt:?}");
    let fence = insist(async || store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence)).await;
    insist(async || add(&store, fence, &["b"]).await).await;
    assert!(store.health().writable);
    let found: Vec<String> = texts(&store, "log").await.into_iter().map(|(_, text)| text).collect();
    assert!(found == ["a", "b"] || found == ["a", "doubt", "b"], "{found:?}");
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_doubt_on_a_log_that_is_open_to_all_does_not_shut_its_writers_out() {
    let redis = Redis::start(&[]);
    let store = open_hasty(&redis).await;
    store.commit(Commit { record: Some(record("ann", "body")), ..create("log") }).await.unwrap();
    redis.cli(&["client", "pause", "2000", "all"]);
    assert!(matches!(add(&store, Fence::OPEN, &["doubt"]).await, Err(StoreError::InDoubt(_))));
    // Whoever writes on goes on as soon as the server is back, and needs no lease, which would shut all others out.
    insist(async || add(&store, Fence::OPEN, &["b"]).await).await;
    let found: Vec<String> = texts(&store, "log").await.into_iter().map(|(_, text)| text).collect();
    assert!(found.iter().any(|text| text == "b"), "{found:?}");
    // A lease shuts out what is open to all, as ever.
    let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    assert!(matches!(add(&store, Fence::OPEN, &["late"]).await, Err(StoreError::StaleFence { .. })));
    add(&store, fence, &["c"]).await.unwrap();
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_leased_log_goes_on_after_a_doubt_and_finds_out_what_was_kept() {
    let redis = Redis::start(&[]);
    let store: Arc<dyn Store> = Arc::new(open_hasty(&redis).await);
    store.commit(Commit { record: Some(record("ann", "body")), ..create("log") }).await.unwrap();
    let mut log = LeasedLog::new(store.clone(), Arc::new(SharedLessor(store.clone())), id("log"));
    let put =
        |value: &str| Commit { items: vec![Item::put("k", value.to_owned())], ..Commit::to(id("log"), Fence::OPEN, 0) };
    log.commit(put("1")).await.unwrap();
    // Redis does nothing until after the commit's time is up: it may be kept or not, and the next one needs a new lease.
    redis.cli(&["client", "pause", "2000", "all"]);
    assert!(matches!(log.commit(put("2")).await, Err(StoreError::InDoubt(_))));
    insist(async || log.commit(put("3")).await).await;
    assert_eq!(store.item(&id("log"), "k").await.unwrap().unwrap(), "3", "what was in doubt is shut out or behind it");

    // A change looks what is there after a doubt, and is made once.
    let (redis, store_again) = (&redis, &store);
    let changed = log.change(|doubted| async move {
        let wanted = insist(async || store_again.item(&id("log"), "once").await).await.is_none();
        if !doubted {
            redis.cli(&["client", "pause", "1000", "all"]);
        }
        Ok(wanted.then(|| Commit { items: vec![Item::put("once", "x")], ..Commit::to(id("log"), Fence::OPEN, 0) }))
    });
    assert!(matches!(changed.await, Ok(Changed::Made) | Err(StoreError::InDoubt(_))));
    // Another takes it: that is said, and not written over.
    let mut other = LeasedLog::new(store.clone(), Arc::new(SharedLessor(store.clone())), id("log"));
    insist(async || other.commit(put("other")).await).await;
    let stale = log.commit(put("late")).await;
    assert!(matches!(stale, Err(StoreError::StaleFence { .. })), "{stale:?}");
    log.commit(put("again")).await.unwrap();
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn what_was_never_sent_is_not_in_doubt_and_everything_heals() {
    let mut redis = Redis::start(ALWAYS);
    let store = open_hasty(&redis).await;
    let fence = started(&store, &["a"]).await;
    redis.kill();
    // The lane learns of it with this one, whose fate is open.
    let first = add(&store, fence, &["x"]).await;
    assert!(matches!(first, Err(StoreError::InDoubt(_) | StoreError::Unavailable(_))), "{first:?}");
    let lease = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence);
    assert!(matches!(lease, Err(StoreError::Unavailable(_))), "{lease:?}");
    let health = store.health();
    assert!(!health.writable && health.problems[0].contains("cannot be used"), "{health:?}");
    redis.start_again();
    let fence = insist(async || store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence)).await;
    assert_eq!(insist(async || add(&store, fence, &["b"]).await).await, seq(2));
    assert!(store.health().writable, "{:?}", store.health().problems);
}

/// So a run waits for Redis (`session.store_patience`) and goes on under the fence that it has, however long it was away.
#[tokio::test]
#[ignore = "needs Redis"]
async fn a_commit_while_the_server_is_known_to_be_away_is_not_in_doubt_and_goes_on_afterwards() {
    let mut redis = Redis::start(ALWAYS);
    let store = open_hasty(&redis).await;
    let fence = started(&store, &["a"]).await;
    redis.kill();
    let until = Instant::now() + Duration::from_secs(60);
    while store.health().writable {
        assert!(Instant::now() < until, "it is not noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..3 {
        let refused = add(&store, fence, &["b"]).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    }
    redis.start_again();
    assert_eq!(insist(async || add(&store, fence, &["b"]).await).await, seq(2));
    assert_eq!(texts(&store, "log").await, [(1, "a".to_owned()), (2, "b".to_owned())]);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_flushed_script_cache_is_not_noticed() {
    let redis = Redis::start(&[]);
    let store = redis.open().await;
    let fence = started(&store, &["a"]).await;
    redis.cli(&["script", "flush"]);
    assert_eq!(add(&store, fence, &["b"]).await, Ok(seq(2)));
    redis.cli(&["script", "flush"]);
    assert_eq!(texts(&store, "log").await.len(), 2);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_full_server_refuses_and_heals() {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]);
    let store = redis.open().await;
    let fence = started(&store, &["a"]).await;
    redis.cli(&["config", "set", "maxmemory", "1"]);
    assert!(matches!(add(&store, fence, &["b"]).await, Err(StoreError::Full(_))));
    assert!(!store.health().writable);
    assert_eq!(texts(&store, "log").await.len(), 1, "reading goes on");
    redis.cli(&["config", "set", "maxmemory", "0"]);
    assert_eq!(add(&store, fence, &["b"]).await, Ok(seq(2)), "nothing of the refused one was kept");
    assert!(store.health().writable);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn an_entry_without_a_log_shows_in_no_list_and_goes_with_a_sweep() {
    let redis = Redis::start(&[]);
    let store = redis.open().await;
    started(&store, &["a"]).await;
    let by_kind = |name: &str| format!("bowline:{{kind1.{}}}", crc32fast::hash(name.as_bytes()) % 16);
    // As a crash between entering and committing leaves it, long ago and just now.
    for (name, entered) in [("long ago", "1"), ("just now", "99999999999999999")] {
        redis.cli(&["zadd", &by_kind(name), entered, &format!("{name}\nann")]);
        redis.cli(&["zadd", "bowline:{owner1.ann}", entered, name]);
    }
    let ann = bowline_protocol::Principal::parse("ann");
    for owner in [None, ann.as_ref()] {
        assert_eq!(store.list(LogKind::Session, owner).await.unwrap().len(), 1);
    }
    store.sweep(0).await.unwrap();
    assert_eq!(store.count(LogKind::Session, ann.as_ref()).await, Ok(2), "whoever entered just now may still commit");
    assert_eq!(redis.cli(&["zscore", &by_kind("long ago"), "long ago\nann"]), "");
    assert_ne!(redis.cli(&["zscore", &by_kind("just now"), "just now\nann"]), "");
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_commit_whose_answer_is_lost_is_done_once_and_answered_as_it_was() {
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port).await;
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let store = RedisStore::open(options(&url, bowline_store::contract::PLENTY)).await.unwrap();
    let lossy = async |commit: Commit| {
        // The second time the answer to the repetition is lost, too.
        proxy.swallow(2);
        let done = store.commit(commit).await;
        assert_eq!(proxy.still_to_swallow(), 0, "the answers were lost");
        done
    };
    let made = lossy(Commit { record: Some(record("ann", "body")), events: vec![event("0")], ..create("log") }).await;
    assert_eq!(made.unwrap().first, seq(1));
    let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    for n in 1..10 {
        let commit = Commit { events: vec![event(&n.to_string())], ..Commit::to(id("log"), fence, 0) };
        assert_eq!(lossy(commit).await.unwrap().first, seq(n + 1));
    }
    let found: Vec<String> = texts(&store, "log").await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(found, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    let release = Commit { release: Some(Release::Log), ..Commit::to(id("log"), fence, 0) };
    assert_eq!(lossy(release).await.unwrap().next, seq(11), "also when there is no log any more to ask");
    assert_eq!(store.extent(&id("log")).await, Err(StoreError::NoSuchLog));
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_server_that_is_killed_again_and_again_loses_and_repeats_nothing() {
    let mut redis = Redis::start(ALWAYS);
    let store = open_hasty(&redis).await;
    let mut fence = started(&store, &[]).await;
    let killer = std::thread::spawn(move || {
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(300));
            redis.kill();
            redis.start_again();
        }
        redis
    });
    let (mut n, mut doubts) = (0u64, 0);
    while !killer.is_finished() {
        match add(&store, fence, &[&n.to_string()]).await {
            Ok(_) => n += 1,
            Err(StoreError::Unavailable(_)) => {}
            Err(StoreError::InDoubt(_)) => {
                // A new lease shuts the doubtful commit out; then one look tells whether it was done.
                fence = insist(async || store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence)).await;
                n = insist(async || store.extent(&id("log")).await).await.last().get();
                doubts += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let _redis = killer.join().unwrap();
    println!("{n} events, {doubts} doubts");
    let expected: Vec<(u64, String)> = (0..n).map(|n| (n + 1, n.to_string())).collect();
    assert_eq!(texts(&store, "log").await, expected);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_reader_is_woken_after_the_server_was_away() {
    let mut redis = Redis::start(ALWAYS);
    let (here, there) = (open_hasty(&redis).await, open_hasty(&redis).await);
    let fence = started(&there, &["a"]).await;
    let wake = WakeSet::new();
    let _guard = here.tail(&id("log"), &wake, 1);
    redis.kill();
    redis.start_again();
    insist(async || add(&there, fence, &["b"]).await).await;
    while insist(async || here.extent(&id("log")).await).await.next < seq(3) {
        wake.woken().await;
        wake.take();
    }
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn an_address_without_a_server_is_said_in_a_sentence() {
    let port = real_redis::free_port();
    let url = format!("redis://127.0.0.1:{port}");
    let options =
        RedisOptions { timeout: Duration::from_millis(300), ..options(&url, bowline_store::contract::PLENTY) };
    let why = RedisStore::open(options).await.unwrap_err();
    assert!(why.to_string().contains("cannot be used"), "{why}");
    let redis = Redis::start(&["--requirepass", "secret"]);
    let why = RedisStore::open(hasty(&redis)).await.unwrap_err();
    assert!(matches!(why, StoreError::Unavailable(_)), "{why}");
    let url = format!("redis://:secret@127.0.0.1:{}", redis.port);
    let store = RedisStore::open(real_redis::options(&url, bowline_store::contract::PLENTY)).await.unwrap();
    assert!(!format!("{store:?}").contains("secret"));
}
