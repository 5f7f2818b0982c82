//! How calls, sessions and programs end when their server says little about it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bowline_hub::{Options, Route};
use serde_json::{Value, json};

use crate::support::{Client, PATIENCE, hub, hub_with, spec, stdio_entry, store, until};

/// A server of the older era that never answers a call, and writes down what it hears: the method, and in which session.
#[derive(Clone, Default)]
struct Silent {
    heard: Arc<Mutex<Vec<(String, String)>>>,
    /// The only session that it knows, if it forgets the others.
    only: Arc<Mutex<Option<String>>>,
    /// What it says to calls after it has run them, instead of an answer.
    status: Arc<Mutex<Option<StatusCode>>>,
    /// It forgets its sessions with that, as one that dies behind a proxy does.
    forgets: Arc<AtomicBool>,
    /// Sessions up to this one are those of a former life, which it does not know, or breaks on.
    former: Arc<AtomicUsize>,
    breaks: Arc<AtomicBool>,
}

impl Silent {
    async fn serve(&self) -> String {
        let router = axum::Router::new().fallback(answer).with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/mcp")
    }

    fn count(&self, method: &str) -> usize {
        self.heard.lock().unwrap().iter().filter(|(heard, _)| heard == method).count()
    }
}

async fn answer(State(silent): State<Silent>, headers: HeaderMap, body: String) -> Response {
    let Ok(message) = serde_json::from_str::<Value>(&body) else {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    };
    let method = message["method"].as_str().unwrap_or_default().to_owned();
    let session = headers.get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned()).unwrap_or_default();
    silent.heard.lock().unwrap().push((method.clone(), session.clone()));
    let say = |status: StatusCode, session: &str, said: Value| {
        let kind = [("content-type", "application/json".to_owned()), ("mcp-session-id", session.to_owned())];
        (status, kind, said.to_string()).into_response()
    };
    let result = |result: Value| json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    match method.as_str() {
        "initialize" => {
            let made = format!("s{}", silent.count("initialize"));
            let info = json!({ "name": "silent", "version": "1" });
            let facts = json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} }, "serverInfo": info });
            say(StatusCode::OK, &made, result(facts))
        }
        "server/discover" => StatusCode::BAD_REQUEST.into_response(),
        _ if silent.only.lock().unwrap().as_ref().is_some_and(|only| *only != session) => {
            let error = json!({ "code": -32001, "message": "Session not found" });
            say(StatusCode::NOT_FOUND, &session, json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
        }
        _ if session
            .trim_start_matches('s')
            .parse()
            .is_ok_and(|number: usize| number <= silent.former.load(Ordering::Relaxed)) =>
        {
            if silent.breaks.load(Ordering::Relaxed) {
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
            let error = json!({ "code": -32001, "message": "Session not found" });
            say(StatusCode::NOT_FOUND, &session, json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
        }
        "tools/list" => say(StatusCode::OK, &session, result(json!({ "tools": [{ "name": "wait" }] }))),
        "tools/call" if message["params"]["name"] == "wait" => std::future::pending().await,
        "tools/call" if silent.status.lock().unwrap().is_some() => {
            let status = *silent.status.lock().unwrap();
            if silent.forgets.load(Ordering::Relaxed) {
                *silent.only.lock().unwrap() = Some("of its next life".to_owned());
            }
            status.unwrap().into_response()
        }
        "ping" => say(StatusCode::OK, &session, result(json!({}))),
        "tools/call" => say(StatusCode::OK, &session, result(json!({ "content": [], "structuredContent": session }))),
        _ => StatusCode::ACCEPTED.into_response(),
    }
}

fn one() -> Route {
    Route::One("b".into())
}

fn call(id: u64, tool: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": tool, "arguments": {} } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_taken_back_also_before_its_server_has_begun_to_answer() {
    let silent = Silent::default();
    let hub = hub(&[("b", spec(&json!({ "url": silent.serve().await })))]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let calling = client.clone();
    let running = tokio::spawn(async move { calling.post(&call(5, "wait")).await.text().await });
    until("the call has arrived", || silent.count("tools/call") == 1).await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 5 } });
    assert_eq!(client.post(&cancel).await.status, 202);
    until("the server is told", || silent.count("notifications/cancelled") == 1).await;
    assert!(!running.await.unwrap().contains("result"), "what was taken back has no result");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_never_answered_ends_all_the_same() {
    let silent = Silent::default();
    let options = Options { call_limit: Duration::from_millis(300), ..Options::default() };
    let hub = hub_with(options, store(), &[("b", spec(&json!({ "url": silent.serve().await })))]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let ended = client.call("wait", json!({})).await;
    assert_eq!(ended["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{ended}");
    assert_eq!(silent.count("tools/call"), 1, "it may have run, so it is not sent again");
    until("the server is told", || silent.count("notifications/cancelled") == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_404_in_a_session_means_that_it_is_over_whoever_it_answers() {
    let silent = Silent::default();
    let hub = hub(&[("b", spec(&json!({ "url": silent.serve().await })))]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let first = client.call("where", json!({})).await["structuredContent"].clone();
    let begun = silent.count("initialize");
    silent.former.store(begun, Ordering::Relaxed);
    let second = client.call("where", json!({})).await["structuredContent"].clone();
    assert_ne!(first, second);
    let number: usize = second.as_str().unwrap().trim_start_matches('s').parse().unwrap();
    assert!(number > begun, "the call was sent again in a new session: {second}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_without_an_answer_does_not_make_a_call_run_twice() {
    let silent = Silent::default();
    let hub = hub(&[("b", spec(&json!({ "url": silent.serve().await })))]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    for status in [400, 404, 409, 429, 503, 500, 502] {
        *silent.status.lock().unwrap() = Some(StatusCode::from_u16(status).unwrap());
        let before = silent.count("tools/call");
        let ended = client.ask("tools/call", json!({ "name": "where", "arguments": {} })).await;
        assert_eq!(silent.count("tools/call"), before + 1, "{status}: the session is known, so that was not it");
        // A server that is still there says by 503 that it runs nothing; 500 and 502 may come after the call has run.
        let code = if [500, 502].contains(&status) { "OUTCOME_UNKNOWN" } else { "NOT_EXECUTED" };
        let facts = &ended["result"]["structuredContent"];
        assert_eq!((&facts["code"], &facts["server"]), (&json!(code), &json!("b")), "{status}: {ended}");
        assert!(facts["lastError"].as_str().unwrap().contains(&status.to_string()), "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_whose_server_dies_under_a_call_does_not_make_it_run_twice() {
    for status in [500, 502, 503, 504] {
        let silent = Silent::default();
        let hub = hub(&[("b", spec(&json!({ "url": silent.serve().await })))]).await;
        let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
        *silent.status.lock().unwrap() = Some(StatusCode::from_u16(status).unwrap());
        silent.forgets.store(true, Ordering::Relaxed);
        let ended = client.call("where", json!({})).await;
        assert_eq!(ended["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{status}: {ended}");
        assert_eq!(silent.count("tools/call"), 1, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_breaks_on_the_sessions_of_its_former_life_is_met_anew() {
    let silent = Silent::default();
    let hub = hub(&[("b", spec(&json!({ "url": silent.serve().await })))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    client.call("b__where", json!({})).await;
    silent.breaks.store(true, Ordering::Relaxed);
    silent.former.store(silent.count("initialize"), Ordering::Relaxed);
    let cut = client.call("b__where", json!({})).await;
    assert_eq!(cut["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{cut}");
    let mut seen = Vec::new();
    while !seen.iter().any(|kind| kind == "server_reconnected") {
        let activity = client.tool("await_activity", json!({ "timeout_ms": 20_000 })).await;
        seen = activity["events"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
        tokio::task::yield_now().await;
    }
    assert!(seen.contains(&json!("server_disconnected")), "{seen:?}");
    assert!(client.call("b__where", json!({})).await["structuredContent"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_program_that_ends_is_noticed_while_its_child_holds_its_output_open() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let count = format!("--count={}", ran.display());
    let mark = format!("--mark=holds-{}", std::process::id());
    let hub = hub(&[("b", spec(&stdio_entry(&[&mark, &count, "--child=holds"])))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let calling = client.clone();
    let cut = tokio::spawn(async move { calling.call("b__count", json!({ "id": "x", "ms": 60_000 })).await });
    until("the call has begun", || !std::fs::read_to_string(&ran).unwrap_or_default().is_empty()).await;
    let killed = std::process::Command::new("pkill").args(["-9", "-f", "--", &mark]).status().unwrap();
    assert!(killed.success());
    let cut = tokio::time::timeout(PATIENCE, cut).await.expect("it ends").unwrap();
    assert_eq!(cut["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{cut}");
    assert_eq!(client.call("b__echo", json!({ "text": "again" })).await["content"][0]["text"], "again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_cannot_start_says_how_it_ended() {
    let hub = hub(&[("b", spec(&json!({ "command": "sh", "args": ["-c", "exit 9"] })))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let backend = hub.all().remove(0);
    until("its end is shown", || {
        backend.snapshot().last_error.is_some_and(|error| error == "the program exited with code 9")
    })
    .await;
    let mut cursor = Value::Null;
    let exit = loop {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        cursor = seen["last_event_id"].clone();
        let events = seen["events"].as_array().unwrap();
        assert!(!events.is_empty(), "its end is told");
        if let Some(crashed) = events.iter().find(|event| event["type"] == "server_process_crashed") {
            break crashed["data"].clone();
        }
    };
    assert_eq!((&exit["exitCode"], &exit["signal"]), (&json!(9), &Value::Null));
}

/// A modern server over stdio whose tools change as soon as somebody wants to know.
const CHANGING: &str = r#"
let subscribed = false;
const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method } = JSON.parse(line);
  if (method === 'server/discover') {
    send({ id, result: { resultType: 'complete', supportedVersions: ['2026-07-28'], capabilities: { tools: { listChanged: true } }, ttlMs: 0, cacheScope: 'public' } });
  } else if (method === 'tools/list') {
    const names = subscribed ? ['one', 'two'] : ['one'];
    send({ id, result: { resultType: 'complete', tools: names.map((name) => ({ name, inputSchema: { type: 'object' } })), ttlMs: 0, cacheScope: 'public' } });
  } else if (method === 'subscriptions/listen') {
    const _meta = { 'io.modelcontextprotocol/subscriptionId': id };
    send({ method: 'notifications/subscriptions/acknowledged', params: { _meta } });
    subscribed = true;
    send({ method: 'notifications/tools/list_changed', params: { _meta } });
  }
});
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn changes_of_a_modern_program_are_heard_because_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("changing.cjs");
    std::fs::write(&script, CHANGING).unwrap();
    let hub = hub(&[("b", spec(&json!({ "command": "node", "args": [script] })))]).await;
    let backend = hub.all().remove(0);
    let tools = || backend.catalogue().list(bowline_hub::catalogue::ListKind::Tools).len();
    until("the second tool is known", || tools() == 2).await;
}
