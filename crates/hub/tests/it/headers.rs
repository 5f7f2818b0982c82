//! Arguments that are repeated in headers: made for those who send none, and checked for those who do.

use bowline_hub::Route;
use serde_json::{Value, json};

use crate::support::{Client, Fixture, hub, principal, send};

fn one() -> Route {
    Route::One("b".into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn headers_are_made_for_clients_of_the_older_era_and_for_the_tools() {
    let fixture = Fixture::start(&["--era=modern", "--regional=yes"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    // The backend refuses a call whose header differs from its body.
    let (direct, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let answer = direct.call("regional", json!({ "region": "Basel" })).await;
    assert_eq!(answer["content"][0]["text"], "in Basel", "{answer}");
    let (all, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let answer = all.call("b__regional", json!({ "region": "Bern" })).await;
    assert_eq!(answer["content"][0]["text"], "in Bern", "{answer}");
    let args = json!({ "region": "Chur" });
    let answer = all.call("execute_tool", json!({ "server": "b", "tool": "regional", "args": args })).await;
    assert_eq!(answer["content"][0]["text"], "in Chur", "{answer}");
    let without = all.call("b__regional", json!({})).await;
    assert_eq!(without["content"][0]["text"], "in undefined", "{without}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_whose_headers_are_not_those_that_the_server_wants_now_is_made_again_with_a_fresh_list() {
    let dir = tempfile::tempdir().unwrap();
    let header = dir.path().join("header");
    let fixture = Fixture::start(&["--era=modern", "--regional=yes", &format!("--header={}", header.display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    // The definition changes, and nobody is told.
    std::fs::write(&header, "Canton").unwrap();
    let answer = client.call("b__regional", json!({ "region": "Uri" })).await;
    assert_eq!(answer["content"][0]["text"], "in Uri", "{answer}");
    // One that the server refuses in any case is refused after one more try.
    std::fs::write(&header, "not a header").unwrap();
    let params = json!({ "name": "b__regional", "arguments": { "region": "Zug" } });
    let refused = client.ask("tools/call", params).await;
    assert_eq!(refused["error"]["code"], -32020, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_tool_whose_headers_cannot_be_made_is_not_offered() {
    let fixture = Fixture::start(&["--era=modern", "--regional=yes"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (all, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let listed = all.tool("list_tools", json!({})).await;
    let names: Vec<&str> =
        listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"regional") && !names.contains(&"unsound"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn headers_of_modern_clients_must_say_what_the_body_says() {
    // For a backend of the older era nobody else would look at them.
    for (era, route, name) in
        [("legacy", one(), "regional"), ("legacy", Route::All, "b__regional"), ("modern", Route::All, "b__regional")]
    {
        let fixture = Fixture::start(&[&format!("--era={era}"), "--regional=yes"]).await;
        let hub = hub(&[("b", fixture.spec())]).await;
        for (header, status) in
            [(Some("Basel"), 200), (None, 400), (Some("Bern"), 400), (Some("=?base64?QmFzZWw=?="), 200)]
        {
            // A wrapped value is passed on as it is, and our simple backend does not unwrap it.
            if era == "modern" && header.is_some_and(|header| header.starts_with("=?")) {
                continue;
            }
            let params = json!({
                "name": name,
                "arguments": { "region": "Basel" },
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            });
            let mut request = http::Request::post("/mcp")
                .header("content-type", "application/json")
                .header("mcp-protocol-version", "2026-07-28")
                .header("mcp-method", "tools/call")
                .header("mcp-name", name);
            if let Some(header) = header {
                request = request.header("mcp-param-region", header);
            }
            let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
            let request = request.body(body.to_string().into()).unwrap();
            let answer = send(&hub, &principal("alice"), &route, request).await;
            assert_eq!(answer.status, status, "{era} {route:?} {header:?}");
            let answer: Value = answer.messages().await.pop().unwrap();
            match status {
                200 => assert_eq!(answer["result"]["content"][0]["text"], "in Basel", "{answer}"),
                _ => assert_eq!(answer["error"]["code"], -32020, "{answer}"),
            }
        }
    }
}
