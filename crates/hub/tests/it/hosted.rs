//! Tasks that the hub runs itself, before servers of the older era that know nothing of the Tasks extension.

use std::path::Path;
use std::sync::Arc;

use bowline_hub::{Hub, Options, Route};
use bowline_store::Store;
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, Pieces, hub_with, modern, store, until};

fn can() -> Value {
    json!({ "extensions": { "io.modelcontextprotocol/tasks": {} }, "elicitation": {} })
}

fn all() -> [Route; 2] {
    [Route::All, Route::One("b".into())]
}

/// What a client calls a tool of the server, on its way to it.
fn call(route: &Route, tool: &str, arguments: &Value) -> Value {
    let name = if *route == Route::All { format!("b__{tool}") } else { tool.to_owned() };
    json!({ "name": name, "arguments": arguments })
}

async fn ask(hub: &Arc<Hub>, who: &str, route: &Route, method: &str, params: Value) -> Value {
    modern(hub, who, route, method, params, can()).await.messages().await.pop().unwrap()
}

async fn result(hub: &Arc<Hub>, route: &Route, method: &str, params: Value) -> Value {
    let answer = ask(hub, "alice", route, method, params).await;
    assert!(answer["error"].is_null(), "{method}: {answer}");
    answer["result"].clone()
}

/// Asks until the task has this status.
async fn state(hub: &Arc<Hub>, route: &Route, task: &Value, status: &str) -> Value {
    let asking = async {
        loop {
            let state = result(hub, route, "tasks/get", task.clone()).await;
            if state["status"] == status {
                return state;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("it is never {status}"))
}

fn named(made: &Value) -> Value {
    json!({ "taskId": made["taskId"] })
}

async fn started(store: &Arc<dyn Store>, fixture: &Fixture) -> Arc<Hub> {
    hub_with(Options::default(), store.clone(), &[("a", fixture.spec()), ("b", fixture.spec())]).await
}

fn ran(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_long_tool_of_an_older_server_is_a_task_that_asks_and_whose_result_is_kept() {
    let fixture = Fixture::start(&["--optional=count", "--required=ask"]).await;
    let store = store();
    let hub = started(&store, &fixture).await;
    let mut kept = Vec::new();
    for route in all() {
        let offered = result(&hub, &route, "server/discover", json!({})).await;
        assert!(offered["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(), "{offered}");
        let made = result(&hub, &route, "tools/call", call(&route, "ask", &json!({}))).await;
        assert_eq!((&made["resultType"], &made["status"]), (&json!("task"), &json!("working")), "{made}");
        assert_eq!(made["ttlMs"], Value::Null, "as long as it works: {made}");
        let task = named(&made);
        let asked = state(&hub, &route, &task, "input_required").await;
        let requests = asked["inputRequests"].as_object().unwrap();
        let (key, question) = requests.iter().next().unwrap();
        assert!(key.starts_with('q') && requests.len() == 1, "under the server's own name: {asked}");
        assert_eq!(
            (&question["method"], &question["params"]["message"]),
            (&json!("elicitation/create"), &json!("your name?"))
        );
        let mut answer = task.clone();
        answer["inputResponses"] = json!({ "another": {}, key: { "action": "accept", "content": { "name": "Ada" } } });
        assert_eq!(result(&hub, &route, "tasks/update", answer.clone()).await["resultType"], "complete");
        let ended = state(&hub, &route, &task, "completed").await;
        assert_eq!(ended["result"]["content"][0]["text"], "accept Ada");
        assert!(ended["ttlMs"].as_u64().unwrap() >= 3_600_000, "{ended}");
        // What is over stays as it is.
        result(&hub, &route, "tasks/update", answer).await;
        result(&hub, &route, "tasks/cancel", task.clone()).await;
        assert_eq!(state(&hub, &route, &task, "completed").await, ended);
        kept.push((route, task, ended));
    }
    let next = started(&store, &fixture).await;
    for (route, task, ended) in kept {
        assert_eq!(result(&next, &route, "tasks/get", task).await, ended, "after a restart, under the same name");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_that_is_cancelled_takes_its_call_back_and_nobody_else_sees_it() {
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("ran");
    let fixture = Fixture::start(&["--optional=count", &format!("--count={}", count.display())]).await;
    let hub = started(&store(), &fixture).await;
    for (n, route) in all().into_iter().enumerate() {
        let never = dir.path().join("never");
        let made = result(&hub, &route, "tools/call", call(&route, "count", &json!({ "id": n, "until": never }))).await;
        let task = named(&made);
        until("the call has begun", || ran(&count).contains(&format!("{n}\n"))).await;
        let name = made["taskId"].as_str().unwrap();
        let own = name.split_once("__").unwrap().1.split_once('_').unwrap().1;
        for (who, id) in [
            ("bob", name.to_owned()),
            ("alice", name.replacen('b', "a", 1)),
            ("alice", format!("b__{own}")),
            ("alice", own.to_owned()),
        ] {
            for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
                let refused = ask(&hub, who, &route, method, json!({ "taskId": id, "inputResponses": {} })).await;
                assert_eq!(refused["error"]["code"], -32602, "{who} {method} {id}: {refused}");
            }
        }
        let elsewhere = ask(&hub, "alice", &Route::One("a".into()), "tasks/get", task.clone()).await;
        assert_eq!(elsewhere["error"]["code"], -32602, "it is another server's: {elsewhere}");
        // It is asked for: nobody is told of it.
        let filter = json!({ "notifications": { "taskIds": [name], "toolsListChanged": true } });
        let mut heard = Pieces::of(modern(&hub, "alice", &route, "subscriptions/listen", filter, can()).await);
        let agreed = heard.message().await["params"]["notifications"].clone();
        assert_eq!(agreed, json!({ "toolsListChanged": true }), "{route:?}");
        assert_eq!(result(&hub, &route, "tasks/get", task.clone()).await["status"], "working", "nobody has touched it");
        result(&hub, &route, "tasks/cancel", task.clone()).await;
        assert_eq!(result(&hub, &route, "tasks/get", task).await["status"], "cancelled");
        until("the server has heard of it", || ran(&count).matches("cancelled").count() == n + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_task_that_worked_when_the_hub_died_says_that_it_may_have_run_and_is_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("ran");
    let fixture = Fixture::start(&["--optional=count", &format!("--count={}", count.display())]).await;
    let store = store();
    let hub = started(&store, &fixture).await;
    let never = dir.path().join("never");
    let route = Route::All;
    let made = result(&hub, &route, "tools/call", call(&route, "count", &json!({ "id": "x", "until": never }))).await;
    until("the call has begun", || ran(&count) == "x\n").await;
    let next = started(&store, &fixture).await;
    let ended = state(&next, &route, &named(&made), "completed").await;
    let told = &ended["result"];
    assert_eq!((&told["isError"], &told["structuredContent"]["code"]), (&json!(true), &json!("OUTCOME_UNKNOWN")));
    assert_eq!(ran(&count), "x\n", "it was not sent again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_without_the_extension_is_answered_or_told_what_it_lacks() {
    let fixture = Fixture::start(&["--optional=echo", "--required=ask"]).await;
    let hub = started(&store(), &fixture).await;
    let without = json!({ "elicitation": {} });
    for route in all() {
        let echo = call(&route, "echo", &json!({ "text": "hi" }));
        let answered = modern(&hub, "alice", &route, "tools/call", echo, without.clone()).await;
        assert_eq!(answered.messages().await[0]["result"]["content"][0]["text"], "hi");
        let ask = call(&route, "ask", &json!({}));
        let refused = modern(&hub, "alice", &route, "tools/call", ask, without.clone()).await;
        assert_eq!((refused.status, &refused.messages().await[0]["error"]["code"]), (400, &json!(-32021)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_answer_that_comes_with_a_call_is_given_to_the_question_of_that_name_and_to_no_other() {
    let fixture = Fixture::start(&[]).await;
    let hub = started(&store(), &fixture).await;
    let route = Route::One("b".into());
    let mut asking = call(&route, "ask", &json!({}));
    let asked = result(&hub, &route, "tools/call", asking.clone()).await;
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    assert_eq!(key, "q1");
    // While that one waits, each further call has another session, in which the first question is called so again.
    asking["inputResponses"] = json!({ "q2": { "action": "decline" } });
    let again = result(&hub, &route, "tools/call", asking.clone()).await;
    assert!(again["inputRequests"]["q1"].is_object(), "{again}");
    asking["inputResponses"] = json!({ "q1": { "action": "accept", "content": { "name": "Ada" } } });
    let answered = result(&hub, &route, "tools/call", asking).await;
    assert_eq!(answered["content"][0]["text"], "accept Ada", "{answered}");
}
