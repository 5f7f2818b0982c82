//! Wires cut at any byte, and servers killed at any moment: nothing that was seen changes, nothing is missing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support;
use crate::support::api::{Api, kinds, text};
use crate::support::process::{Cutter, Process, command};
use crate::support::{Client, Dice, Incoming, is_terminal, seqs};

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

/// Erases what a power cut erases besides unsynced data: the store's note in shared memory of how far it had come.
fn erase_witness(data: &Path) {
    let state = std::fs::read_to_string(data.join("STATE")).unwrap();
    let instance = state.split(' ').nth(2).unwrap();
    std::fs::remove_file(format!("/dev/shm/bowline-{instance}")).expect("the store keeps its witness there");
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Begins a producer's task; returns the path to it.
async fn task(api: &Api) -> String {
    let (status, made) = api.post("/api/chat/tasks", &json!({ "tool_name": "painter" })).await;
    assert_eq!(status, 201, "{made}");
    format!("/api/chat/tasks/{}", made["task_id"].as_str().unwrap())
}

/// Appends so many deltas to a task; returns the cursor behind them.
async fn push(api: &Api, task: &str, deltas: std::ops::Range<usize>) -> String {
    let start = (deltas.start == 0).then(|| json!({ "type": "text-start", "id": "t" }));
    let deltas = deltas.map(|n| json!({ "type": "text-delta", "id": "t", "delta": format!("{n} ") }));
    let chunks: Vec<Value> = start.into_iter().chain(deltas).collect();
    let (status, answer) = api.post(&format!("{task}/messages"), &json!(chunks)).await;
    assert_eq!(status, 200, "{answer}");
    answer["last_message_id"].as_str().unwrap().to_owned()
}

fn words(deltas: std::ops::Range<usize>) -> String {
    deltas.map(|n| format!("{n} ")).collect()
}

/// What a connection that watches this task gets, up to its end.
async fn watched(client: &mut Client, task: &str, cursor: &str) -> Vec<Value> {
    let task = task.rsplit('/').next().unwrap();
    let watch = json!({ "event": "user.watch_task", "task_id": task, "content": { "last_message_id": cursor } });
    client.send(watch).await;
    client.until(|frame| frame["event"] == "task.end").await
}

fn watched_text(frames: &[Value]) -> String {
    frames.iter().filter_map(|frame| frame["content"]["delta"].as_str()).collect()
}

#[tokio::test]
async fn after_a_power_cut_readers_get_all_that_is_there() {
    let dir = TempDir::new().unwrap();
    let (data, env) = (dir.path().join("data"), [("BOWLINE_STORE__SYNC", "interval".to_owned())]);
    let server = Process::start(&data, &env).await;
    let api = Api::new(server.address);
    let (running, ended) = (task(&api).await, task(&api).await);
    let old = push(&api, &running, 0..100).await;
    push(&api, &ended, 0..100).await;
    assert_eq!(api.post(&format!("{ended}/complete"), &json!({})).await.0, 200);
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let session = client.create().await;
    let said = client.ask("/long 20 0").await;
    let turn = format!(
        "/api/chat/tasks/{}",
        api.start(&format!("/api/chat/sessions/{session}/stream"), &json!({ "message": "/echo turn" })).await.task()
    );
    api.stream(&format!("{turn}/stream")).await.until("finish").await;
    drop(client);
    server.kill().await;
    erase_witness(&data);
    let server = Process::start(&data, &env).await;
    let api = Api::new(server.address);
    let epoch = |cursor: &str| cursor.split('-').next().unwrap().to_owned();
    let now = api.get(&running).await.1["last_message_id"].as_str().unwrap().to_owned();
    assert_ne!(epoch(&now), epoch(&old), "numbers may have been given out that are gone");

    // Without a cursor: everything, and a task that has ended ends its stream.
    let whole = api.stream(&format!("{ended}/stream?fold=0")).await.all().await;
    assert_eq!(text(&whole), words(0..100));
    assert_eq!(kinds(&whole)[0], "start", "nothing is missing, so nothing is told");
    assert_eq!(kinds(&whole)[whole.len() - 2..], ["finish", "[DONE]"]);
    let its_end = api.get(&ended).await.1["last_message_id"].as_str().unwrap().to_owned();
    let ids: Vec<&String> = whole.iter().filter_map(|event| event.id.as_ref()).collect();
    assert!(ids.iter().all(|id| epoch(id) == epoch(&its_end)), "its ids are of the epoch that it is in now");
    let mut live = api.stream(&format!("{running}/stream?fold=0")).await;
    let mut seen = Vec::new();
    while text(&seen) != words(0..100) {
        seen.push(live.next().await.unwrap());
    }
    push(&api, &running, 100..110).await;
    assert_eq!(api.post(&format!("{running}/complete"), &json!({})).await.0, 200);
    seen.extend(live.all().await);
    assert_eq!((text(&seen), seen.last().unwrap().kind()), (words(0..110), "[DONE]".to_owned()));
    let spoken = api.stream(&format!("{turn}/stream")).await.all().await;
    assert_eq!((text(&spoken), spoken.last().unwrap().kind()), ("turn".to_owned(), "[DONE]".to_owned()));
    // A cursor from within what was sent is one of this epoch, and nothing comes twice.
    let half = seen.iter().filter_map(|event| event.id.clone()).nth(50).unwrap();
    let rest = api.stream(&format!("{running}/stream?fold=0&last_message_id={half}")).await.all().await;
    assert_eq!(kinds(&rest).iter().filter(|kind| *kind == "data-gap").count(), 0);
    assert_eq!(
        format!(
            "{}{}",
            text(&seen[..=seen.iter().position(|event| event.id.as_ref() == Some(&half)).unwrap()]),
            text(&rest)
        ),
        words(0..110)
    );
    // With a cursor from before: told, and then everything that is there.
    let told = api.stream(&format!("{running}/stream?fold=0&last_message_id={old}")).await.all().await;
    assert_eq!(told[0].chunk()["data"], json!({ "lost": 0, "first_retained": 1 }), "{}", told[0].data);
    assert_eq!(text(&told), words(0..110));

    // The same over a WebSocket.
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    for (task, words) in [(&ended, words(0..100)), (&running, words(0..110))] {
        assert_eq!(watched_text(&watched(&mut client, task, "0").await), words);
    }
    let told = watched(&mut client, &running, &old).await;
    assert_eq!(told.iter().find(|frame| frame["event"] == "task.chunk").unwrap()["content"]["type"], "data-gap");
    assert_eq!(watched_text(&told), words(0..110));
    // A holder that never acknowledged anything, and an observer, get the whole session.
    let (greeting, owed) = client.resume(&session, Value::Null).await;
    assert_eq!(greeting["metadata"]["resume"]["verdict"], "replay");
    assert_eq!(seqs(&owed)[..said.len()], (1..=said.len() as u64).collect::<Vec<_>>());
    let (_, owed) =
        Client::dial(server.address, &[]).await.unwrap().resume(&session, json!({ "mode": "observe" })).await;
    assert_eq!(seqs(&owed)[0], 1);
    server.kill().await;
}

#[tokio::test]
async fn a_reader_that_saw_more_than_a_power_cut_left_is_told_how_much() {
    let dir = TempDir::new().unwrap();
    let (data, then) = (dir.path().join("data"), dir.path().join("then"));
    let env = [("BOWLINE_STORE__SYNC", "interval".to_owned())];
    let server = Process::start(&data, &env).await;
    let api = Api::new(server.address);
    let task = task(&api).await;
    let early = push(&api, &task, 0..50).await;
    // What had reached the disk when the power went.
    copy_dir(&data, &then);
    let late = push(&api, &task, 50..80).await;
    server.kill().await;
    erase_witness(&data);
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&then, &data).unwrap();
    let server = Process::start(&data, &env).await;
    let api = Api::new(server.address);
    push(&api, &task, 200..210).await;
    assert_eq!(api.post(&format!("{task}/complete"), &json!({})).await.0, 200);
    let left = format!("{}{}", words(0..50), words(200..210));
    for (cursor, lost) in [(&late, 30), (&early, 0)] {
        for framed in [0, 1] {
            let told =
                api.stream(&format!("{task}/stream?fold=0&frame={framed}&last_message_id={cursor}")).await.all().await;
            assert_eq!(told[0].chunk()["data"], json!({ "lost": lost, "first_retained": 1 }), "from {cursor}");
            assert_eq!(
                told[0].chunk()["transient"] == true,
                framed == 1,
                "only a parser that goes on keeps the notice"
            );
            assert_eq!((text(&told), told.last().unwrap().kind()), (left.clone(), "[DONE]".to_owned()));
        }
    }
    let fresh = api.stream(&format!("{task}/stream")).await.all().await;
    assert_eq!((text(&fresh), kinds(&fresh)[0].as_str()), (left, "start"));
    server.kill().await;
}
