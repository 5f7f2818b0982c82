//! Raw tokio TCP broadcast of pre-framed bytes: the publisher's task writes each received
//! chunk straight to every subscriber's socket; a backlog is kept only when a socket is full.
//! Frames are kept in memory (last 1000+) so that replay is one copy of contiguous bytes.
use anyhow::Result;
use limits::broadcast::{line, subscribe, whole_frames, Log, Streams};
use std::sync::{Arc, Mutex};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
};

async fn publish(mut tcp: TcpStream, log: Arc<Mutex<Log>>) -> Result<()> {
    let mut buf = Vec::with_capacity(65536);
    loop {
        if tcp.read_buf(&mut buf).await? == 0 {
            return Ok(());
        }
        let at = whole_frames(&buf, |_| {});
        log.lock().unwrap().append(&buf[..at]);
        buf.drain(..at);
    }
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
