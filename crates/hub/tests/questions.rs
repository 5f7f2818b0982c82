//! What backends ask: it finds the one who can answer, is answered once, and is void when its backend is gone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support;

use bowline_hub::Route;
use serde_json::{Value, json};
use support::{Client, Fixture, Pieces, hub, spec, stdio_entry};

fn one() -> Route {
    Route::One("b".into())
}

#[allow(clippy::needless_pass_by_value, reason = "so that calls read as calls")]
fn call(id: u64, tool: &str, arguments: Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "mine" } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

fn accept(question: &Value, name: &str) -> Value {
    let result = json!({ "action": "accept", "content": { "name": name } });
    json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })
}

/// The next message that asks something.
async fn question(stream: &mut Pieces) -> Value {
    loop {
        let message = stream.message().await;
        if message["method"] == "elicitation/create" {
            return message;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_names_its_call_finds_its_asker_on_a_pipe_that_two_people_share() {
    let hub = hub(&[("b", spec(&stdio_entry(&[])))]).await;
    let can = json!({ "elicitation": {} });
    let (alice, _) = Client::open(&hub, "alice", one(), can.clone()).await;
    let (bob, _) = Client::open(&hub, "bob", one(), can).await;
    let ask = |question: &str| call(1, "ask", json!({ "question": question, "related": true }));
    let mut alices = Pieces::of(alice.post(&ask("for alice")).await);
    let mut bobs = Pieces::of(bob.post(&ask("for bob")).await);
    let (for_alice, for_bob) = (question(&mut alices).await, question(&mut bobs).await);
    assert_eq!(for_alice["params"]["message"], "for alice");
    assert_eq!(for_bob["params"]["message"], "for bob");
    alice.post(&accept(&for_alice, "Ann")).await;
    bob.post(&accept(&for_bob, "Bob")).await;
    assert_eq!(alices.message().await["result"]["content"][0]["text"], "accept Ann");
    assert_eq!(bobs.message().await["result"]["content"][0]["text"], "accept Bob");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_of_a_backend_that_is_gone_is_taken_back_on_its_stream() {
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({ "elicitation": {} })).await;
    let mut stream = Pieces::of(client.post(&call(1, "ask", json!({}))).await);
    let asked = question(&mut stream).await;
    fixture.kill().await;
    let taken_back = stream.message().await;
    assert_eq!(taken_back["method"], "notifications/cancelled", "{taken_back}");
    assert_eq!(taken_back["params"]["requestId"], asked["id"]);
    let ended = stream.message().await;
    assert_eq!(ended["result"]["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{ended}");
    assert!(stream.next().await.is_none());
    assert_eq!(client.post(&accept(&asked, "too late")).await.status, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_of_a_backend_that_is_gone_is_rejected_for_those_who_answer_by_the_tools() {
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let calling = client.clone();
    let call = tokio::spawn(async move { calling.call("b__ask", json!({})).await });
    let mut cursor = Value::Null;
    let mut all = Vec::new();
    let mut wait_for = async |kind: &str| -> Value {
        loop {
            if let Some(found) = all.iter().find(|event: &&Value| event["type"] == kind) {
                return found.clone();
            }
            let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
            assert_eq!(seen["triggered_by"], "event", "{kind} is not in {all:?}");
            cursor = seen["last_event_id"].clone();
            all.extend(seen["events"].as_array().unwrap().clone());
        }
    };
    let asked = wait_for("elicitation_request").await;
    fixture.kill().await;
    let expired = wait_for("elicitation_expired").await;
    assert_eq!(expired["data"]["id"], asked["data"]["id"]);
    assert_eq!(expired["data"]["reason"], "Server disconnected");
    assert_eq!(client.tool("get_elicitations", json!({})).await["requests"], json!([]));
    let late = client.call("respond_to_elicitation", json!({ "id": asked["data"]["id"], "action": "accept" })).await;
    assert_eq!(late["isError"], true);
    assert_eq!(call.await.unwrap()["structuredContent"]["code"], "OUTCOME_UNKNOWN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_lost_its_wire_is_asked_again_and_its_answer_counts_once() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({ "elicitation": {} })).await;
    let mut stream = Pieces::of(client.post(&call(1, "ask", json!({}))).await);
    let first = stream.next().await.unwrap().id.unwrap();
    let asked = question(&mut stream).await;
    drop(stream);
    // It comes back with nothing in its hands.
    let mut own = Pieces::of(client.get(None).await);
    let again = question(&mut own).await;
    assert_eq!(again, asked);
    client.post(&accept(&again, "Ann")).await;
    client.post(&accept(&asked, "Eve")).await;
    // The answer to the call is on its own stream, where it was.
    let mut stream = Pieces::of(client.get(Some(&first)).await);
    assert_eq!(question(&mut stream).await, asked);
    assert_eq!(stream.message().await["result"]["content"][0]["text"], "accept Ann");
    assert!(stream.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_goes_to_whoever_subscribed_and_to_nobody_else_on_a_shared_pipe() {
    let hub = hub(&[("b", spec(&stdio_entry(&[])))]).await;
    let (alice, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let (bob, _) = Client::open(&hub, "bob", Route::All, json!({})).await;
    let mut heard: Vec<Value> = Vec::new();
    let mut cursor = Value::Null;
    let mut bob_hears_of = async |uri: &str| {
        bob.tool("subscribe_resource", json!({ "server": "b", "uri": uri })).await;
        while !heard.iter().any(|event| event["data"]["params"]["uri"] == uri) {
            let seen = bob.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
            assert_eq!(seen["triggered_by"], "event");
            cursor = seen["last_event_id"].clone();
            heard.extend(seen["events"].as_array().unwrap().clone());
        }
    };
    bob_hears_of("test://two").await;
    let mut alices = Pieces::of(alice.get(None).await);
    alice.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
    let update = alices.message().await;
    assert_eq!(update["method"], "notifications/resources/updated");
    assert_eq!(update["params"]["uri"], "test://one");
    // What comes later on the same pipe comes later to bob too.
    bob_hears_of("test://three").await;
    assert!(!heard.iter().any(|event| event["data"]["params"]["uri"] == "test://one"), "{heard:?}");
}
