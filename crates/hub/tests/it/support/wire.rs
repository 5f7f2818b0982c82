//! A client of the hub that speaks over stdio.

use std::collections::VecDeque;
use std::sync::Arc;

use bowline_hub::{Hub, Route, downstream};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use super::{PATIENCE, principal};

/// The longest line that the hub takes from it.
pub const LINE_BYTES_MAX: usize = 64 << 10;

pub struct Wire {
    write: WriteHalf<DuplexStream>,
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    serving: JoinHandle<std::io::Result<()>>,
    next: u64,
    /// What came while something else was waited for.
    aside: VecDeque<Value>,
}

impl Wire {
    pub fn open(hub: &Arc<Hub>, who: &str, route: Route) -> Wire {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (input, output) = tokio::io::split(theirs);
        let input = BufReader::new(input);
        let serving = downstream::stdio::serve(hub.clone(), principal(who), route, LINE_BYTES_MAX, input, output);
        let (read, write) = tokio::io::split(ours);
        let lines = BufReader::new(read).lines();
        Wire { write, lines, serving: tokio::spawn(serving), next: 1, aside: VecDeque::new() }
    }

    pub async fn initialize(&mut self, capabilities: Value) -> Value {
        let info = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info });
        let answer = self.ask("initialize", params).await;
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        answer["result"].clone()
    }

    pub async fn send(&mut self, message: &Value) {
        self.write.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Sends a request; its id.
    pub async fn begin(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        id
    }

    pub async fn begin_modern(&mut self, method: &str, params: Value, capabilities: Value) -> u64 {
        self.begin(method, super::with_meta(params, capabilities)).await
    }

    pub async fn cancel(&mut self, id: u64) {
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }))
            .await;
    }

    /// The next message, whatever it is.
    pub async fn message(&mut self) -> Value {
        match self.aside.pop_front() {
            Some(message) => message,
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("something comes");
        serde_json::from_str(&line.unwrap().expect("a line")).unwrap()
    }

    /// The response to a request. What comes before it is kept.
    pub async fn response(&mut self, id: u64) -> Value {
        let response = |message: &Value| message["id"] == id && message["method"].is_null();
        if let Some(at) = self.aside.iter().position(response) {
            return self.aside.remove(at).unwrap();
        }
        loop {
            let message = self.read().await;
            if response(&message) {
                return message;
            }
            self.aside.push_back(message);
        }
    }

    pub async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.response(id).await
    }

    pub async fn ask_modern(&mut self, method: &str, params: Value, capabilities: Value) -> Value {
        let id = self.begin_modern(method, params, capabilities).await;
        self.response(id).await
    }

    /// Ends its input, and waits until the hub has seen it out.
    pub async fn leave(mut self) {
        self.write.shutdown().await.unwrap();
        tokio::time::timeout(PATIENCE, self.serving).await.expect("it ends").unwrap().unwrap();
    }
}
