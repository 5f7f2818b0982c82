//! The stdio face before clients of both eras: asked, answered, taken back, and left without a trace.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_hub::{Hub, Route};
use serde_json::{Value, json};

use crate::support;
use crate::support::wire::{LINE_BYTES_MAX, Wire};
use crate::support::{Client, Fixture, hub, spec, stdio_entry, until};

fn one() -> Route {
    Route::One("b".into())
}

#[allow(clippy::needless_pass_by_value, reason = "so that calls read as calls")]
fn call(tool: &str, arguments: Value) -> Value {
    json!({ "name": tool, "arguments": arguments })
}

/// Where the fixture writes down what it executed and what was taken back.
fn counter(dir: &tempfile::TempDir) -> (PathBuf, String) {
    let path = dir.path().join("ran");
    (path.clone(), format!("--count={}", path.display()))
}

fn noted(ran: &Path, line: &str) -> usize {
    std::fs::read_to_string(ran).unwrap_or_default().lines().filter(|noted| *noted == line).count()
}

/// A hub before a backend of the older era, and one before a program.
async fn hubs(args: &[&str]) -> (Fixture, [Arc<Hub>; 2]) {
    let fixture = Fixture::start(args).await;
    let hubs = [hub(&[("b", fixture.spec())]).await, hub(&[("b", spec(&stdio_entry(args)))]).await];
    (fixture, hubs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_modern_client_is_asked_by_an_older_backend_and_its_retry_takes_the_call_up() {
    let (_fixture, hubs) = hubs(&[]).await;
    for (hub, (route, tool)) in hubs.iter().zip([(one(), "ask"), (Route::All, "b__ask")]) {
        let mut wire = Wire::open(hub, "local", route);
        let can = json!({ "elicitation": {} });
        let params = call(tool, json!({ "question": "who?" }));
        let asked = wire.ask_modern("tools/call", params.clone(), can.clone()).await;
        let result = &asked["result"];
        assert_eq!(result["resultType"], "input_required", "{asked}");
        let (key, question) = result["inputRequests"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(question["params"]["message"], "who?");
        let mut retry = params.clone();
        retry["requestState"] = result["requestState"].clone();
        retry["inputResponses"] = json!({ key: { "action": "accept", "content": { "name": "Ann" } } });
        let mut stranger = Wire::open(hub, "mallory", Route::All);
        let refused = stranger.ask_modern("tools/call", retry.clone(), can.clone()).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        let done = wire.ask_modern("tools/call", retry.clone(), can.clone()).await;
        assert_eq!(done["result"]["content"][0]["text"], "accept Ann", "{done}");
        assert_eq!(done["result"]["resultType"], "complete");
        let again = wire.ask_modern("tools/call", retry, can).await;
        assert_eq!(again["error"]["code"], -32602, "a state is used once: {again}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_modern_client_that_cannot_answer_does_it_by_the_tools_of_its_handle() {
    let (_fixture, hubs) = hubs(&[]).await;
    for hub in &hubs {
        let mut wire = Wire::open(hub, "local", Route::All);
        let first =
            wire.ask_modern("tools/call", call("await_activity", json!({ "timeout_ms": 100 })), json!({})).await;
        let handle = first["result"]["structuredContent"]["handle"].clone();
        // Only the handle that a call names is asked.
        let sample = json!({ "server": "b", "tool": "sample", "args": {}, "handle": handle });
        let asking = wire.begin_modern("tools/call", call("execute_tool", sample), json!({})).await;
        let mut cursor = first["result"]["structuredContent"]["last_event_id"].clone();
        let id = loop {
            let arguments = json!({ "timeout_ms": 20_000, "handle": handle, "last_event_id": cursor });
            let seen = wire.ask_modern("tools/call", call("await_activity", arguments), json!({})).await;
            let seen = seen["result"]["structuredContent"].clone();
            cursor = seen["last_event_id"].clone();
            let events = seen["events"].as_array().unwrap();
            if let Some(asked) = events.iter().find(|event| event["type"] == "sampling_request") {
                break asked["data"]["id"].clone();
            }
        };
        let written = json!({ "role": "assistant", "content": { "type": "text", "text": "written" }, "model": "m" });
        let arguments = json!({ "id": id, "result": written, "handle": handle });
        wire.ask_modern("tools/call", call("respond_to_sampling", arguments), json!({})).await;
        assert_eq!(wire.response(asking).await["result"]["content"][0]["text"], "written");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_that_is_cancelled_has_no_answer_and_its_backend_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, count) = counter(&dir);
    let (_fixture, hubs) = hubs(&[&count]).await;
    for (at, hub) in hubs.iter().enumerate() {
        let mut wire = Wire::open(hub, "local", one());
        wire.initialize(json!({})).await;
        let params = call("count", json!({ "id": format!("x{at}"), "ms": 60_000 }));
        let older = wire.begin("tools/call", params.clone()).await;
        let modern = wire.begin_modern("tools/call", params, json!({})).await;
        until("both have begun", || noted(&ran, &format!("x{at}")) == 2).await;
        wire.cancel(older).await;
        wire.cancel(modern).await;
        until("the backend knows", || noted(&ran, "cancelled") == 2 * (at + 1)).await;
        let echoed = wire.ask_modern("tools/call", call("echo", json!({ "text": "next" })), json!({})).await;
        assert_eq!(echoed["result"]["content"][0]["text"], "next");
        wire.send(&json!({ "jsonrpc": "2.0", "id": "last", "method": "ping" })).await;
        assert_eq!(wire.message().await["id"], "last", "nothing else was said");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_subscription_is_heard_until_it_is_cancelled() {
    for era in ["legacy", "modern"] {
        let fixture = Fixture::start(&[&format!("--era={era}")]).await;
        let hub = hub(&[("b", fixture.spec())]).await;
        let (other, _) = Client::open(&hub, "bob", one(), json!({})).await;
        for route in [Route::All, one()] {
            let mut wire = Wire::open(&hub, "local", route.clone());
            let filter = json!({ "notifications": { "toolsListChanged": true } });
            let listening = wire.begin_modern("subscriptions/listen", filter, json!({})).await;
            let acknowledged = wire.message().await;
            assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{acknowledged}");
            let subscription =
                |message: &Value| message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone();
            assert_eq!(subscription(&acknowledged), listening);
            other.call("grow", json!({ "name": format!("grown-{route:?}") })).await;
            let changed = wire.message().await;
            assert_eq!(changed["method"], "notifications/tools/list_changed", "{era} {route:?}");
            assert_eq!(subscription(&changed), listening);
            wire.cancel(listening).await;
            // Whatever is asked after the cancel is answered after it was done.
            wire.ask_modern("server/discover", json!({}), json!({})).await;
            other.call("grow", json!({ "name": format!("more-{route:?}") })).await;
            let backend = hub.all().remove(0);
            until("the new tool is listed", || {
                let name = format!("more-{route:?}");
                backend.catalogue().find(bowline_hub::catalogue::ListKind::Tools, &name).is_some()
            })
            .await;
            wire.send(&json!({ "jsonrpc": "2.0", "id": "last", "method": "ping" })).await;
            let next = wire.message().await;
            assert_eq!(next["id"], "last", "nothing is heard after the cancel: {next}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn each_modern_request_names_its_version_and_its_log_level_itself() {
    let hub = hub(&[("b", spec(&stdio_entry(&[])))]).await;
    let mut wire = Wire::open(&hub, "local", one());
    for (level, heard) in [(None, 0), (Some("warning"), 1), (Some("debug"), 2)] {
        let mut said = 0;
        for word in ["info", "error"] {
            let mut params = call("log", json!({ "level": word, "text": "x" }));
            if let Some(level) = level {
                params["_meta"]["io.modelcontextprotocol/logLevel"] = level.into();
            }
            let id = wire.begin_modern("tools/call", params, json!({})).await;
            let mut message = wire.message().await;
            while message["id"] != id {
                assert_eq!(message["method"], "notifications/message");
                said += 1;
                message = wire.message().await;
            }
        }
        assert_eq!(said, heard, "{level:?}");
    }
    let mut params = support::with_meta(json!({}), json!({}));
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2031-01-01".into();
    let unknown = wire.ask("tools/list", params.clone()).await;
    assert_eq!(unknown["error"]["code"], -32022, "{unknown}");
    assert_eq!(unknown["error"]["data"]["supported"][0], "2026-07-28");
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = Value::Null;
    assert_eq!(wire.ask("tools/list", params).await["error"]["code"], -32602);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_that_leaves_takes_its_calls_back_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, count) = counter(&dir);
    let fixture = Fixture::start(&[&count]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let mut wire = Wire::open(&hub, "local", one());
    wire.initialize(json!({})).await;
    wire.initialize(json!({})).await;
    let params = call("count", json!({ "id": "x", "ms": 600_000 }));
    wire.begin("tools/call", params.clone()).await;
    wire.begin_modern("tools/call", params, json!({})).await;
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    wire.begin_modern("subscriptions/listen", filter, json!({})).await;
    let asked = wire.ask_modern("tools/call", call("ask", json!({})), json!({ "elicitation": {} })).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    until("both have begun", || noted(&ran, "x") == 2).await;
    assert_eq!((format!("{:?}", hub.suspended), hub.sessions.count()), ("SuspendedCalls(1)".to_owned(), 1));
    wire.leave().await;
    assert_eq!((format!("{:?}", hub.suspended), hub.sessions.count()), ("SuspendedCalls(0)".to_owned(), 0));
    // The call in the session may be cancelled with it, or before it.
    until("the backend knows", || noted(&ran, "cancelled") >= 2 && noted(&ran, "session ended") == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_line_that_is_too_long_is_refused_and_the_wire_survives() {
    let hub = hub(&[("b", spec(&stdio_entry(&[])))]).await;
    let mut wire = Wire::open(&hub, "local", one());
    let long = "x".repeat(LINE_BYTES_MAX);
    let request = wire.ask_modern("tools/call", call("echo", json!({ "text": long })), json!({})).await;
    assert_eq!(request["error"]["code"], -32600, "{request}");
    assert!(request["error"]["message"].as_str().unwrap().contains("hub.body_bytes_max"), "{request}");
    wire.send(&json!({ "jsonrpc": "2.0", "id": 7, "result": long })).await;
    let response = wire.message().await;
    assert_eq!((&response["id"], &response["error"]["code"]), (&Value::Null, &json!(-32600)), "{response}");
    let fits = "x".repeat(LINE_BYTES_MAX / 2);
    let echoed = wire.ask_modern("tools/call", call("echo", json!({ "text": fits })), json!({})).await;
    assert_eq!(echoed["result"]["content"][0]["text"], fits);
}
