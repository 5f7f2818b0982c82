//! Backends that are programs: restarted when they die, ended with everything they started, and never confused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support;

use bowline_hub::Route;
use serde_json::{Value, json};
use support::{Client, Pieces, hub, spec, stdio_entry, until};

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
async fn neighbours_on_one_pipe_keep_their_progress_and_their_questions() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, count) = counter(&dir);
    let hub = hub(&[("b", spec(&stdio_entry(&[&count])))]).await;
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
    // While both have calls under way, a question names neither, and so nobody is asked.
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
async fn the_hub_is_the_same_over_stdio() {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let hub = hub(&[("b", spec(&stdio_entry(&[])))]).await;
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (input, output) = tokio::io::split(theirs);
    let serving = tokio::spawn(bowline_hub::front::stdio::serve(
        hub.clone(),
        support::principal("local"),
        Route::All,
        BufReader::new(input),
        output,
    ));
    let (read, mut write) = tokio::io::split(ours);
    let mut lines = BufReader::new(read).lines();
    let mut ask = async |message: Value| -> Value {
        write.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        loop {
            let line = tokio::time::timeout(support::PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == message["id"] && answer["method"].is_null() {
                return answer;
            }
        }
    };
    let params =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let hello = ask(json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params })).await;
    assert_eq!(hello["result"]["protocolVersion"], "2025-06-18");
    let over_stdio = ask(json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" })).await;
    let (client, _) = Client::open(&hub, "local", Route::All, json!({})).await;
    let over_http = client.ask("tools/list", json!({})).await;
    assert_eq!(over_stdio["result"]["tools"], over_http["result"]["tools"]);
    let params = json!({ "name": "b__echo", "arguments": { "text": "hi" } });
    let echoed = ask(json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params })).await;
    assert_eq!(echoed["result"]["content"][0]["text"], "hi");
    drop(write);
    drop(lines);
    tokio::time::timeout(support::PATIENCE, serving).await.unwrap().unwrap().unwrap();
}
