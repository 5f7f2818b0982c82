//! Several nodes on one Redis, as processes of their own.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::real_redis::Redis;
use crate::support::process::{BINARY, Process};
use crate::support::{Client, Incoming, is_terminal};

pub struct Scene {
    pub redis: Redis,
    pub nodes: Vec<Process>,
    _dir: TempDir,
}

impl Scene {
    pub async fn new(redis: &[&str], nodes: usize, more: &[(&'static str, &str)]) -> Scene {
        let (redis, dir) = (Redis::start(redis), TempDir::new().unwrap());
        let mut scene = Scene { redis, nodes: Vec::new(), _dir: dir };
        for _ in 0..nodes {
            scene.add(more).await;
        }
        scene
    }

    pub async fn add(&mut self, more: &[(&'static str, &str)]) {
        // For whoever wants to see another build fail.
        let binary = std::env::var("NODES_BINARY").unwrap_or(BINARY.into());
        self.add_binary(Path::new(&binary), more).await;
    }

    pub async fn add_binary(&mut self, binary: &Path, more: &[(&'static str, &str)]) {
        let mut env = vec![
            ("BOWLINE_STORE__URL", self.redis.url()),
            ("BOWLINE_STORE__TIMEOUT", "1500ms".to_owned()),
            ("BOWLINE_LOG__LEVEL", std::env::var("NODES_LOG").unwrap_or("error".into())),
            // States must open on every node.
            ("BOWLINE_STATE__KEYS", r#"["k1:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]"#.to_owned()),
        ];
        env.extend(more.iter().map(|(key, value)| (*key, (*value).to_owned())));
        self.nodes.push(Process::start_binary(binary, &self._dir.path().join("data"), &env, &[]).await);
    }

    pub fn at(&self, node: usize) -> SocketAddr {
        self.nodes[node].address
    }

    /// Everything that the log of a session holds, as an observer on one node sees it.
    pub async fn read_back(&self, node: usize, session: &str) -> Vec<Value> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < until, "it could not be read");
            if let Some(events) = self.try_read_back(node, session).await {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn try_read_back(&self, node: usize, session: &str) -> Option<Vec<Value>> {
        let mut client = Client::dial(self.at(node), &[]).await.unwrap();
        let content = json!({ "last_seq": 0, "observe": true });
        client.send(json!({ "event": "user.reconnect", "session_id": session, "content": content })).await;
        let mut events = Vec::new();
        loop {
            let Incoming::Frame(frame) = client.incoming().await else { return None };
            if let Some(seq) = frame["seq"].as_u64() {
                assert_eq!(seq, events.len() as u64 + 1, "once, in order: {frame}");
                events.push(frame);
            } else if frame["metadata"]["error_code"].is_string() {
                return None;
            } else if ready(&frame) {
                return Some(events);
            }
        }
    }
}

pub fn ready(frame: &Value) -> bool {
    frame["metadata"]["action"] == "replay"
}

/// Every run in a log has exactly one end.
pub fn assert_each_run_ends_once(events: &[Value]) {
    let begun = events.iter().filter(|event| event["event"] == "user.message").count();
    let ended = events.iter().filter(|event| is_terminal(event)).count();
    assert_eq!(begun, ended, "each run ends once");
}
