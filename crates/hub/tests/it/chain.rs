//! A hub behind a hub: what happens to the backend at the end of the chain is told at its beginning, once and in order.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use bowline_hub::{Hub, Route, downstream};
use serde_json::{Value, json};

use crate::support::{Client, Fixture, Pieces, hub, modern, principal, spec};

/// Serves a hub over HTTP; the URL of its backend `b`.
async fn serve(hub: &Arc<Hub>) -> String {
    let hub = hub.clone();
    let router = axum::Router::new().fallback(move |request: Request| {
        let hub = hub.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, 1 << 20).await.unwrap();
            let request = http::Request::from_parts(parts, body);
            downstream::streamable_http::handle(&hub, &principal("inner"), Route::One("b".into()), request)
                .await
                .map(Body::new)
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/mcp/b")
}

/// Calls the tool that counts aloud, and hears it until its answer. `heard` gets each number; returns the result. It goes no
/// further than `stop`.
async fn count(client: &Client, from: u64, stop: Option<u64>, mut heard: impl AsyncFnMut(u64)) -> Value {
    let arguments = json!({ "from": from, "to": 50, "stop": stop, "ms": 2 });
    let params = json!({ "name": "progress", "arguments": arguments, "_meta": { "progressToken": "count" } });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let mut pieces = Pieces::of(client.post(&request).await);
    loop {
        let message = pieces.message().await;
        if message["method"] != "notifications/progress" {
            return message["result"].clone();
        }
        assert_eq!(message["params"]["progressToken"], "count");
        heard(message["params"]["progress"].as_u64().unwrap()).await;
    }
}

async fn chain(link: &str) {
    let mut fixture = Fixture::start(&["--era=legacy"]).await;
    let inner = hub(&[("b", fixture.spec())]).await;
    let outer = hub(&[("b", spec(&json!({ "url": serve(&inner).await, "era": link })))]).await;
    let (client, _) = Client::open(&outer, "alice", Route::One("b".into()), json!({})).await;
    let (watcher, _) = Client::open(&outer, "alice", Route::All, json!({})).await;
    let mut events: Vec<u64> = Vec::new();
    let cut = count(&client, 1, Some(30), async |number| {
        events.push(number);
        if number == 25 {
            fixture.kill().await;
        }
    })
    .await;
    assert_eq!(
        (&cut["isError"], &cut["structuredContent"]["code"]),
        (&json!(true), &json!("OUTCOME_UNKNOWN")),
        "{cut}"
    );
    fixture.restart().await;
    let next = events.last().unwrap() + 1;
    let rest = count(&client, next, None, async |number| events.push(number)).await;
    assert_eq!(rest["content"][0]["text"], "progressed");
    assert_eq!(events, (1..=50).collect::<Vec<_>>(), "each event once, in order");
    // The hub in the middle lived all the time, and nobody said otherwise.
    let servers = watcher.tool("list_servers", json!({})).await;
    assert_eq!(servers["servers"][0]["status"], "connected");
    let told = watcher.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    let kinds: Vec<&str> = told["events"].as_array().unwrap().iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert!(!kinds.contains(&"server_disconnected"), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_chain_of_hubs_tells_each_event_once_and_in_order_while_the_backend_at_its_end_dies() {
    for link in ["legacy", "modern"] {
        chain(link).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_crosses_a_chain_of_hubs_and_its_answer_takes_the_same_call_up() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&["--era=legacy", &format!("--count={}", ran.display())]).await;
    let inner = hub(&[("b", fixture.spec())]).await;
    let outer = hub(&[("b", spec(&json!({ "url": serve(&inner).await, "era": "modern" })))]).await;
    let ask = async |route: &Route, params: Value| {
        let answer = modern(&outer, "alice", route, "tools/call", params, json!({ "elicitation": {} })).await;
        answer.messages().await.pop().unwrap()
    };
    for (route, name) in [(Route::One("b".into()), "ask"), (Route::All, "b__ask")] {
        let call = json!({ "name": name, "arguments": { "question": "who?" } });
        let asked = ask(&route, call.clone()).await["result"].clone();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let mut answered = call.clone();
        answered["inputResponses"][key] = json!({ "action": "accept", "content": { "name": "Ada" } });
        // A state that was changed on the way is nobody's, and begins no second call.
        let state = asked["requestState"].as_str().unwrap().to_owned();
        answered["requestState"] = format!("{state}x").into();
        assert!(ask(&route, answered.clone()).await["error"].is_object());
        answered["requestState"] = state.into();
        let done = ask(&route, answered).await;
        assert_eq!(done["result"]["content"][0]["text"], "accept Ada", "{done}");
    }
}
