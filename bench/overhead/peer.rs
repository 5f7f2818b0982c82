//! Both ends of a measured `tools/call`: a backend that costs next to nothing, and a client that calls as fast as it can.
//!
//! `peer backend PORT` speaks just enough HTTP and MCP of 2025-11-25, `peer stdio` the same over a pipe, and `peer load URL IN_FLIGHT SECONDS`
//! prints calls per second and the 50th and 99th percentile in microseconds. `peer calls URL COUNT` makes so many calls, one after the other.
//! `peer under-valgrind COMMAND…` runs what valgrind would break. Needs nothing but the standard library: `rustc -O --edition 2024 peer.rs`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["backend", port] => backend(port.parse().expect("a port")),
        ["stdio"] => stdio(),
        ["load", url, in_flight, seconds] => {
            load(url, in_flight.parse().expect("a number"), seconds.parse().expect("a number"))
        }
        ["calls", url, count] => {
            let mut wire = Wire::open(url, &begin(url));
            (1..=count.parse().expect("a number")).for_each(|id| call(&mut wire, id));
        }
        ["under-valgrind", command, ref arguments @ ..] => under_valgrind(command, arguments),
        _ => panic!(
            "peer backend PORT | peer stdio | peer load URL IN_FLIGHT SECONDS | peer calls URL COUNT | peer under-valgrind COMMAND…"
        ),
    }
}

/// The text of a member, as it is written: enough for messages that this program knows.
fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let rest = json.split_once(&format!("\"{name}\":"))?.1.trim_start();
    if let Some(text) = rest.strip_prefix('"') {
        return Some(&rest[..text.find('"')? + 2]);
    }
    rest.find([',', '}']).map(|end| &rest[..end])
}

/// The answer to a message; `None` if it wants none.
fn answer(message: &str) -> Option<String> {
    let id = member(message, "id")?;
    let result = match member(message, "method")?.trim_matches('"') {
        "initialize" => {
            r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}"#
        }
        "tools/list" => {
            r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"sleep","inputSchema":{"type":"object"}}]}"#
        }
        "tools/call" => {
            if member(message, "name") == Some("\"sleep\"") {
                std::thread::sleep(Duration::from_secs(600));
            }
            r#"{"content":[{"type":"text","text":"hello"}]}"#
        }
        "ping" => "{}",
        _ => {
            return Some(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"no such method"}}}}"#
            ));
        }
    };
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

fn stdio() {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lines() {
        if let Some(answer) = answer(&line.expect("a line")) {
            writeln!(out, "{answer}").and_then(|()| out.flush()).expect("a reader");
        }
    }
}

fn backend(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    println!("listening at {}", listener.local_addr().expect("an address"));
    for stream in listener.incoming() {
        std::thread::spawn(|| drop(serve(stream.expect("a connection"))));
    }
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some((first, body)) = read(&mut reader)? {
        if first.starts_with("GET") {
            // The stream on which such a server speaks of its own accord. This one never does.
            stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
            )?;
            continue;
        }
        let (status, text) = match answer(&body) {
            Some(text) => ("200 OK", text),
            None => ("202 Accepted", String::new()),
        };
        let kind = "content-type: application/json\r\nmcp-session-id: one";
        // In one piece: each piece would be a packet of its own, and cost its reader a wake-up.
        let whole = format!("HTTP/1.1 {status}\r\n{kind}\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        stream.write_all(whole.as_bytes())?;
    }
    Ok(())
}

/// One message of HTTP: its first line with the headers, and its body.
fn read(reader: &mut impl BufRead) -> std::io::Result<Option<(String, String)>> {
    let mut head = String::new();
    loop {
        let start = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        if head[start..].trim().is_empty() {
            break;
        }
    }
    let lower = head.to_ascii_lowercase();
    let value = |name: &str| Some(lower.split_once(&format!("\r\n{name}:"))?.1.lines().next()?.trim().to_owned());
    let mut body = Vec::new();
    if value("transfer-encoding").as_deref() == Some("chunked") {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size)?;
            let size = u64::from_str_radix(size.trim(), 16).map_err(std::io::Error::other)?;
            reader.by_ref().take(size).read_to_end(&mut body)?;
            reader.read_line(&mut String::new())?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = value("content-length") {
        reader.by_ref().take(length.parse().map_err(std::io::Error::other)?).read_to_end(&mut body)?;
    }
    Ok(Some((head, String::from_utf8_lossy(&body).into_owned())))
}

/// A connection of a client.
struct Wire {
    reader: BufReader<TcpStream>,
    stream: TcpStream,
    start: String,
}

impl Wire {
    fn open(url: &str, session: &str) -> Wire {
        let rest = url.strip_prefix("http://").expect("an http URL");
        let (host, path) = rest.split_once('/').expect("a path");
        let stream = TcpStream::connect(host).expect("somebody listens");
        stream.set_nodelay(true).expect("a socket");
        let accept = "content-type: application/json\r\naccept: application/json, text/event-stream";
        let version = "mcp-protocol-version: 2025-11-25";
        let start = format!("POST /{path} HTTP/1.1\r\nhost: {host}\r\n{accept}\r\n{version}\r\n{session}");
        Wire { reader: BufReader::new(stream.try_clone().expect("a socket")), stream, start }
    }

    fn post(&mut self, message: &str) -> (String, String) {
        let request = format!("{}content-length: {}\r\n\r\n{message}", self.start, message.len());
        self.stream.write_all(request.as_bytes()).expect("it takes the request");
        read(&mut self.reader).expect("it answers").expect("it answers")
    }
}

/// The headers of a session.
fn begin(url: &str) -> String {
    let mut wire = Wire::open(url, "");
    let params = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"load","version":"1"}}"#;
    let (head, body) = wire.post(&format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#));
    assert!(body.contains("serverInfo"), "{head}{body}");
    let session = head.lines().find(|line| line.to_ascii_lowercase().starts_with("mcp-session-id:"));
    let session = session.map(|line| format!("{line}\r\n")).unwrap_or_default();
    Wire::open(url, &session).post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    session
}

fn call(wire: &mut Wire, id: usize) {
    let params = r#"{"name":"echo","arguments":{"text":"hello"}}"#;
    let (head, body) = wire.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#));
    assert!(body.contains("hello"), "{head}{body}");
}

fn load(url: &str, in_flight: usize, seconds: u64) {
    let session = begin(url);
    let until = Instant::now() + Duration::from_secs(seconds);
    let started = Instant::now();
    let workers = (0..in_flight).map(|worker| {
        let (url, session) = (url.to_owned(), session.clone());
        std::thread::spawn(move || {
            let mut wire = Wire::open(&url, &session);
            let mut took = Vec::new();
            for number in 0.. {
                let began = Instant::now();
                if began >= until {
                    break;
                }
                call(&mut wire, number * 1000 + worker + 1);
                took.push(began.elapsed().as_micros() as u64);
            }
            took
        })
    });
    let workers: Vec<_> = workers.collect();
    let mut took: Vec<u64> = workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect();
    let elapsed = started.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |part: usize| took.get(took.len() * part / 100).copied().unwrap_or_default();
    println!(r#"{{"calls_s":{:.0},"p50_us":{},"p99_us":{}}}"#, took.len() as f64 / elapsed, at(50), at(99));
}

/// Runs a command in which `prctl(PR_GET_AUXV)` fails. Its answer names pages that valgrind has taken away, and the libraries that ask for
/// it read them; when it fails they ask `/proc`, where valgrind answers.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn under_valgrind(command: &str, arguments: &[&str]) {
    use std::os::unix::process::CommandExt;

    #[repr(C)]
    struct Instruction(u16, u8, u8, u32);
    #[repr(C)]
    struct Program(u16, *const Instruction);
    unsafe extern "C" {
        fn prctl(option: i32, ...) -> i32;
    }
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const PRCTL: u32 = 157;
    const GET_AUXV: u32 = 0x4155_5856;
    let filter = [
        Instruction(LOAD, 0, 0, 0),
        Instruction(JUMP_IF_EQUAL, 0, 3, PRCTL),
        Instruction(LOAD, 0, 0, 16),
        Instruction(JUMP_IF_EQUAL, 0, 1, GET_AUXV),
        Instruction(RETURN, 0, 0, 0x0005_0016),
        Instruction(RETURN, 0, 0, 0x7fff_0000),
    ];
    let program = Program(filter.len() as u16, filter.as_ptr());
    // SAFETY: PR_SET_NO_NEW_PRIVS takes numbers, and PR_SET_SECCOMP a program that outlives the call.
    let set = unsafe { prctl(38, 1u64, 0u64, 0u64, 0u64) == 0 && prctl(22, 2u64, &raw const program) == 0 };
    assert!(set, "no filter: {}", std::io::Error::last_os_error());
    panic!("{command}: {}", std::process::Command::new(command).args(arguments).exec());
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn under_valgrind(_: &str, _: &[&str]) {
    panic!("only on Linux with x86-64");
}
