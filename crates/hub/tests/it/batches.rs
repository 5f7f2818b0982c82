//! Several messages in one body, as clients of 2025-03-26 may send them.

use std::sync::Arc;

use bowline_hub::{Hub, Route};
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, Fixture, hub};

async fn open(hub: &Arc<Hub>, version: &str) -> Client {
    let route = Route::One("b".into());
    let mut client = Client { hub: hub.clone(), who: support::principal("alice"), route, session: String::new() };
    let params =
        json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let answer = client.post(&json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params })).await;
    client.session = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
    client
}

fn call(id: u64, tool: &str, arguments: &Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn each_request_of_a_batch_is_answered_once() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let client = open(&hub, "2025-03-26").await;
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let ping = json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" });
    // Quick ones come together; slow ones when they are there.
    for slow in [0, 400] {
        let batch = json!([
            initialized,
            ping,
            call(1, "echo", &json!({ "text": "hi" })),
            call(2, "count", &json!({ "id": "x", "ms": slow })),
            { "jsonrpc": "2.0" },
            { "jsonrpc": "2.0", "id": 3, "method": "initialize" },
        ]);
        let answer = client.post(&batch).await;
        assert_eq!(answer.status, 200);
        let streamed = answer.is_stream();
        assert!(streamed || slow == 0);
        let messages = answer.messages().await;
        let all = if streamed { messages } else { messages[0].as_array().unwrap().clone() };
        let find = |id: Value| {
            let mut found = all.iter().filter(|message| message["id"] == id && message["method"].is_null());
            let one = found.next().unwrap_or_else(|| panic!("{id} in {all:?}")).clone();
            assert!(found.next().is_none(), "{id} twice in {all:?}");
            one
        };
        assert_eq!(find(json!("p"))["result"], json!({}));
        assert_eq!(find(json!(1))["result"]["content"][0]["text"], "hi");
        assert_eq!(find(json!(2))["result"]["content"][0]["text"], "done x");
        assert_eq!(find(Value::Null)["error"]["code"], -32600);
        assert_eq!(find(json!(3))["error"]["code"], -32600);
    }
    let notices = json!([initialized, { "jsonrpc": "2.0", "id": "nobody-asked", "result": {} }]);
    assert_eq!(client.post(&notices).await.status, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_batch_is_refused_where_there_are_none() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    for version in ["2025-11-25", "2025-06-18", "2024-11-05"] {
        assert_eq!(open(&hub, version).await.post(&json!([ping])).await.status, 400, "{version}");
    }
    let client = open(&hub, "2025-03-26").await;
    assert_eq!(client.post(&json!([])).await.status, 400);
    assert_eq!(client.post(&Value::Array(vec![ping.clone(); 101])).await.status, 400);
    let stranger = Client { session: String::new(), ..client };
    assert_eq!(stranger.post(&json!([ping])).await.status, 400);
}
