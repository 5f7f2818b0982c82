//! What an idle attached session costs: starts the server, attaches N sessions, and reads the server's memory.
//!
//! `cargo run --release -p bowline --example idle -- 10000` (build the binary first: `cargo build --release`).
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "an example is no part of a node")]
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measuring program may panic and print"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn main() {
    let count: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let binary = std::env::args().nth(2).unwrap_or_else(|| "target/release/bowline".into());
    raise_limit();
    let dir = std::env::temp_dir().join(format!("bowline-idle-{}", std::process::id()));
    let mut server = Command::new(binary)
        .args(["serve", "--listen", "127.0.0.1:0", "--store", &format!("disk:{}", dir.display())])
        .env("BOWLINE_LOG__LEVEL", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .expect("build it first: cargo build --release");
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("serving at http://")).unwrap();
    let address: SocketAddr = line.split("http://").nth(1).unwrap().trim_end_matches('/').parse().unwrap();
    let before = memory(server.id());
    let started = Instant::now();
    let sockets: Vec<TcpStream> = (0..count).map(|_| attach(address)).collect();
    let took = started.elapsed();
    // Let buffers and queues settle.
    std::thread::sleep(Duration::from_secs(5));
    let after = memory(server.id());
    println!("idle sessions        {count}, attached in {:.1} s", took.as_secs_f64());
    println!("server memory (PSS)  {} KiB before, {} KiB after", before, after);
    println!("bytes per session    {}", (after - before) * 1024 / count as u64);
    drop(sockets);
    server.kill().unwrap();
    server.wait().unwrap();
    let _ = std::fs::remove_dir_all(dir);
}

/// One WebSocket with one session, by hand: the client side must cost little too.
fn attach(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    let hello = format!(
        "GET /ws HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    socket.write_all(hello.as_bytes()).unwrap();
    read_until(&mut socket, "system.connected");
    if std::env::var_os("BARE").is_some() {
        // Only the connection, to see what it costs by itself.
        return socket;
    }
    let frame = br#"{"event":"user.create_session","content":{"client_id":"idle","app_version":"1"}}"#;
    // A masked text frame; a mask of zeros leaves the payload as it is.
    let mut bytes = vec![0x81, 0x80 | frame.len() as u8, 0, 0, 0, 0];
    bytes.extend_from_slice(frame);
    socket.write_all(&bytes).unwrap();
    read_until(&mut socket, "agent.session_created");
    socket
}

fn read_until(socket: &mut TcpStream, what: &str) {
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while !seen.contains(what) {
        let n = socket.read(&mut buffer).unwrap();
        assert!(n > 0, "the server hung up: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
}

fn memory(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    pss.trim().trim_end_matches(" kB").parse().unwrap()
}

fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
