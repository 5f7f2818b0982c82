//! What strangers and disks may send, byte by byte: each target is a function that any bytes may be given to.
//!
//! A target panics if the code that it tries panics, or does what it must not. `fuzz/run` looks for such bytes; the test of this crate
//! runs what was found so far (`corpus/TARGET/`) with the ordinary toolchain.

mod segments;

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use bowline::config::{Config, Flags, Surroundings};
use bowline::http::limits::RequestLimits;
use bowline::http::produce;
use bowline::metrics::Metrics;
use bowline_core::seal::{Form, OpenLimits, SealInput};
use bowline_core::{Keyring, SealKey};
use bowline_env::Env;
use bowline_env::files::Files;
use bowline_hub::message::{RpcMessage, notification, request, response};
use bowline_hub::sse::SseParser;
use bowline_protocol::chunk::ChunkView;
use bowline_protocol::frame::ClientFrame;
use bowline_protocol::{Cursor, Epoch, LogId, Principal, ProducerId, SessionId, State, StreamCursor, TaskId};

/// One thing to try, by the name of its folder in `corpus/`.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "frames", run: frames },
    Target { name: "states", run: states },
    Target { name: "segments", run: segments::segments },
    Target { name: "producer_frames", run: producer_frames },
    Target { name: "chunks", run: chunks },
    Target { name: "upstream_sse", run: upstream_sse },
    Target { name: "model_chunks", run: model_chunks },
    Target { name: "json_rpc", run: json_rpc },
    Target { name: "redis_replies", run: bowline_store::redis::read_any_reply },
    Target { name: "settings", run: settings },
    Target { name: "positions", run: positions },
];

pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// What a client sends as a text frame over `/ws`.
fn frames(data: &[u8]) {
    let Some(text) = text(data) else { return };
    // What is shown in a log must not panic either.
    drop(format!("{:?}", ClientFrame::parse(text, 64)));
}

/// What a client sends as its signed state.
fn states(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let ring = Keyring::new(vec![SealKey::new("k1", &[7; 32], false).expect("a long key")]).expect("a ring of one");
    let owner = Principal::parse("local").expect("a sound name");
    let limits = OpenLimits { bytes_max: 100_000, depth_max: 64, ttl_seconds: 600, future_seconds: 60 };
    // As it came: no signature is forged by chance.
    assert!(ring.open(text, &owner, 1_800_000_000, &limits).is_err());
    // Properly signed, so that what lies behind the signature is reached too.
    if let Ok(state) = serde_json::from_str::<State>(text) {
        let sealed =
            ring.seal(&SealInput { state: &state, owner: &owner, now_unix: 1_800_000_000, form: Form::Object });
        let _ = ring.open(&sealed.signed.to_json(), &owner, 1_800_000_000, &limits);
    }
}

/// What a producer sends over `/produce`, up to the answer.
fn producer_frames(data: &[u8]) {
    static LIMITS: LazyLock<RequestLimits> =
        LazyLock::new(|| RequestLimits { config: Arc::new(Config::default()), metrics: Arc::new(Metrics::new()) });
    let Some(text) = text(data) else { return };
    let producer = ProducerId::parse("producer").expect("a sound name");
    let (about, frame) = produce::Frame::read(&LIMITS, &producer, text);
    drop(format!("{frame:?}"));
    let _ = produce::renewal(&LIMITS, text);
    if let Err(refusal) = frame {
        let answer = produce::answer(&about, Err(refusal));
        serde_json::from_str::<serde_json::Value>(&answer).expect("an answer is JSON");
    }
}

/// One chunk of a task, as producers send it and readers get it.
fn chunks(data: &[u8]) {
    let Some(text) = text(data) else { return };
    drop(format!("{:?}", ChunkView::parse(text)));
}

/// Server-Sent Events from an MCP server: what is read does not depend on how the bytes are cut.
fn upstream_sse(data: &[u8]) {
    let bytes_max = 64;
    let mut whole = SseParser::new(bytes_max);
    let expected = format!("{:?}", whole.push(data));
    let cut = data.first().map_or(1, |byte| usize::from(*byte % 7) + 1);
    let mut pieces = SseParser::new(bytes_max);
    let mut found = Vec::new();
    for piece in data.chunks(cut) {
        found.extend(pieces.push(piece));
    }
    assert_eq!(expected, format!("{found:?}"), "cut every {cut} bytes");
    assert_eq!((whole.last_id(), whole.retry()), (pieces.last_id(), pieces.retry()));
}

/// What a model streams, one record a line.
fn model_chunks(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let mut gathered = bowline::agent::openai::chunk::Gathered::default();
    for line in text.lines() {
        drop(gathered.take(line));
        let _ = (gathered.is_whole(), gathered.is_over(), gathered.has_begun());
    }
    drop(gathered.into_calls());
}

/// JSON-RPC from a client or an MCP server: what is passed on says the same as what came.
fn json_rpc(data: &[u8]) {
    let Ok(message) = RpcMessage::parse_bytes(data) else { return };
    let passed_on = match &message {
        RpcMessage::Request(one) => request(&one.id, &one.method, one.params.as_deref()),
        RpcMessage::Notification(one) => notification(&one.method, one.params.as_ref()),
        RpcMessage::Response(one) => match &one.id {
            Some(id) => response(id, &one.answer),
            None => return,
        },
    };
    let again = RpcMessage::parse(passed_on.get()).expect("what the hub writes can be read");
    match (message, again) {
        (RpcMessage::Request(one), RpcMessage::Request(other)) => {
            assert_eq!((one.id.as_json(), &one.method), (other.id.as_json(), &other.method));
            assert_eq!(one.params.map(|raw| raw.get().to_owned()), other.params.map(|raw| raw.get().to_owned()));
        }
        (RpcMessage::Notification(one), RpcMessage::Notification(other)) => {
            assert_eq!(one.method, other.method);
            assert_eq!(one.params.map(|raw| raw.get().to_owned()), other.params.map(|raw| raw.get().to_owned()));
        }
        (RpcMessage::Response(one), RpcMessage::Response(other)) => {
            let plain = |answer: bowline_hub::message::RpcResult| {
                answer.map(|raw| raw.get().to_owned()).map_err(|raw| raw.get().to_owned())
            };
            assert_eq!(plain(one.answer), plain(other.answer));
        }
        _ => panic!("one kind of message became another"),
    }
}

/// A settings file.
fn settings(data: &[u8]) {
    let files = segments::files_with([(PathBuf::from("/settings/bowline.toml"), data)]);
    let env = Env { files: Arc::new(files) as Arc<dyn Files>, ..Env::default() };
    let around = Surroundings { dir: "/settings".into(), env, ..Surroundings::default() };
    match Config::load_from(&Flags::default(), &around) {
        Ok(loaded) => drop(serde_json::to_string(&loaded.effective()).expect("settings can be shown")),
        Err(error) => drop(error.to_string()),
    }
}

/// Cursors, epochs and ids, as clients bring them back: what can be read is written as it came.
fn positions(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if let Some(cursor) = Cursor::parse(text) {
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
    }
    if let Ok(Some(cursor)) = StreamCursor::parse(text) {
        assert_eq!(StreamCursor::parse(&cursor.to_string()), Ok(Some(cursor)));
    }
    if let Some(epoch) = Epoch::parse(text) {
        assert_eq!(epoch.to_string(), text);
    }
    let _ = (SessionId::parse(text), TaskId::parse(text), LogId::parse(text), Principal::parse(text));
}
