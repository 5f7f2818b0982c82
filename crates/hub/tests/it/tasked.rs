//! Tasks that servers make of calls: followed by whoever owns them, on any node, and by nobody else.

use std::sync::Arc;

use bowline_hub::{Hub, Options, Route};
use serde_json::{Value, json};

use crate::support;
use crate::support::wire::Wire;
use crate::support::{Fixture, Pieces, hub_with, modern, principal, send, store};

fn can() -> Value {
    json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

fn job(id: &str, question: Option<&str>) -> Value {
    json!({ "name": "b__job", "arguments": { "id": id, "question": question } })
}

/// A request over HTTP: its status and its response.
async fn ask(hub: &Arc<Hub>, who: &str, method: &str, params: Value, capabilities: Value) -> (u16, Value) {
    let answer = modern(hub, who, &Route::All, method, params, capabilities).await;
    let status = answer.status;
    (status, answer.messages().await.pop().unwrap())
}

async fn result(hub: &Arc<Hub>, method: &str, params: Value) -> Value {
    let (status, answer) = ask(hub, "alice", method, params, can()).await;
    assert_eq!(status, 200, "{answer}");
    answer["result"].clone()
}

async fn fixture(dir: &tempfile::TempDir) -> Fixture {
    Fixture::start(&["--era=modern", &format!("--tasks={}", dir.path().display())]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_is_followed_answered_and_cancelled_under_a_name_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let store = store();
    let servers = [("a", fixture.spec()), ("b", fixture.spec())];
    let hub = hub_with(Options::default(), store.clone(), &servers).await;
    let offered = result(&hub, "server/discover", json!({})).await;
    assert!(offered["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(), "{offered}");

    let made = result(&hub, "tools/call", job("x", Some("sure?"))).await;
    assert_eq!((&made["resultType"], &made["status"]), (&json!("task"), &json!("working")), "{made}");
    let task = json!({ "taskId": made["taskId"] });
    assert!(made["taskId"].as_str().unwrap().starts_with("b__"), "{made}");
    let asked = result(&hub, "tasks/get", task.clone()).await;
    assert_eq!((&asked["status"], &asked["taskId"]), (&json!("input_required"), &made["taskId"]), "{asked}");
    assert_eq!(asked["inputRequests"]["one"]["params"]["message"], "sure?");
    let mut answer = task.clone();
    answer["inputResponses"] = json!({ "one": { "action": "decline" } });
    assert_eq!(result(&hub, "tasks/update", answer).await["resultType"], "complete");
    std::fs::write(dir.path().join("x.done"), "").unwrap();

    // Another node, or the same one after its restart, knows the name as well.
    let other = hub_with(Options::default(), store, &servers).await;
    let ended = result(&other, "tasks/get", task.clone()).await;
    assert_eq!((&ended["status"], &ended["taskId"]), (&json!("completed"), &made["taskId"]), "{ended}");
    assert_eq!(ended["result"]["content"][0]["text"], "finished x decline");

    let second = result(&hub, "tools/call", job("y", None)).await;
    result(&hub, "tasks/cancel", json!({ "taskId": second["taskId"] })).await;
    let cancelled = result(&hub, "tasks/get", json!({ "taskId": second["taskId"] })).await;
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_is_the_same_over_stdio() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let hub = hub_with(Options::default(), store(), &[("b", fixture.spec())]).await;
    let mut wire = Wire::open(&hub, "alice", Route::All);
    let made = wire.ask_modern("tools/call", job("x", None), can()).await;
    let task = json!({ "taskId": made["result"]["taskId"] });
    assert_eq!(wire.ask_modern("tasks/get", task.clone(), can()).await["result"]["status"], "working");
    std::fs::write(dir.path().join("x.done"), "").unwrap();
    let ended = wire.ask_modern("tasks/get", task.clone(), can()).await;
    assert_eq!(ended["result"]["result"]["content"][0]["text"], "finished x", "{ended}");
    assert_eq!(result(&hub, "tasks/get", task).await["status"], "completed", "it is the same task over HTTP");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_is_its_owners_and_what_is_not_known_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let hub = hub_with(Options::default(), store(), &[("a", fixture.spec()), ("b", fixture.spec())]).await;
    let made = result(&hub, "tools/call", job("x", None)).await;
    let name = made["taskId"].as_str().unwrap().to_owned();
    let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
    let own = file.file_name().into_string().unwrap();
    assert!(name.ends_with(&own), "{name} {own}");
    for (who, id) in [
        ("bob", name.clone()),
        ("alice", name.replacen('b', "a", 1)),
        ("alice", format!("b__{own}")),
        ("alice", own),
        ("alice", "nobody__x".to_owned()),
    ] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let (_, refused) = ask(&hub, who, method, json!({ "taskId": id, "inputResponses": {} }), can()).await;
            assert_eq!(refused["error"]["code"], -32602, "{who} {method} {id}: {refused}");
        }
    }
    let task = json!({ "taskId": name });
    let (status, refused) = ask(&hub, "alice", "tasks/get", task.clone(), json!({})).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!(-32021)), "{refused}");
    let body =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": support::with_meta(task.clone(), can()) });
    let request = http::Request::post("/mcp")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tasks/get")
        .header("mcp-name", "b__another");
    let request = request.body(body.to_string().into()).unwrap();
    let mismatch = send(&hub, &principal("alice"), &Route::All, request).await;
    assert_eq!((mismatch.status, &mismatch.messages().await[0]["error"]["code"]), (400, &json!(-32020)));
    assert_eq!(result(&hub, "tasks/get", task).await["status"], "working", "nobody has touched it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn on_a_servers_own_path_a_task_is_its_owners_too() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let hub = hub_with(Options::default(), store(), &[("a", fixture.spec()), ("b", fixture.spec())]).await;
    let ask = async |who: &str, server: &str, method: &str, params: Value| {
        let answer = modern(&hub, who, &Route::One(server.into()), method, params, can()).await;
        answer.messages().await.pop().unwrap()
    };
    let call = json!({ "name": "job", "arguments": { "id": "x" } });
    let name = ask("alice", "b", "tools/call", call).await["result"]["taskId"].clone();
    let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
    let own = json!(file.file_name().into_string().unwrap());
    let found = ask("alice", "b", "tasks/get", json!({ "taskId": name })).await;
    assert_eq!((&found["result"]["taskId"], &found["result"]["status"]), (&name, &json!("working")), "{found}");
    for (who, server, id) in [("bob", "b", &name), ("bob", "b", &own), ("alice", "a", &name), ("alice", "b", &own)] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let refused = ask(who, server, method, json!({ "taskId": id, "inputResponses": {} })).await;
            assert_eq!(refused["error"]["code"], -32602, "{who} {server} {method} {id}: {refused}");
        }
    }
    assert_eq!(result(&hub, "tasks/get", json!({ "taskId": name })).await["status"], "working", "it is one task");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn who_listens_hears_of_its_own_tasks_and_resources_under_the_names_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(&dir).await;
    let hub = hub_with(Options::default(), store(), &[("b", fixture.spec())]).await;
    let made = result(&hub, "tools/call", job("x", None)).await;
    let filter = json!({ "notifications": { "taskIds": [made["taskId"]], "resourceSubscriptions": ["test://one"] } });
    for route in [Route::All, Route::One("b".into())] {
        let listening = modern(&hub, "alice", &route, "subscriptions/listen", filter.clone(), can()).await;
        let mut heard = Pieces::of(listening);
        let agreed = heard.message().await["params"]["notifications"].clone();
        assert_eq!(agreed, filter["notifications"], "{route:?}");
        let updated = heard.message().await;
        assert_eq!(updated["params"]["uri"], "test://one", "{route:?}: {updated}");
        let told = heard.message().await;
        assert_eq!(told["method"], "notifications/tasks");
        assert_eq!((&told["params"]["taskId"], &told["params"]["status"]), (&made["taskId"], &json!("working")));
        assert_eq!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "m1");
        // To anybody else there is no such task.
        let listening = modern(&hub, "bob", &route, "subscriptions/listen", filter.clone(), can()).await;
        let agreed = Pieces::of(listening).message().await["params"]["notifications"].clone();
        assert!(!agreed.to_string().contains(made["taskId"].as_str().unwrap()), "{route:?}: {agreed}");
    }
    // Who is listening when we leave is told that it is over.
    let listening = modern(&hub, "alice", &Route::All, "subscriptions/listen", filter, can()).await;
    hub.close().await;
    let last = listening.messages().await.pop().unwrap();
    assert_eq!(last["result"]["resultType"], "complete", "{last}");
}
