//! Programs that several clients use: each client has a process of its own, so what a process asks or says is known to be its.

use std::sync::Arc;

use bowline_hub::{Hub, Options, Route};
use serde_json::{Value, json};

use crate::support::{Client, PATIENCE, Pieces, hub, hub_with, modern, spec, stdio_entry, store, until};

fn one() -> Route {
    Route::One("b".into())
}

fn can() -> Value {
    json!({ "elicitation": {} })
}

async fn program(args: &[&str]) -> Arc<Hub> {
    hub(&[("b", spec(&stdio_entry(args)))]).await
}

#[allow(clippy::needless_pass_by_value, reason = "so that calls read as calls")]
fn request(tool: &str, arguments: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": arguments } })
}

async fn pid(client: &Client) -> i32 {
    client.call("pid", json!({})).await["content"][0]["text"].as_str().unwrap().parse().unwrap()
}

fn alive(pid: i32) -> bool {
    // A zombie is no process any more, only a memory of one.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Types of the events that a session was told, once one of this type is there.
async fn told_until(client: &Client, last: &str) -> Vec<String> {
    let (mut cursor, mut told): (Value, Vec<String>) = (Value::Null, Vec::new());
    while !told.iter().any(|kind| kind == last) {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
        cursor = seen["last_event_id"].clone();
        let events = seen["events"].as_array().unwrap();
        told.extend(events.iter().map(|event| event["type"].as_str().unwrap().to_owned()));
    }
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn clients_that_ask_at_once_are_asked_what_is_theirs_though_no_question_names_a_call() {
    let hub = program(&[]).await;
    let mut streams = Vec::new();
    for who in ["alice", "bob", "bob", "carol"] {
        let (client, _) = Client::open(&hub, who, one(), can()).await;
        let question = format!("{who} {}", streams.len());
        let stream = Pieces::of(client.post(&request("ask", json!({ "question": question }))).await);
        streams.push((client, question, stream));
    }
    // All of them are asked before anybody answers.
    let mut asked = Vec::new();
    for (_, question, stream) in &mut streams {
        let message = stream.message().await;
        assert_eq!(message["params"]["message"], *question);
        asked.push(message["id"].clone());
    }
    for ((client, question, stream), id) in streams.iter_mut().zip(asked) {
        let result = json!({ "action": "accept", "content": { "name": question } });
        client.post(&json!({ "jsonrpc": "2.0", "id": id, "result": result })).await;
        assert_eq!(stream.message().await["result"]["content"][0]["text"], format!("accept {question}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn clients_without_sessions_are_told_apart_too_though_they_look_alike() {
    let hub = program(&[]).await;
    let ask = |question: String| {
        let hub = hub.clone();
        async move {
            let params = json!({ "name": "ask", "arguments": { "question": question, "ms": 300 } });
            modern(&hub, "alice", &one(), "tools/call", params, can()).await.messages().await.pop().unwrap()
        }
    };
    let asked = futures_util::future::join_all((0..3).map(|n| ask(format!("question {n}")))).await;
    for (n, answer) in asked.iter().enumerate() {
        let result = &answer["result"];
        assert_eq!(result["resultType"], "input_required", "{answer}");
        let (key, question) = result["inputRequests"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(question["params"]["message"], format!("question {n}"));
        let response = json!({ "action": "accept", "content": { "name": n.to_string() } });
        let mut params = json!({ "name": "ask", "arguments": { "question": format!("question {n}"), "ms": 300 } });
        params["requestState"] = result["requestState"].clone();
        params["inputResponses"] = json!({ key: response });
        let ended = modern(&hub, "alice", &one(), "tools/call", params, can()).await.messages().await.pop().unwrap();
        assert_eq!(ended["result"]["content"][0]["text"], format!("accept {n}"), "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn one_client_has_one_process_and_a_second_ones_goes_with_it() {
    let hub = program(&["--pid"]).await;
    let (alice, _) = Client::open(&hub, "alice", one(), can()).await;
    let (bob, _) = Client::open(&hub, "bob", one(), can()).await;
    for client in [&alice, &bob] {
        assert_eq!(client.ask("logging/setLevel", json!({ "level": "error" })).await["result"], json!({}));
    }
    let (first, second) = (pid(&alice).await, pid(&bob).await);
    assert_ne!(first, second);
    assert_eq!((pid(&alice).await, pid(&bob).await), (first, second), "each stays where it is");
    bob.delete().await;
    until("bob's process is gone", || !alive(second)).await;
    alice.delete().await;
    // The first one stays, for the same person. That she has left it is known a moment later.
    let coming_back = async {
        loop {
            let (again, _) = Client::open(&hub, "alice", one(), can()).await;
            if pid(&again).await == first {
                return again;
            }
            again.delete().await;
        }
    };
    let again = tokio::time::timeout(PATIENCE, coming_back).await.expect("she gets it back");
    let (carol, _) = Client::open(&hub, "carol", one(), can()).await;
    again.delete().await;
    let third = pid(&carol).await;
    assert_ne!(third, first, "nobody inherits what another's process remembers");
    hub.close().await;
    until("all are gone", || !alive(first) && !alive(third)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn the_end_of_one_clients_process_is_its_own_trouble() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let entry = stdio_entry(&["--wild=yes", "--chatty", &format!("--count={}", ran.display())]);
    let hub = hub(&[("b", spec(&entry))]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, can()).await;
    let (bob, _) = Client::open(&hub, "bob", Route::All, can()).await;
    alice.call("b__echo", json!({})).await;
    let calling = alice.clone();
    let slow = tokio::spawn(async move { calling.call("b__count", json!({ "id": "x", "ms": 3000 })).await });
    until("her call runs", || ran.exists()).await;
    bob.call("b__mutter", json!({ "text": "bob's own" })).await;
    assert_eq!(bob.call("b__exit", json!({ "code": 7 })).await["structuredContent"]["code"], "OUTCOME_UNKNOWN");
    let told = told_until(&bob, "server_process_crashed").await;
    assert!(!told.contains(&"server_disconnected".to_owned()), "{told:?}");
    assert_eq!(bob.call("b__echo", json!({ "text": "again" })).await["content"][0]["text"], "again");
    let shown = bob.tool("list_servers", json!({})).await;
    assert_eq!(shown["servers"][0]["status"], "connected");
    assert_eq!(slow.await.unwrap()["content"][0]["text"], "done x");
    let logs = bob.tool("get_logs", json!({})).await;
    assert!(logs.to_string().contains("bob's own"), "{logs}");
    let seen = alice.tool("await_activity", json!({ "timeout_ms": 100 })).await.to_string();
    assert!(!seen.contains("crashed") && !seen.contains("bob's own"), "{seen}");
}

/// The next resource of which a stream says that it has changed. Lists may be new to it, and that is said too.
async fn updated(stream: &mut Pieces) -> Value {
    loop {
        let message = stream.message().await;
        if message["method"] == "notifications/resources/updated" {
            return message["params"]["uri"].clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_subscription_is_where_its_client_is() {
    let dir = tempfile::tempdir().unwrap();
    let subscribed = dir.path().join("subscribed");
    let entry = stdio_entry(&["--wild=yes", &format!("--subscribed={}", subscribed.display())]);
    let hub = hub(&[("b", spec(&entry))]).await;
    let asked = || std::fs::read_to_string(&subscribed).unwrap_or_default().lines().count();
    let (alice, _) = Client::open(&hub, "alice", one(), can()).await;
    let (bob, _) = Client::open(&hub, "bob", one(), can()).await;
    let mut bobs = Pieces::of(bob.get(None).await);
    alice.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
    bob.ask("resources/subscribe", json!({ "uri": "test://two" })).await;
    assert_eq!(updated(&mut bobs).await, "test://two", "his process tells him of his alone");
    // When his process is gone, another one tells him.
    bob.ask("tools/call", json!({ "name": "exit", "arguments": { "code": 1 } })).await;
    until("it is subscribed to again", || asked() == 3).await;
    assert_eq!(updated(&mut bobs).await, "test://two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_program_that_can_run_only_once_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let lock = format!("--lock={}", dir.path().join("lock").display());
    let hub = program(&["--pid", &lock]).await;
    let (alice, _) = Client::open(&hub, "alice", one(), can()).await;
    let (bob, _) = Client::open(&hub, "bob", one(), can()).await;
    assert_eq!(pid(&alice).await, pid(&bob).await);
    // Alone, each is asked.
    for client in [&alice, &bob] {
        let mut stream = Pieces::of(client.post(&request("ask", json!({}))).await);
        let asked = stream.message().await;
        client.post(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "decline" } })).await;
        assert_eq!(stream.message().await["result"]["content"][0]["text"], "decline");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn there_are_no_more_processes_than_are_allowed() {
    let options = Options { processes_per_server_max: 2, ..Options::default() };
    let hub = hub_with(options, store(), &[("b", spec(&stdio_entry(&["--pid"])))]).await;
    let mut pids = Vec::new();
    for who in ["alice", "bob", "carol", "dave"] {
        let (client, _) = Client::open(&hub, who, one(), can()).await;
        pids.push(pid(&client).await);
    }
    assert_ne!(pids[0], pids[1], "the first is somebody's own");
    assert_eq!(pids[2..], [pids[1], pids[1]], "the rest share one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn one_principal_has_a_share_of_the_processes_and_its_further_clients_share_one() {
    let options = Options { processes_per_server_max: 5, processes_per_principal_max: 2, ..Options::default() };
    let hub = hub_with(options, store(), &[("b", spec(&stdio_entry(&["--pid"])))]).await;
    let mut pids = Vec::new();
    for who in ["alice", "alice", "alice", "alice", "bob", "bob"] {
        let (client, _) = Client::open(&hub, who, one(), can()).await;
        pids.push(pid(&client).await);
    }
    assert_ne!(pids[0], pids[1], "she has two");
    assert!(!pids[..2].contains(&pids[2]) && pids[2] == pids[3], "and her further clients share another: {pids:?}");
    assert!(
        pids[4] != pids[5] && !pids[..4].contains(&pids[4]) && !pids[..4].contains(&pids[5]),
        "bob has his: {pids:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_outlives_another_call_of_its_client_that_ends_before_it_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let [began, when, ran, over] = ["began", "when", "ran", "over"].map(|name| dir.path().join(name));
    let hub = program(&[&format!("--count={}", ran.display())]).await;
    let (alice, _) = Client::open(&hub, "alice", one(), can()).await;
    let mut asking = Pieces::of(alice.post(&request("ask", json!({ "began": began, "when": when }))).await);
    until("the older one runs", || began.exists()).await;
    let mut newer = Pieces::of(alice.post(&request("count", json!({ "id": "x", "until": over }))).await);
    until("the newer one runs", || ran.exists()).await;
    std::fs::write(&when, "").unwrap();
    // Nothing says which of them asks, so it is asked in the newer one.
    let question = newer.message().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    std::fs::write(&over, "").unwrap();
    let ended = newer.message().await;
    assert_eq!(ended["result"]["content"][0]["text"], "done x", "the question is not taken back: {ended}");
    alice.post(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } })).await;
    assert_eq!(asking.message().await["result"]["content"][0]["text"], "decline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_one_clients_process_offers_is_its_own_and_so_is_what_it_writes_to_stderr() {
    let hub = program(&["--chatty"]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, can()).await;
    alice.call("b__echo", json!({})).await;
    let (bob, _) = Client::open(&hub, "bob", one(), can()).await;
    let mut bobs = Pieces::of(bob.get(None).await);
    let grown = |listed: &Value| listed["result"]["tools"].to_string().contains("bobs-tool");
    assert!(!grown(&bob.ask("tools/list", json!({})).await));
    bob.call("grow", json!({ "name": "bobs-tool" })).await;
    while bobs.message().await["method"] != "notifications/tools/list_changed" {}
    assert!(grown(&bob.ask("tools/list", json!({})).await));
    // Hers is the first process, and others use the server too.
    alice.call("b__mutter", json!({ "text": "alice's own" })).await;
    loop {
        if alice.tool("get_logs", json!({})).await.to_string().contains("alice's own") {
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_subscription_of_a_client_without_a_session_watches_nobody_elses_process() {
    let dir = tempfile::tempdir().unwrap();
    let subscribed = dir.path().join("subscribed");
    let hub = program(&["--pid", &format!("--subscribed={}", subscribed.display())]).await;
    let (alice, _) = Client::open(&hub, "alice", one(), can()).await;
    let hers = pid(&alice).await;
    let filter = json!({ "notifications": { "resourceSubscriptions": ["test://one", "test://two"] } });
    let mut heard = Pieces::of(modern(&hub, "bob", &one(), "subscriptions/listen", filter, json!({})).await);
    assert_eq!(heard.message().await["method"], "notifications/subscriptions/acknowledged");
    let asked = std::fs::read_to_string(&subscribed).unwrap();
    let places: Vec<&str> = asked.lines().filter_map(|line| line.split_once(' ')).map(|(_, pid)| pid).collect();
    assert!(places.len() == 2 && places[0] == places[1] && places[0] != hers.to_string(), "{asked} at {hers}");
    for _ in 0..2 {
        assert_eq!(heard.message().await["method"], "notifications/resources/updated");
    }
}
