//! How fast the store on Redis is, beside plain `XADD` and `XRANGE` on the same server in the same run.
//!
//! `cargo run --release -p bowline-store --example redis_bench -- [redis://host:port]`. Without a URL it starts a
//! `redis-server` of its own. The figures that mean something elsewhere are the ratios.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "this prints a table, and may just stop")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_protocol::event::{Draft, names};
use bowline_protocol::{Epoch, LogId, Seq, SessionId, Unnumbered};
use bowline_store::{
    Claim, Commit, Directory, EventLog, Fence, Leased, ReadLimit, RedisOptions, RedisStore, RedisUrl, Retention, Start,
};
use redis::aio::MultiplexedConnection;

const KEEP: Retention = Retention { events_max: 10_000_000, age_max_ms: u64::MAX };
const SPAN: Duration = Duration::from_secs(2);

/// About 200 bytes once it is numbered.
fn event() -> Unnumbered {
    Draft::new(names::THINKING, &"x".repeat(20)).seal(&SessionId::from_random(1), "2026-01-01T00:00:00Z")
}

fn log(n: usize) -> LogId {
    LogId::parse(&format!("sess_{n:032x}")).unwrap()
}

/// So many at once, each after its last answer; how many were done in a second.
async fn rate<F: Future<Output = u64> + Send + 'static>(count: usize, act: impl Fn(usize, Instant) -> F) -> f64 {
    let started = Instant::now();
    let tasks: Vec<_> = (0..count).map(|n| tokio::spawn(act(n, started))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    done as f64 / started.elapsed().as_secs_f64()
}

async fn commits(store: &Arc<RedisStore>, count: usize, per_commit: usize) -> f64 {
    let mut fences = Vec::new();
    for n in 0..count {
        let create = Some(Start { epoch: Epoch::from_random(1), after: Seq::ZERO });
        // They are there from the round before; a lease is all that is needed then.
        let _ = store.commit(Commit { create, ..Commit::to(log(n), Fence(0), 0) }).await;
        fences.push(store.lease(&log(n), &Claim::alone()).await.and_then(Leased::fence).unwrap());
    }
    rate(count, |n, started| {
        let (store, fence) = (store.clone(), fences[n]);
        async move {
            let mut done = 0;
            while started.elapsed() < SPAN {
                let commit = Commit { events: vec![event(); per_commit], ..Commit::to(log(n), fence, 0) };
                store.commit(commit).await.unwrap();
                done += per_commit as u64;
            }
            done
        }
    })
    .await
}

/// What a program would do that only wants its events in a stream, over one multiplexed connection.
async fn plain_adds(redis: &MultiplexedConnection, count: usize, per_commit: usize) -> f64 {
    let bytes = event().number(&Epoch::from_random(1), Seq::ZERO.next());
    rate(count, |n, started| {
        let (mut redis, bytes) = (redis.clone(), bytes.clone());
        async move {
            let mut done = 0;
            while started.elapsed() < SPAN {
                let mut pipe = redis::pipe();
                for _ in 0..per_commit {
                    pipe.cmd("XADD").arg(format!("plain:{n}")).arg("*").arg("e").arg(bytes.as_ref());
                }
                let _: Vec<String> = pipe.query_async(&mut redis).await.unwrap();
                done += per_commit as u64;
            }
            done
        }
    })
    .await
}

async fn reads(store: &Arc<RedisStore>) -> f64 {
    rate(8, |n, started| {
        let store = store.clone();
        async move {
            let (mut done, mut from) = (0, Seq::ZERO);
            while started.elapsed() < SPAN {
                let limit = ReadLimit { events: 512, bytes: 1 << 20 };
                let batch = store.read(&log(n), from, limit).await.unwrap();
                done += batch.events.len() as u64;
                from = batch.events.last().map_or(Seq::ZERO, |event| event.seq.next());
            }
            done
        }
    })
    .await
}

async fn plain_reads(redis: &MultiplexedConnection) -> f64 {
    rate(8, |n, started| {
        let mut redis = redis.clone();
        async move {
            let (mut done, mut from) = (0, "-".to_owned());
            while started.elapsed() < SPAN {
                let mut command = redis::cmd("XRANGE");
                command.arg(format!("plain:{n}")).arg(&from).arg("+").arg("COUNT").arg(512);
                let found: Vec<(String, Vec<Vec<u8>>)> = command.query_async(&mut redis).await.unwrap();
                done += found.len() as u64;
                from = found.last().map_or("-".to_owned(), |(id, _)| format!("({id}"));
            }
            done
        }
    })
    .await
}

fn own_server() -> (Child, String) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"]).stdout(Stdio::null());
    (command.spawn().unwrap(), format!("redis://127.0.0.1:{port}"))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let (mut server, url) = match std::env::args().nth(1) {
        Some(url) => (None, url),
        None => {
            let (child, url) = own_server();
            (Some(child), url)
        }
    };
    let options = RedisOptions::new(RedisUrl::parse(&format!("{url}?prefix=bench")).unwrap(), KEEP);
    let store = Arc::new(RedisStore::open(options).await.unwrap());
    let client = redis::Client::open(url.as_str()).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let plain = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    println!("{}", store.health().loss_window);
    println!("{:>34} {:>12} {:>12} {:>8}", "events/s", "store", "plain", "ratio");
    for (count, per_commit) in [(1, 1), (100, 1), (1000, 1), (8, 100)] {
        let (ours, theirs) = (commits(&store, count, per_commit).await, plain_adds(&plain, count, per_commit).await);
        let what = format!("{count} writers, {per_commit} in a commit");
        println!("{what:>34} {ours:>12.0} {theirs:>12.0} {:>8.2}", ours / theirs);
    }
    let (ours, theirs) = (reads(&store).await, plain_reads(&plain).await);
    println!("{:>34} {ours:>12.0} {theirs:>12.0} {:>8.2}", "8 readers, 512 at a time", ours / theirs);
    store.close().await;
    if let Some(server) = &mut server {
        let _ = server.kill();
        let _ = server.wait();
    }
}
