//! A real Redis for tests: started on a free port in a directory of its own, and gone with the test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bowline_store::contract::PLENTY;
use bowline_store::{RedisOptions, RedisStore, RedisUrl, Retentions};

use crate::limit;

/// Longer than anything here should take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub struct Redis {
    child: Child,
    pub port: u16,
    dir: tempfile::TempDir,
    args: Vec<String>,
}

impl Redis {
    /// Without persistence, unless the arguments say otherwise.
    pub fn start(args: &[&str]) -> Redis {
        limit::limit();
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let port = free_port();
        let child = spawn(port, dir.path(), &args);
        let redis = Redis { child, port, dir, args };
        redis.wait_until_up();
        redis
    }

    fn wait_until_up(&self) {
        let until = Instant::now() + PATIENCE;
        let is_up = |said: &str| said.contains("PONG") || said.contains("NOAUTH");
        while !is_up(&self.try_cli(&["ping"])) {
            assert!(Instant::now() < until, "redis-server did not start: {}", self.try_cli(&["ping"]));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As after a crash: what it had on disk is there.
    pub fn start_again(&mut self) {
        self.child = spawn(self.port, self.dir.path(), &self.args);
        self.wait_until_up();
    }

    fn try_cli(&self, args: &[&str]) -> String {
        let port = self.port.to_string();
        let out = Command::new("redis-cli").args(["-p", &port]).args(args).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)).trim().to_owned()
    }

    pub fn cli(&self, args: &[&str]) -> String {
        let said = self.try_cli(args);
        assert!(!said.contains("ERR") && !said.contains("Could not connect"), "{args:?}: {said}");
        said
    }

    /// Makes the user of `docs/scaling.md`, with the password `PASSWORD`, for keys and channels of this pattern.
    pub fn let_in_as_documented(&self, pattern: &str) {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scaling.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        let (_, rule) = docs.split_once("ACL SETUSER").expect("the rule is in the document");
        let (rule, _) = rule.split_once("```").unwrap();
        let rule = rule.replace("\\\n", " ").replace("bowline:*", pattern);
        let rule: Vec<&str> = ["acl", "setuser"].into_iter().chain(rule.split_whitespace()).collect();
        assert_eq!(self.cli(&rule), "OK");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn options(&self) -> RedisOptions {
        options(&self.url(), PLENTY)
    }

    pub async fn open(&self) -> RedisStore {
        RedisStore::open(self.options()).await.unwrap()
    }
}

fn spawn(port: u16, dir: &std::path::Path, args: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(dir);
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]).args(args);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.expect("redis-server is installed; ./test programs installs it")
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn options(url: &str, retention: impl Into<Retentions>) -> RedisOptions {
    RedisOptions::new(RedisUrl::parse(url).unwrap(), retention)
}

/// Three masters, made into a cluster by Redis's own tool.
pub struct Cluster(pub Vec<Redis>);

impl Cluster {
    pub fn start() -> Cluster {
        let start = |_| {
            let bus = free_port().to_string();
            Redis::start(&["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "2000"])
        };
        let cluster = Cluster((0..3).map(start).collect());
        let hosts = cluster.0.iter().map(|redis| format!("127.0.0.1:{}", redis.port));
        let made = Command::new("redis-cli").args(["--cluster", "create"]).args(hosts).arg("--cluster-yes").output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let until = Instant::now() + PATIENCE;
        for redis in &cluster.0 {
            while !redis.cli(&["cluster", "info"]).contains("cluster_state:ok") {
                assert!(Instant::now() < until, "the cluster did not form");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        cluster
    }
}

/// Stands between a store and Redis, and cuts the line the moment an answer to a commit comes back. It keeps a copy of what was sent.
pub struct Proxy {
    pub port: u16,
    swallow: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    sent: SentPieces,
}

type SentPieces = std::sync::Arc<std::sync::Mutex<Vec<Vec<u8>>>>;

impl Proxy {
    pub async fn start(to: u16) -> Proxy {
        let swallow = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let sent = SentPieces::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn({
            let (swallow, sent) = (swallow.clone(), sent.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let Ok(server) = tokio::net::TcpStream::connect(("127.0.0.1", to)).await else { continue };
                    tokio::spawn(carry(client, server, swallow.clone(), sent.clone()));
                }
            }
        });
        Proxy { port, swallow, sent }
    }

    /// The last piece with this in it that was sent to Redis.
    pub fn last_sent(&self, part: &str) -> Vec<u8> {
        let has_it = |piece: &&Vec<u8>| piece.windows(part.len()).any(|window| window == part.as_bytes());
        self.sent.lock().unwrap().iter().rfind(has_it).unwrap().clone()
    }

    /// The next so many answers to commits are lost on the way.
    pub fn swallow(&self, answers: usize) {
        self.swallow.store(answers, std::sync::atomic::Ordering::SeqCst);
    }

    pub fn still_to_swallow(&self) -> usize {
        self.swallow.load(std::sync::atomic::Ordering::SeqCst)
    }
}

async fn carry(
    client: tokio::net::TcpStream,
    server: tokio::net::TcpStream,
    swallow: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    sent: SentPieces,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            sent.lock().unwrap().push(buffer[..read].to_vec());
            if to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
        let is_done = buffer[..read].windows(4).any(|window| window == b"done");
        let less_one = |left: usize| left.checked_sub(1);
        let order = std::sync::atomic::Ordering::SeqCst;
        if is_done && swallow.fetch_update(order, order, less_one).is_ok() {
            break;
        }
        if to_client.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    there.abort();
}
