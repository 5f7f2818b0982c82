//! A store that cannot be reached for a while: no call loses its answer, no work is left lying, and no session comes back to life.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_hub::{Hub, Options, Route};
use bowline_protocol::{Epoch, LogId, Seq};
use bowline_store::{Claim, Commit, Directory, EventLog, Fence, Holder, LogKind, Release, Start, StoreError};
use serde_json::{Value, json};

use crate::support;
use crate::support::shutter::{Act, Shutter, Verdict};
use crate::support::wire::Wire;
use crate::support::{Client, Fixture, Pieces, hub_with, modern, until};

async fn hub(store: &Arc<Shutter>, fixture: &Fixture) -> Arc<Hub> {
    hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await
}

fn count(ms: u64) -> Value {
    json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "count", "arguments": { "id": "x", "ms": ms } } })
}

fn full() -> StoreError {
    StoreError::Full("for a while".into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_answer_that_cannot_be_kept_now_comes_when_it_can() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
    let mut stream = Pieces::of(client.post(&count(500)).await);
    store.shut_commits(&client.session, full());
    store.has_caught().await;
    store.open();
    let answer = stream.message().await;
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(7), &json!("done x")), "{answer}");
    assert!(stream.is_over().await, "that was the last message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_answer_that_can_never_be_kept_ends_its_stream_and_whoever_comes_back_is_told() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
    let mut stream = Pieces::of(client.post(&count(500)).await);
    let cursor = stream.next().await.unwrap().id.unwrap();
    store.shut_commits(&client.session, StoreError::ReadOnly("for good".into()));
    assert!(stream.is_over().await, "nothing more can come here");
    store.open();
    let answer = Pieces::of(client.get(Some(&cursor)).await).message().await;
    assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!(7), &json!(true)), "{answer}");
    assert_eq!(answer["result"]["structuredContent"]["outcome"], "unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_without_a_stream_is_answered_directly_and_asks_the_store_once() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
    store.shut_commits(&client.session, full());
    let answer = client.post(&count(500)).await;
    assert!(!answer.is_stream());
    assert_eq!(answer.messages().await[0]["result"]["content"][0]["text"], "done x");
    assert_eq!(store.caught(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_is_driven_also_if_its_caller_leaves_while_it_is_made() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let ask = |tool: &str, arguments: Value| {
        let (hub, params) = (hub.clone(), json!({ "name": tool, "arguments": arguments }));
        async move { modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await.messages().await.remove(0) }
    };
    let heard = ask("await_activity", json!({ "timeout_ms": 100 })).await;
    let handle = heard["result"]["structuredContent"]["handle"].as_str().unwrap().to_owned();
    let log = handle.clone();
    store.shut(move |act| match act {
        Act::Commit(commit) if commit.log.as_str() == log => Verdict::Hold,
        _ => Verdict::Pass,
    });
    let arguments =
        json!({ "server": "b", "tool": "echo", "args": { "text": "x" }, "as_task": true, "handle": handle });
    let calling = tokio::spawn(ask("execute_tool", arguments));
    store.has_caught().await;
    calling.abort();
    assert!(calling.await.unwrap_err().is_cancelled());
    store.open();
    let mut after = json!(null);
    loop {
        let arguments = json!({ "timeout_ms": 60_000, "handle": handle, "last_event_id": after });
        let arguments = if after.is_null() { json!({ "timeout_ms": 60_000, "handle": handle }) } else { arguments };
        let heard = ask("await_activity", arguments).await["result"]["structuredContent"].clone();
        let kinds: Vec<_> = heard["events"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
        if kinds.contains(&json!("task_completed")) {
            break;
        }
        assert_ne!(heard["triggered_by"], "timeout", "it is never ended: {heard}");
        after = heard["last_event_id"].clone();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_that_cannot_be_taken_up_does_not_keep_the_others_nor_the_hub_from_going_on() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let first = hub(&store, &fixture).await;
    let (client, _) = Client::open(&first, "alice", Route::All, json!({})).await;
    let mut tasks = Vec::new();
    for id in ["x", "y"] {
        let args = json!({ "id": id, "ms": 600_000 });
        let made = json!({ "server": "b", "tool": "count", "args": args, "as_task": true });
        tasks.push(client.tool("execute_tool", made).await["taskId"].as_str().unwrap().to_owned());
    }
    first.close().await;
    let stuck = tasks[0].clone();
    store.shut(move |act| match act {
        Act::Lease(log) if log.as_str() == stuck => Verdict::Refuse(StoreError::Unavailable("just now".into())),
        _ => Verdict::Pass,
    });
    let second = hub(&store, &fixture).await;
    let client = Client { hub: second, ..client };
    let status = async |task: &str| client.tool("get_task", json!({ "task_id": task })).await["status"].clone();
    assert_eq!((status(&tasks[0]).await, status(&tasks[1]).await), (json!("working"), json!("failed")));
    assert_eq!(store.caught(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_session_that_is_being_ended_is_not_woken_again() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    store.shut(|act| match act {
        Act::Commit(commit) if commit.release.is_some() => Verdict::Hold,
        _ => Verdict::Pass,
    });
    let leaving = client.clone();
    let ending = tokio::spawn(async move { leaving.delete().await.status });
    store.has_caught().await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(client.post(&ping).await.status, 404);
    store.open();
    assert_eq!(ending.await.unwrap(), 200);
    assert_eq!(client.post(&ping).await.status, 404);
    assert!(store.list(LogKind::Mcp, None).await.unwrap().is_empty(), "the store has let go of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_session_whose_end_is_in_doubt_ends_under_the_next_lease() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let is_first = AtomicBool::new(true);
    store.shut(move |act| match act {
        Act::Commit(commit) if commit.release.is_some() && is_first.swap(false, Ordering::Relaxed) => {
            Verdict::Refuse(StoreError::InDoubt("the answer was lost".into()))
        }
        _ => Verdict::Pass,
    });
    assert_eq!(client.delete().await.status, 200);
    assert_eq!(client.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })).await.status, 404);
    assert!(store.list(LogKind::Mcp, None).await.unwrap().is_empty(), "the store has let go of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_result_that_the_store_cannot_take_now_is_kept_also_while_the_hub_leaves() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    store.shut(|act| match act {
        Act::Commit(commit) if commit.log.as_str().starts_with("mcpt_") && !commit.items.is_empty() => {
            Verdict::Refuse(StoreError::Unavailable("just now".into()))
        }
        _ => Verdict::Pass,
    });
    let made = json!({ "server": "b", "tool": "echo", "args": { "text": "x" }, "as_task": true });
    let task = client.tool("execute_tool", made).await["taskId"].as_str().unwrap().to_owned();
    store.has_caught().await;
    hub.close().await;
    store.open();
    let log = LogId::parse(&task).unwrap();
    let is_kept = async {
        while store.item(&log, "result").await.unwrap().is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), is_kept).await.expect("it is written down once it can be");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_session_that_went_on_elsewhere_leaves_nothing_open_at_the_servers() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let (store, fixture) = (Shutter::new(), Fixture::start(&[&format!("--count={}", ran.display())]).await);
    let options = Options { ask_timeout: std::time::Duration::from_millis(400), ..Options::default() };
    let hub = hub_with(options, store.clone(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    client.call("b__echo", json!({ "text": "x" })).await;
    let log = LogId::parse(&client.session).unwrap();
    store.lease(&log, &Claim::by(Holder::parse("another").unwrap())).await.unwrap();
    // Whatever is told next cannot be written here any more.
    let off = support::spec(&json!({ "url": fixture.url(), "disabled": true }));
    hub.configure([("b".to_owned(), fixture.spec()), ("off".to_owned(), off)].into()).await;
    until("its session at the server is ended", || {
        std::fs::read_to_string(&ran).unwrap_or_default().contains("session ended")
    })
    .await;
    assert_eq!(hub.sessions.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_log_that_begins_anew_refuses_the_cursors_of_the_old_one() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    hub.all()[0].reconnect().await;
    let heard = client.tool("await_activity", json!({ "timeout_ms": 60_000 })).await;
    // As a store does that has lost what it knew.
    let log = LogId::parse(&client.session).unwrap();
    let record = store.record(&log).await.unwrap();
    let mut gone = Commit::to(log.clone(), Fence(u64::MAX), 0);
    gone.release = Some(Release::Log);
    store.commit(gone).await.unwrap();
    let mut anew = Commit::to(log, Fence::default(), 0);
    anew.create = Some(Start { epoch: Epoch::parse("another").unwrap(), after: Seq::ZERO });
    anew.record = record;
    store.commit(anew).await.unwrap();
    let after = json!({ "timeout_ms": 100, "last_event_id": heard["last_event_id"] });
    for _ in 0..2 {
        let refused = client.call("await_activity", after.clone()).await;
        assert_eq!(refused["isError"], true, "{refused}");
    }
    let heard = client.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    assert!(heard["last_event_id"].as_str().unwrap().contains("another"), "{heard}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_over_stdio_goes_on_hearing_after_its_log_could_not_be_read() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let mut wire = Wire::open(&hub, "alice", Route::All);
    wire.initialize(json!({})).await;
    wire.ask("ping", json!({})).await;
    store.shut(|act| match act {
        Act::Read => Verdict::Refuse(StoreError::Unavailable("for a while".into())),
        _ => Verdict::Pass,
    });
    wire.ask("tools/call", json!({ "name": "b__grow", "arguments": { "name": "grown" } })).await;
    store.has_caught().await;
    store.open();
    while wire.message().await["method"] != "notifications/tools/list_changed" {}
    wire.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_session_of_which_the_store_is_in_doubt_is_woken_anew_and_misses_nothing_after_that() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let mut own = Pieces::of(client.get(None).await);
    store.shut_commits(&client.session, StoreError::InDoubt("just now".into()));
    client
        .post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": { "level": "info" } }))
        .await;
    assert_eq!(store.caught(), 1);
    assert!(own.is_over().await, "whoever reads it comes back");
    store.open();
    // Nobody asks for it before this happens.
    hub.configure(std::collections::BTreeMap::new()).await;
    let mut cursor = Value::Null;
    loop {
        let heard = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(heard["triggered_by"], "timeout", "{heard}");
        cursor = heard["last_event_id"].clone();
        if heard["events"].as_array().unwrap().iter().any(|event| event["type"] == "server_removed") {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_servers_tell_a_session_reaches_it_also_after_it_was_woken_anew() {
    let (store, fixture) = (Shutter::new(), Fixture::start(&[]).await);
    let hub = hub(&store, &fixture).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let mut own = Pieces::of(client.get(None).await);
    client.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
    while own.message().await["method"] != "notifications/resources/updated" {}
    store.shut_commits(&client.session, StoreError::InDoubt("just now".into()));
    let level = json!({ "jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": { "level": "info" } });
    client.post(&level).await;
    assert!(own.is_over().await, "whoever reads it comes back");
    store.open();
    let mut own = Pieces::of(client.get(None).await);
    client.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
    while own.message().await["method"] != "notifications/resources/updated" {}
}

/// One that heard that it is not there would give up a call that goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_a_log_that_cannot_be_read_now_is_not_said_to_be_gone() {
    let store = Shutter::new();
    let away = support::spec(&json!({ "url": "http://127.0.0.1:9/mcp" }));
    let hub = hub_with(Options::default(), store.clone(), &[("b", away)]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    // It is dialled again and again, and each attempt is an event.
    let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000 })).await;
    assert_ne!(seen["triggered_by"], "timeout");
    let last = seen["last_event_id"].as_str().unwrap().to_owned();
    store.shut(|act| match act {
        Act::Read => Verdict::Refuse(StoreError::Unavailable("just now".into())),
        _ => Verdict::Pass,
    });
    assert_eq!(client.get(Some(&last)).await.status, 503);
    store.open();
    assert_eq!(client.get(Some(&last)).await.status, 200, "{last}");
}
