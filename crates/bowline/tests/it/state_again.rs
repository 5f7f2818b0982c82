//! States that come back more than once: what each restore takes, and what it leaves to newer exports.

use std::time::Duration;

use bowline::config::{Config, StoreUrl};
use bowline::keys::KeyFile;
use bowline_env::files::OsFiles;
use bowline_protocol::{Epoch, LogId, Seq};
use bowline_store::{Commit, Fence, LogKind, Record, Start};
use serde_json::{Value, json};

use crate::support;
use crate::support::state::{config, export, restore, send_state, signed};
use crate::support::{Client, Server, is_terminal};

fn single_use() -> Config {
    let mut config = config();
    config.state.single_use = true;
    config
}

async fn state_of(client: &mut Client) -> Value {
    signed(&export(client, Value::Null).await)
}

async fn end(client: &mut Client) {
    client.send(json!({ "event": "user.end_session", "session_id": client.session })).await;
    client.expect("agent.session_end").await;
}

#[tokio::test]
async fn with_single_use_a_state_exported_after_a_restore_is_a_new_one() {
    for live in [true, false] {
        let server = Server::with(single_use()).await;
        let (mut client, _) = server.session().await;
        client.ask("/echo 1").await;
        let mut states = vec![state_of(&mut client).await];
        // Nothing is logged in between, so all of them reach to the same event.
        for round in 0..3 {
            if !live {
                end(&mut client).await;
            }
            drop(client);
            client = server.connect().await;
            let (greeting, _) = restore(&mut client, states.last().unwrap(), Value::Null).await;
            let source = if live { "live" } else { "snapshot" };
            assert_eq!(greeting["metadata"]["source"], source, "round {round}");
            states.push(state_of(&mut client).await);
        }
        let fresh = states.pop().unwrap();
        let mut other = server.connect().await;
        for used in &states {
            send_state(&mut other, used, Value::Null).await;
            assert_eq!(other.refusal().await.0, "STATE_STALE");
        }
        drop(client);
        restore(&mut other, &fresh, Value::Null).await;
        server.stop().await;
    }
}

#[tokio::test]
async fn with_single_use_a_state_from_before_is_older_than_all_that_came_after_a_restore() {
    let server = Server::with(single_use()).await;
    let (mut client, _) = server.session().await;
    client.ask("/echo 1").await;
    let first = state_of(&mut client).await;
    client.ask("/echo 2").await;
    let second = state_of(&mut client).await;
    end(&mut client).await;
    restore(&mut client, &first, Value::Null).await;
    let third = state_of(&mut client).await;
    end(&mut client).await;
    restore(&mut client, &third, Value::Null).await;
    // It was never restored, and has the higher number; but the session has gone on from the first.
    send_state(&mut client, &second, Value::Null).await;
    assert_eq!(client.refusal().await.0, "STATE_STALE");
    server.stop().await;
}

#[tokio::test]
async fn an_open_question_goes_on_from_restore_to_restore() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.say("/confirm the launch").await;
    let step = client.expect("agent.user_confirm").await["step_id"].clone();
    let mut states = vec![state_of(&mut client).await];
    server.stop().await;
    // From a snapshot, since the next server knows nothing of the session, then live.
    let server = Server::with(config()).await;
    for source in ["snapshot", "live", "live"] {
        client = server.connect().await;
        let (greeting, _) = restore(&mut client, states.last().unwrap(), Value::Null).await;
        let facts = &greeting["metadata"];
        assert_eq!((&facts["source"], &facts["session_state"]), (&json!(source), &json!("waiting")));
        assert_eq!(facts["warnings"], json!([]));
        states.push(state_of(&mut client).await);
        drop(client);
    }
    // Whatever was restored has given its question away, and the session that has it now is ended.
    client = server.connect().await;
    client.resume(states.last().unwrap()["state"]["session_id"].as_str().unwrap(), Value::Null).await;
    end(&mut client).await;
    for used in &states {
        let mut other = server.connect().await;
        let (greeting, _) = restore(&mut other, used, Value::Null).await;
        assert_eq!(greeting["metadata"]["session_state"], "idle");
        assert_eq!(greeting["metadata"]["warnings"].as_array().unwrap().len(), 1);
        other.send(json!({ "event": "user.response", "step_id": step, "content": { "confirmed": true } })).await;
        assert_eq!(other.refusal().await.0, "UNKNOWN_STEP");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_question_that_was_cancelled_does_not_come_back_with_a_state() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.say("/confirm pay").await;
    client.expect("agent.user_confirm").await;
    let state = state_of(&mut client).await;
    client.send(json!({ "event": "user.cancel" })).await;
    assert_eq!(client.until(is_terminal).await.pop().unwrap()["event"], "agent.cancelled");
    end(&mut client).await;
    let (greeting, _) = restore(&mut client, &state, Value::Null).await;
    assert_eq!(greeting["metadata"]["session_state"], "idle");
    assert_eq!(greeting["metadata"]["warnings"].as_array().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_state_may_come_back_as_another_program_writes_it() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.ask("/echo remember").await;
    let state = state_of(&mut client).await;
    end(&mut client).await;
    let seconds = state["timestamp"].as_u64().unwrap();
    let mut float = state.clone();
    float["timestamp"] = json!(seconds as f64);
    assert!(float.to_string().contains(".0"));
    for written in [json!(state.to_string()), json!(float.to_string()), float] {
        let (greeting, _) = restore(&mut client, &written, Value::Null).await;
        assert_eq!(greeting["metadata"]["message_count"], 2, "{written}");
    }
    let mut altered = state.clone();
    altered["timestamp"] = json!(seconds as f64 + 0.5);
    send_state(&mut client, &altered, Value::Null).await;
    assert_eq!(client.refusal().await.0, "STATE_VERIFICATION_FAILED");
    server.stop().await;
}

#[tokio::test]
async fn keys_are_made_and_retired_under_a_running_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = support::config();
    config.store.url = StoreUrl::Disk(dir.path().to_owned());
    let server = Server::with(config).await;
    let (mut client, _) = server.session().await;
    let old = state_of(&mut client).await;
    let mut made = String::new();
    KeyFile::change(&OsFiles, dir.path(), |file| {
        made = file.add();
        Ok(())
    })
    .unwrap();
    let new = state_of(&mut client).await;
    assert_eq!(new["key_id"], made.as_str(), "the newest key signs from now on");
    drop(client);
    let mut client = server.connect().await;
    restore(&mut client, &old, Value::Null).await;
    KeyFile::change(&OsFiles, dir.path(), |file| file.retire(old["key_id"].as_str().unwrap())).unwrap();
    drop(client);
    let mut client = server.connect().await;
    send_state(&mut client, &old, Value::Null).await;
    assert_eq!(client.refusal().await.0, "STATE_VERIFICATION_FAILED", "a retired key is refused from now on");
    // A ring that cannot be used is not taken up, and the one that was stays.
    let path = dir.path().join("keys.json");
    std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    std::fs::write(&path, "{ half").unwrap();
    restore(&mut client, &new, Value::Null).await;
    server.stop().await;
}

#[tokio::test]
async fn a_run_that_only_waits_pushes_no_checkpoint_twice() {
    let mut config = config();
    config.state.checkpoint_interval = Duration::from_millis(20);
    config.heartbeat.interval = Duration::from_millis(200);
    let server = Server::with(config).await;
    let mut client = server.connect().await;
    client.send(json!({ "event": "user.create_session", "content": { "config": { "checkpoints": true } } })).await;
    client.session = client.expect("agent.session_created").await["session_id"].as_str().unwrap().to_owned();
    client.say("/confirm the launch").await;
    let step = client.expect("agent.user_confirm").await["step_id"].clone();
    let pushed = client.until(|frame| frame["metadata"]["signed_state"]["state"]["last_seq"] == 2).await.pop().unwrap();
    assert_eq!(pushed["event"], "agent.state_exported");
    // Three heartbeats are thirty times the interval.
    for _ in 0..3 {
        let frames = client.until(|frame| frame["event"] == "system.heartbeat").await;
        assert_eq!(frames.len(), 1, "nothing has changed: {frames:?}");
    }
    client.send(json!({ "event": "user.response", "step_id": step, "content": { "confirmed": true } })).await;
    client.until(is_terminal).await;
    let after = client.expect("agent.state_exported").await;
    assert_eq!(after["metadata"]["message_count"], 2, "what has changed is pushed");
    server.stop().await;
}

#[tokio::test]
async fn with_single_use_a_mark_that_cannot_be_read_lets_no_state_in() {
    let server = Server::with(single_use()).await;
    let (mut client, session) = server.session().await;
    client.ask("/echo hello").await;
    let state = signed(&export(&mut client, json!({})).await);
    drop(client);
    // As if the mark of an earlier restore had been damaged.
    let mark = LogId::parse(&format!("restored_{session}")).unwrap();
    let mut commit = Commit::to(mark, Fence::default(), 0);
    commit.create = Some(Start { epoch: Epoch::from_random(1), after: Seq::ZERO });
    let owner = server.store.record(&LogId::parse(&session).unwrap()).await.unwrap().unwrap().owner;
    commit.record = Some(Record { kind: LogKind::Restored, owner, touched_ms: 0, body: b"{ half"[..].into() });
    server.store.commit(commit).await.unwrap();
    let mut client = server.connect().await;
    send_state(&mut client, &state, json!({})).await;
    let refused = client.until(|frame| frame["metadata"]["error_code"].is_string()).await.pop().unwrap();
    assert_eq!(refused["metadata"]["error_code"], "STORE_UNAVAILABLE", "{refused}");
}
