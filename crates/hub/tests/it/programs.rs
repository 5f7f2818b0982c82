//! Backends that are programs: restarted when they die, ended with everything they started, and never confused.

use bowline_hub::{Options, Route};
use serde_json::{Value, json};

use crate::support::{Client, Fixture, Pieces, hub, hub_with, modern, spec, stdio_entry, store, until};

/// The processes whose command line holds `mark`.
fn processes(mark: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(mark) {
            found.push(pid);
        }
    }
    found
}

fn children_of(parents: &[i32]) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<i32>().ok());
        if parent.is_some_and(|parent| parents.contains(&parent)) {
            found.push(pid);
        }
    }
    found
}

fn kill(pid: i32) {
    assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Where the fixture writes down what it executed.
fn counter(dir: &tempfile::TempDir) -> (std::path::PathBuf, String) {
    let path = dir.path().join("ran");
    (path.clone(), format!("--count={}", path.display()))
}

fn alive(pid: i32) -> bool {
    // A zombie is no process any more, only a memory of one.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_program_that_is_killed_is_started_again_and_its_end_is_told() {
    let mark = format!("--mark=killed-{}", std::process::id());
    let dir = tempfile::tempdir().unwrap();
    let (ran, count) = counter(&dir);
    let hub = hub(&[("b", spec(&stdio_entry(&[&mark, &count])))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    assert_eq!(client.call("b__echo", json!({ "text": "one" })).await["content"][0]["text"], "one");
    let calling = client.clone();
    let cut = tokio::spawn(async move { calling.call("b__count", json!({ "id": "x", "ms": 60_000 })).await });
    let backend = hub.all().remove(0);
    until("the call has begun", || !std::fs::read_to_string(&ran).unwrap_or_default().is_empty()).await;
    kill(processes(&mark)[0]);
    let cut = cut.await.unwrap();
    assert_eq!(cut["structuredContent"]["code"], "OUTCOME_UNKNOWN");
    assert_eq!(client.call("b__echo", json!({ "text": "two" })).await["content"][0]["text"], "two");
    assert!(backend.snapshot().is_connected());
    let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000 })).await;
    let crashed: Vec<&Value> =
        seen["events"].as_array().unwrap().iter().filter(|event| event["type"] == "server_process_crashed").collect();
    assert_eq!(crashed.len(), 1, "{seen}");
    assert_eq!(crashed[0]["data"]["signal"], 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_program_that_closes_its_output_and_stays_is_lost_before_it_is_made_to_leave() {
    let mark = format!("--mark=hushed-{}", std::process::id());
    let hub = hub(&[("b", spec(&stdio_entry(&[&mark, "--wild=yes"])))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let silent = processes(&mark)[0];
    assert_eq!(client.call("b__hush", json!({})).await["structuredContent"]["code"], "OUTCOME_UNKNOWN");
    let (mut cursor, mut told) = (Value::Null, Vec::new());
    while !told.contains(&json!("server_reconnected")) {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
        cursor = seen["last_event_id"].clone();
        told.extend(seen["events"].as_array().unwrap().iter().map(|event| event["type"].clone()));
    }
    // How it was made to leave is not how it ended.
    assert!(!told.contains(&json!("server_process_crashed")), "{told:?}");
    until("it is gone all the same", || !alive(silent)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn nothing_that_a_program_started_outlives_it() {
    let mark = format!("--mark=leak-{}", std::process::id());
    let entry = stdio_entry(&[&mark, "--child=yes"]);
    let words: Vec<String> =
        entry["args"].as_array().unwrap().iter().map(|word| format!("'{}'", word.as_str().unwrap())).collect();
    // As `npx` does: a shell that starts the real thing.
    let wrapped = json!({ "command": "sh", "args": ["-c", format!("node {}; true", words.join(" "))] });
    let hub = hub(&[("b", spec(&wrapped))]).await;
    assert!(hub.all()[0].snapshot().is_connected(), "{:?}", hub.all()[0].snapshot());
    let ours = processes(&mark);
    let all: Vec<i32> = ours.iter().copied().chain(children_of(&ours)).collect();
    assert!(all.len() >= 3, "a shell, the program and its child: {all:?}");
    hub.close().await;
    until("all of them are gone", || all.iter().all(|pid| !alive(*pid))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn neighbours_on_one_pipe_keep_their_progress_and_their_questions() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, count) = counter(&dir);
    let options = Options { processes_per_server_max: 1, ..Options::default() };
    let hub = hub_with(options, store(), &[("b", spec(&stdio_entry(&[&count])))]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({ "elicitation": {} })).await;
    let (bob, _) = Client::open(&hub, "bob", Route::One("b".into()), json!({ "elicitation": {} })).await;
    let progress = |token: &str| {
        let params = json!({ "name": "progress", "arguments": { "ms": 50 }, "_meta": { "progressToken": token } });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
    };
    let (for_alice, for_bob) = (progress("same"), progress("same"));
    let (first, second) = tokio::join!(alice.post(&for_alice), bob.post(&for_bob));
    for answer in [first, second] {
        let messages = answer.messages().await;
        let steps: Vec<u64> = messages.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect();
        assert_eq!(steps, [1, 2, 3]);
    }
    // Who shares it cannot be asked while both have calls under way, since a question names neither.
    let waiting = bob.clone();
    let busy = tokio::spawn(async move { waiting.call("count", json!({ "id": "x", "ms": 1500 })).await });
    until("bob's call has begun", || !std::fs::read_to_string(&ran).unwrap_or_default().is_empty()).await;
    let refused = alice.call("ask", json!({})).await;
    assert_eq!(refused["isError"], Value::Null, "a refusal is the tool's own error: {refused}");
    assert_eq!(busy.await.unwrap()["content"][0]["text"], "done x");
    // Alone, alice is asked.
    let ask =
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "ask", "arguments": {} } });
    let mut stream = Pieces::of(alice.post(&ask).await);
    let question = stream.message().await;
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "cancel" } });
    alice.post(&answer).await;
    assert_eq!(stream.message().await["result"]["content"][0]["text"], "cancel");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn subscriptions_at_a_modern_program_are_heard_by_those_who_made_them() {
    let hub = hub(&[("b", spec(&stdio_entry(&["--era=modern"])))]).await;
    for (who, uri) in [("alice", "test://one"), ("bob", "test://two")] {
        let filter = json!({ "notifications": { "toolsListChanged": true, "resourceSubscriptions": [uri] } });
        let route = Route::One("b".into());
        let mut heard = Pieces::of(modern(&hub, who, &route, "subscriptions/listen", filter, json!({})).await);
        let acknowledged = heard.message().await;
        assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{acknowledged}");
        let updated = heard.message().await;
        assert_eq!(updated["params"]["uri"], uri, "{updated}");
        assert_eq!(updated["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "m1");
        let grow = json!({ "name": "grow", "arguments": { "name": format!("{who}-grew-it") } });
        modern(&hub, "carol", &route, "tools/call", grow, json!({})).await.messages().await;
        assert_eq!(heard.message().await["method"], "notifications/tools/list_changed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_subscription_that_clients_share_ends_when_the_last_who_wants_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, count) = counter(&dir);
    let sessionless = Fixture::start(&["--sessionless=yes", &count]).await;
    for server in [spec(&stdio_entry(&[&count])), sessionless.spec()] {
        let _ = std::fs::remove_file(&ran);
        let options = Options { processes_per_server_max: 1, ..Options::default() };
        let hub = hub_with(options, store(), &[("b", server)]).await;
        let (alice, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
        let (bob, _) = Client::open(&hub, "bob", Route::One("b".into()), json!({})).await;
        let uri = json!({ "uri": "test://one" });
        for client in [&alice, &bob] {
            assert_eq!(client.ask("resources/subscribe", uri.clone()).await["result"], json!({}));
        }
        let ended = || std::fs::read_to_string(&ran).unwrap_or_default().matches("unsubscribed test://one").count();
        assert_eq!(alice.ask("resources/unsubscribe", uri.clone()).await["result"], json!({}));
        // Whatever the server was told before this, it has read.
        alice.call("echo", json!({})).await;
        assert_eq!(ended(), 0, "bob still wants it");
        bob.delete().await;
        until("the server is told", || ended() == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_that_does_not_read_keeps_nobody_on_its_pipe_waiting() {
    let hub = hub(&[("b", spec(&stdio_entry(&[])))]).await;
    let route = Route::One("b".into());
    let steps = |messages: &[Value]| -> Vec<u64> {
        messages.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect()
    };
    let params =
        json!({ "name": "progress", "arguments": { "to": 500, "ms": 0 }, "_meta": { "progressToken": "mine" } });
    let unread = modern(&hub, "alice", &route, "tools/call", params.clone(), json!({})).await;
    // Who began later ends first.
    let read = modern(&hub, "bob", &route, "tools/call", params, json!({})).await.messages().await;
    for messages in [read, unread.messages().await] {
        let heard = steps(&messages);
        assert!(heard.is_sorted() && heard.ends_with(&[500]), "{heard:?}");
        assert_eq!(messages.last().unwrap()["result"]["content"][0]["text"], "progressed");
    }
}
