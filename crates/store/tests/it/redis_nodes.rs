//! Several nodes on one Redis, and several Redis servers for one node: fences, wake-ups, replicas, sentinels, slots that
//! move.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_store::contract::{PLENTY, append, create, event, id, record, seq, texts};
use bowline_store::{
    Claim, Commit, Directory, EventLog, Fence, Leased, LogKind, RedisOptions, RedisStore, StoreError, WakeSet,
};

use crate::real_redis::{Cluster, Redis, free_port, options};

fn one(text: &str, fence: Fence) -> Commit {
    Commit { events: vec![event(text)], ..Commit::to(id("log"), fence, 0) }
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn of_two_nodes_that_race_for_a_log_the_newest_lease_wins_five_hundred_times() {
    let redis = Redis::start(&[]);
    let nodes = [Arc::new(redis.open().await), Arc::new(redis.open().await)];
    nodes[0].commit(create("log")).await.unwrap();
    let mut kept = Vec::new();
    for round in 0..500 {
        let race = |node: usize| {
            let store = nodes[node].clone();
            tokio::spawn(async move {
                let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
                let mut mine = Vec::new();
                for n in 0..3 {
                    let text = format!("{round}/{node}/{n}");
                    match store.commit(one(&text, fence)).await {
                        Ok(done) => mine.push((done.first.get(), text)),
                        Err(StoreError::StaleFence { given, current }) => assert!(given == fence && current > fence),
                        Err(error) => panic!("{error}"),
                    }
                }
                (fence, mine)
            })
        };
        let (a, b) = tokio::join!(race(0), race(1));
        let ((fence_a, a), (fence_b, b)) = (a.unwrap(), b.unwrap());
        let (newer, older) = if fence_a > fence_b { (&a, &b) } else { (&b, &a) };
        assert_eq!(newer.len(), 3, "nobody shuts the newest out");
        let last_of_older = older.iter().map(|(n, _)| *n).max().unwrap_or(0);
        assert!(last_of_older < newer[2].0);
        kept.extend(a.into_iter().chain(b));
    }
    kept.sort();
    assert_eq!(texts(&*nodes[1], "log").await, kept, "what was answered is there, once, and nothing else");
    assert!(kept.iter().map(|(n, _)| *n).eq(1..=kept.len() as u64));
}

/// If only the slow look woke readers, this would take most of an hour.
#[tokio::test]
#[ignore = "needs Redis"]
async fn a_reader_on_another_node_is_woken_by_each_of_five_hundred_commits() {
    let redis = Redis::start(&[]);
    let (here, there) = (redis.open().await, redis.open().await);
    here.commit(create("log")).await.unwrap();
    let fence = here.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    let wake = WakeSet::new();
    let guard = there.tail(&id("log"), &wake, 7);
    for n in 1..=500 {
        here.commit(one("x", fence)).await.unwrap();
        while there.extent(&id("log")).await.unwrap().last() < seq(n) {
            wake.woken().await;
        }
        wake.woken().await;
        assert_eq!(wake.take(), [7]);
    }
    drop(guard);
    // Nobody there waits for it any more, so Redis is told to keep quiet before long.
    let until = Instant::now() + Duration::from_secs(60);
    while redis.cli(&["pubsub", "shardnumsub", "bowline:{log}:w"]) != "bowline:{log}:w\n0" {
        assert!(Instant::now() < until, "still subscribed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_record_of_one_node_is_listed_by_the_other() {
    let redis = Redis::start(&[]);
    let (here, there) = (redis.open().await, redis.open().await);
    here.commit(Commit { record: Some(record("ann", "1")), ..create("log") }).await.unwrap();
    assert_eq!(there.count(LogKind::Session, None).await, Ok(1));
    // The owner changes, on the other node.
    let fence = there.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    let commit = Commit { record: Some(record("bob", "2")), ..Commit::to(id("log"), fence, 0) };
    there.commit(commit).await.unwrap();
    for (owner, count) in [("ann", 0), ("bob", 1)] {
        let owner = bowline_protocol::Principal::parse(owner);
        assert_eq!(here.count(LogKind::Session, owner.as_ref()).await, Ok(count));
        assert_eq!(here.list(LogKind::Session, owner.as_ref()).await.unwrap().len(), count);
    }
    assert_eq!(here.count(LogKind::Session, None).await, Ok(1));
}

fn replica_of(master: &Redis) -> Redis {
    let port = master.port.to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
    let until = Instant::now() + Duration::from_secs(60);
    while !replica.cli(&["info", "replication"]).contains("master_link_status:up") {
        assert!(Instant::now() < until, "the replica did not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_node_that_begins_takes_the_time_of_those_that_run_and_not_that_of_redis() {
    const WEEK_MS: u64 = 7 * 24 * 3600 * 1000;
    /// Longer than asking takes, and much less than a week.
    const MINUTE_MS: u64 = 60_000;
    let redis = Redis::start(&[]);
    let (first, second) = (redis.open().await, redis.open().await);
    let by_redis = first.shared_time().await.unwrap().expect("nodes on Redis share a time");
    let seconds: u64 = redis.cli(&["time"]).lines().next().unwrap().parse().unwrap();
    assert!(by_redis.abs_diff(seconds * 1000) < MINUTE_MS, "without others it is that of Redis: {by_redis}");
    // As if the clock of Redis had jumped by a week, in either direction, since the first node began.
    for told in [by_redis - WEEK_MS, by_redis + WEEK_MS] {
        first.share_time(told).await.unwrap();
        let learnt = second.shared_time().await.unwrap().unwrap();
        assert!((told..told + MINUTE_MS).contains(&learnt), "{told} was told, and {learnt} learnt");
    }
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn with_wait_replicas_nothing_is_answered_that_only_the_master_has() {
    let master = Redis::start(&[]);
    let options = RedisOptions { wait_replicas: 1, timeout: Duration::from_millis(1500), ..master.options() };
    let store = RedisStore::open(options).await.unwrap();
    let made = store.commit(create("log")).await;
    assert!(matches!(made, Err(StoreError::InDoubt(_))), "{made:?}");
    let problems = store.health().problems;
    assert!(problems.iter().any(|trouble| trouble.contains("fewer than 1 replicas")), "{problems:?}");
    let replica = replica_of(&master);
    let fence = insist(async || store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence)).await;
    store.commit(one("a", fence)).await.unwrap();
    assert_eq!(replica.cli(&["xlen", "bowline:{log}:e"]), "1");
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_promoted_replica_goes_on_in_a_new_epoch() {
    let mut master = Redis::start(&[]);
    let replica = replica_of(&master);
    let url = format!("redis://127.0.0.1:{},127.0.0.1:{}", master.port, replica.port);
    let options = RedisOptions { wait_replicas: 0, ..options(&url, PLENTY) };
    let store = RedisStore::open(options).await.unwrap();
    let made = store.commit(create("log")).await.unwrap();
    let fence = store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).unwrap();
    store.commit(one("a", fence)).await.unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while replica.cli(&["xlen", "bowline:{log}:e"]) != "1" {
        assert!(Instant::now() < until, "the replica did not follow");
    }
    master.kill();
    replica.cli(&["replicaof", "no", "one"]);
    let done = insist(async || store.commit(one("b", fence)).await).await;
    assert_eq!(done.first, seq(2));
    assert_ne!(done.epoch, made.epoch, "nobody can tell what the replica had not received");
}

struct Sentinel {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Sentinel {
    fn of(master: &Redis) -> Sentinel {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let file = dir.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nsentinel monitor mine 127.0.0.1 {} 1\nsentinel down-after-milliseconds mine 300\n\
             sentinel failover-timeout mine 2000\n",
            master.port
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("redis-server");
        let child = command.arg(&file).arg("--sentinel").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Sentinel { child, port, _dir: dir }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn sentinels_are_asked_for_the_master_and_followed_to_the_next_one() {
    let mut master = Redis::start(&[]);
    let replica = replica_of(&master);
    let sentinel = Sentinel::of(&master);
    let url = format!("redis+sentinel://127.0.0.1:{}/mine", sentinel.port);
    let store = RedisStore::open(options(&url, PLENTY)).await.unwrap();
    store.commit(create("log")).await.unwrap();
    append(&store, "log", &["a"]).await.unwrap();
    let port = sentinel.port.to_string();
    let until = Instant::now() + Duration::from_secs(60);
    let known = |what: &str| {
        let said = Command::new("redis-cli").args(["-p", &port, "sentinel", what, "mine"]).output().unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let has_it = || replica.cli(&["xlen", "bowline:{log}:e"]) == "1";
    while !known("replicas").contains(&replica.port.to_string()) || !has_it() {
        assert!(Instant::now() < until, "the sentinel did not find the replica, or that did not follow");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    master.kill();
    let fence = insist(async || store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence)).await;
    insist(async || store.commit(one("b", fence)).await).await;
    assert!(replica.cli(&["info", "replication"]).contains("role:master"));
    assert!(texts(&store, "log").await.iter().any(|(_, text)| text == "b"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn slots_that_move_while_all_write_cost_nothing() {
    let cluster = Cluster::start();
    let store = Arc::new(RedisStore::open(options(&cluster.0[0].url(), PLENTY)).await.unwrap());
    let names: Vec<String> = (0..60).map(|n| format!("log-{n}")).collect();
    for name in &names {
        store.commit(Commit { record: Some(record("ann", name)), ..create(name) }).await.unwrap();
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writers: Vec<_> = names
        .iter()
        .map(|name| {
            let (store, name, stopped) = (store.clone(), name.clone(), stopped.clone());
            tokio::spawn(async move {
                let fence = store.lease(&id(&name), &Claim::alone()).await.and_then(Leased::fence).unwrap();
                let mut n = 0;
                while !*stopped.borrow() || n == 0 {
                    let commit = Commit { events: vec![event(&n.to_string())], ..Commit::to(id(&name), fence, 0) };
                    assert_eq!(store.commit(commit).await.unwrap().first, seq(n + 1));
                    n += 1;
                }
                n
            })
        })
        .collect();
    let ids: Vec<String> = cluster.0.iter().map(|redis| redis.cli(&["cluster", "myid"])).collect();
    let host = format!("127.0.0.1:{}", cluster.0[0].port);
    let moved = tokio::task::spawn_blocking(move || {
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "reshard", &host, "--cluster-from", &ids[0], "--cluster-to", &ids[1]]);
        command.args(["--cluster-slots", "3000", "--cluster-yes", "--cluster-pipeline", "50"]).output().unwrap()
    });
    let moved = moved.await.unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stdout));
    stop.send(true).unwrap();
    for (name, writer) in names.iter().zip(writers) {
        let n = writer.await.unwrap();
        let found = texts(&*store, name).await;
        assert_eq!(found, (0..n).map(|n| (n + 1, n.to_string())).collect::<Vec<_>>());
    }
    assert_eq!(store.list(LogKind::Session, None).await.unwrap().len(), names.len());
}
