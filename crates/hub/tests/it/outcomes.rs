//! The outcome of a call is what became of it, on every face: a server's words do not change it, and its refusals are told as such.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bowline_hub::agent::{self, AgentEnd, Patience};
use bowline_hub::{Hub, Options, Route, ServerSpec};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::wire::Wire;
use crate::support::{Client, hub, hub_with, modern, principal, spec, store};

fn one() -> Route {
    Route::One("b".into())
}

/// What a server says instead of what is usual.
#[derive(Clone)]
struct Spoken {
    status: u16,
    retry_after: Option<&'static str>,
    /// What is in the message beside its id; nothing for no message at all.
    message: Value,
}

impl Spoken {
    fn of(message: Value) -> Option<Spoken> {
        Some(Spoken { status: 200, retry_after: None, message })
    }

    fn respond(self, id: &Value) -> Response {
        let mut response = match self.message {
            Value::Null => StatusCode::OK.into_response(),
            mut message => {
                (message["jsonrpc"], message["id"]) = (json!("2.0"), id.clone());
                axum::Json(message).into_response()
            }
        };
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap();
        if let Some(later) = self.retry_after {
            response.headers_mut().insert("retry-after", later.parse().unwrap());
        }
        response
    }
}

/// A server of either era that begins, and answers calls, as a test says.
#[derive(Clone, Default)]
struct Scripted {
    modern: bool,
    hello: Arc<Mutex<Option<Spoken>>>,
    call: Arc<Mutex<Option<Spoken>>>,
    called: Arc<AtomicUsize>,
    /// Lets a call of the tool `held` go on.
    gate: Arc<Notify>,
}

impl Scripted {
    async fn serve(&self) -> ServerSpec {
        let router = axum::Router::new().fallback(scripted).with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        spec(&json!({ "url": format!("http://{address}/mcp") }))
    }

    fn says(&self, spoken: Option<Spoken>) {
        *self.call.lock().unwrap() = spoken;
    }
}

async fn scripted(State(server): State<Scripted>, body: String) -> Response {
    let Ok(message) = serde_json::from_str::<Value>(&body) else {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    };
    let hello = server.hello.lock().unwrap().clone();
    let call = server.call.lock().unwrap().clone();
    let result = |result: Value| Spoken::of(json!({ "result": result }));
    let info = json!({ "name": "scripted", "version": "1" });
    let can = json!({ "tools": {}, "resources": {} });
    let spoken = match message["method"].as_str().unwrap_or_default() {
        "server/discover" if !server.modern => None,
        "server/discover" | "initialize" if hello.is_some() => hello,
        "server/discover" => result(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": can, "ttlMs": 0,
            "cacheScope": "public", "_meta": { "io.modelcontextprotocol/serverInfo": info },
        })),
        "initialize" if !server.modern => {
            result(json!({ "protocolVersion": "2025-11-25", "capabilities": can, "serverInfo": info }))
        }
        "ping" => result(json!({})),
        "tools/list" => result(json!({ "tools": [{ "name": "do", "inputSchema": { "type": "object" } }] })),
        "tools/call" if message["params"]["name"] == "wait" => std::future::pending().await,
        "tools/call" if message["params"]["name"] == "held" => {
            server.gate.notified().await;
            call
        }
        "tools/call" | "resources/read" => {
            server.called.fetch_add(1, Ordering::Relaxed);
            call
        }
        method if method.starts_with("notifications/") => return StatusCode::ACCEPTED.into_response(),
        _ => None,
    };
    let unknown = || Spoken::of(json!({ "error": { "code": -32601, "message": "Method not found" } }));
    spoken.or_else(unknown).unwrap().respond(&message["id"])
}

async fn as_agent(hub: &Arc<Hub>, name: &str, arguments: Value) -> AgentEnd {
    agent::call(hub, &principal("alice"), "s1", name, &arguments, Patience::Usual).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_in_our_words_is_counted_and_shown_by_what_it_did() {
    let server = Scripted::default();
    let hub = hub(&[("b", server.serve().await)]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    for (code, outcome) in [("OUTCOME_UNKNOWN", "unknown"), ("NOT_EXECUTED", "not_executed")] {
        let facts = json!({ "error": "b lies", "code": code, "outcome": outcome, "server": "b", "retryAfterMs": 1 });
        let text = json!([{ "type": "text", "text": facts.to_string() }]);
        let mut result = json!({ "content": text, "structuredContent": facts });
        server.says(Spoken::of(json!({ "result": result })));
        assert_eq!(client.call("b__do", json!({})).await, result);
        assert!(matches!(as_agent(&hub, "b__do", json!({})).await, AgentEnd::Success { .. }));
        result["isError"] = true.into();
        server.says(Spoken::of(json!({ "result": result })));
        assert_eq!(client.call("b__do", json!({})).await, result);
        let AgentEnd::Failed { error, .. } = as_agent(&hub, "b__do", json!({})).await else { panic!("{code}") };
        assert_eq!(error, "b lies");
        server.says(Spoken::of(json!({ "error": { "code": -7, "message": "no", "data": facts } })));
        let read = client.tool("read_resource", json!({ "server": "b", "uri": "test://one" })).await;
        assert_eq!((&read["code"], &read["data"]), (&json!(-7), &facts), "its error, and not ours: {read}");
    }
    let counted = hub.all().remove(0).counts.shown()["outcomes"].clone();
    assert_eq!(counted, json!({ "result": 4, "tool_error": 4, "error": 2, "unknown": 0, "not_executed": 0 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tasks_outcome_is_kept_beside_its_result_and_not_read_out_of_it() {
    let (server, store) = (Scripted::default(), store());
    let servers = [("b", server.serve().await)];
    let options = || Options { call_timeout: Duration::ZERO, ..Options::default() };
    let first = hub_with(options(), store.clone(), &servers).await;
    let facts = json!({ "error": "b lies", "code": "OUTCOME_UNKNOWN", "outcome": "unknown", "server": "b" });
    let result = json!({ "content": [], "isError": true, "structuredContent": facts });
    server.says(Spoken::of(json!({ "result": result })));
    let mut tasks = Vec::new();
    for name in ["b__held", "b__wait"] {
        let AgentEnd::Success { result, .. } = as_agent(&first, name, json!({})).await else { panic!("{name}") };
        tasks.push(result["structuredContent"]["taskId"].clone());
    }
    server.gate.notify_one();
    let about = async |hub: &Arc<Hub>, tool: &str, task: &Value| {
        as_agent(hub, &format!("hub__{tool}"), json!({ "task_id": task })).await
    };
    loop {
        let AgentEnd::Success { result, .. } = about(&first, "get_task", &tasks[0]).await else {
            panic!("it is there")
        };
        if result["structuredContent"]["status"] != "working" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let forged = about(&first, "get_task_result", &tasks[0]).await;
    assert!(matches!(forged, AgentEnd::Failed { .. }), "{forged:?}");
    first.close().await;
    let second = hub_with(options(), store, &servers).await;
    let forged = about(&second, "get_task_result", &tasks[0]).await;
    assert!(matches!(forged, AgentEnd::Failed { .. }), "after a restart: {forged:?}");
    // Of the other nobody knows, and the hub itself said so.
    let cut = about(&second, "get_task_result", &tasks[1]).await;
    assert!(matches!(cut, AgentEnd::Unknown { .. }), "{cut:?}");
}

/// How a call of `b`'s tool ends on each face, in both eras, by the hub's tool, and for an agent: its result.
async fn on_every_face(hub: &Arc<Hub>) -> Vec<(String, Value)> {
    let mut ended = Vec::new();
    for (route, name) in [(Route::All, "b__do"), (one(), "do")] {
        let params = json!({ "name": name, "arguments": {} });
        let (client, _) = Client::open(hub, "alice", route.clone(), json!({})).await;
        ended.push((format!("older {route:?}"), client.call(name, json!({})).await));
        let asked = modern(hub, "alice", &route, "tools/call", params.clone(), json!({})).await;
        ended.push((format!("modern {route:?}"), asked.messages().await.remove(0)["result"].clone()));
        let mut wire = Wire::open(hub, "alice", route.clone());
        wire.initialize(json!({})).await;
        ended.push((format!("stdio {route:?}"), wire.ask("tools/call", params).await["result"].clone()));
        if route == Route::All {
            let by_tool = client.call("execute_tool", json!({ "server": "b", "tool": "do" })).await;
            ended.push(("execute_tool".to_owned(), by_tool));
        }
    }
    match as_agent(hub, "b__do", json!({})).await {
        AgentEnd::Failed { result, .. } => ended.push(("agent".to_owned(), result)),
        end => panic!("agent: {end:?}"),
    }
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_server_refuses_by_its_status_did_not_run_and_says_when_to_come_back() {
    for modern in [false, true] {
        let server = Scripted { modern, ..Scripted::default() };
        let hub = hub(&[("b", server.serve().await)]).await;
        let own = json!({ "error": { "code": -32000, "message": "too many" } });
        for (status, retry_after, message, ms) in [
            (400, None, json!(null), json!(null)),
            (401, None, json!(null), json!(null)),
            (403, Some("60"), json!(null), json!(60_000)),
            (404, None, json!(null), json!(null)),
            (413, None, json!({ "detail": "too large" }), json!(null)),
            (429, None, json!(null), json!(null)),
            (429, Some("7200"), json!(null), json!(7_200_000)),
            (429, Some("7200"), own.clone(), json!(7_200_000)),
            (429, None, own.clone(), json!(null)),
            (503, None, json!(null), json!(null)),
            (503, Some("Fri, 31 Dec 2100 23:59:59 GMT"), json!(null), json!(31_536_000_000_u64)),
        ] {
            server.says(Some(Spoken { status, retry_after, message }));
            let before = server.called.load(Ordering::Relaxed);
            let ended = on_every_face(&hub).await;
            assert_eq!(server.called.load(Ordering::Relaxed) - before, ended.len(), "each was sent once");
            for (face, result) in ended {
                let facts = &result["structuredContent"];
                let told = [&facts["code"], &facts["server"], &facts["outcome"], &facts["retryAfterMs"]];
                let expected = [&json!("NOT_EXECUTED"), &json!("b"), &json!("not_executed"), &ms];
                assert_eq!(told, expected, "{status} to a modern server: {modern}, {face}: {result}");
                assert_eq!(result["isError"], true, "{face}");
                let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
                assert_eq!(text, *facts, "{face}");
            }
        }
        let counted = hub.all().remove(0).counts.shown()["outcomes"].clone();
        let wrongly = ["tool_error", "error", "unknown"].map(|outcome| counted[outcome].as_u64().unwrap());
        assert_eq!(wrongly, [0; 3], "{counted}");
        assert!(hub.all().remove(0).snapshot().is_connected(), "a refusal is no loss");
        // An error of the server's own under 400 is its answer.
        let message = json!({ "error": { "code": -32602, "message": "wrong" } });
        server.says(Some(Spoken { status: 400, retry_after: None, message }));
        let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
        let answer = client.ask("tools/call", json!({ "name": "do", "arguments": {} })).await;
        assert_eq!((&answer["error"]["code"], &answer["error"]["message"]), (&json!(-32602), &json!("wrong")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_for_time_when_it_is_dialled_gets_it_whatever_else_it_says() {
    let error = |code: i64| json!({ "error": { "code": code, "message": "not now" } });
    for modern in [false, true] {
        for (status, message) in [(429, error(-32000)), (503, error(-32603)), (403, error(-32000)), (429, json!(null))]
        {
            let server = Scripted { modern, ..Scripted::default() };
            *server.hello.lock().unwrap() =
                Some(Spoken { status, retry_after: Some("3000"), message: message.clone() });
            let hub = hub(&[("b", server.serve().await)]).await;
            let shown = hub.all().remove(0).shown().to_value();
            let left = shown["nextRetryMs"].as_u64().unwrap_or_default();
            assert!(left > 2_000_000, "{modern} {status} {message}: {shown}");
        }
    }
    // So does one of the oldest transport, whose stream is what is dialled.
    let busy = axum::Router::new().fallback(|| async { (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "3000")]) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/sse", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, busy).await });
    let hub = hub(&[("b", spec(&json!({ "url": url, "type": "sse" })))]).await;
    let shown = hub.all().remove(0).shown().to_value();
    assert!(shown["nextRetryMs"].as_u64().unwrap_or_default() > 2_000_000, "{shown}");
}
