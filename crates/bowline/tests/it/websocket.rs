//! The WebSocket protocol itself, byte by byte: the cases of the Autobahn test suite that concern a server, over a real socket to `/ws`.
//!
//! Numbers in the tests are Autobahn's. Left out: compression (12, 13), which is not offered, and the opening
//! handshake (11), which Autobahn has none of; of the limits (9), only that they hold, since its largest messages are above ours.
//! Autobahn wants an echo. Here a text that is no JSON is answered by an error that names it so, and `/echo` answers what it was given.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use serde_json::{Value, json};

use crate::support::{PATIENCE, Server};

const FIN: u8 = 0x80;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A frame as clients send them: masked.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..=125 => bytes.push(0x80 | len as u8),
        len @ 126..=65535 => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    let mask = [0x12, 0x34, 0x56, 0x78];
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(FIN | CLOSE, &[&code.to_be_bytes(), reason].concat())
}

/// What the server sends.
#[derive(Debug, PartialEq)]
enum Seen {
    Text(Value),
    Pong(Vec<u8>),
    Close(Option<u16>),
    /// The connection is over.
    End,
}

struct Wire {
    socket: TcpStream,
    session: String,
    /// What the server answered to the upgrade.
    head: String,
}

impl Wire {
    async fn open(server: &Server) -> Wire {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let request = "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n";
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(timeout(PATIENCE, socket.read_u8()).await.unwrap().unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101"), "{head}");
        let mut wire = Wire { socket, session: String::new(), head };
        assert!(matches!(wire.next().await, Seen::Text(hello) if hello["event"] == "system.connected"));
        wire
    }

    /// A connection with a session, whose agent echoes.
    async fn with_session(server: &Server) -> Wire {
        let mut wire = Wire::open(server).await;
        wire.send(&frame(FIN | TEXT, json!({ "event": "user.create_session", "content": {} }).to_string().as_bytes()))
            .await;
        let created = wire.event("agent.session_created").await;
        wire.session = created["session_id"].as_str().unwrap().to_owned();
        wire
    }

    async fn send(&mut self, bytes: &[u8]) {
        // The server may have failed the connection already; what it said is read afterwards.
        let _ = self.socket.write_all(bytes).await;
    }

    async fn send_in_pieces(&mut self, bytes: &[u8], len: usize) {
        self.socket.set_nodelay(true).unwrap();
        for piece in bytes.chunks(len) {
            self.send(piece).await;
        }
    }

    async fn next(&mut self) -> Seen {
        timeout(PATIENCE, self.read()).await.expect("something comes within 30 s").unwrap_or(Seen::End)
    }

    async fn read(&mut self) -> std::io::Result<Seen> {
        loop {
            let (first, second) = (self.socket.read_u8().await?, self.socket.read_u8().await?);
            assert_eq!((first & 0x70, second & 0x80), (0, 0), "a server's frame has no reserved bit and no mask");
            let len = match second {
                126 => self.socket.read_u16().await?.into(),
                127 => self.socket.read_u64().await?,
                len => len.into(),
            };
            let mut payload = vec![0; len as usize];
            self.socket.read_exact(&mut payload).await?;
            match first {
                0x81 => return Ok(Seen::Text(serde_json::from_slice(&payload).expect("JSON in one piece"))),
                0x88 if payload.is_empty() => return Ok(Seen::Close(None)),
                0x88 => return Ok(Seen::Close(Some(u16::from_be_bytes([payload[0], payload[1]])))),
                0x8a => return Ok(Seen::Pong(payload)),
                // A heartbeat.
                0x89 => {}
                other => panic!("a frame that begins with {other:#x}"),
            }
        }
    }

    async fn event(&mut self, name: &str) -> Value {
        loop {
            match self.next().await {
                Seen::Text(event) if event["event"] == name => return event,
                Seen::Text(_) => {}
                other => panic!("{other:?} instead of {name}"),
            }
        }
    }

    /// A message whose answer is `text`, so long that the frame has `len` bytes of payload.
    fn message(&self, text: &str) -> String {
        json!({ "event": "user.message", "session_id": self.session, "content": format!("/echo {text}") }).to_string()
    }

    async fn echoes(&mut self, text: &str, case: &str) {
        assert_eq!(self.event("agent.final_answer").await["content"], text, "case {case}");
    }

    /// The text was taken: it is answered, and the connection goes on.
    async fn is_answered(&mut self, case: &str) {
        match self.next().await {
            Seen::Text(error) if error["event"] == "system.error" => {}
            other => panic!("case {case}: {other:?} instead of an answer"),
        }
        self.lives(case).await;
    }

    async fn lives(&mut self, case: &str) {
        self.send(&frame(FIN | PING, b"alive?")).await;
        assert_eq!(self.next().await, Seen::Pong(b"alive?".to_vec()), "case {case}: the connection goes on");
    }

    /// The server fails the connection with this code, and ends it.
    async fn fails(&mut self, code: u16, case: &str) {
        assert_eq!(self.next().await, Seen::Close(Some(code)), "case {case}");
        self.send(&close(code, b"")).await;
        assert_eq!(self.next().await, Seen::End, "case {case}");
    }
}

#[tokio::test]
async fn texts_of_any_length_arrive_whole_however_their_bytes_are_cut() {
    let server = Server::start().await;
    let mut wire = Wire::with_session(&server).await;
    let empty = wire.message("").len();
    // 1.1.2 to 1.1.8. Ours must be JSON, so the shortest is as long as an empty message.
    for (case, len) in [
        ("1.1.2", empty),
        ("1.1.3", empty + 1),
        ("1.1.4", 126.max(empty)),
        ("1.1.5", 128.max(empty)),
        ("1.1.6", 65535),
        ("1.1.7", 65536),
    ] {
        let text = "*".repeat(len - empty);
        let message = wire.message(&text);
        assert_eq!(message.len(), len);
        wire.send(&frame(FIN | TEXT, message.as_bytes())).await;
        wire.echoes(&text, case).await;
    }
    let text = "*".repeat(65536 - empty);
    let message = frame(FIN | TEXT, wire.message(&text).as_bytes());
    wire.send_in_pieces(&message, 997).await;
    wire.echoes(&text, "1.1.8").await;
    // 1.1.1: nothing at all is a text too, if none of ours.
    wire.send(&frame(FIN | TEXT, b"")).await;
    wire.is_answered("1.1.1").await;
    server.stop().await;
}

#[tokio::test]
async fn binary_messages_are_refused_with_their_own_code() {
    let server = Server::start().await;
    // 1.2.1 to 1.2.8.
    for len in [0, 125, 126, 127, 128, 65535, 65536] {
        let mut wire = Wire::open(&server).await;
        wire.send(&frame(FIN | BINARY, &vec![0xfe; len])).await;
        wire.fails(1003, &format!("1.2, {len} bytes")).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn pings_are_answered_with_what_they_brought_and_pongs_are_ignored() {
    let server = Server::start().await;
    let mut wire = Wire::open(&server).await;
    let payloads: [(&str, &[u8]); 5] = [
        ("2.1", b""),
        ("2.2", b"Hello, world!"),
        ("2.3", &[0x00, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0x00, 0xff]),
        ("2.4", &[0xfe; 125]),
        ("2.6", &[0xfe; 125]),
    ];
    for (case, payload) in payloads {
        let len = if case == "2.6" { 1 } else { 1000 };
        wire.send_in_pieces(&frame(FIN | PING, payload), len).await;
        assert_eq!(wire.next().await, Seen::Pong(payload.to_vec()), "case {case}");
    }
    for (case, pongs) in
        [("2.7", vec![&b""[..]]), ("2.8", vec![b"unsolicited"]), ("2.9", vec![b"unsolicited", b"again"])]
    {
        for pong in pongs {
            wire.send(&frame(FIN | PONG, pong)).await;
        }
        wire.lives(case).await;
    }
    // 2.10 and 2.11: ten at once, and ten byte by byte. An answer may stand for all pings before it (RFC 6455, 5.5.3).
    for (case, piece) in [("2.10", 1000), ("2.11", 1)] {
        let pings: Vec<u8> = (0..10).flat_map(|nth| frame(FIN | PING, format!("payload-{nth}").as_bytes())).collect();
        wire.send_in_pieces(&pings, piece).await;
        let mut expected = 0..10;
        while !expected.is_empty() {
            let Seen::Pong(payload) = wire.next().await else { panic!("case {case}: no pong") };
            let answered = expected.find(|nth| payload == format!("payload-{nth}").into_bytes());
            assert!(answered.is_some(), "case {case}: {payload:?} is out of order");
        }
    }
    // 2.5: no control frame is longer than 125 bytes.
    wire.send(&frame(FIN | PING, &[0xfe; 126])).await;
    wire.fails(1002, "2.5").await;
    server.stop().await;
}

#[tokio::test]
async fn reserved_bits_and_opcodes_and_unmasked_frames_fail_the_connection() {
    let server = Server::start().await;
    // 3.1 to 3.7: a good text goes before.
    for (case, bits) in
        [("3.1", 0x40), ("3.2", 0x20), ("3.3", 0x30), ("3.4", 0x10), ("3.5", 0x50), ("3.6", 0x60), ("3.7", 0x70)]
    {
        for opcode in [TEXT, BINARY, PING, CLOSE] {
            let mut wire = Wire::open(&server).await;
            wire.send(&frame(FIN | TEXT, b"a good one")).await;
            wire.is_answered(case).await;
            wire.send(&frame(FIN | bits | opcode, b"")).await;
            wire.fails(1002, case).await;
        }
    }
    // 4.1 and 4.2: with and without a payload, also behind a good text.
    for opcode in (3..=7).chain(11..=15) {
        for payload in [&b""[..], b"reserved opcode payload"] {
            let mut wire = Wire::open(&server).await;
            wire.send(
                &[frame(FIN | TEXT, b"a good one"), frame(FIN | opcode, payload), frame(FIN | PING, b"")].concat(),
            )
            .await;
            assert!(matches!(wire.next().await, Seen::Text(_)));
            wire.fails(1002, &format!("4, opcode {opcode}")).await;
        }
    }
    // RFC 6455, 5.1; Autobahn has no case for it.
    let mut wire = Wire::open(&server).await;
    wire.send(&[FIN | TEXT, 2, b'h', b'i']).await;
    wire.fails(1002, "unmasked").await;
    server.stop().await;
}

#[tokio::test]
async fn fragments_make_one_message_and_control_frames_may_come_between() {
    let server = Server::start().await;
    let mut wire = Wire::with_session(&server).await;
    let text = "fragment1 fragment2 κόσμε";
    let message = wire.message(text);
    let bytes = message.as_bytes();
    let cut = bytes.len() - 7;
    let (one, two) = bytes.split_at(cut);
    // 5.3 to 5.5: in one piece, frame by frame, byte by byte.
    let both = [frame(TEXT, one), frame(FIN | CONTINUATION, two)];
    for (case, piece) in [("5.3", 100_000), ("5.5", 1)] {
        wire.send_in_pieces(&both.concat(), piece).await;
        wire.echoes(text, case).await;
    }
    wire.send(&both[0]).await;
    wire.lives("5.4").await;
    wire.send(&both[1]).await;
    wire.echoes(text, "5.4").await;
    // 5.6 to 5.8: a ping between is answered at once.
    for (case, piece) in [("5.6", 100_000), ("5.8", 1)] {
        let all = [both[0].clone(), frame(FIN | PING, b"ping payload"), both[1].clone()].concat();
        wire.send_in_pieces(&all, piece).await;
        assert_eq!(wire.next().await, Seen::Pong(b"ping payload".to_vec()), "case {case}");
        wire.echoes(text, case).await;
    }
    // 5.19 and 5.20: five fragments with pings between, and empty ones among them (6.1, 9.7).
    let mut all = frame(TEXT, b"");
    for piece in bytes.chunks(bytes.len().div_ceil(4)) {
        all.extend(frame(CONTINUATION, piece));
        all.extend(frame(FIN | PING, b"between"));
        all.extend(frame(CONTINUATION, b""));
    }
    all.extend(frame(FIN | CONTINUATION, b""));
    wire.send(&all).await;
    let mut pongs = 0;
    loop {
        match wire.next().await {
            Seen::Pong(payload) => {
                assert_eq!(payload, b"between");
                pongs += 1;
            }
            Seen::Text(event) if event["event"] == "agent.final_answer" => {
                assert_eq!(event["content"], text, "case 5.19");
                break;
            }
            Seen::Text(_) => {}
            other => panic!("case 5.19: {other:?}"),
        }
    }
    assert!((1..=4).contains(&pongs), "case 5.19: {pongs} pongs");
    // 10.1: one octet a frame.
    let mut all = frame(TEXT, &bytes[..1]);
    bytes[1..].iter().for_each(|byte| all.extend(frame(CONTINUATION, &[*byte])));
    all.extend(frame(FIN | CONTINUATION, b""));
    wire.send(&all).await;
    wire.echoes(text, "10.1").await;
    server.stop().await;
}

#[tokio::test]
async fn fragments_out_of_order_fail_the_connection() {
    let server = Server::start().await;
    let cases: [(&str, Vec<Vec<u8>>); 8] = [
        ("5.1", vec![frame(PING, b"fragment1"), frame(FIN | CONTINUATION, b"fragment2")]),
        ("5.2", vec![frame(PONG, b"fragment1"), frame(FIN | CONTINUATION, b"fragment2")]),
        ("5.9", vec![frame(FIN | CONTINUATION, b"non-continuation payload"), frame(FIN | TEXT, b"Hello")]),
        ("5.12", vec![frame(CONTINUATION, b"non-continuation payload"), frame(FIN | TEXT, b"Hello")]),
        ("5.15", vec![frame(FIN | CONTINUATION, b"")]),
        ("5.18", vec![frame(TEXT, b"fragment1"), frame(FIN | TEXT, b"fragment2")]),
        ("5.18 binary", vec![frame(TEXT, b"fragment1"), frame(FIN | BINARY, b"fragment2")]),
        ("7.1.6 close in fragments", vec![frame(CLOSE, &1000u16.to_be_bytes())]),
    ];
    for (case, frames) in cases {
        let mut wire = Wire::open(&server).await;
        wire.send(&frames.concat()).await;
        wire.fails(1002, case).await;
    }
    server.stop().await;
}

/// Byte sequences by Autobahn's number.
type NumberedBytes = Vec<(&'static str, Vec<u8>)>;

/// Valid and invalid sequences; they are those of Markus Kuhn's stress test.
fn sequences() -> (NumberedBytes, NumberedBytes) {
    let valid: &[(&str, &[&[u8]])] = &[
        ("6.2", &["Hello-µ@ßöäüàá-UTF-8!!".as_bytes()]),
        ("6.5", &["κόσμε".as_bytes()]),
        ("6.7", &[b"\x00", b"\xc2\x80", b"\xe0\xa0\x80", b"\xf0\x90\x80\x80"]),
        ("6.9", &[b"\x7f", b"\xdf\xbf", b"\xef\xbf\xbf", b"\xf4\x8f\xbf\xbf"]),
        ("6.11", &[b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbd", b"\xf4\x8f\xbf\xbf"]),
        (
            "6.22",
            &[
                b"\xef\xbf\xbe",
                b"\xef\xbf\xbf",
                b"\xf0\x9f\xbf\xbe",
                b"\xf0\xaf\xbf\xbf",
                b"\xf3\xbf\xbf\xbe",
                b"\xf4\x8f\xbf\xbe",
            ],
        ),
        ("6.23", &[b"\xef\xbf\xb9", b"\xef\xbf\xba", b"\xef\xbf\xbb", b"\xef\xbf\xbc", b"\xef\xbf\xbd"]),
    ];
    let invalid: &[(&str, &[&[u8]])] = &[
        ("6.3", &[b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\x65\x64\x69\x74\x65\x64"]),
        ("6.6", &[b"\xce", b"\xce\xba\xe1", b"\xce\xba\xe1\xbd", b"\xce\xba\xe1\xbd\xb9\xcf"]),
        ("6.8", &[b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80"]),
        ("6.10", &[b"\xf7\xbf\xbf\xbf", b"\xfb\xbf\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf\xbf"]),
        ("6.11.5", &[b"\xf4\x90\x80\x80"]),
        ("6.12", &[b"\x80", b"\xbf", b"\x80\xbf", b"\x80\xbf\x80", b"\x80\xbf\x80\xbf\x80\xbf\x80"]),
        ("6.13", &[b"\xc0 \xc1 \xdf ", b"\xe0 \xef ", b"\xf0 \xf7 ", b"\xf8 \xfb ", b"\xfc \xfd "]),
        ("6.14", &[b"\xc0", b"\xe0\x80", b"\xf0\x80\x80", b"\xf8\x80\x80\x80", b"\xfc\x80\x80\x80\x80", b"\xdf", b"\xef\xbf", b"\xf7\xbf\xbf"]),
        ("6.15", &[b"\xc0\xe0\x80\xf0\x80\x80\xf8\x80\x80\x80\xfc\x80\x80\x80\x80\xdf\xef\xbf\xf7\xbf\xbf\xfb\xbf\xbf\xbf\xfd\xbf\xbf\xbf\xbf"]),
        ("6.16", &[b"\xfe", b"\xff", b"\xfe\xfe\xff\xff"]),
        ("6.17", &[b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xf8\x80\x80\x80\xaf", b"\xfc\x80\x80\x80\x80\xaf"]),
        ("6.18", &[b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xf8\x87\xbf\xbf\xbf", b"\xfc\x83\xbf\xbf\xbf\xbf"]),
        ("6.19", &[b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf8\x80\x80\x80\x80", b"\xfc\x80\x80\x80\x80\x80"]),
        ("6.20", &[b"\xed\xa0\x80", b"\xed\xad\xbf", b"\xed\xae\x80", b"\xed\xaf\xbf", b"\xed\xb0\x80", b"\xed\xbe\x80", b"\xed\xbf\xbf"]),
        ("6.21", &[b"\xed\xa0\x80\xed\xb0\x80", b"\xed\xad\xbf\xed\xb0\x80", b"\xed\xae\x80\xed\xbf\xbf", b"\xed\xaf\xbf\xed\xbf\xbf"]),
    ];
    let listed = |table: &[(&'static str, &[&[u8]])]| {
        table.iter().flat_map(|(case, all)| all.iter().map(|one| (*case, one.to_vec()))).collect()
    };
    (listed(valid), listed(invalid))
}

#[tokio::test]
async fn texts_are_utf8_or_fail_the_connection() {
    let server = Server::start().await;
    let (valid, invalid) = sequences();
    for (case, bytes) in valid {
        let mut wire = Wire::open(&server).await;
        wire.send(&frame(FIN | TEXT, &bytes)).await;
        wire.is_answered(case).await;
        // In fragments of one byte, which cut every character (6.2.3, 6.2.4).
        let mut all = frame(TEXT, b"");
        bytes.iter().for_each(|byte| all.extend(frame(CONTINUATION, &[*byte])));
        all.extend(frame(FIN | CONTINUATION, b""));
        wire.send(&all).await;
        wire.is_answered(case).await;
    }
    for (case, bytes) in invalid {
        let mut wire = Wire::open(&server).await;
        wire.send(&frame(FIN | TEXT, &bytes)).await;
        wire.fails(1007, case).await;
        let mut wire = Wire::open(&server).await;
        let mut all = frame(TEXT, b"");
        bytes.iter().for_each(|byte| all.extend(frame(CONTINUATION, &[*byte])));
        all.extend(frame(FIN | CONTINUATION, b""));
        wire.send(&all).await;
        wire.fails(1007, &format!("{case} in fragments")).await;
    }
    // 6.4.1 and 6.4.2: the connection fails with the fragment that cannot become UTF-8 any more, before the message is whole.
    for wrong in [&b"\xf4\x90\x80\x80"[..], b"\xed\xa0\x80", b"\xff"] {
        let mut wire = Wire::open(&server).await;
        wire.send(&[frame(TEXT, "κόσμε".as_bytes()), frame(CONTINUATION, wrong)].concat()).await;
        wire.fails(1007, "6.4").await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_close_is_answered_by_a_close_and_ends_the_connection() {
    let server = Server::start().await;
    let longest = [b'*'; 123];
    let good: Vec<(String, Vec<u8>, Option<u16>)> =
        [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999]
            .map(|code| (format!("7.7, {code}"), close(code, b""), Some(code)))
            .into_iter()
            .chain([
                ("7.3.1".to_owned(), frame(FIN | CLOSE, b""), None),
                ("7.3.4".to_owned(), close(1000, "Hello Wörld!".as_bytes()), Some(1000)),
                ("7.3.5".to_owned(), close(1000, &longest), Some(1000)),
            ])
            .collect();
    for (case, bytes, code) in good {
        let mut wire = Wire::open(&server).await;
        // 7.1.2 to 7.1.5: what comes behind a close is not read any more.
        wire.send(&[bytes, frame(FIN | PING, b"too late"), frame(FIN | TEXT, b"too late")].concat()).await;
        match wire.next().await {
            Seen::Close(answered) => assert!(answered == code || code.is_none(), "case {case}: {answered:?}"),
            other => panic!("case {case}: {other:?} instead of a close"),
        }
        assert_eq!(wire.next().await, Seen::End, "case {case}");
    }
    // A message before it is still answered, and one that is not whole is not (7.1.1, 7.1.6).
    let mut wire = Wire::open(&server).await;
    wire.send(&[frame(FIN | TEXT, b"first"), close(1000, b"")].concat()).await;
    assert!(matches!(wire.next().await, Seen::Text(error) if error["event"] == "system.error"));
    assert_eq!(wire.next().await, Seen::Close(Some(1000)));
    let mut wire = Wire::open(&server).await;
    wire.send(&[frame(TEXT, b"not whole"), close(1000, b"")].concat()).await;
    assert_eq!(wire.next().await, Seen::Close(Some(1000)));
    server.stop().await;
}

#[tokio::test]
async fn closes_that_are_none_fail_the_connection() {
    let server = Server::start().await;
    let mut bad: Vec<(String, Vec<u8>)> = [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65535]
        .map(|code| (format!("7.9 or 7.13, {code}"), close(code, b"")))
        .into();
    bad.push(("7.3.2".into(), frame(FIN | CLOSE, b"a")));
    bad.push(("7.3.6".into(), close(1000, &[b'*'; 124])));
    for (case, bytes) in bad {
        let mut wire = Wire::open(&server).await;
        wire.send(&bytes).await;
        wire.fails(1002, &case).await;
    }
    // 7.5.1: the reason is UTF-8.
    let mut wire = Wire::open(&server).await;
    wire.send(&close(1000, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited")).await;
    match wire.next().await {
        Seen::Close(Some(1002 | 1007)) => {}
        other => panic!("case 7.5.1: {other:?}"),
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_too_large_gets_its_code_in_one_frame_or_in_many() {
    let server = Server::start().await;
    let max = bowline::config::Config::default().limits.frame_bytes_max;
    let mut wire = Wire::open(&server).await;
    wire.send(&frame(FIN | TEXT, &vec![b'x'; max])).await;
    wire.is_answered("9.1, as large as it may be").await;
    let one = frame(FIN | TEXT, &vec![b'x'; max + 1]);
    let many =
        [frame(TEXT, &vec![b'x'; max / 2]), frame(CONTINUATION, &vec![b'x'; max / 2]), frame(FIN | CONTINUATION, b"x")]
            .concat();
    for bytes in [one, many] {
        let mut wire = Wire::open(&server).await;
        wire.send(&bytes).await;
        assert_eq!(wire.next().await, Seen::Close(Some(1009)), "case 9");
    }
    server.stop().await;
}

#[tokio::test]
async fn compression_is_not_negotiated_so_a_compressed_frame_fails() {
    let server = Server::start().await;
    let mut wire = Wire::open(&server).await;
    assert!(!wire.head.contains("sec-websocket-extensions"), "{}", wire.head);
    wire.send(&frame(FIN | 0x40 | TEXT, &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00])).await;
    wire.fails(1002, "12").await;
    server.stop().await;
}
