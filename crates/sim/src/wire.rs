//! How the simulation's clients reach the server: a WebSocket, plain requests, and streams of server-sent events.
//!
//! None of it is the server's own client (`crates/client`): what shares code with the server cannot judge it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowline_env::clock;
use bowline_protocol::frame::names;
use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::dice::Dice;
use crate::net::{CLIENTS, FIRST_NODE, Machine, SimNet, SimSocket, address};
use crate::trace::Trace;

/// How often the server gives a sign of life; twice as long without one, and the connection is lost.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(4);

/// The connection is lost.
#[derive(Debug)]
pub struct Lost;

impl<E: std::error::Error> From<E> for Lost {
    fn from(_: E) -> Lost {
        Lost
    }
}

/// Who connects, and how it is called in the trace.
#[derive(Clone, Debug)]
pub struct SimCaller {
    pub net: SimNet,
    pub trace: Trace,
    pub who: String,
    pub token: String,
    /// Which node it comes to, as a balancer has it.
    pub balancer: Balancer,
}

/// Sends each connection to any node. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Balancer(Arc<Mutex<Dice>>, u8);

impl Balancer {
    pub fn new(dice: Dice, nodes: u8) -> Balancer {
        Balancer(Arc::new(Mutex::new(dice)), nodes)
    }

    fn node(&self) -> Machine {
        let mut dice = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        FIRST_NODE + dice.below(u64::from(self.1)) as Machine
    }
}

/// One WebSocket.
pub struct Wire {
    socket: WebSocketStream<SimSocket>,
    trace: Trace,
    who: String,
    pub link: u64,
    /// When the last sign of life came.
    heard: Instant,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wire({})", self.link)
    }
}

impl SimCaller {
    async fn dial(&self) -> Result<(SimSocket, SocketAddr), Lost> {
        let node = self.balancer.node();
        Ok((timeout(PATIENCE, self.net.dial(CLIENTS, node)).await??, address(node)))
    }

    /// A WebSocket that was greeted.
    pub async fn connect(&self) -> Result<Wire, Lost> {
        let (socket, host) = self.dial().await?;
        let link = socket.link();
        let mut request = format!("ws://{host}/ws").into_client_request()?;
        request.headers_mut().insert("authorization", format!("Bearer {}", self.token).parse()?);
        let shake = tokio_tungstenite::client_async(request, socket);
        let (socket, _) = timeout(PATIENCE, Box::pin(shake)).await??;
        let mut wire = Wire { socket, trace: self.trace.clone(), who: self.who.clone(), link, heard: clock::now() };
        let hello = wire.next().await?;
        if hello["event"] == names::CONNECTED { Ok(wire) } else { Err(Lost) }
    }

    /// A request; returns the status and the body.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<(u16, Value), Lost> {
        let mut answer = self.begin(method, path, headers, body).await?;
        let value = serde_json::from_slice(&answer.body().await?).unwrap_or(Value::Null);
        self.trace.note(&self.who, format_args!("{method} {path} ← {} {}", answer.status, short(&value)));
        Ok((answer.status, value))
    }

    /// A request whose answer is read piece by piece.
    pub async fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<HttpAnswer, Lost> {
        let (mut socket, host) = self.dial().await?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nauthorization: Bearer {}\r\n",
            self.token
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        let request = format!("{head}\r\n{body}");
        timeout(PATIENCE, socket.write_all(request.as_bytes())).await??;
        let mut answer =
            HttpAnswer { socket, unread: Vec::new(), status: 0, head: String::new(), body: HttpBody::ToTheEnd };
        answer.read_head().await?;
        Ok(answer)
    }

    /// What lies between two attempts.
    pub async fn pause(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

impl Wire {
    pub async fn send(&mut self, frame: &Value) -> Result<(), Lost> {
        self.trace.note(&self.who, format_args!("→ {}", short(frame)));
        timeout(PATIENCE, self.socket.send(Message::text(frame.to_string()))).await??;
        Ok(())
    }

    /// The next frame. Silence for two heartbeats is a loss.
    pub async fn next(&mut self) -> Result<Value, Lost> {
        self.next_within(2 * HEARTBEAT).await?.ok_or(Lost)
    }

    /// The next frame, if one comes in time.
    pub async fn next_within(&mut self, time: Duration) -> Result<Option<Value>, Lost> {
        loop {
            let next = timeout(time, self.socket.next()).await;
            let now = clock::now();
            if next.is_ok() {
                self.heard = now;
            }
            match next {
                Err(_elapsed) if now > self.heard + 2 * HEARTBEAT => {
                    self.trace.note(&self.who, "nothing was heard for two heartbeats");
                    return Err(Lost);
                }
                Err(_elapsed) => return Ok(None),
                Ok(Some(Ok(Message::Text(text)))) => {
                    let frame: Value = serde_json::from_str(&text)?;
                    self.trace.note(&self.who, format_args!("← {}", short(&frame)));
                    return Ok(Some(frame));
                }
                Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) => {
                    self.trace.note(&self.who, "connection lost");
                    return Err(Lost);
                }
                Ok(Some(Ok(_))) => {}
            }
        }
    }
}

/// A frame or body in a line for a person.
fn short(value: &Value) -> String {
    let mut line = value["event"].as_str().unwrap_or_default().to_owned();
    for key in ["seq", "message_id", "step_id"] {
        if let Some(value) = value.get(key) {
            line.push_str(&format!(" {key}={value}"));
        }
    }
    let facts = &value["metadata"];
    for key in ["action", "code", "error_code", "resume", "last_seq", "source"] {
        if let Some(value) = facts.get(key) {
            line.push_str(&format!(" {key}={value}"));
        }
    }
    for key in ["code", "task_id", "last_message_id", "status", "cancelled"] {
        if let Some(value) = value.get(key) {
            line.push_str(&format!(" {key}={value}"));
        }
    }
    if let Some(content) = value.get("content") {
        line.push_str(&format!(" {}", content.to_string().chars().take(60).collect::<String>()));
    }
    line
}

/// An answer that is being read.
#[derive(Debug)]
pub struct HttpAnswer {
    socket: SimSocket,
    unread: Vec<u8>,
    pub status: u16,
    head: String,
    body: HttpBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpBody {
    Length(usize),
    Chunked,
    ToTheEnd,
    Over,
}

impl HttpAnswer {
    async fn more(&mut self) -> Result<(), Lost> {
        let mut buffer = [0; 4096];
        // A stream says something every ten seconds, if only that it is there.
        let count = timeout(Duration::from_secs(12), self.socket.read(&mut buffer)).await??;
        if count == 0 {
            return Err(Lost);
        }
        self.unread.extend_from_slice(&buffer[..count]);
        Ok(())
    }

    /// Everything up to the first `end`, which is taken too.
    async fn until(&mut self, end: &[u8]) -> Result<Vec<u8>, Lost> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end) {
                let mut taken: Vec<u8> = self.unread.drain(..at + end.len()).collect();
                taken.truncate(at);
                return Ok(taken);
            }
            self.more().await?;
        }
    }

    async fn exactly(&mut self, count: usize) -> Result<Vec<u8>, Lost> {
        while self.unread.len() < count {
            self.more().await?;
        }
        Ok(self.unread.drain(..count).collect())
    }

    async fn read_head(&mut self) -> Result<(), Lost> {
        self.head = String::from_utf8(self.until(b"\r\n\r\n").await?)?.to_ascii_lowercase();
        self.status = self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(Lost)?;
        self.body = if self.header("transfer-encoding") == Some("chunked") {
            HttpBody::Chunked
        } else if let Some(len) = self.header("content-length").and_then(|len| len.parse().ok()) {
            HttpBody::Length(len)
        } else if self.status == 204 {
            HttpBody::Over
        } else {
            HttpBody::ToTheEnd
        };
        Ok(())
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// What is left of the body, to its end.
    pub async fn body(&mut self) -> Result<Vec<u8>, Lost> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece().await? {
            bytes.extend(piece);
        }
        Ok(bytes)
    }

    /// The next piece of the body; none when it is whole. A body that breaks off is lost.
    async fn piece(&mut self) -> Result<Option<Vec<u8>>, Lost> {
        match self.body {
            HttpBody::Over => Ok(None),
            HttpBody::Length(len) => {
                self.body = HttpBody::Over;
                Ok(Some(self.exactly(len).await?))
            }
            HttpBody::ToTheEnd => Err(Lost),
            HttpBody::Chunked => {
                let size = String::from_utf8(self.until(b"\r\n").await?)?;
                let size = usize::from_str_radix(size.trim(), 16)?;
                let piece = self.exactly(size + 2).await?;
                if size == 0 {
                    self.body = HttpBody::Over;
                    return Ok(None);
                }
                Ok(Some(piece[..size].to_vec()))
            }
        }
    }
}

/// Server-sent events of one answer.
#[derive(Debug)]
pub struct SseReader {
    answer: HttpAnswer,
    text: Vec<u8>,
}

impl SseReader {
    pub fn new(answer: HttpAnswer) -> SseReader {
        SseReader { answer, text: Vec::new() }
    }

    /// The next event, as its id and its data; none at the end.
    pub async fn next(&mut self) -> Result<Option<(Option<String>, String)>, Lost> {
        loop {
            if let Some(at) = self.text.windows(2).position(|window| window == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..at + 2).collect();
                let block = String::from_utf8(block)?;
                let field = |name: &str| {
                    let mut lines = block.lines().filter_map(|line| line.strip_prefix(name));
                    lines.next().map(|value| value.trim_start().to_owned())
                };
                match field("data:") {
                    Some(data) => return Ok(Some((field("id:"), data))),
                    None => continue,
                }
            }
            match self.answer.piece().await? {
                Some(piece) => self.text.extend(piece),
                None => return Ok(None),
            }
        }
    }
}
