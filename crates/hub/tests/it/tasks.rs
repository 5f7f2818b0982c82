//! Long calls as tasks: what becomes of them outlives the call, the backend and the hub.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_hub::{Hub, Options, Route};
use bowline_protocol::LogId;
use bowline_store::Store;
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, Fixture, hub, hub_with, store, until};

/// Waits until the hub has kept what the backend itself calls the task. Before that, losing the backend leaves the
/// outcome unknown.
async fn upstream_is_kept(store: &Arc<dyn Store>, task: &Value) {
    let log = LogId::parse(task.as_str().unwrap()).unwrap();
    let kept = async {
        loop {
            let record = store.record(&log).await.unwrap().expect("the task is kept");
            let record: Value = serde_json::from_slice(&record.body).unwrap();
            if !record["upstream"].is_null() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), kept).await.expect("the backend has answered");
}

/// Reads a session's events until one is of this type.
async fn event(client: &Client, kind: &str) -> Value {
    let mut cursor = Value::Null;
    let mut all = Vec::new();
    loop {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{kind} is not in {all:?}");
        cursor = seen["last_event_id"].clone();
        all.extend(seen["events"].as_array().unwrap().clone());
        if let Some(found) = all.iter().find(|event| event["type"] == kind) {
            return found.clone();
        }
    }
}

/// A new hub on what the old one left in the store, and the same client before it.
async fn restarted(old: Client, store: &Arc<dyn Store>, fixture: &Fixture) -> (Arc<Hub>, Client) {
    // The old one does not get to say goodbye to anybody: nothing of it is used again.
    let hub = hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await;
    (hub.clone(), Client { hub, ..old })
}

async fn as_task(client: &Client, tool: &str, args: Value) -> Value {
    let made = client.tool("execute_tool", json!({ "server": "b", "tool": tool, "args": args, "as_task": true })).await;
    assert_eq!(made["status"], "working", "{made}");
    made["taskId"].clone()
}

fn begun(ran: &Path) -> bool {
    !std::fs::read_to_string(ran).unwrap_or_default().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_result_is_kept_across_a_restart_for_its_owner_only() {
    let fixture = Fixture::start(&[]).await;
    let store = store();
    let first = hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&first, "alice", Route::All, json!({})).await;
    let task = as_task(&client, "odd", json!({})).await;
    assert_eq!(event(&client, "task_completed").await["data"]["taskId"], task);
    let (second, client) = restarted(client, &store, &fixture).await;
    let result = client.call("get_task_result", json!({ "task_id": task })).await;
    assert_eq!((&result["content"][0]["type"], &result["vendor"]["exact"]), (&json!("hologram"), &json!(1.5)));
    let listed = client.tool("list_tasks", json!({})).await;
    let shown = &listed["tasks"][0];
    assert_eq!((&shown["taskId"], &shown["status"], &shown["server"]), (&task, &json!("completed"), &json!("b")));
    assert!(shown["createdAt"].is_string() && shown["endedAt"].is_string(), "{shown}");
    let (bob, _) = Client::open(&second, "bob", Route::All, json!({})).await;
    assert_eq!(bob.tool("list_tasks", json!({})).await["tasks"], json!([]));
    for tool in ["get_task", "get_task_result", "cancel_task"] {
        assert_eq!(bob.call(tool, json!({ "task_id": task })).await["isError"], true, "{tool}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_that_was_working_when_the_hub_died_is_failed_and_says_that_it_may_have_run() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&[&format!("--count={}", ran.display())]).await;
    let store = store();
    let first = hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&first, "alice", Route::All, json!({})).await;
    let task = as_task(&client, "count", json!({ "id": "x", "ms": 600_000 })).await;
    until("the call has begun", || begun(&ran)).await;
    let (_second, client) = restarted(client, &store, &fixture).await;
    assert_eq!(client.tool("get_task", json!({ "task_id": task })).await["status"], "failed");
    let result = client.call("get_task_result", json!({ "task_id": task })).await;
    assert_eq!((&result["isError"], &result["structuredContent"]["outcome"]), (&json!(true), &json!("unknown")));
    assert_eq!(event(&client, "task_failed").await["data"]["taskId"], task);
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "x\n", "it was not sent again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_of_the_backends_own_is_polled_again_after_its_restart_and_after_ours() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let options =
        ["--era=modern".to_owned(), format!("--tasks={}", dir.path().display()), format!("--count={}", ran.display())];
    let mut fixture = Fixture::start(&options.each_ref().map(String::as_str)).await;
    let store = store();
    let first = hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&first, "alice", Route::All, json!({})).await;
    let one = as_task(&client, "job", json!({ "id": "one" })).await;
    let two = as_task(&client, "job", json!({ "id": "two" })).await;
    until("both have begun", || std::fs::read_to_string(&ran).unwrap_or_default().lines().count() == 2).await;
    upstream_is_kept(&store, &one).await;
    upstream_is_kept(&store, &two).await;
    fixture.kill().await;
    fixture.restart().await;
    std::fs::write(dir.path().join("one.done"), "").unwrap();
    assert_eq!(event(&client, "task_completed").await["data"]["taskId"], one);
    let result = client.call("get_task_result", json!({ "task_id": one })).await;
    assert_eq!(result["content"][0]["text"], "finished one");
    let (_second, client) = restarted(client, &store, &fixture).await;
    assert_eq!(client.tool("get_task", json!({ "task_id": two })).await["status"], "working");
    std::fs::write(dir.path().join("two.done"), "").unwrap();
    loop {
        let shown = client.tool("get_task", json!({ "task_id": two })).await;
        if shown["status"] != "working" {
            assert_eq!(shown["status"], "completed", "{shown}");
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let result = client.call("get_task_result", json!({ "task_id": two })).await;
    assert_eq!(result["content"][0]["text"], "finished two");
    assert_eq!(std::fs::read_to_string(&ran).unwrap().lines().count(), 2, "each ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_that_its_backend_forgot_has_an_unknown_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let mut fixture = Fixture::start(&["--era=modern", &format!("--tasks={}", dir.path().display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let task = as_task(&client, "job", json!({ "id": "x" })).await;
    until("the task is there", || std::fs::read_dir(dir.path()).unwrap().count() == 1).await;
    fixture.kill().await;
    for file in std::fs::read_dir(dir.path()).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    fixture.restart().await;
    assert_eq!(event(&client, "task_failed").await["data"]["taskId"], task);
    let result = client.call("get_task_result", json!({ "task_id": task })).await;
    assert_eq!(result["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{result}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_backends_task_may_ask_and_ends_for_a_caller_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::start(&["--era=modern", &format!("--tasks={}", dir.path().display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    std::fs::write(dir.path().join("x.done"), "").unwrap();
    let waiting = client.clone();
    let call = tokio::spawn(async move {
        let args = json!({ "id": "x", "question": "sure?" });
        waiting.call("execute_tool", json!({ "server": "b", "tool": "job", "args": args })).await
    });
    let asked = event(&client, "elicitation_request").await;
    assert_eq!(asked["data"]["params"]["message"], "sure?");
    client.tool("respond_to_elicitation", json!({ "id": asked["data"]["id"], "action": "decline" })).await;
    assert_eq!(call.await.unwrap()["content"][0]["text"], "finished x decline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_that_is_cancelled_is_cancelled_at_its_backend_too() {
    let dir = tempfile::tempdir().unwrap();
    let (tasks, polls) = (dir.path().join("tasks"), dir.path().join("polls"));
    std::fs::create_dir(&tasks).unwrap();
    let options = ["--era=modern", &format!("--tasks={}", tasks.display()), &format!("--polls={}", polls.display())];
    let fixture = Fixture::start(&options).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let task = as_task(&client, "job", json!({ "id": "x" })).await;
    let file = || std::fs::read_dir(&tasks).unwrap().next().unwrap().unwrap().path();
    until("the hub knows of the backend's task", || polls.exists()).await;
    let cancelled = client.tool("cancel_task", json!({ "task_id": task })).await;
    assert_eq!(cancelled["cancelled"], true);
    assert_eq!(event(&client, "task_cancelled").await["data"]["taskId"], task);
    until("the backend knows", || std::fs::read_to_string(file()).unwrap().contains("\"cancelled\":true")).await;
    let again = client.tool("cancel_task", json!({ "task_id": task })).await;
    assert_eq!(again["cancelled"], false);
    assert_eq!(client.call("get_task_result", json!({ "task_id": task })).await["isError"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_result_that_was_kept_long_enough_is_gone_and_that_is_told() {
    let fixture = Fixture::start(&[]).await;
    let options = Options { task_result_ttl: Duration::from_millis(200), ..Options::default() };
    let hub = hub_with(options, store(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let task = as_task(&client, "echo", json!({ "text": "x" })).await;
    assert_eq!(event(&client, "task_expired").await["data"]["taskId"], task);
    assert_eq!(client.call("get_task", json!({ "task_id": task })).await["isError"], true);
    assert_eq!(client.tool("list_tasks", json!({})).await["tasks"], json!([]));
}

/// A server that makes tasks, in a directory of their own, with a habit; and a file for the habit.
async fn habitual(dir: &tempfile::TempDir, habit: &str) -> Fixture {
    std::fs::create_dir(dir.path().join("tasks")).unwrap();
    let tasks = format!("--tasks={}", dir.path().join("tasks").display());
    Fixture::start(&["--era=modern", &tasks, &format!("--{habit}={}", dir.path().join("sign").display())]).await
}

fn finish(dir: &tempfile::TempDir, id: &str) {
    std::fs::write(dir.path().join(format!("tasks/{id}.done")), "").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_answer_that_a_backends_task_did_not_take_is_sent_again_and_its_client_asked_once() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = habitual(&dir, "badupdate").await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    finish(&dir, "x");
    let task = as_task(&client, "job", json!({ "id": "x", "question": "sure?" })).await;
    let asked = event(&client, "elicitation_request").await;
    client.tool("respond_to_elicitation", json!({ "id": asked["data"]["id"], "action": "decline" })).await;
    assert_eq!(event(&client, "task_completed").await["data"]["taskId"], task);
    let result = client.call("get_task_result", json!({ "task_id": task })).await;
    assert_eq!(result["content"][0]["text"], "finished x decline");
    let all = client.tool("await_activity", json!({ "timeout_ms": 100 })).await["events"].clone();
    let questions = all.as_array().unwrap().iter().filter(|event| event["type"] == "elicitation_request");
    assert_eq!(questions.count(), 1, "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_poll_that_is_never_answered_does_not_hold_its_task_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = habitual(&dir, "deafpoll").await;
    let options = Options { call_timeout: Duration::from_secs(1), ..Options::default() };
    let hub = hub_with(options, store(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    finish(&dir, "x");
    let task = as_task(&client, "job", json!({ "id": "x" })).await;
    assert_eq!(event(&client, "task_completed").await["data"]["taskId"], task);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_backends_task_asks_again_when_its_server_went_before_it_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut fixture = Fixture::start(&["--era=modern", &format!("--tasks={}", dir.path().display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    std::fs::write(dir.path().join("x.done"), "").unwrap();
    let task = as_task(&client, "job", json!({ "id": "x", "question": "sure?" })).await;
    let first = event(&client, "elicitation_request").await["data"]["id"].clone();
    fixture.kill().await;
    let expired = event(&client, "elicitation_expired").await;
    assert_eq!(expired["data"]["id"], first);
    let mut cursor = expired["id"].clone();
    fixture.restart().await;
    // Events come in their order, so the second question is what comes after the first was taken back.
    let second = loop {
        let all = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(all["triggered_by"], "timeout", "it does not ask again");
        cursor = all["last_event_id"].clone();
        let again = |event: &&Value| event["type"] == "elicitation_request" || event["type"] == "task_failed";
        if let Some(asked) = all["events"].as_array().unwrap().iter().find(again) {
            assert_eq!(asked["type"], "elicitation_request", "{asked}");
            break asked["data"]["id"].clone();
        }
    };
    assert_ne!(first, second);
    client.tool("respond_to_elicitation", json!({ "id": second, "action": "accept" })).await;
    assert_eq!(event(&client, "task_completed").await["data"]["taskId"], task);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_agents_call_that_takes_long_becomes_a_task_whose_result_the_agent_can_have() {
    use bowline_hub::agent::{self, AgentEnd, Patience};
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&[&format!("--count={}", ran.display())]).await;
    let options = Options { call_timeout: Duration::from_millis(50), ..Options::default() };
    let hub = hub_with(options, store(), &[("b", fixture.spec())]).await;
    let (alice, bob) = (support::principal("alice"), support::principal("bob"));
    let tools = agent::tools(&hub, &alice);
    assert!(tools.iter().any(|tool| tool.name == "hub__get_task_result"), "{tools:?}");
    let slow = json!({ "id": "slow", "ms": 400 });
    let AgentEnd::Success { text, result } = agent::call(&hub, &alice, "s1", "b__count", &slow, Patience::Usual).await
    else {
        panic!("it goes on")
    };
    let task = result["structuredContent"]["taskId"].as_str().unwrap().to_owned();
    assert!(text.contains(&task) && result["structuredContent"]["status"] == "working", "{result}");
    let asked = json!({ "task_id": task });
    let have = async |who| agent::call(&hub, who, "s1", "hub__get_task_result", &asked, Patience::Usual).await;
    let text = loop {
        match have(&alice).await {
            AgentEnd::Success { text, .. } => break text,
            end => assert!(matches!(end, AgentEnd::Failed { .. }), "{end:?}"),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(text, "done slow");
    assert!(matches!(have(&bob).await, AgentEnd::Failed { .. }), "it is nobody else's");
    // Work in the background waits itself.
    let end = agent::call(&hub, &alice, "s1", "b__count", &slow, Patience::Endless).await;
    assert!(matches!(end, AgentEnd::Success { text, .. } if text == "done slow"));
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "slow\nslow\n");
}
