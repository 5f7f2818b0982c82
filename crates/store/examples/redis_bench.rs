//! How fast the store on Redis is, beside the store on a disk and beside plain `XADD` and `XREAD` on the same server in the
//! same run: events per second, what they cost Redis and this process in processor time, and how long an event takes from the
//! append to readers that wait for it.
//!
//! `cargo run --release -p bowline-store --example redis_bench -- [DIR]`. It starts `redis-server`s of its own. `DIR` is on
//! the disk that is to be measured. On a busy machine rates say little; processor time per event still does.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "an example is no part of a node")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "this prints tables, and may just stop")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bowline_protocol::event::{Draft, names};
use bowline_protocol::{Epoch, LogId, Seq, SessionId, Unnumbered};
use bowline_store::{
    Claim, Commit, DiskOptions, DiskStore, Fence, Leased, ReadLimit, RedisOptions, RedisStore, RedisUrl, Retention,
    Start, Store, WakeSet,
};
use redis::aio::MultiplexedConnection;

const KEEP: Retention = Retention { events_max: 10_000_000, age_max_ms: u64::MAX };
const SPAN: Duration = Duration::from_secs(2);
/// How many events are timed, and how far apart they are: slow enough that no queue forms.
const TIMED: usize = 150;
const APART: Duration = Duration::from_millis(20);

/// About 200 bytes once it is numbered.
fn event() -> Unnumbered {
    Draft::new(names::THINKING, &"x".repeat(20)).seal(&SessionId::from_random(1), "2026-01-01T00:00:00Z")
}

fn log(n: usize) -> LogId {
    LogId::parse(&format!("sess_{n:032x}")).unwrap()
}

/// A log that exists, and the right to write to it.
async fn log_of(store: &dyn Store, n: usize) -> Fence {
    let create = Some(Start { epoch: Epoch::from_random(1), after: Seq::ZERO });
    // It may be there from the round before; a lease is all that is needed then.
    let _ = store.commit(Commit { create, ..Commit::to(log(n), Fence(0), 0) }).await;
    store.lease(&log(n), &Claim::alone()).await.and_then(Leased::fence).unwrap()
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

async fn logs_of(store: &dyn Store, count: usize) -> Vec<Fence> {
    let mut fences = Vec::new();
    for n in 0..count {
        fences.push(log_of(store, n).await);
    }
    fences
}

async fn commits(store: &Arc<dyn Store>, fences: &[Fence], per_commit: usize) -> f64 {
    rate(fences.len(), |n, started| {
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

/// When each event was appended, and how long it took to each reader.
#[derive(Clone)]
struct Clock(Arc<Vec<OnceLock<Instant>>>);

impl Clock {
    fn new() -> Clock {
        Clock(Arc::new((0..TIMED).map(|_| OnceLock::new()).collect()))
    }

    /// Event `n` is appended now.
    fn start(&self, n: usize) {
        let _ = self.0[n].set(Instant::now());
    }

    fn since(&self, n: usize) -> Duration {
        self.0[n].get().map(Instant::elapsed).unwrap_or_default()
    }
}

fn describe(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1000.0;
    format!("{:>8.2} {:>8.2} {:>8.2}", at(0.5), at(0.99), at(1.0))
}

/// Readers as the server has them: they look when they are woken, and read what is new.
async fn latency(writer: &Arc<dyn Store>, at: &Arc<dyn Store>, readers: usize) -> String {
    let (fence, clock) = (log_of(&**writer, 5000 + readers).await, Clock::new());
    let log = log(5000 + readers);
    let begin = writer.extent(&log).await.unwrap().next;
    let follow = |_| {
        let (store, log, clock, wake) = (at.clone(), log.clone(), clock.clone(), WakeSet::new());
        let guard = store.tail(&log, &wake, 0);
        tokio::spawn(async move {
            let (mut next, mut times) = (begin, Vec::with_capacity(TIMED));
            while times.len() < TIMED {
                let end = store.glance(&log).await.unwrap().next;
                while next < end {
                    let batch = store.follow(&log, next, ReadLimit { events: 100, bytes: 1 << 20 }).await.unwrap();
                    for event in batch.events {
                        times.push(clock.since(begin.until(event.seq) as usize));
                        next = event.seq.next();
                    }
                }
                if times.len() < TIMED {
                    wake.woken().await;
                    wake.take();
                }
            }
            drop(guard);
            times
        })
    };
    let tasks: Vec<_> = (0..readers).map(follow).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for n in 0..TIMED {
        clock.start(n);
        writer.commit(Commit { events: vec![event()], ..Commit::to(log.clone(), fence, 0) }).await.unwrap();
        tokio::time::sleep(APART).await;
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    describe(times)
}

/// Readers that each block on a connection of their own.
async fn plain_latency(url: &str, readers: usize) -> String {
    let (key, clock) = (format!("plain:timed:{readers}"), Clock::new());
    let client = redis::Client::open(url).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connect = || client.get_multiplexed_async_connection_with_config(&config);
    let mut tasks = Vec::new();
    for _ in 0..readers {
        let (mut redis, key, clock) = (connect().await.unwrap(), key.clone(), clock.clone());
        tasks.push(tokio::spawn(async move {
            let (mut from, mut times) = ("0".to_owned(), Vec::with_capacity(TIMED));
            while times.len() < TIMED {
                let mut command = redis::cmd("XREAD");
                command.arg("BLOCK").arg(0).arg("STREAMS").arg(&key).arg(&from);
                type Entries = Vec<(String, Vec<Vec<u8>>)>;
                let found: Vec<(String, Entries)> = command.query_async(&mut redis).await.unwrap();
                for (id, _) in found.into_iter().flat_map(|(_, entries)| entries) {
                    times.push(clock.since(times.len()));
                    from = id;
                }
            }
            times
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let bytes = event().number(&Epoch::from_random(1), Seq::ZERO.next());
    let mut writer = connect().await.unwrap();
    for n in 0..TIMED {
        clock.start(n);
        let mut command = redis::cmd("XADD");
        let _: String = command.arg(&key).arg("*").arg("e").arg(bytes.as_ref()).query_async(&mut writer).await.unwrap();
        tokio::time::sleep(APART).await;
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    describe(times)
}

/// A server of our own, gone with this program.
struct Server {
    child: Child,
    url: String,
    plain: MultiplexedConnection,
}

impl Server {
    async fn start(dir: &Path, args: &[&str]) -> Server {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1", "--dir"]).arg(dir).args(args);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let url = format!("redis://127.0.0.1:{port}");
        let client = redis::Client::open(url.as_str()).unwrap();
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let plain = loop {
            match client.get_multiplexed_async_connection_with_config(&config).await {
                Ok(connection) => break connection,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        Server { child, url, plain }
    }

    /// Processor time that the server has used so far.
    async fn cpu(&self) -> Duration {
        let mut plain = self.plain.clone();
        let info: String = redis::cmd("INFO").arg("cpu").query_async(&mut plain).await.unwrap();
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse::<f64>().ok());
        let seconds = ["used_cpu_user", "used_cpu_sys"].into_iter().filter_map(field).sum();
        Duration::from_secs_f64(seconds)
    }

    async fn open(&self) -> Arc<dyn Store> {
        let options = RedisOptions::new(RedisUrl::parse(&format!("{}?prefix=bench", self.url)).unwrap(), KEEP);
        Arc::new(RedisStore::open(options).await.unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time that this process has used so far.
fn own_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    // A tick is a hundredth of a second wherever Linux runs.
    Duration::from_millis(10 * ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>())
}

fn per_event(cpu: Duration, rate: f64) -> f64 {
    cpu.as_secs_f64() * 1e6 / (rate * SPAN.as_secs_f64())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let root = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let root = tempfile::tempdir_in(root).unwrap();
    let dir = |name: &str| {
        let dir = root.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    };
    let disk: Arc<dyn Store> = Arc::new(DiskStore::open(DiskOptions::new(dir("store"), KEEP)).unwrap().0);
    let quick = Server::start(&dir("quick"), &[]).await;
    let safe = Server::start(&dir("safe"), &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let (on_quick, on_safe) = (quick.open().await, safe.open().await);
    println!("quick: {}", on_quick.health().loss_window);
    println!("safe:  {}", on_safe.health().loss_window);

    println!("\n{:>42} {:>10} {:>16} {:>16}", "", "events/s", "here, µs/event", "Redis, µs/event");
    for (count, per_commit) in [(1, 1), (100, 1), (1000, 1), (8, 100)] {
        let what = format!("{count} writers of {per_commit}");
        let (fences, own) = (logs_of(&*disk, count).await, own_cpu());
        let rate = commits(&disk, &fences, per_commit).await;
        println!("{what:>18}, {:<22} {rate:>10.0} {:>16.0}", "disk, synced", per_event(own_cpu() - own, rate));
        for (server, store, name) in [(&quick, &on_quick, "quick"), (&safe, &on_safe, "safe")] {
            let fences = logs_of(&**store, count).await;
            let (own, redis) = (own_cpu(), server.cpu().await);
            let rate = commits(store, &fences, per_commit).await;
            let (own, redis) = (per_event(own_cpu() - own, rate), per_event(server.cpu().await - redis, rate));
            println!("{what:>18}, {:<22} {rate:>10.0} {own:>16.0} {redis:>16.0}", format!("store on {name}"));
            let (own, redis) = (own_cpu(), server.cpu().await);
            let rate = plain_adds(&server.plain, count, per_commit).await;
            let (own, redis) = (per_event(own_cpu() - own, rate), per_event(server.cpu().await - redis, rate));
            println!("{what:>18}, {:<22} {rate:>10.0} {own:>16.0} {redis:>16.0}", format!("XADD on {name}"));
        }
    }

    let elsewhere = quick.open().await;
    println!("\nms from the append to the reader          median     99 %      all  Redis, µs/event");
    for readers in [1, 1000] {
        println!("{readers:>5} readers, disk                  {}", latency(&disk, &disk, readers).await);
        for (name, at) in [("same node   ", &on_quick), ("another node", &elsewhere)] {
            let redis = quick.cpu().await;
            let times = latency(&on_quick, at, readers).await;
            let redis = (quick.cpu().await - redis).as_secs_f64() * 1e6 / TIMED as f64;
            println!("{readers:>5} readers, quick, {name}   {times} {redis:>14.0}");
        }
        let redis = quick.cpu().await;
        let times = plain_latency(&quick.url, readers).await;
        let redis = (quick.cpu().await - redis).as_secs_f64() * 1e6 / TIMED as f64;
        println!("{readers:>5} readers, quick, XADD and XREAD {times} {redis:>14.0}");
    }
    for store in [disk, on_quick, on_safe, elsewhere] {
        store.close().await;
    }
}
