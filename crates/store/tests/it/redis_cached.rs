//! What those who follow a log cost Redis, and that what they share is never older than their last wake-up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_protocol::{LogId, Seq};
use bowline_store::contract::{ALL, PLENTY, create, event, id, seq};
use bowline_store::{
    Claim, Commit, Directory, EventLog, Fence, Leased, ReadLimit, RedisStore, Release, Retention, StoreError,
    TailGuard, WakeSet,
};

use crate::real_redis::{Cluster, Redis, options};

/// A hang, and nothing else, takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reader as the server has them: it looks when it is woken, and reads what is new.
struct Follower {
    store: Arc<RedisStore>,
    log: LogId,
    wake: Arc<WakeSet>,
    next: Seq,
    texts: Vec<String>,
    _guard: TailGuard,
}

impl Follower {
    fn of(store: &Arc<RedisStore>, log: &str) -> Follower {
        let (log, wake) = (id(log), WakeSet::new());
        let guard = store.tail(&log, &wake, 0);
        Follower { store: store.clone(), log, wake, next: seq(1), texts: Vec::new(), _guard: guard }
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        let end = self.store.glance(&self.log).await?.next;
        while self.next < end {
            let limit = ReadLimit { events: 5, bytes: 1 << 20 };
            let batch = self.store.follow(&self.log, self.next, limit).await?;
            assert!(batch.next >= end, "what was known once is not forgotten");
            self.next = self.next.max(batch.first);
            for recorded in batch.events {
                assert_eq!(recorded.seq, self.next, "in order, without holes");
                self.next = recorded.seq.next();
                let text = recorded.decode().unwrap().content.as_str().unwrap_or_default().to_owned();
                self.texts.push(text);
            }
        }
        Ok(())
    }

    /// Asks again after each wake-up, until the answer is the one that is waited for.
    async fn wait_for<T>(&self, ask: impl AsyncFn(&RedisStore) -> T, is_it: impl Fn(&T) -> bool) -> T {
        loop {
            let answer = ask(&self.store).await;
            if is_it(&answer) {
                return answer;
            }
            tokio::time::timeout(PATIENCE, self.wake.woken()).await.expect("a wake-up");
            self.wake.take();
        }
    }

    /// Follows until it has read so far.
    async fn follow_to(&mut self, next: Seq) {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.look().await {
                Ok(()) if self.next >= next => return,
                Ok(()) => tokio::time::timeout(PATIENCE, self.wake.woken()).await.expect("a wake-up"),
                Err(StoreError::Unavailable(_)) => assert!(Instant::now() < until, "Redis stays away"),
                Err(error) => panic!("{error}"),
            }
            self.wake.take();
        }
    }
}

/// How often Redis was asked for something, within scripts or not.
fn asked(redis: &Redis, command: &str) -> u64 {
    let stats = redis.cli(&["info", "commandstats"]);
    let calls = |line: &str| line.strip_prefix(&format!("cmdstat_{command}:calls="))?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

async fn lease(store: &RedisStore) -> Fence {
    store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap()
}

async fn add(store: &RedisStore, fence: Fence, text: &str) -> Seq {
    store.commit(Commit { events: vec![event(text)], ..Commit::to(id("log"), fence, 0) }).await.unwrap().next
}

/// Waits until this node hears what happens to the log.
async fn subscribed(redis: &Redis, nodes: usize) {
    let until = Instant::now() + PATIENCE;
    while redis.cli(&["pubsub", "shardnumsub", "bowline:{log}:w"]) != format!("bowline:{{log}}:w\n{nodes}") {
        assert!(Instant::now() < until, "nobody listens");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_thousand_readers_of_one_log_cost_redis_one_read_for_each_commit() {
    let redis = Redis::start(&[]);
    let (here, there) = (Arc::new(redis.open().await), Arc::new(redis.open().await));
    here.commit(create("log")).await.unwrap();
    let fence = lease(&here).await;
    let mut readers: Vec<Follower> = (0..1000).map(|_| Follower::of(&there, "log")).collect();
    subscribed(&redis, 1).await;
    let mut end = add(&here, fence, "first").await;
    for reader in &mut readers {
        reader.follow_to(end).await;
    }
    let before = (asked(&redis, "xrange"), asked(&redis, "evalsha"));
    const COMMITS: u64 = 30;
    for n in 0..COMMITS {
        end = add(&here, fence, &n.to_string()).await;
        let follow = readers.into_iter().map(|mut reader| {
            tokio::spawn(async move {
                reader.follow_to(end).await;
                reader
            })
        });
        let follow: Vec<_> = follow.collect();
        readers = Vec::new();
        for reader in follow {
            readers.push(reader.await.unwrap());
        }
    }
    let reads = asked(&redis, "xrange") - before.0;
    let scripts = asked(&redis, "evalsha") - before.1;
    println!("{COMMITS} commits, {} readers: {reads} reads, {scripts} scripts", readers.len());
    assert!(reads <= COMMITS, "{reads} reads for {COMMITS} commits");
    assert!(scripts <= 2 * COMMITS, "{scripts} scripts for {COMMITS} commits");
    let expected: Vec<String> = std::iter::once("first".into()).chain((0..COMMITS).map(|n| n.to_string())).collect();
    assert!(readers.iter().all(|reader| reader.texts == expected), "each has all of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn readers_on_the_node_that_commits_cost_redis_nothing() {
    let redis = Redis::start(&[]);
    let node = Arc::new(redis.open().await);
    node.commit(create("log")).await.unwrap();
    let fence = lease(&node).await;
    let mut readers: Vec<Follower> = (0..20).map(|_| Follower::of(&node, "log")).collect();
    subscribed(&redis, 1).await;
    let mut end = add(&node, fence, "first").await;
    for reader in &mut readers {
        reader.follow_to(end).await;
    }
    let before = asked(&redis, "xrange");
    for n in 0..100 {
        end = add(&node, fence, &n.to_string()).await;
        for reader in &mut readers {
            reader.follow_to(end).await;
        }
    }
    assert_eq!(asked(&redis, "xrange") - before, 0);
    let truth = node.read(&id("log"), Seq::ZERO, ALL).await.unwrap();
    let shared = node.follow(&id("log"), seq(5), ALL).await.unwrap();
    assert_eq!(shared.events, truth.events[4..], "the same bytes");
    assert_eq!((shared.epoch, shared.first, shared.next), (truth.epoch, truth.first, truth.next));
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn what_was_trimmed_or_released_elsewhere_is_not_served_after_the_wake_up() {
    let redis = Redis::start(&[]);
    let few = Retention { events_max: 3, age_max_ms: u64::MAX };
    let here = RedisStore::open(options(&redis.url(), few)).await.unwrap();
    let there = Arc::new(RedisStore::open(options(&redis.url(), PLENTY)).await.unwrap());
    here.commit(create("log")).await.unwrap();
    let fence = lease(&here).await;
    let mut reader = Follower::of(&there, "log");
    subscribed(&redis, 1).await;
    for n in 1..=10 {
        let end = add(&here, fence, &n.to_string()).await;
        reader.follow_to(end).await;
        let batch = there.follow(&id("log"), seq(1), ALL).await.unwrap();
        assert_eq!(batch.first, seq(if n > 3 { n - 2 } else { 1 }));
        assert_eq!(batch.events.first().unwrap().seq, batch.first);
    }
    let release = |release| Commit { release: Some(release), ..Commit::to(id("log"), fence, 0) };
    here.commit(release(Release::Contents)).await.unwrap();
    let batch = reader.wait_for(
        async |node| node.follow(&id("log"), seq(9), ALL).await,
        |batch| batch.as_ref().is_ok_and(|batch| batch.first > seq(9)),
    );
    let batch = batch.await.unwrap();
    assert_eq!((batch.events.len(), batch.first, batch.next), (0, seq(11), seq(11)));
    here.commit(release(Release::Log)).await.unwrap();
    let glance = reader.wait_for(async |node| node.glance(&id("log")).await, Result::is_err);
    assert_eq!(glance.await, Err(StoreError::NoSuchLog));
    assert_eq!(there.follow(&id("log"), seq(9), ALL).await, Err(StoreError::NoSuchLog));
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_reader_that_saw_the_newest_event_is_not_shown_less() {
    let redis = Redis::start(&[]);
    let (here, there) = (redis.open().await, Arc::new(redis.open().await));
    here.commit(create("log")).await.unwrap();
    let fence = lease(&here).await;
    let mut reader = Follower::of(&there, "log");
    subscribed(&redis, 1).await;
    for n in 0..200 {
        let end = add(&here, fence, &n.to_string()).await;
        // The message may still be under way; what was asked of Redis itself counts.
        assert_eq!(there.extent(&id("log")).await.unwrap().next, end);
        assert_eq!(there.glance(&id("log")).await.unwrap().next, end);
        reader.look().await.unwrap();
        assert_eq!(reader.next, end);
    }
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_restart_that_may_have_lost_something_shows_as_another_epoch() {
    let mut redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let (here, there) = (redis.open().await, Arc::new(redis.open().await));
    here.commit(create("log")).await.unwrap();
    let fence = lease(&here).await;
    let mut reader = Follower::of(&there, "log");
    subscribed(&redis, 1).await;
    let end = add(&here, fence, "a").await;
    reader.follow_to(end).await;
    let before = there.glance(&id("log")).await.unwrap();
    redis.kill();
    redis.start_again();
    let commit = || Commit { events: vec![event("b")], ..Commit::to(id("log"), fence, 0) };
    let until = Instant::now() + PATIENCE;
    let done = loop {
        match here.commit(commit()).await {
            Ok(done) => break done,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    reader.follow_to(done.next).await;
    let after = there.glance(&id("log")).await.unwrap();
    assert_ne!(after.epoch, before.epoch);
    assert_eq!(after.epoch, done.epoch);
}

/// Every now and then the connection on which wake-ups come is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn readers_miss_nothing_although_wake_ups_are_lost() {
    let redis = Redis::start(&[]);
    let (here, there) = (Arc::new(redis.open().await), Arc::new(redis.open().await));
    here.commit(create("log")).await.unwrap();
    let fence = lease(&here).await;
    const COMMITS: u64 = 600;
    let follow = (0..50).map(|n| {
        let mut reader = Follower::of(if n % 5 == 0 { &here } else { &there }, "log");
        tokio::spawn(async move {
            reader.follow_to(seq(COMMITS + 1)).await;
            reader.texts
        })
    });
    let follow: Vec<_> = follow.collect();
    for n in 0..COMMITS {
        add(&here, fence, &n.to_string()).await;
        if n % 100 == 50 {
            redis.cli(&["client", "kill", "type", "pubsub"]);
        }
    }
    let expected: Vec<String> = (0..COMMITS).map(|n| n.to_string()).collect();
    for reader in follow {
        assert_eq!(reader.await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn logs_of_a_cluster_are_followed_on_their_own_masters() {
    let cluster = Cluster::start();
    let open = async || Arc::new(RedisStore::open(options(&cluster.0[0].url(), PLENTY)).await.unwrap());
    let (here, there) = (open().await, open().await);
    let names: Vec<String> = (0..30).map(|n| format!("log-{n}")).collect();
    let mut follow = Vec::new();
    for name in &names {
        here.commit(create(name)).await.unwrap();
        for _ in 0..5 {
            let mut reader = Follower::of(&there, name);
            follow.push(tokio::spawn(async move {
                reader.follow_to(seq(21)).await;
                reader.texts
            }));
        }
    }
    for n in 0..20 {
        for name in &names {
            bowline_store::contract::append(&*here, name, &[&n.to_string()]).await.unwrap();
        }
    }
    let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    for reader in follow {
        assert_eq!(reader.await.unwrap(), expected);
    }
}
