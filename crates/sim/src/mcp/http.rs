//! HTTP/1.1 as the simulated backend speaks it: requests with a length, answers with one or in chunks.

use std::io;

use bowline_env::net::Socket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What a client sent.
#[derive(Debug)]
pub struct BackendRequest {
    pub method: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl BackendRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// One connection, with what was read of it and not used.
pub struct BackendConnection {
    socket: Socket,
    unread: Vec<u8>,
}

impl BackendConnection {
    pub fn new(socket: Socket) -> BackendConnection {
        BackendConnection { socket, unread: Vec::new() }
    }

    async fn more(&mut self) -> Option<()> {
        let mut buffer = [0; 4096];
        let count = self.socket.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        self.unread.extend_from_slice(&buffer[..count]);
        Some(())
    }

    /// The next request; none when the connection is over.
    pub async fn next(&mut self) -> Option<BackendRequest> {
        let end = loop {
            match self.unread.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(at) => break at,
                None => self.more().await?,
            }
        };
        let head = String::from_utf8(self.unread.drain(..end + 4).collect()).ok()?;
        let method = head.split(' ').next()?.to_owned();
        let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let headers: Vec<(String, String)> =
            lines.map(|(key, value)| (key.to_ascii_lowercase(), value.trim().to_owned())).collect();
        let mut request = BackendRequest { method, headers, body: Vec::new() };
        let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        while self.unread.len() < length {
            self.more().await?;
        }
        request.body = self.unread.drain(..length).collect();
        Some(request)
    }

    /// A whole answer. `headers` are lines of their own.
    pub async fn answer(&mut self, status: u16, headers: &str, body: &str) -> io::Result<()> {
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let length = body.len();
        let text = format!("HTTP/1.1 {status} -\r\n{headers}{kind}content-length: {length}\r\n\r\n{body}");
        self.socket.write_all(text.as_bytes()).await
    }

    pub async fn begin_stream(&mut self) -> io::Result<()> {
        let head = "HTTP/1.1 200 -\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        self.socket.write_all(head.as_bytes()).await
    }

    pub async fn piece(&mut self, text: &str) -> io::Result<()> {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.socket.write_all(chunk.as_bytes()).await
    }

    pub async fn end_stream(&mut self) -> io::Result<()> {
        self.socket.write_all(b"0\r\n\r\n").await
    }
}
