//! A client of the HTTP API: plain requests, and streams read event by event.

use std::net::SocketAddr;

use futures_util::StreamExt;
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, Response};
use serde_json::Value;

use super::PATIENCE;

#[derive(Clone)]
pub struct Api {
    pub base: String,
    client: Client,
    headers: Vec<(String, String)>,
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: Option<String>,
    pub data: String,
}

impl Event {
    pub fn chunk(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|_| panic!("a chunk is JSON: {}", self.data))
    }

    pub fn kind(&self) -> String {
        if self.data == "[DONE]" { self.data.clone() } else { self.chunk()["type"].as_str().unwrap().to_owned() }
    }
}

impl Api {
    pub fn new(address: SocketAddr) -> Api {
        Api {
            base: format!("http://{address}"),
            client: crate::support::http_client().build().unwrap(),
            headers: Vec::new(),
        }
    }

    /// The same, with one more header on every request.
    pub fn with(&self, name: &str, value: &str) -> Api {
        let mut api = self.clone();
        api.headers.push((name.to_owned(), value.to_owned()));
        api
    }

    async fn send(&self, method: Method, path: &str, body: Option<String>) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        tokio::time::timeout(PATIENCE, request.send()).await.expect("an answer in time").expect("an answer")
    }

    pub async fn call(&self, method: Method, path: &str, body: Option<String>) -> (u16, Value) {
        let response = self.send(method, path, body).await;
        let status = response.status().as_u16();
        let text = tokio::time::timeout(PATIENCE, response.text()).await.expect("a body in time").unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.call(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call(Method::POST, path, Some(body.to_string())).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        self.call(Method::DELETE, path, None).await
    }

    /// A new session, and the path to it.
    pub async fn session(&self) -> String {
        let (status, made) = self.post("/api/chat/sessions", &serde_json::json!({})).await;
        assert_eq!(status, 201, "{made}");
        format!("/api/chat/sessions/{}", made["id"].as_str().unwrap())
    }

    pub async fn stream(&self, path: &str) -> Stream {
        Stream::of(self.send(Method::GET, path, None).await)
    }

    pub async fn start(&self, path: &str, body: &Value) -> Stream {
        Stream::of(self.send(Method::POST, path, Some(body.to_string())).await)
    }
}

pub struct Stream {
    pub status: u16,
    pub headers: HeaderMap,
    body: std::pin::Pin<Box<dyn futures_util::Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    buffer: String,
}

impl Stream {
    fn of(response: Response) -> Stream {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Stream { status, headers, body: Box::pin(response.bytes_stream()), buffer: String::new() }
    }

    /// The next event; none at a clean end. Comments are passed over, and are no reason to wait for ever.
    pub async fn next(&mut self) -> Option<Event> {
        let until = tokio::time::Instant::now() + 2 * PATIENCE;
        loop {
            assert!(tokio::time::Instant::now() < until, "nothing but comments comes");
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = block.split('\n').filter_map(|line| line.strip_prefix(name));
                    lines.next().map(|value| value.strip_prefix(' ').unwrap_or(value).to_owned())
                };
                let event = field("data:").map(|data| Event { id: field("id:"), data });
                self.buffer = rest.to_owned();
                match event {
                    Some(event) => return Some(event),
                    // A comment.
                    None => continue,
                }
            }
            let piece = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("something within 30 s");
            self.buffer.push_str(std::str::from_utf8(&piece?.expect("the stream is not cut")).unwrap());
        }
    }

    pub async fn all(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Reads up to and including the first chunk of this type.
    pub async fn until(&mut self, kind: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("the stream ended without `{kind}`"));
            let found = event.kind() == kind;
            events.push(event);
            if found {
                return events;
            }
        }
    }

    /// The task that is streamed.
    pub fn task(&self) -> String {
        self.headers["x-workflow-run-id"].to_str().unwrap().to_owned()
    }
}

/// The text of all text deltas.
pub fn text(events: &[Event]) -> String {
    let chunks = events.iter().filter(|event| event.kind() == "text-delta").map(Event::chunk);
    chunks.map(|chunk| chunk["delta"].as_str().unwrap().to_owned()).collect()
}

pub fn kinds(events: &[Event]) -> Vec<String> {
    events.iter().map(Event::kind).collect()
}
