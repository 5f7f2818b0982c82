//! Clients of one person: each has its own tasks, questions and events, as if the others were strangers.

use std::sync::Arc;

use bowline_hub::{Hub, Options, Route};
use serde_json::{Value, json};

use crate::support::{Client, Fixture, Pieces, hub, hub_with, modern, spec, stdio_entry, store, until};

/// One of the hub's tools, called by a client without a session; its result.
async fn called(hub: &Arc<Hub>, name: &str, arguments: Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    let answer = modern(hub, "alice", &Route::All, "tools/call", params, json!({})).await;
    answer.messages().await.pop().unwrap()["result"].clone()
}

async fn tool(hub: &Arc<Hub>, name: &str, arguments: Value) -> Value {
    called(hub, name, arguments).await["structuredContent"].clone()
}

fn long() -> Value {
    json!({ "server": "b", "tool": "count", "args": { "id": "x", "ms": 600_000 }, "as_task": true })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_is_its_sessions_own() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (first, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let (second, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let task = first.tool("execute_tool", long()).await["taskId"].clone();
    assert_eq!(second.tool("list_tasks", json!({})).await["tasks"], json!([]));
    let seen = second.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    assert!(!seen.to_string().contains(task.as_str().unwrap()), "{seen}");
    for name in ["get_task", "get_task_result", "cancel_task"] {
        assert_eq!(second.call(name, json!({ "task_id": task })).await["isError"], true, "{name}");
    }
    assert_eq!(first.tool("get_task", json!({ "task_id": task })).await["status"], "working");
    assert_eq!(first.tool("list_tasks", json!({})).await["tasks"][0]["taskId"], task);
    assert_eq!(first.tool("cancel_task", json!({ "task_id": task })).await["cancelled"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_of_a_client_without_sessions_is_its_handles_own() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let made = tool(&hub, "execute_tool", long()).await;
    let (task, handle) = (made["taskId"].clone(), made["handle"].clone());
    let other = tool(&hub, "await_activity", json!({ "timeout_ms": 100 })).await["handle"].clone();
    for stranger in [json!({}), json!({ "handle": other })] {
        assert_eq!(tool(&hub, "list_tasks", stranger.clone()).await["tasks"], json!([]));
        let mut about = stranger;
        about["task_id"] = task.clone();
        assert_eq!(called(&hub, "cancel_task", about).await["isError"], true);
    }
    assert_eq!(tool(&hub, "list_tasks", json!({ "handle": handle })).await["tasks"][0]["taskId"], task);
    let about = json!({ "task_id": task, "handle": handle });
    assert_eq!(tool(&hub, "get_task", about.clone()).await["status"], "working");
    assert_eq!(tool(&hub, "cancel_task", about).await["cancelled"], true);
    // A handle that is nobody's is refused, and not taken for none.
    assert_eq!(called(&hub, "list_tasks", json!({ "handle": "mcph_zzz" })).await["isError"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn every_tool_that_keeps_something_takes_a_handle() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let listed = client.ask("tools/list", json!({})).await["result"]["tools"].clone();
    for name in ["list_tasks", "get_task", "get_task_result", "cancel_task", "read_resource", "get_prompt"] {
        let tool = listed.as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap();
        assert_eq!(tool["inputSchema"]["properties"]["handle"]["type"], "string", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_of_a_client_without_sessions_that_takes_long_names_the_handle_of_its_task() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let args = json!({ "ms": 500, "question": "who?" });
    let made =
        tool(&hub, "execute_tool", json!({ "server": "b", "tool": "ask", "args": args, "timeout_ms": 100 })).await;
    let (task, handle) = (made["taskId"].clone(), made["handle"].clone());
    assert!(handle.as_str().is_some_and(|handle| handle.starts_with("mcph_")), "{made}");
    // What its server asks from then on is asked there.
    let asked = loop {
        let asked = tool(&hub, "get_elicitations", json!({ "handle": handle })).await["requests"].clone();
        if let Some(one) = asked.as_array().unwrap().first() {
            break one.clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    let answer = json!({ "id": asked["id"], "action": "decline", "handle": handle });
    assert_eq!(tool(&hub, "respond_to_elicitation", answer).await["answered"], true);
    let about = json!({ "task_id": task, "handle": handle });
    while tool(&hub, "get_task", about.clone()).await["status"] == "working" {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(called(&hub, "get_task_result", about).await["content"][0]["text"], "decline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_that_names_no_call_goes_to_nobody_while_two_clients_of_one_person_share_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let entry = spec(&stdio_entry(&[&format!("--count={}", ran.display())]));
    let hub = hub_with(Options { processes_per_server_max: 1, ..Options::default() }, store(), &[("b", entry)]).await;
    let can = json!({ "elicitation": {} });
    let (first, _) = Client::open(&hub, "alice", Route::All, can.clone()).await;
    let (second, _) = Client::open(&hub, "alice", Route::All, can).await;
    let request = |tool: &str, arguments: Value| {
        let params = json!({ "name": tool, "arguments": arguments });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
    };
    let seconds = request("b__count", json!({ "id": "x", "ms": 2000 }));
    let waiting = tokio::spawn(async move { second.post(&seconds).await.messages().await });
    until("the other call runs", || ran.exists()).await;
    let answered = first.post(&request("b__ask", json!({ "question": "whose?" }))).await.messages().await;
    let told = answered.last().unwrap()["error"]["message"].as_str().unwrap();
    assert!(told.contains("no client here can answer"), "{answered:?}");
    let heard = waiting.await.unwrap();
    assert_eq!(heard.len(), 1, "a neighbour was asked: {heard:?}");
    // Alone on the pipe, it is asked.
    let mut stream = Pieces::of(first.post(&request("b__ask", json!({ "question": "whose?" }))).await);
    assert_eq!(stream.message().await["method"], "elicitation/create");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_to_a_client_without_a_handle_is_not_put_to_another_client_of_the_same_person() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let handle = tool(&hub, "await_activity", json!({ "timeout_ms": 100 })).await["handle"].clone();
    let params = json!({ "name": "b__ask", "arguments": {} });
    let answered = modern(&hub, "alice", &Route::All, "tools/call", params, json!({})).await.messages().await;
    let told = answered.last().unwrap()["error"]["message"].as_str().unwrap();
    assert!(told.contains("cannot answer"), "{answered:?}");
    let asked = tool(&hub, "get_elicitations", json!({ "handle": handle })).await;
    assert_eq!(asked["requests"], json!([]));
}
