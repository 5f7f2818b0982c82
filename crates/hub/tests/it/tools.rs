//! The hub's own tools, as a client uses them that knows nothing but tools.

use bowline_hub::{Options, Route};
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, Fixture, Pieces, hub, hub_with, modern, spec, stdio_entry, store_of, until};

async fn open(hub: &std::sync::Arc<bowline_hub::Hub>) -> Client {
    Client::open(hub, "alice", Route::All, json!({})).await.0
}

/// Reads events until one fits.
async fn event(client: &Client, fits: impl Fn(&Value) -> bool) -> Value {
    let mut cursor = Value::Null;
    loop {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "it never came");
        cursor = seen["last_event_id"].clone();
        if let Some(found) = seen["events"].as_array().unwrap().iter().find(|event| fits(event)) {
            return found.clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn whatever_is_asked_of_a_server_that_is_away_says_the_same_of_it() {
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    fixture.kill().await;
    let backend = hub.all().remove(0);
    until("the loss is seen", || !backend.snapshot().is_connected()).await;
    for (name, arguments) in [
        ("execute_tool", json!({ "server": "b", "tool": "echo" })),
        ("read_resource", json!({ "server": "b", "uri": "test://one" })),
        ("subscribe_resource", json!({ "server": "b", "uri": "test://one" })),
        ("get_prompt", json!({ "server": "b", "name": "greet" })),
    ] {
        let result = client.call(name, arguments).await;
        assert_eq!(result["isError"], true, "{name}");
        let facts = &result["structuredContent"];
        assert_eq!(
            (&facts["status"], &facts["code"]),
            (&json!("reconnecting"), &json!("SERVER_UNAVAILABLE")),
            "{name}"
        );
        assert!(facts["error"].is_string() && facts["lastAttempt"].is_u64(), "{name}: {facts}");
        assert!(facts["nextRetryMs"].is_u64() && facts["lastError"].is_string(), "{name}: {facts}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_by_execute_tool_tells_its_progress_under_the_callers_own_token() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    let arguments = json!({ "server": "b", "tool": "progress" });
    let params = json!({ "name": "execute_tool", "arguments": arguments, "_meta": { "progressToken": "mine" } });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let steps = |messages: Vec<Value>| -> Vec<u64> {
        let mine = messages.iter().filter(|message| message["params"]["progressToken"] == "mine");
        mine.filter_map(|message| message["params"]["progress"].as_u64()).collect()
    };
    assert_eq!(steps(client.post(&request).await.messages().await), [1, 2, 3]);
    let answer = modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await;
    assert_eq!(steps(answer.messages().await), [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_update_of_a_resource_says_whose_it_is() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    client.tool("subscribe_resource", json!({ "server": "b", "uri": "test://one" })).await;
    let updated = event(&client, |event| event["data"]["method"] == "notifications/resources/updated").await;
    assert_eq!((&updated["server"], &updated["data"]["name"]), (&json!("b"), &json!("b")), "{updated}");
    let told = client.tool("get_notifications", json!({ "server": "b" })).await["notifications"].clone();
    assert!(told.as_array().unwrap().iter().any(|one| one["id"] == updated["id"]), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_a_server_logs_during_a_call_is_among_the_logs_from_its_level_on() {
    let hub = hub(&[("b", spec(&stdio_entry(&["--chatty", "--stderr=oops"])))]).await;
    let client = open(&hub).await;
    // What it wrote at its start was told to nobody; now it is asked to write again.
    client.tool("reconnect_server", json!({ "name": "b" })).await;
    let log = |level: &str| json!({ "server": "b", "tool": "log", "args": { "level": level, "data": "said" } });
    client.call("execute_tool", log("debug")).await;
    client.call("execute_tool", log("error")).await;
    let handle = {
        let params = json!({ "name": "await_activity", "arguments": { "timeout_ms": 100 } });
        let answer = modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await;
        answer.messages().await.pop().unwrap()["result"]["structuredContent"]["handle"].clone()
    };
    event(&client, |event| event["type"] == "log").await;
    let levels = async |arguments: Value| -> Vec<String> {
        let logs = client.tool("get_logs", arguments).await["logs"].clone();
        let level =
            |one: &Value| one["data"]["params"]["level"].as_str().or(one["data"]["level"].as_str()).unwrap().to_owned();
        let mut levels: Vec<String> = logs.as_array().unwrap().iter().map(level).collect();
        levels.sort();
        levels
    };
    assert_eq!(levels(json!({})).await, ["debug", "error", "info"]);
    assert_eq!(levels(json!({ "level": "info" })).await, ["error", "info"], "what is on stderr counts as info");
    assert_eq!(levels(json!({ "level": "warning", "server": "b" })).await, ["error"]);
    assert_eq!(client.call("get_logs", json!({ "level": "loud" })).await["isError"], true);
    // A client with a handle finds them there.
    let mut arguments = log("warning");
    arguments["handle"] = handle.clone();
    let params = json!({ "name": "execute_tool", "arguments": arguments });
    modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await.messages().await;
    let params = json!({ "name": "get_logs", "arguments": { "handle": handle, "level": "warning" } });
    let answer = modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await.messages().await;
    let logs = &answer.last().unwrap()["result"]["structuredContent"]["logs"];
    assert_eq!(logs.as_array().unwrap().len(), 1, "{logs}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_cursor_that_is_ahead_of_the_log_is_refused() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    let last = client.tool("await_activity", json!({ "timeout_ms": 100 })).await["last_event_id"].clone();
    let (epoch, _) = last.as_str().unwrap().rsplit_once('-').unwrap();
    for name in ["await_activity", "get_notifications", "get_logs"] {
        let ahead = json!({ "timeout_ms": 100, "last_event_id": format!("{epoch}-99999") });
        assert_eq!(client.call(name, ahead).await["isError"], true, "{name}");
        let right = json!({ "timeout_ms": 100, "last_event_id": last });
        assert_eq!(client.call(name, right).await["isError"], Value::Null, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn events_that_are_not_kept_any_more_are_told_as_missing_once() {
    let fixture = Fixture::start(&["--chatty"]).await;
    let hub = hub_with(Options::default(), store_of(10), &[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    let log = json!({ "server": "b", "tool": "log", "args": { "level": "error", "data": "x" } });
    client.call("execute_tool", log.clone()).await;
    let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000 })).await;
    assert_eq!(seen["gap"], Value::Null, "{seen}");
    let cursor = seen["last_event_id"].clone();
    for _ in 0..30 {
        client.call("execute_tool", log.clone()).await;
    }
    for name in ["get_logs", "await_activity"] {
        let seen = client.tool(name, json!({ "timeout_ms": 100, "last_event_id": cursor })).await;
        let gap = &seen["gap"];
        assert!(gap["lost"].as_u64().is_some_and(|lost| lost >= 20), "{seen}");
        let member = if name == "get_logs" { "logs" } else { "events" };
        assert!(!seen[member].as_array().unwrap().is_empty(), "what is left is there: {seen}");
        let again = client.tool(name, json!({ "timeout_ms": 100, "last_event_id": seen["last_event_id"] })).await;
        assert_eq!(again["gap"], Value::Null, "it is told once: {again}");
    }
    // A stream cannot begin before what is left, and does not act as if nothing were missing.
    let (epoch, _) = cursor.as_str().unwrap().rsplit_once('-').unwrap();
    for gone in [cursor.as_str().unwrap(), &format!("{epoch}-0")] {
        let refused = client.get(Some(gone)).await;
        assert!(!refused.is_stream(), "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn whoever_has_no_session_has_no_notifications_and_no_logs() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    for (name, member) in [("get_notifications", "notifications"), ("get_logs", "logs")] {
        let params = json!({ "name": name, "arguments": {} });
        let answer = modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await.messages().await;
        let facts = &answer[0]["result"]["structuredContent"];
        assert_eq!(*facts, json!({ member: [], "last_event_id": null }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_is_answered_by_the_tool_of_its_kind_only() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    let asking = client.clone();
    let call = tokio::spawn(async move { asking.call("execute_tool", json!({ "server": "b", "tool": "ask" })).await });
    let asked = event(&client, |event| event["type"] == "elicitation_request").await["data"]["id"].clone();
    let result = json!({ "role": "assistant", "content": { "type": "text", "text": "x" }, "model": "m" });
    let wrong = client.call("respond_to_sampling", json!({ "id": asked, "result": result })).await;
    assert_eq!(wrong["isError"], true, "{wrong}");
    assert_eq!(client.call("cancel_sampling_request", json!({ "id": asked })).await["isError"], true);
    let right = client.tool("respond_to_elicitation", json!({ "id": asked, "action": "decline" })).await;
    assert_eq!(right["answered"], true, "{right}");
    assert_eq!(call.await.unwrap()["content"][0]["text"], "decline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_timeout_that_is_none_is_refused_and_nothing_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&[&format!("--count={}", ran.display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    for timeout in [json!("5000"), json!(-1), json!(1.5), json!(99), json!(900_001), json!([])] {
        let arguments = json!({ "server": "b", "tool": "count", "args": { "id": "x" }, "timeout_ms": timeout });
        assert_eq!(client.call("execute_tool", arguments).await["isError"], true, "{timeout}");
    }
    assert!(!ran.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn numbers_in_lists_and_resources_stay_as_they_were_written() {
    let fixture = Fixture::start(&["--exact"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    for (name, arguments) in
        [("list_tools", json!({ "tool": "echo" })), ("read_resource", json!({ "server": "b", "uri": "test://one" }))]
    {
        let params = json!({ "name": name, "arguments": arguments });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let text = client.post(&request).await.text().await;
        // Once for programs, and once more in the text for models.
        assert_eq!(text.matches("12345678901234567890123").count(), 2, "{name}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_waits_at_servers_and_what_waits_for_the_client_are_told_apart() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    let made = client.tool("execute_tool", json!({ "server": "b", "tool": "ask", "as_task": true })).await;
    let asked = event(&client, |event| event["type"] == "elicitation_request").await;
    let seen = client.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    assert_eq!(seen["pending_client"][0]["id"], asked["data"]["id"], "{seen}");
    assert_eq!(seen["pending_server"][0]["taskId"], made["taskId"], "{seen}");
    assert_eq!(seen["triggered_by"], seen["events"][0]["type"]);
    let quiet = json!({ "timeout_ms": 100, "last_event_id": seen["last_event_id"] });
    assert_eq!(client.tool("await_activity", quiet).await["triggered_by"], "timeout");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_is_listed_from_memory_is_marked_as_stale() {
    let (mut away, here) = (Fixture::start(&[]).await, Fixture::start(&[]).await);
    let hub = hub(&[("a", away.spec()), ("b", here.spec())]).await;
    let client = open(&hub).await;
    let fresh = client.tool("list_tools", json!({})).await;
    assert!(fresh["ttlMs"].is_null() && fresh["tools"].as_array().unwrap().iter().all(|tool| tool["stale"].is_null()));
    away.kill().await;
    until("the loss is seen", || hub.all().iter().any(|backend| !backend.snapshot().is_connected())).await;
    let listed = client.tool("list_tools", json!({})).await;
    assert_eq!((&listed["ttlMs"], &listed["failed"][0]["stale"]), (&json!(0), &json!(true)));
    for tool in listed["tools"].as_array().unwrap() {
        assert_eq!(tool["stale"] == true, tool["server"] == "a", "{tool}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_that_nobody_answers_in_time_is_taken_back_and_its_client_told() {
    let options = Options { ask_timeout: std::time::Duration::from_millis(400), ..Default::default() };
    let fixture = Fixture::start(&[]).await;
    let hub = hub_with(options, support::store(), &[("b", fixture.spec())]).await;
    let one = Route::One("b".into());
    let (client, _) = Client::open(&hub, "alice", one.clone(), json!({ "elicitation": {} })).await;
    let params = json!({ "name": "ask", "arguments": {} });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let mut stream = Pieces::of(client.post(&request).await);
    let asked = stream.message().await;
    assert_eq!(asked["method"], "elicitation/create");
    let told = stream.message().await;
    assert_eq!(told["method"], "notifications/cancelled", "{told}");
    assert_eq!((&told["params"]["requestId"], &told["params"]["reason"]), (&asked["id"], &json!("Expired")));
    assert!(stream.message().await["error"]["message"].is_string(), "the call ends with it");
    // A call that waits for a client without sessions does not wait longer.
    let asked = modern(&hub, "alice", &one, "tools/call", params.clone(), json!({ "elicitation": {} })).await;
    let asked = asked.messages().await.remove(0)["result"].clone();
    assert_eq!(asked["resultType"], "input_required");
    until("nobody waits any more", || hub.suspended.count() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_subscription_of_a_client_without_sessions_names_the_handle_where_its_updates_are() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let call = async |name: &str, arguments: Value| -> Value {
        let params = json!({ "name": name, "arguments": arguments });
        let answer = modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await;
        answer.messages().await.pop().unwrap()["result"].clone()
    };
    let made = call("subscribe_resource", json!({ "server": "b", "uri": "test://one" })).await;
    let handle = &made["structuredContent"]["handle"];
    assert!(handle.as_str().is_some_and(|handle| handle.starts_with("mcph_")), "{made}");
    let mut cursor = Value::Null;
    loop {
        let arguments = json!({ "timeout_ms": 20_000, "handle": handle, "last_event_id": cursor });
        let seen = call("await_activity", arguments).await["structuredContent"].clone();
        assert_ne!(seen["triggered_by"], "timeout", "it never came");
        cursor = seen["last_event_id"].clone();
        let events = seen["events"].as_array().unwrap();
        if events.iter().any(|event| event["data"]["method"] == "notifications/resources/updated") {
            break;
        }
    }
    let nowhere = call("unsubscribe_resource", json!({ "server": "b", "uri": "test://one" })).await;
    assert_eq!(nowhere["isError"], true, "{nowhere}");
    let ended = call("unsubscribe_resource", json!({ "server": "b", "uri": "test://one", "handle": handle })).await;
    assert_eq!(ended["isError"], Value::Null, "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn notifications_that_have_a_level_are_given_from_the_level_on_and_the_others_always() {
    let hub = hub(&[("b", spec(&stdio_entry(&["--chatty"])))]).await;
    let client = open(&hub).await;
    for (level, data) in [(json!("debug"), "low"), (Value::Null, "none"), (json!("error"), "high")] {
        let args = json!({ "method": "notifications/custom", "level": level, "data": data });
        client.call("execute_tool", json!({ "server": "b", "tool": "log", "args": args })).await;
    }
    event(&client, |event| event["data"]["params"]["data"] == "high").await;
    let given = async |arguments: Value| -> Vec<Value> {
        let told = client.tool("get_notifications", arguments).await["notifications"].clone();
        let custom = told.as_array().unwrap().iter().filter(|one| one["data"]["method"] == "notifications/custom");
        custom.map(|one| one["data"]["params"]["data"].clone()).collect()
    };
    assert_eq!(given(json!({})).await, ["low", "none", "high"]);
    assert_eq!(given(json!({ "level": "warning" })).await, ["none", "high"]);
    assert_eq!(client.call("get_notifications", json!({ "level": "loud" })).await["isError"], true);
}
