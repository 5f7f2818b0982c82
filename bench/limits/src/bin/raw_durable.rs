//! The least that "stored before visible" costs: raw TCP broadcast as in `raw_tcp`, but a frame is written to a file and
//! synced before a subscriber gets it, and its publisher is answered (four bytes) after that. Whatever waits when a sync
//! ends shares the next one. `raw_durable <addr> <file>`.
use anyhow::{Context, Result};
use limits::broadcast::{line, subscribe, whole_frames, Log, Streams, Sub};
use std::{
    fs::OpenOptions,
    os::unix::fs::FileExt,
    sync::{Arc, Condvar, Mutex},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

/// The file is written once before, so that a sync changes no metadata; then it is written from the start again.
const FILE_BYTES: u64 = 64 << 20;

struct Pending {
    log: Arc<Mutex<Log>>,
    frames: Vec<u8>,
    count: usize,
    publisher: Arc<Sub>,
}

#[derive(Default)]
struct Queue {
    pending: Mutex<Vec<Pending>>,
    woken: Condvar,
}

async fn publish(tcp: TcpStream, log: Arc<Mutex<Log>>, queue: Arc<Queue>) -> Result<()> {
    let publisher = Sub::new(tcp);
    let drained = publisher.clone();
    let drain = tokio::spawn(async move { drained.drain().await });
    let mut buf = Vec::with_capacity(65536);
    loop {
        publisher.tcp.readable().await?;
        match publisher.tcp.try_read_buf(&mut buf) {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e.into()),
        }
        let mut count = 0;
        let at = whole_frames(&buf, |_| count += 1);
        if count > 0 {
            let frames = buf[..at].to_vec();
            let one = Pending { log: log.clone(), frames, count, publisher: publisher.clone() };
            let mut pending = queue.pending.lock().unwrap();
            pending.push(one);
            let first = pending.len() == 1;
            drop(pending);
            if first {
                queue.woken.notify_one();
            }
        }
        buf.drain(..at);
    }
    drain.abort();
    Ok(())
}

/// Takes what waits, writes it in one piece, syncs, and hands it back to the runtime.
fn write(path: &str, queue: &Queue, durable: &mpsc::UnboundedSender<Vec<Pending>>) -> Result<()> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path).context("the file")?;
    for at in 0..FILE_BYTES >> 20 {
        file.write_all_at(&vec![0; 1 << 20], at << 20)?;
    }
    file.sync_all()?;
    let (mut end, mut bytes) = (0, Vec::new());
    loop {
        let mut pending = queue.pending.lock().unwrap();
        while pending.is_empty() {
            pending = queue.woken.wait(pending).unwrap();
        }
        let taken = std::mem::take(&mut *pending);
        drop(pending);
        bytes.clear();
        taken.iter().for_each(|one| bytes.extend_from_slice(&one.frames));
        if end + bytes.len() as u64 > FILE_BYTES {
            end = 0;
        }
        file.write_all_at(&bytes, end)?;
        file.sync_data()?;
        end += bytes.len() as u64;
        if durable.send(taken).is_err() {
            return Ok(());
        }
    }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(2).context("raw_durable <addr> <file>")?;
    let queue = Arc::new(Queue::default());
    let (send, mut durable) = mpsc::unbounded_channel::<Vec<Pending>>();
    let writers = queue.clone();
    std::thread::spawn(move || write(&path, &writers, &send).expect("the file can be written"));
    limits::block_on(async {
        let listener = TcpListener::bind(limits::addr()).await?;
        let streams = Streams::default();
        tokio::spawn(async move {
            while let Some(group) = durable.recv().await {
                for Pending { log, frames, count, publisher } in group {
                    log.lock().unwrap().append(&frames);
                    publisher.push(&b"done".repeat(count));
                }
            }
        });
        loop {
            let (mut tcp, _) = listener.accept().await?;
            tcp.set_nodelay(true)?;
            let (streams, queue) = (streams.clone(), queue.clone());
            tokio::spawn(async move {
                let l = line(&mut tcp).await?;
                let mut w = l.split(' ');
                let (verb, name, from) = (w.next(), w.next().unwrap_or(""), w.next().unwrap_or("-"));
                let log = streams.lock().unwrap().entry(name.to_string()).or_default().clone();
                match verb {
                    Some("PUB") => publish(tcp, log, queue).await,
                    _ => subscribe(tcp, log, from.parse().ok()).await,
                }
            });
        }
    })
}
