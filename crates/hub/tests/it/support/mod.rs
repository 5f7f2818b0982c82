//! What the end-to-end tests share: a hub in this process, real backends in others, and clients that speak HTTP to the hub.

pub mod curtain;
pub mod shutter;
pub mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_hub::{Hub, Options, Route, ServerSpec, downstream};
use bowline_protocol::Principal;
use bowline_store::memory::MemoryStore;
use bowline_store::{Retention, Store};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::limit;

/// Nothing in a test takes this long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/fixture.mjs")
}

/// A real MCP server in a process of its own.
pub struct Fixture {
    pub port: u16,
    pub child: Child,
    args: Vec<String>,
}

impl Fixture {
    pub async fn start(args: &[&str]) -> Fixture {
        limit::limit();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (child, port) = launch(&args, 0).await;
        Fixture { port, child, args }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    pub fn spec(&self) -> ServerSpec {
        spec(&json!({ "url": self.url() }))
    }

    /// As `kill -9` does.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Again, at the same address.
    pub async fn restart(&mut self) {
        let (child, port) = launch(&self.args, self.port).await;
        (self.child, self.port) = (child, port);
    }

    pub fn with(&mut self, arg: &str) {
        self.args.push(arg.to_owned());
    }
}

async fn launch(args: &[String], port: u16) -> (Child, u16) {
    let mut command = Command::new("node");
    command.arg(script()).args(args).arg(format!("--port={port}"));
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("node runs");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it listens");
    let port = line.strip_prefix("listening ").unwrap().parse().unwrap();
    // Somebody has to keep reading, or the pipe would fill up.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, port)
}

pub fn spec(entry: &Value) -> ServerSpec {
    ServerSpec::read(entry, &|_| None).unwrap()
}

/// The fixture as a program.
pub fn stdio_entry(args: &[&str]) -> Value {
    let mut all = vec![script().to_str().unwrap().to_owned(), "--stdio".to_owned()];
    all.extend(args.iter().map(|arg| (*arg).to_owned()));
    json!({ "command": "node", "args": all })
}

pub fn store() -> Arc<dyn Store> {
    store_of(100_000)
}

/// One whose logs offer only so many events.
pub fn store_of(events_max: u64) -> Arc<dyn Store> {
    limit::limit();
    Arc::new(MemoryStore::new(Retention { events_max, age_max_ms: u64::MAX }))
}

pub async fn hub(servers: &[(&str, ServerSpec)]) -> Arc<Hub> {
    hub_with(Options::default(), store(), servers).await
}

pub async fn hub_with(options: Options, store: Arc<dyn Store>, servers: &[(&str, ServerSpec)]) -> Arc<Hub> {
    limit::limit();
    let hub = Hub::start(options, store, None, None).await.unwrap();
    let servers: BTreeMap<String, ServerSpec> =
        servers.iter().map(|(name, spec)| ((*name).to_owned(), spec.clone())).collect();
    hub.configure(servers).await;
    for backend in hub.all() {
        backend.settled(PATIENCE).await;
    }
    hub
}

pub fn principal(name: &str) -> Principal {
    Principal::parse(name).unwrap()
}

/// Waits until `done` says so. Polls, because what is waited for is another process.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A client of the older era.
#[derive(Clone)]
pub struct Client {
    pub hub: Arc<Hub>,
    pub who: Principal,
    pub route: Route,
    pub session: String,
}

/// One answer over HTTP.
pub struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: downstream::streamable_http::ResponseBody,
}

impl Answer {
    pub async fn text(self) -> String {
        // Copied piece by piece, as a socket does: the next one comes when the one before is dropped.
        let (mut body, mut bytes) = (self.body, Vec::new());
        let reading = async {
            while let Some(frame) = body.frame().await {
                bytes.extend_from_slice(frame.unwrap().data_ref().unwrap());
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("it ends");
        String::from_utf8(bytes).unwrap()
    }

    pub fn is_stream(&self) -> bool {
        self.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream")
    }

    /// Every message of the answer, whether it is one or a stream.
    pub async fn messages(self) -> Vec<Value> {
        let stream = self.is_stream();
        let text = self.text().await;
        if stream {
            return events(&text).into_iter().filter_map(|(_, data)| serde_json::from_str(&data).ok()).collect();
        }
        vec![serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))]
    }
}

/// An event that is not too large for a test.
fn whole(piece: bowline_hub::sse::SseItem) -> bowline_hub::sse::Event {
    match piece {
        bowline_hub::sse::SseItem::Event(event) => event,
        piece => panic!("{piece:?}"),
    }
}

/// The ids and data of Server-Sent Events.
pub fn events(text: &str) -> Vec<(Option<String>, String)> {
    let mut parser = bowline_hub::sse::SseParser::new(1 << 24);
    parser.push(text.as_bytes()).into_iter().map(whole).map(|event| (event.id, event.data)).collect()
}

pub async fn send(hub: &Arc<Hub>, who: &Principal, route: &Route, request: http::Request<Bytes>) -> Answer {
    let response = downstream::streamable_http::handle(hub, who, route.clone(), request).await;
    let (parts, body) = response.into_parts();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

impl Client {
    pub async fn open(hub: &Arc<Hub>, who: &str, route: Route, capabilities: Value) -> (Client, Value) {
        let mut client = Client { hub: hub.clone(), who: principal(who), route, session: String::new() };
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": { "name": "test", "version": "1" } });
        let answer = client.post(&json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params })).await;
        assert_eq!(answer.status, 200);
        client.session = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let result = answer.messages().await.remove(0)["result"].clone();
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(client.post(&initialized).await.status, 202);
        (client, result)
    }

    pub async fn post(&self, message: &Value) -> Answer {
        let mut request = http::Request::post("/mcp").header("content-type", "application/json");
        if !self.session.is_empty() {
            request = request.header("mcp-session-id", &self.session);
        }
        send(&self.hub, &self.who, &self.route, request.body(message.to_string().into()).unwrap()).await
    }

    pub async fn get(&self, last_event_id: Option<&str>) -> Answer {
        let mut request = http::Request::get("/mcp").header("mcp-session-id", &self.session);
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        send(&self.hub, &self.who, &self.route, request.body(Bytes::new()).unwrap()).await
    }

    pub async fn delete(&self) -> Answer {
        let request = http::Request::delete("/mcp").header("mcp-session-id", &self.session);
        send(&self.hub, &self.who, &self.route, request.body(Bytes::new()).unwrap()).await
    }

    /// A request and its response.
    pub async fn ask(&self, method: &str, params: Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let messages = self.post(&request).await.messages().await;
        messages.into_iter().find(|message| message["method"].is_null()).expect("a response")
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await["result"].clone()
    }

    /// One of the hub's own tools; its structured content.
    pub async fn tool(&self, tool: &str, arguments: Value) -> Value {
        self.call(tool, arguments).await["structuredContent"].clone()
    }
}

/// Parameters with what each request of the modern era must say.
pub fn with_meta(mut params: Value, capabilities: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({ "name": "test", "version": "1" });
    params
}

/// A request of the modern era, with its headers.
pub async fn modern(
    hub: &Arc<Hub>,
    who: &str,
    route: &Route,
    method: &str,
    params: Value,
    capabilities: Value,
) -> Answer {
    let params = with_meta(params, capabilities);
    let mut request = http::Request::post("/mcp")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", method);
    if let Some(name) = params["name"].as_str().or(params["uri"].as_str()).or(params["taskId"].as_str()) {
        request = request.header("mcp-name", name);
    }
    let body = json!({ "jsonrpc": "2.0", "id": "m1", "method": method, "params": params });
    send(hub, &principal(who), route, request.body(body.to_string().into()).unwrap()).await
}

/// Reads a stream piece by piece.
pub struct Pieces {
    body: http_body_util::BodyStream<downstream::streamable_http::ResponseBody>,
    parser: bowline_hub::sse::SseParser,
    ready: std::collections::VecDeque<bowline_hub::sse::Event>,
}

impl Pieces {
    pub fn of(answer: Answer) -> Pieces {
        assert!(answer.is_stream());
        Pieces {
            body: http_body_util::BodyStream::new(answer.body),
            parser: bowline_hub::sse::SseParser::new(1 << 24),
            ready: std::collections::VecDeque::new(),
        }
    }

    /// The next event with its id; `None` when the stream has ended.
    pub async fn next(&mut self) -> Option<bowline_hub::sse::Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("something comes")?;
            let bytes = frame.unwrap().into_data().unwrap();
            self.ready.extend(self.parser.push(&bytes).into_iter().map(whole));
        }
    }

    /// The next message. A stream that only shows that it is alive does not count as one.
    pub async fn message(&mut self) -> Value {
        let message = async {
            loop {
                let event = self.next().await.expect("a message");
                if !event.data.is_empty() {
                    return serde_json::from_str(&event.data).unwrap();
                }
            }
        };
        tokio::time::timeout(PATIENCE, message).await.expect("a message comes")
    }

    /// Whether the stream ends here, as it soon does if it does at all.
    pub async fn is_over(&mut self) -> bool {
        tokio::time::timeout(PATIENCE, self.next()).await.expect("it ends or goes on").is_none()
    }
}
