//! What `deploy/` brings along, tried with real parts: two nodes and a Redis behind HAProxy, and a Redis that is reached by TLS
//! as a user with few rights.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::real_redis::{Redis, free_port};
use crate::support::api::Api;
use crate::support::process::{Process, command};
use crate::support::survivor::Survivor;
use crate::support::{Client, PATIENCE, get, is_terminal};

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

async fn node(redis: &Redis, dir: &TempDir) -> Process {
    let env = [
        ("BOWLINE_STORE__URL", redis.url()),
        ("BOWLINE_LOG__LEVEL", "error".to_owned()),
        ("BOWLINE_STATE__KEYS", r#"["k1:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]"#.to_owned()),
    ];
    Process::start(&dir.path().join("data"), &env).await
}

/// HAProxy with the file that is in `deploy/`.
struct Balancer {
    child: Child,
    address: SocketAddr,
}

impl Balancer {
    async fn before(nodes: [&Process; 2]) -> Balancer {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let mut command = Command::new("haproxy");
        command.arg("-f").arg(root().join("deploy/haproxy.cfg")).env("BIND", address.to_string());
        command.env("NODE_A", nodes[0].address.to_string()).env("NODE_B", nodes[1].address.to_string());
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("haproxy is installed; ./test programs installs it");
        let balancer = Balancer { child, address };
        balancer.wait_until(200).await;
        balancer
    }

    async fn wait_until(&self, status: u16) {
        let until = Instant::now() + PATIENCE;
        while !self.answers(status).await {
            assert!(Instant::now() < until, "the balancer does not answer {status}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn answers(&self, status: u16) -> bool {
        // Before it listens there is nobody to ask.
        tokio::net::TcpStream::connect(self.address).await.is_ok()
            && get(self.address, "/readyz", &[]).await.0 == status
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many clients have come back to this node.
async fn returns(node: &Process) -> u64 {
    let (_, metrics) = get(node.address, "/metrics", &[]).await;
    let lines = metrics.lines().filter(|line| line.starts_with("bowline_reconnects_total"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis and HAProxy"]
async fn a_client_behind_the_balancer_is_sent_to_any_node_and_misses_nothing() {
    let (redis, dir) = (Redis::start(ALWAYS), TempDir::new().unwrap());
    let (a, b) = (node(&redis, &dir).await, node(&redis, &dir).await);
    let balancer = Balancer::before([&a, &b]).await;
    assert_eq!(get(balancer.address, "/metrics", &[]).await.0, 403, "operators have ways of their own");
    assert_eq!(get(balancer.address, "/api/admin/node", &[]).await.0, 403);

    let mut client = Client::dial(balancer.address, &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 800 2").await;
    // It stays connected, so that the balancer has a reason to choose the other node for the next one.
    let answer = loop {
        let mut next = survivor.back(balancer.address).await.unwrap();
        let enough = survivor.next + 20;
        let seen =
            survivor.follow(&mut next, |frame| is_terminal(frame) || frame["seq"].as_u64() >= Some(enough)).await;
        client = next;
        if let Some(frame) = seen.filter(is_terminal) {
            break frame;
        }
    };
    let whole: String = (1..=800).map(|n| if n == 1 { "tok1".to_owned() } else { format!(" tok{n}") }).collect();
    assert_eq!(answer["content"], whole);
    survivor.assert_nothing_was_lost();
    let (at_a, at_b) = (returns(&a).await, returns(&b).await);
    println!("{at_a} and {at_b} returns");
    assert!(at_a > 0 && at_b > 0, "both nodes had it: {at_a}, {at_b}");
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis and HAProxy"]
async fn events_stream_through_the_balancer_as_they_come() {
    let (redis, dir) = (Redis::start(ALWAYS), TempDir::new().unwrap());
    let (a, b) = (node(&redis, &dir).await, node(&redis, &dir).await);
    let balancer = Balancer::before([&a, &b]).await;
    let api = Api::new(balancer.address);
    let session = api.session().await;
    // The run takes for ever, so nothing of it would arrive if the balancer kept it back.
    let mut stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 100000 20" })).await;
    stream.until("text-delta").await;
    stream.until("text-delta").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis and HAProxy"]
async fn a_node_that_is_replaced_behind_the_balancer_is_hardly_noticed() {
    let (redis, dir) = (Redis::start(ALWAYS), TempDir::new().unwrap());
    let (a, b) = (node(&redis, &dir).await, node(&redis, &dir).await);
    let balancer = Balancer::before([&a, &b]).await;
    let mut client = Client::dial(balancer.address, &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 500 4").await;
    client.expect("agent.partial_answer").await;
    drop(client);
    let fifty = |frame: &serde_json::Value| frame["seq"].as_u64() >= Some(50);
    survivor.insist(balancer.address, fifty).await;
    // One of the two has the run; whichever it is, it lets it finish first.
    let stopping = tokio::spawn(a.terminate());
    let answer = survivor.insist(balancer.address, is_terminal).await;
    assert!(answer["content"].as_str().unwrap().ends_with("tok500"), "{answer}");
    assert_eq!(stopping.await.unwrap(), Some(0));
    // The one that is left serves everybody.
    let mut client = survivor.back(balancer.address).await.unwrap();
    survivor.follow(&mut client, |frame| frame["metadata"]["action"] == "replay").await.unwrap();
    client.session = survivor.session.clone();
    client.say("/echo still here").await;
    let answer = survivor.follow(&mut client, is_terminal).await.unwrap();
    assert_eq!(answer["content"], "still here");
    survivor.assert_nothing_was_lost();
    drop(b);
}

/// An authority, and a certificate of it for `localhost`.
fn certificates(dir: &Path) {
    let openssl = |args: &str| {
        let out =
            Command::new("openssl").args(args.split(' ')).current_dir(dir).output().expect("openssl is installed");
        assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
    };
    std::fs::write(dir.join("san"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority");
    openssl("req -newkey rsa:2048 -nodes -keyout redis.key -out redis.csr -subj /CN=localhost");
    openssl("x509 -req -in redis.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out redis.pem -days 2 -extfile san");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis and OpenSSL"]
async fn redis_is_reached_by_tls_as_a_user_with_few_rights() {
    let dir = TempDir::new().unwrap();
    certificates(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let tls_port = free_port();
    let redis = Redis::start(&[
        "--tls-port",
        &tls_port.to_string(),
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &path("redis.pem"),
        "--tls-key-file",
        &path("redis.key"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
    ]);
    redis.let_in_as_documented("bowline:*");
    let url = format!("rediss://bowline:PASSWORD@localhost:{tls_port}");
    let env = |trusted: Option<String>| {
        let mut env = vec![("BOWLINE_STORE__URL", url.clone()), ("BOWLINE_STORE__TIMEOUT", "1500ms".to_owned())];
        env.extend(trusted.map(|path| ("SSL_CERT_FILE", path)));
        env
    };
    let data = dir.path().join("data");
    let refused = command(&data, &env(None)).output().await.unwrap();
    assert!(!refused.status.success(), "a certificate of strangers is not believed");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot be used"), "{refused:?}");

    let node = Process::start(&data, &env(Some(path("ca.pem")))).await;
    let mut client = Client::dial(node.address, &[]).await.unwrap();
    client.create().await;
    let answer = client.ask("/echo in private").await.pop().unwrap();
    assert_eq!(answer["content"], "in private");
    assert_eq!(node.terminate().await, Some(0));
    assert_eq!(redis.cli(&["acl", "log"]), "", "nothing that it asked for was denied");
}
