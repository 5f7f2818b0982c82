//! Wires cut at any byte, and servers killed at any moment: nothing that was seen changes, nothing is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use support::process::{Cutter, Process, command};
use support::{Client, Dice, Incoming, is_terminal, seqs};
use tempfile::TempDir;

/// A client that comes back by itself, believes only what it saw, and checks the promise at every event.
struct Survivor {
    session: String,
    last: Option<String>,
    next: u64,
    /// Every event as it was first seen.
    seen: BTreeMap<u64, Value>,
    acks: bool,
    reconnects: u64,
}

impl Survivor {
    fn new(session: String, acks: bool) -> Survivor {
        Survivor { session, last: None, next: 1, seen: BTreeMap::new(), acks, reconnects: 0 }
    }

    /// Connects and asks to go on; false if the wire broke meanwhile.
    async fn back(&mut self, address: std::net::SocketAddr) -> Option<Client> {
        let mut client = Client::dial(address, &[]).await.ok()?;
        client.session = self.session.clone();
        let cursor = self.last.as_ref().map_or(json!({ "last_seq": 0 }), |id| json!({ "last_event_id": id }));
        let mut content = cursor;
        content["take_over"] = true.into();
        let frame = json!({ "event": "user.reconnect", "session_id": self.session, "content": content });
        futures_util::SinkExt::send(&mut client.socket, frame.to_string().into()).await.ok()?;
        self.reconnects += 1;
        Some(client)
    }

    /// Takes frames until one fits (true) or the wire breaks (false).
    async fn follow(&mut self, client: &mut Client, fits: impl Fn(&Value) -> bool) -> bool {
        loop {
            let Incoming::Frame(frame) = client.incoming().await else { return false };
            self.take(&frame);
            if self.acks && frame["seq"].as_u64().is_some_and(|seq| seq % 7 == 0) {
                let ack =
                    json!({ "event": "user.ack", "session_id": self.session, "content": { "last_seq": frame["seq"] } });
                let _ = futures_util::SinkExt::send(&mut client.socket, ack.to_string().into()).await;
            }
            if fits(&frame) {
                return true;
            }
        }
    }

    fn take(&mut self, frame: &Value) {
        let verdict = frame["metadata"]["resume"]["verdict"].as_str();
        assert!(
            matches!(verdict, None | Some("replay" | "caught_up")),
            "nothing was lost, so nothing may be told lost: {frame}"
        );
        if let Some(seq) = frame["seq"].as_u64() {
            assert_eq!(seq, self.next, "once, in order, nothing missing");
            self.next += 1;
            self.last = frame["event_id"].as_str().map(str::to_owned);
            self.seen.insert(seq, frame.clone());
        }
    }
}

async fn cut_at_any_byte(acks: bool) {
    let dir = TempDir::new().unwrap();
    let server = Process::start(&dir.path().join("data"), &[]).await;
    let cutter = Cutter::start(server.address).await;
    let mut dice = Dice::new();
    let mut client = Client::dial(cutter.address, &[]).await.unwrap();
    let session = client.create().await;
    client.say("/long 10000 0").await;
    let mut survivor = Survivor::new(session, acks);
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(20)).await;
    drop(client);
    let mut finished = false;
    while !finished {
        // The deltas are some 3 MB in all, so about a hundred cuts; the last event alone is 90 kB and needs more room.
        cutter.cut_after(dice.below(if survivor.next > 10_001 { 400_000 } else { 60_000 }));
        if let Some(mut client) = survivor.back(cutter.address).await {
            finished = survivor.follow(&mut client, is_terminal).await;
        }
    }
    assert_eq!(survivor.next, 10_003);
    println!("{} reconnects", survivor.reconnects);
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wire_cut_at_any_byte_loses_nothing_without_acks() {
    cut_at_any_byte(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wire_cut_at_any_byte_loses_nothing_with_acks() {
    cut_at_any_byte(true).await;
}

/// Kills the server again and again in the middle of long runs.
async fn fifty_kills(sync: &'static str) {
    let dir = TempDir::new().unwrap();
    // Fifty runs that are cut in the middle still log more than the usual retention keeps.
    let env = [("BOWLINE_STORE__SYNC", sync.to_owned()), ("BOWLINE_BUFFER__EVENTS_MAX", "1000000".to_owned())];
    let mut server = Process::start(&dir.path().join("data"), &env).await;
    let mut dice = Dice::new();
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let session = client.create().await;
    drop(client);
    let mut survivor = Survivor::new(session.clone(), true);
    let mut lost_runs = 0;
    for kill in 0..50 {
        let mut client = survivor.back(server.address).await.expect("the server is up");
        assert!(survivor.follow(&mut client, |frame| frame["metadata"]["action"] == "replay").await);
        if kill > 0 {
            let last = survivor.seen.last_key_value().unwrap().1;
            assert!(is_terminal(last), "a run that was cut is ended honestly: {}", last["event"]);
            lost_runs += u32::from(last["metadata"]["error_code"] == "AGENT_LOST");
        }
        // Flat out it often finishes before it is killed; with pauses it never does.
        client.say(if kill % 2 == 0 { "/long 10000 0" } else { "/long 10000 1" }).await;
        let stop_at = survivor.next + 1 + dice.below(if kill % 2 == 0 { 3000 } else { 100 });
        assert!(survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(stop_at)).await);
        // Sometimes it dies while the client still reads, sometimes before.
        if dice.below(2) == 0 {
            server = server.kill_and_restart().await;
            survivor.follow(&mut client, |_| false).await;
        } else {
            drop(client);
            server = server.kill_and_restart().await;
        }
    }
    // The quiet end: everything that was ever seen is still there, unchanged, and one more run works.
    let mut client = survivor.back(server.address).await.unwrap();
    assert!(survivor.follow(&mut client, |frame| frame["metadata"]["action"] == "replay").await);
    client.say("/echo after all that").await;
    assert!(survivor.follow(&mut client, is_terminal).await);
    let mut reader = Client::dial(server.address, &[]).await.unwrap();
    let (_, all) = reader.resume(&session, json!({ "mode": "observe" })).await;
    assert!(seqs(&all) == (1..survivor.next).collect::<Vec<_>>(), "{} events of {}", all.len(), survivor.next - 1);
    assert!(all.iter().zip(survivor.seen.values()).all(|(now, then)| now == then), "an event changed");
    assert!(lost_runs > 0, "at least one run was cut in the middle");
    println!("{lost_runs} runs were cut, {} events seen", survivor.seen.len());
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_kills_lose_nothing_that_was_seen() {
    fifty_kills("always").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_kills_lose_nothing_even_when_syncing_at_intervals() {
    fifty_kills("interval").await;
}

#[tokio::test]
async fn a_confirmation_waits_through_a_kill_and_the_answer_re_enters_the_agent() {
    let dir = TempDir::new().unwrap();
    let server = Process::start(&dir.path().join("data"), &[]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let session = client.create().await;
    client.ask("/echo before").await;
    client.say("/confirm the launch").await;
    let question = client.expect("agent.user_confirm").await;
    let server = server.kill_and_restart().await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let (greeting, owed) = client.resume(&session, json!({ "last_event_id": question["event_id"] })).await;
    assert_eq!(greeting["metadata"]["session_state"], "waiting");
    assert!(owed.is_empty());
    client
        .send(json!({ "event": "user.response", "step_id": question["step_id"], "content": { "confirmed": true } }))
        .await;
    let frames = client.until(is_terminal).await;
    assert_eq!(frames.last().unwrap()["content"], "confirmed: the launch");
    assert_eq!(client.ask("/recall").await.last().unwrap()["content"], "/echo before\n/confirm the launch");
    server.kill().await;
}

#[tokio::test]
async fn a_message_sent_again_after_a_kill_runs_once() {
    let dir = TempDir::new().unwrap();
    let mut server = Process::start(&dir.path().join("data"), &[]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let session = client.create().await;
    let mut dice = Dice::new();
    for n in 0..20 {
        let message = json!({ "event": "user.message", "session_id": session, "message_id": format!("m{n}"), "content": format!("/echo {n}") });
        client.send(message.clone()).await;
        if dice.below(2) == 0 {
            client.expect("user.message").await;
        }
        server = server.kill_and_restart().await;
        client = Client::dial(server.address, &[]).await.unwrap();
        client.resume(&session, json!({ "last_seq": 0 })).await;
        client.send(message).await;
        let known = |frame: &Value| frame["metadata"]["action"] == "duplicate_message" || is_terminal(frame);
        client.until(known).await;
    }
    let mut reader = Client::dial(server.address, &[]).await.unwrap();
    let (_, all) = reader.resume(&session, json!({ "mode": "observe" })).await;
    let messages: Vec<_> = all.iter().filter(|frame| frame["event"] == "user.message").collect();
    let ends = all.iter().filter(|frame| is_terminal(frame)).count();
    assert_eq!((messages.len(), ends), (20, 20), "each message once, each run ended once");
    server.kill().await;
}

#[tokio::test]
async fn acks_and_the_conversation_survive_a_kill() {
    let dir = TempDir::new().unwrap();
    let server = Process::start(&dir.path().join("data"), &[("BOWLINE_BUFFER__EVENTS_MAX", "20".into())]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let session = client.create().await;
    client.ask("/long 50 0").await;
    client.send(json!({ "event": "user.ack", "content": { "last_seq": 48 } })).await;
    // The next request is answered after the ack was stored with it.
    client.ask("/echo x").await;
    let server = server.kill_and_restart().await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let (_, owed) = client.resume(&session, Value::Null).await;
    assert_eq!(seqs(&owed), (49..=54).collect::<Vec<_>>());
    // Trimming events never shortens the conversation.
    assert_eq!(client.ask("/recall").await.last().unwrap()["content"], "/long 50 0\n/echo x");
    server.kill().await;
}

#[tokio::test]
async fn a_second_server_on_the_same_directory_refuses_to_start() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let server = Process::start(&data, &[]).await;
    let second = command(&data, &[]).output().await.unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("in use by another process"), "{said}");
    server.kill().await;
}

#[tokio::test]
async fn sigterm_lets_the_run_finish_and_exits_with_0() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let server = Process::start(&data, &[]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let session = client.create().await;
    client.say("/long 60 5").await;
    client.expect("agent.partial_answer").await;
    let (code, frames) = tokio::join!(server.terminate(), async {
        let frames = client.until(is_terminal).await;
        assert_eq!(client.closed().await, Some(1012));
        frames
    });
    assert_eq!(code, Some(0));
    assert_eq!(frames.last().unwrap()["event"], "agent.final_answer");
    let server = Process::start(&data, &[]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let (_, owed) = client.resume(&session, json!({ "last_event_id": frames.last().unwrap()["event_id"] })).await;
    assert!(owed.is_empty());
    server.kill().await;
}

#[tokio::test]
async fn damage_to_one_session_is_told_and_the_others_serve() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let server = Process::start(&data, &[]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let harmed = client.create().await;
    client.ask("/echo find-this-needle").await;
    let mut other = Client::dial(server.address, &[]).await.unwrap();
    let sound = other.create().await;
    other.ask("/echo sound").await;
    server.kill().await;
    let segment = data.join("0000000001.log");
    let mut bytes = std::fs::read(&segment).unwrap();
    let needle = b"find-this-needle";
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(&segment, bytes).unwrap();
    let server = Process::start(&data, &[]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let (_, owed) = client.resume(&sound, json!({ "last_seq": 0 })).await;
    assert_eq!(seqs(&owed), [1, 2]);
    client.reconnect(&harmed, json!({ "last_seq": 0 })).await;
    assert_eq!(client.refusal().await, ("STORE_UNAVAILABLE".into(), "retry_later".into()));
    let (status, ready) = support::get(server.address, "/readyz", &[]).await;
    assert_eq!(status, 200);
    assert!(ready.contains(&harmed), "{ready}");
    tokio::time::timeout(Duration::from_secs(20), server.terminate()).await.unwrap();
}

#[tokio::test]
async fn a_question_and_a_queue_behind_it_survive_a_kill() {
    let dir = TempDir::new().unwrap();
    let env = [("BOWLINE_SESSION__WHEN_BUSY", "queue".to_owned())];
    let server = Process::start(&dir.path().join("data"), &env).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let session = client.create().await;
    client.say("/confirm first").await;
    let question = client.expect("agent.user_confirm").await;
    client.say("/echo second").await;
    client.until(|frame| frame["metadata"]["action"] == "queued").await;
    let server = server.kill_and_restart().await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let (greeting, _) = client.resume(&session, Value::Null).await;
    assert_eq!(greeting["metadata"]["session_state"], "waiting");
    client
        .send(json!({ "event": "user.response", "step_id": question["step_id"], "content": { "confirmed": true } }))
        .await;
    for answer in ["confirmed: first", "second"] {
        assert_eq!(client.until(is_terminal).await.pop().unwrap()["content"], answer);
    }
    server.kill().await;
}
