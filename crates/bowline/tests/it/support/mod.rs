//! What the end-to-end tests share: a server in this process, and a client that speaks raw frames over a real socket.

pub mod api;
pub mod process;
pub mod state;
pub mod survivor;
pub mod token;
pub mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bowline::config::{AgentConfig, AgentKind, Config, Loaded, StoreUrl};
use bowline::lifecycle::Lifecycle;
use bowline::metrics::Metrics;
use bowline::node::{Node, Own};
use bowline::session::Sessions;
use bowline_hub::Hub;
use bowline_store::Store;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::limit;

/// Nothing in a test takes this long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A client of HTTP that is not the server's own.
pub fn http_client() -> reqwest::ClientBuilder {
    // Without a provider of cryptography, building one would panic.
    bowline_env::tls::provider();
    reqwest::Client::builder()
}

pub fn config() -> Config {
    let mut config = Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
    config.store.url = StoreUrl::Memory;
    config.agents.insert("demo".into(), AgentConfig { kind: AgentKind::Demo { seed: 1, speed: 20.0 } });
    config
}

/// A server in this process.
pub struct Server {
    pub address: SocketAddr,
    pub lifecycle: Arc<Lifecycle>,
    pub metrics: Arc<Metrics>,
    pub sessions: Arc<Sessions>,
    pub store: Arc<dyn Store>,
    pub hub: Arc<Hub>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

impl Server {
    pub async fn start() -> Server {
        Server::with(config()).await
    }

    pub async fn with(config: Config) -> Server {
        Server::with_own(config, Own::default()).await
    }

    pub async fn with_own(config: Config, own: Own) -> Server {
        Server::loaded(Loaded::from(config), own).await
    }

    /// With settings as they were read from a file.
    pub async fn loaded(loaded: Loaded, own: Own) -> Server {
        limit::limit();
        let node = Box::pin(Node::start_with(loaded, own)).await.expect("the server starts");
        let (stop, stopped) = oneshot::channel();
        let (address, lifecycle, maintenance) = (node.address, node.lifecycle.clone(), node.maintenance.clone());
        let (metrics, sessions) = (maintenance.metrics.clone(), maintenance.sessions.clone());
        let (store, hub) = (maintenance.logs.store.clone(), maintenance.hub.clone());
        let running = tokio::spawn(node.run(async move { drop(stopped.await) }));
        Server { address, lifecycle, metrics, sessions, store, hub, stop: Some(stop), running }
    }

    pub async fn connect(&self) -> Client {
        let mut client = Client::dial(self.address, &[]).await.expect("the server takes a connection");
        client.hello = client.expect("system.connected").await;
        client
    }

    /// A connection with a new session, and its id.
    pub async fn session(&self) -> (Client, String) {
        let mut client = self.connect().await;
        let session = client.create().await;
        (client, session)
    }

    /// As SIGTERM does.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, self.running).await.expect("it stops").expect("it does not panic");
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        get(self.address, path, &[]).await
    }
}

/// A plain HTTP request; returns the status and the body.
pub async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (status, body)
}

/// A POST of JSON; returns the status and the body, as a client of HTTP/1.0 gets it.
pub async fn post(url: &str, body: &Value) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let head = format!("POST /{path} HTTP/1.0\r\nhost: {address}\r\ncontent-type: application/json\r\n");
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (status, body)
}

/// One connection.
pub struct Client {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// The first frame the server sent.
    pub hello: Value,
    pub session: String,
}

/// What can come in.
#[derive(Debug)]
pub enum Incoming {
    Frame(Value),
    Closed(Option<u16>),
}

impl Client {
    pub async fn dial(
        address: SocketAddr,
        headers: &[(&'static str, &str)],
    ) -> Result<Client, tokio_tungstenite::tungstenite::Error> {
        let mut request = format!("ws://{address}/ws").into_client_request()?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let (socket, _) =
            tokio::time::timeout(PATIENCE, tokio_tungstenite::connect_async(request)).await.expect("an answer")?;
        Ok(Client { socket, hello: Value::Null, session: String::new() })
    }

    pub async fn send(&mut self, frame: Value) {
        self.send_text(frame.to_string()).await;
    }

    pub async fn send_text(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.expect("the server still listens");
    }

    /// The next frame or the close.
    pub async fn incoming(&mut self) -> Incoming {
        loop {
            let message =
                tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("something comes within 30 s");
            match message {
                Some(Ok(Message::Text(text))) => return Incoming::Frame(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Message::Close(frame))) => return Incoming::Closed(frame.map(|frame| frame.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Incoming::Closed(None),
            }
        }
    }

    pub async fn next(&mut self) -> Value {
        match self.incoming().await {
            Incoming::Frame(frame) => frame,
            Incoming::Closed(code) => panic!("the connection was closed with {code:?}"),
        }
    }

    pub async fn closed(&mut self) -> Option<u16> {
        loop {
            if let Incoming::Closed(code) = self.incoming().await {
                return code;
            }
        }
    }

    /// Reads on until a frame with this name comes.
    pub async fn expect(&mut self, event: &str) -> Value {
        self.until(|frame| frame["event"] == event).await.pop().unwrap()
    }

    /// Reads on until a frame fits; returns all that came, that one last.
    pub async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
        let (mut frames, started) = (Vec::new(), std::time::Instant::now());
        loop {
            assert!(started.elapsed() < 2 * PATIENCE, "the frame that was waited for does not come");
            let frame = self.next().await;
            let done = fits(&frame);
            frames.push(frame);
            if done {
                return frames;
            }
        }
    }

    /// The next refusal, as (code, recovery action).
    pub async fn refusal(&mut self) -> (String, String) {
        let frame = self.until(|frame| frame["metadata"]["error_code"].is_string()).await.pop().unwrap();
        let text = |key: &str| frame["metadata"][key].as_str().unwrap_or_default().to_owned();
        (text("error_code"), text("recovery_action"))
    }

    pub async fn create(&mut self) -> String {
        self.send(json!({ "event": "user.create_session", "content": {} })).await;
        let created = self.expect("agent.session_created").await;
        self.session = created["session_id"].as_str().unwrap().to_owned();
        self.session.clone()
    }

    /// A new session with this agent.
    pub async fn create_with(&mut self, agent: &str) -> String {
        self.send(json!({ "event": "user.create_session", "content": { "agent": agent } })).await;
        let created = self.expect("agent.session_created").await;
        self.session = created["session_id"].as_str().unwrap().to_owned();
        self.session.clone()
    }

    pub async fn say(&mut self, text: &str) {
        self.send(json!({ "event": "user.message", "session_id": self.session, "content": text })).await;
    }

    /// Says something and reads the whole run.
    pub async fn ask(&mut self, text: &str) -> Vec<Value> {
        self.say(text).await;
        self.until(is_terminal).await
    }

    pub async fn reconnect(&mut self, session: &str, content: Value) {
        self.session = session.to_owned();
        self.send(json!({ "event": "user.reconnect", "session_id": session, "content": content })).await;
    }

    /// Comes back and reads through the replay; returns the greeting and the replayed events.
    pub async fn resume(&mut self, session: &str, content: Value) -> (Value, Vec<Value>) {
        self.reconnect(session, content).await;
        let greeting = self.expect("agent.session_created").await;
        let mut frames = self.until(|frame| frame["metadata"]["action"] == "replay").await;
        frames.retain(|frame| frame["seq"].is_u64());
        (greeting, frames)
    }
}

/// The last event of a run.
pub fn is_terminal(frame: &Value) -> bool {
    let names = ["agent.final_answer", "agent.error", "agent.cancelled"];
    frame["seq"].is_u64() && names.iter().any(|name| frame["event"] == *name)
}

/// The text that was streamed, joined.
pub fn streamed(frames: &[Value]) -> String {
    let pieces = frames.iter().filter(|frame| frame["event"] == "agent.partial_answer");
    pieces.map(|frame| frame["content"].as_str().unwrap()).collect()
}

pub fn seqs(frames: &[Value]) -> Vec<u64> {
    frames.iter().filter_map(|frame| frame["seq"].as_u64()).collect()
}

/// Chance with a printed seed: `BOWLINE_TEST_SEED=…` repeats a run.
pub struct Dice(u64);

impl Dice {
    #[allow(clippy::print_stdout, reason = "whoever repeats a run needs the seed")]
    pub fn new() -> Dice {
        let given = std::env::var("BOWLINE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(bowline_env::entropy::u64);
        println!("BOWLINE_TEST_SEED={seed}");
        Dice(seed)
    }

    /// Uniform in 0..n (splitmix64).
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}
