//! What backends ask: it finds the one who can answer, is answered once, and is void when its backend is gone.

use bowline_hub::{Options, Route};
use serde_json::{Value, json};

use crate::support::{Client, Fixture, PATIENCE, Pieces, hub, hub_with, spec, stdio_entry, store};

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
#[ignore = "needs Node.js"]
async fn a_question_that_names_its_call_finds_its_asker_on_a_pipe_that_two_people_share() {
    let options = Options { processes_per_server_max: 1, ..Options::default() };
    let hub = hub_with(options, store(), &[("b", spec(&stdio_entry(&[])))]).await;
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
#[ignore = "needs Node.js"]
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
    assert_eq!(taken_back["params"]["reason"], "Server disconnected");
    let ended = stream.message().await;
    assert_eq!(ended["result"]["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{ended}");
    assert!(stream.next().await.is_none());
    assert_eq!(client.post(&accept(&asked, "too late")).await.status, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_of_a_program_that_exits_is_taken_back_because_it_is_gone() {
    let hub = hub(&[("b", spec(&stdio_entry(&["--wild=yes"])))]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({ "elicitation": {} })).await;
    let mut stream = Pieces::of(client.post(&call(1, "ask", json!({}))).await);
    let asked = question(&mut stream).await;
    client.post(&call(2, "exit", json!({ "code": 3 }))).await.messages().await;
    let taken_back = stream.message().await;
    assert_eq!(
        (&taken_back["params"]["requestId"], &taken_back["method"]),
        (&asked["id"], &json!("notifications/cancelled"))
    );
    assert_eq!(taken_back["params"]["reason"], "Server disconnected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
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
            assert_ne!(seen["triggered_by"], "timeout", "{kind} is not in {all:?}");
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
#[ignore = "needs Node.js"]
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
#[ignore = "needs Node.js"]
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
            assert_ne!(seen["triggered_by"], "timeout");
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

/// Waits until something waits for an answer by the tools, or until nothing does.
async fn until_asked(client: &Client, asked: bool) {
    let looking = async {
        while (client.tool("get_elicitations", json!({})).await["requests"] != json!([])) != asked {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.expect("it happens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_that_its_backend_takes_back_waits_for_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("http", fixture.spec()), ("pipe", spec(&stdio_entry(&[])))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    for server in ["http", "pipe"] {
        let (back, over) = (dir.path().join(format!("{server}-back")), dir.path().join(format!("{server}-over")));
        let args = json!({ "back": back, "over": over });
        let calling = client.clone();
        let call = tokio::spawn(async move {
            calling.call("execute_tool", json!({ "server": server, "tool": "waver", "args": args })).await
        });
        until_asked(&client, true).await;
        std::fs::write(&back, "").unwrap();
        until_asked(&client, false).await;
        std::fs::write(&over, "").unwrap();
        assert_eq!(call.await.unwrap()["content"][0]["text"], "wavered", "{server}");
    }
    let seen = client.tool("get_notifications", json!({})).await;
    assert!(!seen.to_string().contains("notifications/cancelled"), "its own names are told to nobody: {seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn whoever_has_the_tools_can_answer_everything_and_its_servers_are_told_so_by_its_first_call() {
    let dir = tempfile::tempdir().unwrap();
    let clients = dir.path().join("clients");
    let fixture = Fixture::start(&[&format!("--clients={}", clients.display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    // It can answer forms itself, and addresses only by the tools.
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({ "elicitation": {} })).await;
    client.call("b__echo", json!({ "text": "first" })).await;
    let told = std::fs::read_to_string(&clients).unwrap();
    let told: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!(told["elicitation"], json!({ "form": {}, "url": {} }));
    assert!(told["sampling"].is_object(), "{told}");
    let mut stream = Pieces::of(client.post(&call(1, "b__ask", json!({ "question": "a form" }))).await);
    let form = question(&mut stream).await;
    client.post(&accept(&form, "Ann")).await;
    let calling = client.clone();
    let called = tokio::spawn(async move { calling.call("b__ask", json!({ "mode": "url" })).await });
    until_asked(&client, true).await;
    let asked = client.tool("get_elicitations", json!({})).await["requests"][0].clone();
    assert_eq!(asked["params"]["mode"], "url", "{asked}");
    client.tool("respond_to_elicitation", json!({ "id": asked["id"], "action": "decline" })).await;
    assert_eq!(called.await.unwrap()["content"][0]["text"], "decline");
    // On a server's own path its clients are what they are.
    Client::open(&hub, "alice", one(), json!({ "elicitation": {} })).await;
    let told = std::fs::read_to_string(&clients).unwrap();
    assert_eq!(told.lines().last().unwrap(), r#"{"elicitation":{}}"#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_outlives_the_call_that_becomes_a_task_and_its_answer_ends_the_task() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("http", fixture.spec()), ("pipe", spec(&stdio_entry(&[])))]).await;
    for (server, how) in [("http", "timeout_ms"), ("http", "as_task"), ("pipe", "timeout_ms"), ("pipe", "as_task")] {
        let (client, _) = Client::open(&hub, "alice", Route::All, json!({ "elicitation": {} })).await;
        let mut arguments = json!({ "server": server, "tool": "ask" });
        arguments[how] = if how == "as_task" { json!(true) } else { json!(500) };
        let answered = client.post(&call(1, "execute_tool", arguments)).await.messages().await;
        let taken_back = answered.iter().any(|message| message["method"] == "notifications/cancelled");
        let task = &answered.last().unwrap()["result"]["structuredContent"];
        assert_eq!((&task["status"], taken_back), (&json!("working"), false), "{server} {how}: {answered:?}");
        // Wherever it was asked before, it is asked again now.
        let asked = question(&mut Pieces::of(client.get(None).await)).await;
        if let Some(before) = answered.iter().find(|message| message["method"] == "elicitation/create") {
            assert_eq!(*before, asked);
        }
        client.post(&accept(&asked, "Ann")).await;
        let ended = async {
            while client.tool("get_task", json!({ "task_id": task["taskId"] })).await["status"] == "working" {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
        let result = client.call("get_task_result", json!({ "task_id": task["taskId"] })).await;
        assert_eq!(result["content"][0]["text"], "accept Ann", "{server} {how}: {result}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_is_asked_again_only_once_nobody_reads_where_it_was_asked() {
    let fixture = Fixture::start(&["--chatty"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({ "elicitation": {} })).await;
    let mut stream = Pieces::of(client.post(&call(1, "ask", json!({}))).await);
    let asked = question(&mut stream).await;
    // It is still there, and only opens its own stream besides. What comes on that first was said later.
    let mut own = Pieces::of(client.get(None).await);
    client.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
    loop {
        let message = own.message().await;
        assert_ne!(message["method"], "elicitation/create", "{message}");
        if message["method"] == "notifications/resources/updated" {
            break;
        }
    }
    // Its wire was gone, and that is noticed only now.
    drop(stream);
    assert_eq!(question(&mut own).await, asked);
}
