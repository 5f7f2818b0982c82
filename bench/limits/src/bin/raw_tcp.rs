//! Raw tokio TCP broadcast of pre-framed bytes: the publisher's task writes each received
//! chunk straight to every subscriber's socket; a backlog is kept only when a socket is full.
//! Frames are kept in memory (last 1000+) so that replay is one copy of contiguous bytes.
use anyhow::Result;
use std::{
    collections::HashMap,
    io::ErrorKind::WouldBlock,
    sync::{Arc, Mutex},
};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::Notify,
};

#[derive(Default)]
struct Log {
    base: usize,
    bytes: Vec<u8>,
    starts: Vec<usize>,
    subs: Vec<Arc<Sub>>,
}

struct Sub {
    tcp: TcpStream,
    backlog: Mutex<Vec<u8>>,
    full: Notify,
}

impl Sub {
    /// Write what fits, keep the rest. False when the socket is gone.
    fn push(&self, chunk: &[u8]) -> bool {
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

    fn flush(&self) -> Result<bool> {
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
}

type Streams = Arc<Mutex<HashMap<String, Arc<Mutex<Log>>>>>;

async fn line(tcp: &mut TcpStream) -> Result<String> {
    let mut s = Vec::new();
    loop {
        match tcp.read_u8().await? {
            b'\n' => return Ok(String::from_utf8(s)?),
            b => s.push(b),
        }
    }
}

async fn publish(mut tcp: TcpStream, log: Arc<Mutex<Log>>) -> Result<()> {
    let mut buf = Vec::with_capacity(65536);
    loop {
        if tcp.read_buf(&mut buf).await? == 0 {
            return Ok(());
        }
        let mut l = log.lock().unwrap();
        let mut at = 0;
        while buf.len() - at >= 4 {
            let n = u32::from_be_bytes(buf[at..at + 4].try_into()?) as usize + 4;
            if buf.len() - at < n {
                break;
            }
            let start = l.bytes.len() + at;
            l.starts.push(start);
            at += n;
        }
        l.bytes.extend_from_slice(&buf[..at]);
        l.subs.retain(|s| s.push(&buf[..at]));
        if l.starts.len() > 2000 {
            let cut = l.starts[1000];
            l.bytes.drain(..cut);
            l.starts.drain(..1000);
            l.starts.iter_mut().for_each(|s| *s -= cut);
            l.base += 1000;
        }
        drop(l);
        buf.drain(..at);
    }
}

async fn subscribe(tcp: TcpStream, log: Arc<Mutex<Log>>, from: Option<usize>) -> Result<()> {
    let sub = Arc::new(Sub { tcp, backlog: Mutex::default(), full: Notify::new() });
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
    let drain = async {
        loop {
            sub.full.notified().await;
            while !sub.flush()? {
                sub.tcp.writable().await?;
            }
        }
    };
    let r = tokio::select! { r = gone => r, r = drain => r };
    log.lock().unwrap().subs.retain(|s| !Arc::ptr_eq(s, &sub));
    r
}

fn main() -> Result<()> {
    limits::block_on(async {
        let listener = TcpListener::bind(limits::addr()).await?;
        let streams = Streams::default();
        loop {
            let (mut tcp, _) = listener.accept().await?;
            tcp.set_nodelay(true)?;
            let streams = streams.clone();
            tokio::spawn(async move {
                let l = line(&mut tcp).await?;
                let mut w = l.split(' ');
                let (verb, name, from) = (w.next(), w.next().unwrap_or(""), w.next().unwrap_or("-"));
                let log = streams.lock().unwrap().entry(name.to_string()).or_default().clone();
                match verb {
                    Some("PUB") => publish(tcp, log).await,
                    _ => subscribe(tcp, log, from.parse().ok()).await,
                }
            });
        }
    })
}
