//! Servers of the oldest transport, HTTP+SSE: each client has a stream of its own, which is its session.

use std::path::Path;
use std::sync::Arc;

use bowline_hub::{Hub, Route};
use serde_json::{Value, json};

use crate::support::{Client, Fixture, Pieces, hub, spec, until};

async fn before(fixture: &Fixture) -> Arc<Hub> {
    let url = format!("http://127.0.0.1:{}/sse", fixture.port);
    hub(&[("b", spec(&json!({ "url": url, "type": "sse" })))]).await
}

async fn open(hub: &Arc<Hub>, capabilities: Value) -> Client {
    Client::open(hub, "alice", Route::All, capabilities).await.0
}

fn call(tool: &str, arguments: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": arguments } })
}

fn lines(path: &Path, line: &str) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().filter(|other| *other == line).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn it_works_and_returns() {
    let mut fixture = Fixture::start(&["--sse=yes"]).await;
    let hub = before(&fixture).await;
    let client = open(&hub, json!({ "elicitation": {} })).await;
    assert_eq!(client.call("b__echo", json!({ "text": "x" })).await["content"][0]["text"], "x");
    fixture.kill().await;
    let backend = hub.all().remove(0);
    until("the loss is seen", || !backend.snapshot().is_connected()).await;
    fixture.restart().await;
    assert_eq!(client.call("b__echo", json!({ "text": "y" })).await["content"][0]["text"], "y");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn questions_that_name_no_call_reach_whom_they_are_for_while_several_clients_call() {
    let dir = tempfile::tempdir().unwrap();
    let clients = dir.path().join("clients");
    let fixture = Fixture::start(&["--sse=yes", &format!("--clients={}", clients.display())]).await;
    let hub = before(&fixture).await;
    let can = ["first", "second"].map(|name| json!({ "elicitation": {}, "experimental": { "name": name } }));
    let mut streams = Vec::new();
    for (n, can) in can.iter().enumerate() {
        let client = open(&hub, can.clone()).await;
        // All are asked only after all have called.
        let asked = call("b__ask", &json!({ "question": format!("{n}?"), "ms": 300 }));
        streams.push((Pieces::of(client.post(&asked).await), client));
    }
    for (n, (stream, client)) in streams.iter_mut().enumerate() {
        let asked = stream.message().await;
        assert_eq!(asked["params"]["message"], format!("{n}?"), "{asked}");
        let content = json!({ "name": format!("client {n}") });
        let answer =
            json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "accept", "content": content } });
        assert_eq!(client.post(&answer).await.status, 202);
    }
    for (n, (stream, _)) in streams.iter_mut().enumerate() {
        assert_eq!(stream.message().await["result"]["content"][0]["text"], format!("accept client {n}"));
    }
    // Each is what it is there too, and not what we are; and has the tools, with which it can answer everything.
    let told = std::fs::read_to_string(&clients).unwrap();
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for can in can {
        let one: Vec<&Value> = told.iter().filter(|told| told["experimental"] == can["experimental"]).collect();
        assert_eq!(one.len(), 1, "{told:?}");
        assert_eq!(one[0]["elicitation"], json!({ "form": {}, "url": {} }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_cut_of_one_clients_stream_is_nobody_elses() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&["--sse=yes", &format!("--count={}", ran.display())]).await;
    let hub = before(&fixture).await;
    let (first, second) = (open(&hub, json!({})).await, open(&hub, json!({})).await);
    let long = call("b__count", &json!({ "id": "long", "ms": 500 }));
    let waiting = tokio::spawn(async move { second.post(&long).await.messages().await });
    until("the other call runs", || lines(&ran, "long") == 1).await;
    let ended = first.call("b__cut", json!({})).await;
    assert_eq!(ended["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{ended}");
    assert_eq!(first.call("b__echo", json!({ "text": "back" })).await["content"][0]["text"], "back");
    let heard = waiting.await.unwrap().pop().unwrap();
    assert_eq!(heard["result"]["content"][0]["text"], "done long", "{heard}");
    let seen = first.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    assert!(!seen.to_string().contains("server_disconnected"), "{seen}");
    assert_eq!(lines(&ran, "session ended"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_it_refuses_or_fails_at_ends_that_call_only() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&["--sse=yes", &format!("--count={}", ran.display())]).await;
    let hub = before(&fixture).await;
    let client = open(&hub, json!({})).await;
    let neighbour = client.clone();
    let long = call("b__count", &json!({ "id": "long", "ms": 500 }));
    let waiting = tokio::spawn(async move { neighbour.post(&long).await.messages().await });
    until("the other call runs", || lines(&ran, "long") == 1).await;
    let refused = client.call("b__echo", json!({ "status": 413 })).await;
    assert_eq!(refused["structuredContent"]["code"], "NOT_EXECUTED", "{refused}");
    assert!(refused["structuredContent"]["lastError"].as_str().unwrap().contains("413"), "{refused}");
    let busy = client.call("b__echo", json!({ "status": 503, "later": "7" })).await["structuredContent"].clone();
    assert_eq!((&busy["code"], &busy["retryAfterMs"]), (&json!("NOT_EXECUTED"), &json!(7000)), "{busy}");
    let failed = client.call("b__echo", json!({ "status": 502 })).await;
    assert_eq!(failed["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{failed}");
    let heard = waiting.await.unwrap().pop().unwrap();
    assert_eq!(heard["result"]["content"][0]["text"], "done long", "{heard}");
    assert_eq!(lines(&ran, "session ended"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn subscriptions_are_each_clients_own_and_outlive_its_stream() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&["--sse=yes", &format!("--count={}", ran.display())]).await;
    let hub = before(&fixture).await;
    let (first, second) = (open(&hub, json!({})).await, open(&hub, json!({})).await);
    let (mut own, mut others) = (Pieces::of(first.get(None).await), Pieces::of(second.get(None).await));
    async fn updated(stream: &mut Pieces) -> Value {
        loop {
            let message = stream.message().await;
            if message["method"] == "notifications/resources/updated" {
                return message["params"]["uri"].clone();
            }
        }
    }
    first.tool("subscribe_resource", json!({ "server": "b", "uri": "test://one" })).await;
    second.tool("subscribe_resource", json!({ "server": "b", "uri": "test://two" })).await;
    assert_eq!(updated(&mut own).await, "test://one");
    assert_eq!(updated(&mut others).await, "test://two");
    // The fixture tells an update to whoever subscribes, so one more is heard when the stream is back, and nobody calls.
    first.call("b__cut", json!({})).await;
    assert_eq!(updated(&mut own).await, "test://one");
    assert_eq!(lines(&ran, "session ended"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_stream_ends_with_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&["--sse=yes", &format!("--count={}", ran.display())]).await;
    let hub = before(&fixture).await;
    let (first, second) = (open(&hub, json!({})).await, open(&hub, json!({})).await);
    for client in [&first, &second] {
        client.call("b__echo", json!({ "text": "x" })).await;
    }
    first.delete().await;
    until("its stream is closed", || lines(&ran, "session ended") == 1).await;
    assert_eq!(second.call("b__echo", json!({ "text": "y" })).await["content"][0]["text"], "y");
    assert_eq!(lines(&ran, "session ended"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_message_that_is_not_taken_holds_no_other_back() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&["--sse=yes", &format!("--count={}", ran.display())]).await;
    let hub = before(&fixture).await;
    let client = open(&hub, json!({})).await;
    let hanging = client.clone();
    let hangs = tokio::spawn(async move { hanging.call("b__echo", json!({ "hang": true })).await });
    until("it hangs", || lines(&ran, "hung") == 1).await;
    assert_eq!(client.call("b__echo", json!({ "text": "x" })).await["content"][0]["text"], "x");
    assert!(!hangs.is_finished());
    hangs.abort();
}
