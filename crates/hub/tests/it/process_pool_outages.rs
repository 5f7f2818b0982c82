//! Programs that several clients use, when something goes wrong: what happens to one client's process concerns no other client, and
//! what is said late reaches no other client.

use std::path::Path;
use std::sync::Arc;

use bowline_hub::{Hub, Options, Route};
use futures_util::future::join;
use serde_json::{Value, json};

use crate::support::{Client, Pieces, hub, hub_with, modern, spec, stdio_entry, store, until};

fn one() -> Route {
    Route::One("b".into())
}

fn can() -> Value {
    json!({ "elicitation": {} })
}

async fn program(args: &[&str]) -> Arc<Hub> {
    hub(&[("b", spec(&stdio_entry(args)))]).await
}

async fn open(hub: &Arc<Hub>, who: &str) -> Client {
    Client::open(hub, who, one(), can()).await.0
}

async fn pid(client: &Client) -> String {
    let answered = client.ask("tools/call", json!({ "name": "pid", "arguments": {} })).await;
    answered["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answered}")).to_owned()
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(ToOwned::to_owned).collect()
}

/// What ran. That something was taken back is written there too.
fn executed(file: &Path) -> Vec<String> {
    lines(file).into_iter().filter(|line| line != "cancelled").collect()
}

/// The next message of this method on a stream.
async fn next(stream: &mut Pieces, method: &str) -> Value {
    loop {
        let message = stream.message().await;
        if message["method"] == method {
            return message["params"].clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn after_the_server_itself_is_lost_all_who_subscribed_are_told_by_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let subscribed = dir.path().join("subscribed");
    let hub = program(&["--wild=yes", &format!("--subscribed={}", subscribed.display())]).await;
    let (alice, bob) = (open(&hub, "alice").await, open(&hub, "bob").await);
    let mut bobs = Pieces::of(bob.get(None).await);
    alice.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
    bob.ask("resources/subscribe", json!({ "uri": "test://two" })).await;
    assert_eq!(next(&mut bobs, "notifications/resources/updated").await["uri"], "test://two");
    // His own process ends, and the first one tells him instead; then that ends, and no process is left.
    bob.call("exit", json!({ "code": 1 })).await;
    assert_eq!(next(&mut bobs, "notifications/resources/updated").await["uri"], "test://two");
    alice.call("exit", json!({ "code": 1 })).await;
    until("both are renewed", || lines(&subscribed).len() == 5).await;
    assert_eq!(next(&mut bobs, "notifications/resources/updated").await["uri"], "test://two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn when_the_first_process_ends_it_is_replaced_and_the_processes_of_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let hub = program(&["--wild=yes", "--pid", &format!("--count={}", ran.display())]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, can()).await;
    let (bob, _) = Client::open(&hub, "bob", Route::All, can()).await;
    let pid = async |client: &Client| client.call("b__pid", json!({})).await["content"][0]["text"].clone();
    let (first, second) = (pid(&alice).await, pid(&bob).await);
    assert_ne!(first, second);
    let slow = async { bob.call("b__count", json!({ "id": "x", "ms": 2000 })).await };
    let crash = async {
        until("his call runs", || ran.exists()).await;
        let cut = alice.call("b__exit", json!({ "code": 1 })).await;
        assert_eq!(cut["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{cut}");
        let next = pid(&alice).await;
        assert!(next.is_string() && next != first && next != second, "{next}");
    };
    let (slow, ()) = Box::pin(join(slow, crash)).await;
    assert_eq!(slow["content"][0]["text"], "done x", "{slow}");
    assert_eq!(pid(&bob).await, second, "his process is what it was");
    assert!(hub.all()[0].snapshot().is_connected());
    let heard = async |client: &Client| client.tool("await_activity", json!({ "timeout_ms": 100 })).await.to_string();
    assert!(heard(&alice).await.contains("server_process_crashed"));
    let his = heard(&bob).await;
    assert!(!his.contains("crashed") && !his.contains("disconnected"), "{his}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn while_the_first_process_cannot_be_started_again_the_processes_of_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken");
    let entry = stdio_entry(&["--wild=yes", "--pid"]);
    let words: Vec<String> =
        entry["args"].as_array().unwrap().iter().map(|word| format!("'{}'", word.as_str().unwrap())).collect();
    let script = format!("test -e '{}' && exit 3; exec node {}", broken.display(), words.join(" "));
    let hub = hub(&[("b", spec(&json!({ "command": "sh", "args": ["-c", script] })))]).await;
    let (alice, bob) = (open(&hub, "alice").await, open(&hub, "bob").await);
    let (first, second) = (pid(&alice).await, pid(&bob).await);
    std::fs::write(&broken, "").unwrap();
    alice.call("exit", json!({ "code": 1 })).await;
    let refused = alice.call("pid", json!({})).await;
    assert_eq!(refused["structuredContent"]["code"], "NOT_EXECUTED", "{refused}");
    assert!(refused.to_string().contains("the program exited with code 3"), "{refused}");
    assert_eq!(pid(&bob).await, second);
    std::fs::remove_file(&broken).unwrap();
    let mut next = Value::Null;
    while !next["content"][0]["text"].is_string() || next["isError"] == true {
        next = alice.call("pid", json!({})).await;
    }
    assert_ne!(next["content"][0]["text"], *first);
    assert_eq!(pid(&bob).await, second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn calls_that_come_at_once_share_a_program_that_can_run_only_once_and_nobody_is_told_of_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let hub = program(&["--pid", &format!("--lock={}", dir.path().join("lock").display())]).await;
    let (alice, bob) = (open(&hub, "alice").await, open(&hub, "bob").await);
    let first = pid(&alice).await;
    let both = join(Box::pin(pid(&bob)), Box::pin(pid(&bob))).await;
    assert_eq!(both, (first.clone(), first));
    let (watcher, _) = Client::open(&hub, "bob", Route::All, can()).await;
    watcher.call("b__pid", json!({})).await;
    let seen = watcher.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    assert!(!seen.to_string().contains("crashed"), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_that_a_program_does_not_want_costs_the_others_nothing() {
    let hub = program(&["--pid", "--strict"]).await;
    let alice = open(&hub, "alice").await;
    let first = pid(&alice).await;
    let (odd, _) = Client::open(&hub, "mallory", one(), json!({ "unheard": {}, "elicitation": {} })).await;
    assert_eq!(pid(&odd).await, first, "it shares");
    let (bob, carol) = (open(&hub, "bob").await, open(&hub, "carol").await);
    let (bobs, carols) = (pid(&bob).await, pid(&carol).await);
    assert!(bobs != first && carols != first && bobs != carols);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_is_asked_while_others_only_look() {
    let dir = tempfile::tempdir().unwrap();
    let listless = dir.path().join("listless");
    let hub = program(&[&format!("--listless={}", listless.display())]).await;
    let alice = open(&hub, "alice").await;
    alice.call("echo", json!({})).await;
    // This list never comes, and is given up.
    std::fs::write(&listless, "wait").unwrap();
    let route = one();
    let looking = modern(&hub, "carol", &route, "tools/list", json!({}), can());
    let _ = tokio::time::timeout(std::time::Duration::from_millis(300), looking).await;
    let ask =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "ask", "arguments": {} } });
    let mut stream = Pieces::of(alice.post(&ask).await);
    assert_eq!(next(&mut stream, "elicitation/create").await["message"], "your name?");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_a_process_says_late_of_one_person_is_not_heard_by_the_next() {
    let hub = program(&["--chatty"]).await;
    let late = json!({ "name": "log", "arguments": { "level": "info", "text": "bob's secret", "later": 700 } });
    modern(&hub, "bob", &one(), "tools/call", late, json!({})).await.messages().await;
    let alice = open(&hub, "alice").await;
    let mut hers = Pieces::of(alice.get(None).await);
    alice.call("log", json!({ "level": "info", "text": "her own", "later": 1500 })).await;
    assert_eq!(next(&mut hers, "notifications/message").await["data"], "her own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn how_much_is_logged_is_each_clients_own_matter() {
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    let hub = program(&["--wild=yes", "--pid", &format!("--count={}", told.display())]).await;
    let (alice, bob) = (open(&hub, "alice").await, open(&hub, "bob").await);
    alice.ask("logging/setLevel", json!({ "level": "debug" })).await;
    bob.ask("logging/setLevel", json!({ "level": "emergency" })).await;
    let refused = bob.ask("logging/setLevel", json!({ "level": "loud" })).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let first = pid(&alice).await;
    assert_eq!(lines(&told), ["level debug"], "only hers is said to her process");
    assert_ne!(pid(&bob).await, first);
    assert_eq!(lines(&told), ["level debug", "level emergency"]);
    bob.call("exit", json!({ "code": 1 })).await;
    assert_ne!(pid(&bob).await, first);
    assert_eq!(lines(&told), ["level debug", "level emergency", "level emergency"], "each process heard one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_process_that_reads_no_more_and_ends_is_not_the_end_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let hub = program(&["--pid", &format!("--count={}", ran.display())]).await;
    let (alice, bob) = (open(&hub, "alice").await, open(&hub, "bob").await);
    let (first, second) = (pid(&alice).await, pid(&bob).await);
    assert_ne!(first, second);
    let slow = async { alice.call("count", json!({ "id": "x", "ms": 3000 })).await };
    let troubled = async {
        until("her call runs", || ran.exists()).await;
        let jam = async { bob.call("jam", json!({ "ms": 1000 })).await };
        // Too much for the pipe, so what comes after it does not leave at all.
        let large = async { bob.call("echo", json!({ "text": "x".repeat(1 << 20) })).await };
        let list = async { bob.ask("tools/list", json!({})).await };
        let (jammed, (_, listed)) = Box::pin(join(jam, join(large, list))).await;
        assert_eq!(jammed["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{jammed}");
        assert!(listed["result"]["tools"].is_array(), "{listed}");
    };
    let (slow, ()) = Box::pin(join(slow, troubled)).await;
    assert_eq!(slow["content"][0]["text"], "done x", "{slow}");
    assert_eq!(pid(&alice).await, first, "the first process is what it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn nothing_is_begun_for_a_client_that_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let options = Options { retry_idempotent: true, ..Options::default() };
    let entry = spec(&stdio_entry(&["--pid", "--readonly", &format!("--count={}", ran.display())]));
    let hub = hub_with(options, store(), &[("b", entry)]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, can()).await;
    let (bob, _) = Client::open(&hub, "bob", Route::All, can()).await;
    alice.call("b__pid", json!({})).await;
    let long = json!({ "server": "b", "tool": "count", "args": { "id": "x", "ms": 600_000 }, "as_task": true });
    bob.tool("execute_tool", long).await;
    until("it runs", || executed(&ran) == ["x"]).await;
    bob.delete().await;
    // Whatever was to be begun again is begun before this.
    let (carol, _) = Client::open(&hub, "carol", Route::All, can()).await;
    for n in 0..3 {
        carol.call("b__count", json!({ "id": format!("carol {n}") })).await;
    }
    assert_eq!(executed(&ran), ["x", "carol 0", "carol 1", "carol 2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_whose_process_is_only_being_started_when_the_server_is_lost_runs_once_at_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, late) = (dir.path().join("ran"), dir.path().join("late"));
    let args = ["--wild=yes", &format!("--count={}", ran.display()), &format!("--late={}", late.display())];
    let hub = program(&args).await;
    let (alice, bob) = (open(&hub, "alice").await, open(&hub, "bob").await);
    alice.call("echo", json!({})).await;
    let called = async { bob.call("count", json!({ "id": "x" })).await };
    let crash = async {
        // His process takes its time, so this comes first.
        alice.call("exit", json!({ "code": 1 })).await
    };
    let (called, _) = Box::pin(join(called, crash)).await;
    assert_eq!(called["content"][0]["text"], "done x", "{called}");
    assert_eq!(executed(&ran), ["x"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_a_clients_process_asked_is_void_when_it_ends_and_the_client_is_told_why() {
    let hub = program(&["--wild=yes"]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, can()).await;
    // He answers by the tools.
    let (bob, _) = Client::open(&hub, "bob", Route::All, json!({})).await;
    alice.call("b__echo", json!({})).await;
    let asking = bob.clone();
    let asked = tokio::spawn(async move { asking.call("b__ask", json!({})).await });
    let (mut cursor, mut told): (Value, Vec<Value>) = (Value::Null, Vec::new());
    let mut hears = async |kind: &str| loop {
        if let Some(event) = told.iter().find(|event| event["type"] == kind) {
            return event.clone();
        }
        let seen = bob.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
        cursor = seen["last_event_id"].clone();
        told.extend(seen["events"].as_array().unwrap().clone());
    };
    hears("elicitation_request").await;
    bob.call("b__exit", json!({ "code": 1 })).await;
    assert_eq!(hears("elicitation_expired").await["data"]["reason"], "Server disconnected");
    assert_eq!(asked.await.unwrap()["structuredContent"]["code"], "OUTCOME_UNKNOWN");
}
