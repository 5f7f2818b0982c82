//! Upstreams for agents: programs with prepared answers, and a server that does to a connection what a test tells it to.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};

use super::PATIENCE;

/// Where the programs are.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../judges/emulator")
}

/// A program that prints `serving at URL` and then serves.
pub struct Program {
    pub url: String,
    child: Child,
}

impl Program {
    pub async fn node(file: &str) -> Program {
        let installed = programs().join("node_modules").is_dir();
        assert!(installed, "run `npm ci` in judges/emulator first: these tests talk to real programs");
        Program::start("node", file).await
    }

    pub async fn python(file: &str) -> Program {
        Program::start("python3", file).await
    }

    async fn start(interpreter: &str, file: &str) -> Program {
        let mut command = Command::new(interpreter);
        command.arg(file).current_dir(programs()).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("`{interpreter}` cannot be started: {error}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = loop {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it says where it serves");
            let line = line.unwrap().unwrap_or_else(|| panic!("{file} ended before it served"));
            if let Some(url) = line.strip_prefix("serving at ") {
                break url.to_owned();
            }
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Program { url, child }
    }

    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// What a scripted server does next on a connection. After the last act it closes.
#[derive(Clone, Debug)]
pub enum Act {
    Send(Vec<u8>),
    /// Waits until the test says so.
    Wait(Arc<Notify>),
    /// Waits until the other side has closed.
    Hold,
    /// Breaks the connection so that the other side gets an error.
    Reset,
}

/// A server whose n-th connection gets the n-th script; the last one serves all that follow.
pub struct Scripted {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    /// How many connections the other side has closed while they were held.
    closed: watch::Receiver<usize>,
    /// How many scripts were played to their end.
    played: watch::Receiver<usize>,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub head: String,
    pub body: Value,
}

impl Scripted {
    pub async fn start(scripts: Vec<Vec<Act>>) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (closing, closed) = watch::channel(0);
        let (playing, played) = watch::channel(0);
        let (seen, closing, playing) = (requests.clone(), Arc::new(closing), Arc::new(playing));
        tokio::spawn(async move {
            let mut count = 0;
            while let Ok((socket, _)) = listener.accept().await {
                let script = scripts[count.min(scripts.len() - 1)].clone();
                count += 1;
                let (seen, closing, playing) = (seen.clone(), closing.clone(), playing.clone());
                tokio::spawn(async move {
                    if play(socket, script, seen, closing).await.is_some() {
                        playing.send_modify(|played| *played += 1);
                    }
                });
            }
        });
        Scripted { address, requests, closed, played }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until so many scripts were played to their end, which the other side has waited for.
    pub async fn played(&mut self, count: usize) {
        let seen = self.played.wait_for(|played| *played >= count);
        tokio::time::timeout(PATIENCE, seen).await.expect("the script is played to its end").unwrap();
    }

    /// Waits until the other side has closed so many connections that were held.
    pub async fn closed(&mut self, count: usize) {
        let seen = self.closed.wait_for(|closed| *closed >= count);
        tokio::time::timeout(PATIENCE, seen).await.expect("the connection is closed").unwrap();
    }
}

/// None if the other side did not let it end.
async fn play(
    mut socket: TcpStream,
    script: Vec<Act>,
    requests: Arc<Mutex<Vec<Request>>>,
    closing: Arc<watch::Sender<usize>>,
) -> Option<()> {
    let request = request(&mut socket).await?;
    requests.lock().unwrap().push(request);
    for act in script {
        match act {
            Act::Send(bytes) => socket.write_all(&bytes).await.ok()?,
            Act::Wait(signal) => signal.notified().await,
            Act::Hold => {
                let mut rest = [0; 64];
                while let Ok(1..) = socket.read(&mut rest).await {}
                closing.send_modify(|closed| *closed += 1);
                return None;
            }
            Act::Reset => {
                socket.set_zero_linger().unwrap();
                return None;
            }
        }
    }
    socket.shutdown().await.ok()?;
    // The other side reads to the end before the socket goes.
    let mut rest = [0; 64];
    let end = async { while let Ok(1..) = socket.read(&mut rest).await {} };
    tokio::time::timeout(Duration::from_secs(5), end).await.ok()
}

async fn request(socket: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                let body = serde_json::from_slice(&bytes[end + 4..end + 4 + length]).unwrap_or_default();
                return Some(Request { head: String::from_utf8_lossy(&bytes[..end]).into_owned(), body });
            }
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// The head of an answer whose end is marked, so that a break is seen as one.
pub fn head(content_type: &str) -> Act {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n");
    Act::Send(head.into_bytes())
}

/// A piece of such an answer.
pub fn piece(text: &str) -> Act {
    Act::Send(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
}

/// Its end.
pub fn end() -> Act {
    Act::Send(b"0\r\n\r\n".to_vec())
}

pub fn sse() -> Act {
    head("text/event-stream")
}

/// One record of an event stream.
pub fn data(value: &Value) -> Act {
    piece(&format!("data: {value}\n\n"))
}

/// A chunk with a piece of text.
pub fn text(text: &str) -> Act {
    data(&json!({ "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": null }] }))
}

/// A chunk that says that this is all.
pub fn stop() -> Act {
    data(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }))
}

/// A refusal.
pub fn status(line: &str, headers: &str, body: &str) -> Vec<Act> {
    let length = body.len();
    vec![Act::Send(format!("HTTP/1.1 {line}\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes())]
}

/// A whole answer.
pub fn answer(words: &str) -> Vec<Act> {
    vec![sse(), text(words), stop(), piece("data: [DONE]\n\n"), end()]
}
