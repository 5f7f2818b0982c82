//! Streams of length-prefixed frames that are written to every subscriber's socket as they come.
use anyhow::Result;
use std::{
    collections::HashMap,
    io::ErrorKind::WouldBlock,
    sync::{Arc, Mutex},
};
use tokio::{io::AsyncReadExt, net::TcpStream, sync::Notify};

#[derive(Default)]
pub struct Log {
    base: usize,
    bytes: Vec<u8>,
    starts: Vec<usize>,
    subs: Vec<Arc<Sub>>,
}

pub struct Sub {
    pub tcp: TcpStream,
    backlog: Mutex<Vec<u8>>,
    full: Notify,
}

impl Sub {
    pub fn new(tcp: TcpStream) -> Arc<Sub> {
        Arc::new(Sub { tcp, backlog: Mutex::default(), full: Notify::new() })
    }

    /// Write what fits, keep the rest. False when the socket is gone.
    pub fn push(&self, chunk: &[u8]) -> bool {
        let mut b = self.backlog.lock().unwrap();
        let mut at = 0;
        if b.is_empty() {
            match self.tcp.try_write(chunk) {
                Ok(n) => at = n,
                Err(e) if e.kind() == WouldBlock => {}
                Err(_) => return false,
            }
        }
        if at < chunk.len() {
            b.extend_from_slice(&chunk[at..]);
            self.full.notify_one();
        }
        true
    }

    pub fn flush(&self) -> Result<bool> {
        let mut b = self.backlog.lock().unwrap();
        while !b.is_empty() {
            match self.tcp.try_write(&b) {
                Ok(n) => drop(b.drain(..n)),
                Err(e) if e.kind() == WouldBlock => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        *b = Vec::new();
        Ok(true)
    }

    /// Writes the backlog whenever there is one, until the socket is gone.
    pub async fn drain(&self) -> Result<()> {
        loop {
            self.full.notified().await;
            while !self.flush()? {
                self.tcp.writable().await?;
            }
        }
    }
}

impl Log {
    /// Keeps whole frames, and writes them to every subscriber.
    pub fn append(&mut self, frames: &[u8]) {
        let kept = self.bytes.len();
        whole_frames(frames, |at| self.starts.push(kept + at));
        self.bytes.extend_from_slice(frames);
        self.subs.retain(|s| s.push(frames));
        if self.starts.len() > 2000 {
            let cut = self.starts[1000];
            self.bytes.drain(..cut);
            self.starts.drain(..1000);
            self.starts.iter_mut().for_each(|s| *s -= cut);
            self.base += 1000;
        }
    }
}

/// Where the last whole frame ends; `each` is told where every frame begins.
pub fn whole_frames(buf: &[u8], mut each: impl FnMut(usize)) -> usize {
    let mut at = 0;
    while let Some(head) = buf.get(at..at + 4) {
        let n = u32::from_be_bytes(head.try_into().expect("four bytes")) as usize + 4;
        if buf.len() - at < n {
            break;
        }
        each(at);
        at += n;
    }
    at
}

pub type Streams = Arc<Mutex<HashMap<String, Arc<Mutex<Log>>>>>;

pub async fn line(tcp: &mut TcpStream) -> Result<String> {
    let mut s = Vec::new();
    loop {
        match tcp.read_u8().await? {
            b'\n' => return Ok(String::from_utf8(s)?),
            b => s.push(b),
        }
    }
}

pub async fn subscribe(tcp: TcpStream, log: Arc<Mutex<Log>>, from: Option<usize>) -> Result<()> {
    let sub = Sub::new(tcp);
    {
        let mut l = log.lock().unwrap();
        sub.push(b"+"); // subscribed: whatever is published from here on will be seen
        if let Some(&at) = from.and_then(|f| l.starts.get(f.saturating_sub(l.base))) {
            sub.push(&l.bytes[at..]);
        }
        l.subs.push(sub.clone());
    }
    let gone = async {
        let mut b = [0u8; 64];
        loop {
            sub.tcp.readable().await?;
            match sub.tcp.try_read(&mut b) {
                Ok(0) => return anyhow::Ok(()),
                Err(e) if e.kind() != WouldBlock => return Ok(()),
                _ => {}
            }
        }
    };
    let r = tokio::select! { r = gone => r, r = sub.drain() => r };
    log.lock().unwrap().subs.retain(|s| !Arc::ptr_eq(s, &sub));
    r
}
