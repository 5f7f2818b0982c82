//! Clients of both eras before backends of both: streams that break, questions that wait, and neighbours that hear nothing.

use bowline_hub::{Options, Route};
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, Fixture, Pieces, hub, hub_with, modern, store, until};

fn one() -> Route {
    Route::One("b".into())
}

#[allow(clippy::needless_pass_by_value, reason = "so that calls read as calls")]
fn call(id: u64, tool: &str, arguments: Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "mine" } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_whose_stream_drops_in_the_middle_of_a_call_gets_the_rest_when_it_returns() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let mut stream = Pieces::of(client.post(&call(7, "progress", json!({ "ms": 200 }))).await);
    let first = stream.next().await.unwrap();
    let id = first.id.expect("the first event has an id, so that there is something to return to");
    drop(stream);
    let mut again = Pieces::of(client.get(Some(&id)).await);
    let mut messages = Vec::new();
    while let Some(event) = again.next().await {
        messages.push(serde_json::from_str::<Value>(&event.data).unwrap());
    }
    let steps: Vec<u64> = messages.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect();
    assert_eq!(steps, [1, 2, 3]);
    assert!(messages.iter().all(|message| message["params"].is_null() || message["params"]["progressToken"] == "mine"));
    assert_eq!(messages.last().unwrap()["result"]["content"][0]["text"], "progressed");
    assert_eq!(messages.last().unwrap()["id"], 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn after_our_own_restart_a_session_goes_on_and_a_call_that_was_cut_says_so() {
    let fixture = Fixture::start(&[]).await;
    let store = store();
    let first = hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&first, "alice", one(), json!({})).await;
    let mut stream = Pieces::of(client.post(&call(9, "count", json!({ "id": "x", "ms": 60_000 }))).await);
    let id = stream.next().await.unwrap().id.unwrap();
    // Everything but the store is gone.
    drop(stream);
    let second = hub_with(Options::default(), store, &[("b", fixture.spec())]).await;
    let client = Client { hub: second, ..client };
    let mut again = Pieces::of(client.get(Some(&id)).await);
    let response = again.message().await;
    assert_eq!(
        (&response["id"], &response["result"]["structuredContent"]["code"]),
        (&json!(9), &json!("OUTCOME_UNKNOWN"))
    );
    assert!(again.next().await.is_none());
    assert_eq!(client.call("echo", json!({ "text": "still me" })).await["content"][0]["text"], "still me");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_goes_to_a_client_that_can_answer_and_the_answer_comes_back() {
    for era in ["legacy", "modern"] {
        let fixture = Fixture::start(&[&format!("--era={era}")]).await;
        let hub = hub(&[("b", fixture.spec())]).await;
        let (client, _) = Client::open(&hub, "alice", one(), json!({ "elicitation": {} })).await;
        let mut stream = Pieces::of(client.post(&call(1, "ask", json!({ "question": "who?" }))).await);
        let question = stream.message().await;
        assert_eq!(
            (&question["method"], &question["params"]["message"]),
            (&json!("elicitation/create"), &json!("who?"))
        );
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": { "name": "Ann" } } });
        assert_eq!(client.post(&answer).await.status, 202);
        assert_eq!(stream.message().await["result"]["content"][0]["text"], "accept Ann", "{era}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_that_cannot_answer_does_it_by_the_tools() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let asking = client.clone();
    let running = tokio::spawn(async move {
        asking.call("execute_tool", json!({ "server": "b", "tool": "sample", "args": {} })).await
    });
    let mut cursor = Value::Null;
    let id = loop {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        cursor = seen["last_event_id"].clone();
        let asked =
            seen["events"].as_array().unwrap().iter().find(|event| event["type"] == "sampling_request").cloned();
        if let Some(asked) = asked {
            assert_eq!(
                (&asked["server"], &seen["pending_client"][0]["method"]),
                (&json!("b"), &json!("sampling/createMessage"))
            );
            break asked["data"]["id"].clone();
        }
    };
    let result = json!({ "role": "assistant", "content": { "type": "text", "text": "written" }, "model": "m" });
    let answered = client.tool("respond_to_sampling", json!({ "id": id, "result": result })).await;
    assert_eq!(answered["answered"], true);
    assert_eq!(running.await.unwrap()["content"][0]["text"], "written");
    let again = client.call("respond_to_sampling", json!({ "id": id, "result": result })).await;
    assert_eq!(again["isError"], true, "an answer counts once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_modern_client_is_asked_by_an_older_backend_and_answers_with_its_next_request() {
    let fixture = Fixture::start(&["--era=legacy"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let can = json!({ "elicitation": {} });
    let params = json!({ "name": "ask", "arguments": { "question": "who?" } });
    let asked =
        modern(&hub, "alice", &one(), "tools/call", params.clone(), can.clone()).await.messages().await.remove(0);
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let (key, question) = result["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(question["params"]["message"], "who?");
    let mut retry = params.clone();
    retry["requestState"] = result["requestState"].clone();
    retry["inputResponses"] = json!({ key: { "action": "accept", "content": { "name": "Ann" } } });
    // Nobody else can use the state, and not for another tool.
    let stranger = modern(&hub, "mallory", &one(), "tools/call", retry.clone(), can.clone()).await;
    assert_eq!(stranger.status, 400);
    let mut other = retry.clone();
    other["name"] = "sample".into();
    assert_eq!(modern(&hub, "alice", &one(), "tools/call", other, can.clone()).await.status, 400);
    let done =
        modern(&hub, "alice", &one(), "tools/call", retry.clone(), can.clone()).await.messages().await.pop().unwrap();
    assert_eq!(done["result"]["content"][0]["text"], "accept Ann", "{done}");
    assert_eq!(done["result"]["resultType"], "complete");
    assert_eq!(modern(&hub, "alice", &one(), "tools/call", retry, can).await.status, 400, "a state is used once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_we_do_not_know_passes_through_untouched() {
    for era in ["legacy", "modern"] {
        let fixture = Fixture::start(&[&format!("--era={era}")]).await;
        let hub = hub(&[("b", fixture.spec())]).await;
        let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
        let result = client.call("odd", json!({})).await;
        assert_eq!((&result["content"][0]["type"], &result["vendor"]["exact"]), (&json!("hologram"), &json!(1.5)));
        let tools = client.ask("tools/list", json!({})).await;
        assert_eq!(tools["result"]["tools"][0]["annotations"]["x-vendor"], 1.5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn neighbours_on_one_backend_hear_nothing_of_each_other() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (alice, _) = Client::open(&hub, "alice", one(), json!({ "elicitation": {} })).await;
    let (bob, _) = Client::open(&hub, "bob", one(), json!({ "elicitation": {} })).await;
    let mut bobs = Pieces::of(bob.get(None).await);
    // Both use the same id at once, as some clients always do.
    let mut asked = Pieces::of(alice.post(&call(1, "ask", json!({ "question": "alice's" }))).await);
    let echoed = bob.post(&call(1, "echo", json!({ "text": "bob's" }))).await.messages().await.pop().unwrap();
    assert_eq!(echoed["result"]["content"][0]["text"], "bob's");
    let question = asked.message().await;
    let stolen = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": { "name": "bob" } } });
    bob.post(&stolen).await;
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } });
    alice.post(&answer).await;
    assert_eq!(asked.message().await["result"]["content"][0]["text"], "decline");
    // Bob's own stream had nothing of all this: the next thing on it is his own.
    bob.ask("resources/subscribe", json!({ "uri": "test://bob" })).await;
    assert_eq!(bobs.message().await["params"]["uri"], "test://bob");
    // A stranger's session looks like one that never was.
    let thief = Client { who: support::principal("mallory"), ..alice.clone() };
    assert_eq!(thief.get(None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_backend_that_answers_something_else_hurts_only_that_call() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let answer = client.ask("tools/call", json!({ "name": "garbage", "arguments": {} })).await;
    assert_eq!(answer["error"]["message"], "it answered another request than the one asked", "{answer}");
    assert_eq!(client.call("echo", json!({ "text": "fine" })).await["content"][0]["text"], "fine");
    assert!(hub.all()[0].snapshot().is_connected());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_that_takes_long_becomes_a_task_and_its_result_is_kept() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let arguments = json!({ "server": "b", "tool": "count", "args": { "id": "t", "ms": 600 }, "timeout_ms": 100 });
    let made = client.tool("execute_tool", arguments).await;
    let task = made["taskId"].clone();
    assert_eq!(made["status"], "working");
    let listed = client.tool("list_tasks", json!({})).await;
    assert_eq!(listed["tasks"][0]["taskId"], task);
    let mut cursor = Value::Null;
    loop {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        cursor = seen["last_event_id"].clone();
        if seen["events"].as_array().unwrap().iter().any(|event| event["type"] == "task_completed") {
            break;
        }
    }
    assert_eq!(client.call("get_task_result", json!({ "task_id": task })).await["content"][0]["text"], "done t");
    let (bob, _) = Client::open(&hub, "bob", Route::All, json!({})).await;
    assert_eq!(bob.call("get_task", json!({ "task_id": task })).await["isError"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_modern_client_keeps_its_place_by_a_handle() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let tool = |name: &'static str, arguments: Value| {
        let hub = hub.clone();
        async move {
            let params = json!({ "name": name, "arguments": arguments });
            let answer = modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await;
            answer.messages().await.pop().unwrap()["result"]["structuredContent"].clone()
        }
    };
    let first = tool("await_activity", json!({ "timeout_ms": 100 })).await;
    let handle = first["handle"].clone();
    tool("reconnect_server", json!({ "name": "b" })).await;
    let mut cursor = first["last_event_id"].clone();
    let mut seen: Vec<Value> = first["events"].as_array().unwrap().clone();
    while !seen.iter().any(|event| event["type"] == "server_reconnected") {
        let more =
            tool("await_activity", json!({ "timeout_ms": 20_000, "handle": handle, "last_event_id": cursor })).await;
        assert_eq!(more["handle"], handle);
        assert_ne!(more["triggered_by"], "timeout", "{seen:?}");
        cursor = more["last_event_id"].clone();
        seen.extend(more["events"].as_array().unwrap().clone());
    }
    let cut: Vec<&Value> = seen.iter().filter(|event| event["type"] == "server_disconnected").collect();
    assert_eq!((cut.len(), &cut[0]["data"]["wasIntentional"]), (1, &json!(true)));
    let mut ids: Vec<&str> = seen.iter().map(|event| event["id"].as_str().unwrap()).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "no event is given twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_modern_client_hears_of_changes_of_an_older_backend() {
    let fixture = Fixture::start(&["--era=legacy"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let params = json!({ "notifications": { "toolsListChanged": true } });
    let mut heard = Pieces::of(modern(&hub, "alice", &Route::All, "subscriptions/listen", params, json!({})).await);
    let acknowledged = heard.message().await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "m1");
    let (client, _) = Client::open(&hub, "bob", one(), json!({})).await;
    client.call("grow", json!({ "name": "grown" })).await;
    assert_eq!(heard.message().await["method"], "notifications/tools/list_changed");
    let backend = hub.all().remove(0);
    until("the new tool is listed", || {
        backend.catalogue().find(bowline_hub::catalogue::ListKind::Tools, "grown").is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_session_that_ended_is_gone_and_a_call_that_was_taken_back_has_no_answer() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let mut stream = Pieces::of(client.post(&call(5, "count", json!({ "id": "x", "ms": 60_000 }))).await);
    stream.next().await.unwrap();
    let back = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 5 } });
    assert_eq!(client.post(&back).await.status, 202);
    assert!(stream.next().await.is_none(), "the stream ends without an answer");
    assert_eq!(client.delete().await.status, 200);
    assert_eq!(client.get(None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_agent_sees_the_tools_and_each_call_ends_once() {
    use bowline_hub::agent::{self, AgentEnd, Patience};
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let owner = support::principal("alice");
    let tools = agent::tools(&hub, &owner);
    assert!(tools.iter().any(|tool| tool.name == "b__echo" && tool.description == "the tool echo"));
    let calling =
        async |name: &str, arguments: Value| agent::call(&hub, &owner, "s1", name, &arguments, Patience::Usual).await;
    let echoed = calling("b__echo", json!({ "text": "hi" })).await;
    assert!(matches!(echoed, AgentEnd::Success { text, .. } if text == "hi"));
    // An agent has nobody to ask: the server is told so, and its tool fails.
    let asked = calling("b__ask", json!({})).await;
    assert!(matches!(asked, AgentEnd::Failed { .. }), "{asked:?}");
    assert!(matches!(calling("nobody__x", json!({})).await, AgentEnd::Failed { .. }));
    fixture.kill().await;
    let away = calling("b__echo", json!({ "text": "hi" })).await;
    assert!(matches!(away, AgentEnd::Failed { .. } | AgentEnd::Unknown { .. }), "{away:?}");
    assert!(!agent::tools(&hub, &owner).is_empty(), "the list stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn calls_that_have_the_same_id_at_once_are_taken_back_together() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&[&format!("--count={}", ran.display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let long = call(1, "count", json!({ "id": "x", "ms": 600_000 }));
    let streams = [Pieces::of(client.post(&long).await), Pieces::of(client.post(&long).await)];
    // One that ends under the same id takes nothing from the others.
    client.post(&call(1, "echo", json!({ "text": "x" }))).await.messages().await;
    client.post(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } })).await;
    let cancelled = || std::fs::read_to_string(&ran).unwrap_or_default().matches("cancelled").count();
    until("the server knows of both", || cancelled() == 2).await;
    for mut stream in streams {
        assert!(stream.next().await.is_some_and(|event| event.data.is_empty()));
        assert!(stream.is_over().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_resource_of_the_same_address_is_subscribed_to_at_each_modern_server() {
    let (a, b) = (Fixture::start(&["--era=modern"]).await, Fixture::start(&["--era=modern"]).await);
    let hub = hub(&[("a", a.spec()), ("b", b.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let mut own = Pieces::of(client.get(None).await);
    for server in ["a", "b"] {
        client.tool("subscribe_resource", json!({ "server": server, "uri": "test://one" })).await;
        while own.message().await["method"] != "notifications/resources/updated" {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_a_server_says_to_all_its_sessions_is_told_to_each_client_once() {
    let fixture = Fixture::start(&["--chatty"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let mut own = Pieces::of(client.get(None).await);
    let say = async |data: u64| {
        client.call("b__log", json!({ "method": "notifications/custom", "data": data, "all": true })).await;
    };
    // From some time on its session at the server has a stream.
    let heard = async {
        loop {
            if own.message().await["method"] == "notifications/custom" {
                return;
            }
        }
    };
    let saying = async {
        loop {
            say(0).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    futures_util::future::select(std::pin::pin!(heard), std::pin::pin!(saying)).await;
    say(1).await;
    // This comes after it on the hub's own stream, too, and what follows is told after both.
    client.call("b__grow", json!({ "name": "grown" })).await;
    let backend = hub.all().remove(0);
    let listed = || backend.catalogue().find(bowline_hub::catalogue::ListKind::Tools, "grown").is_some();
    until("it is listed", listed).await;
    hub.configure(std::collections::BTreeMap::new()).await;
    let (mut told, mut cursor): (Vec<Value>, Value) = (Vec::new(), Value::Null);
    let is = |event: &Value| event["data"]["params"]["data"] == 1;
    while !(told.iter().any(is) && told.iter().any(|event| event["type"] == "server_removed")) {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
        cursor = seen["last_event_id"].clone();
        told.extend(seen["events"].as_array().unwrap().clone());
    }
    assert_eq!(told.iter().filter(|event| is(event)).count(), 1, "{told:?}");
}
