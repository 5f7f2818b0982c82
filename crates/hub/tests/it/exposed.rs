//! What a path shows decides what is said and asked there.

use std::sync::Arc;

use bowline_hub::{Expose, Hub, Options, Prefix, Route, ServerSpec};
use serde_json::{Value, json};

use crate::support::{Client, Fixture, Pieces, hub, hub_with, spec, stdio_entry, store};

async fn exposing(expose: Expose, spec: ServerSpec) -> Arc<Hub> {
    let options = Options { expose, prefix: Prefix::Never, ..Options::default() };
    hub_with(options, store(), &[("b", spec)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_question_that_nobody_can_answer_is_refused_at_once_where_the_tools_are_not_shown() {
    let fixture = Fixture::start(&[]).await;
    let hub = exposing(Expose::Direct, fixture.spec()).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let answered = client.ask("tools/call", json!({ "name": "ask", "arguments": {} })).await;
    let text = answered["error"]["message"].as_str().unwrap_or_default();
    assert!(text.contains("the client cannot answer this"), "{answered}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_servers_tool_keeps_a_name_of_the_hubs_tools_where_those_are_not_shown() {
    let fixture = Fixture::start(&["--extra=list_tasks"]).await;
    for (expose, name) in [(Expose::Direct, "list_tasks"), (Expose::Both, "b__list_tasks")] {
        let hub = exposing(expose, fixture.spec()).await;
        let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
        let listed = client.ask("tools/list", json!({})).await["result"]["tools"].clone();
        let of_the_server = |tool: &&Value| tool["description"] == "the tool list_tasks";
        assert_eq!(listed.as_array().unwrap().iter().find(of_the_server).unwrap()["name"], name);
        let called = client.ask("tools/call", json!({ "name": name, "arguments": {} })).await;
        assert_eq!(called["error"]["message"], "no tool list_tasks", "the server itself answers: {called}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_change_of_a_servers_lists_is_said_only_where_they_are_shown_and_told_everywhere() {
    for expose in [Expose::Meta, Expose::Both] {
        let fixture = Fixture::start(&[]).await;
        let hub = exposing(expose, fixture.spec()).await;
        let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
        let mut own = Pieces::of(client.get(None).await);
        client.tool("execute_tool", json!({ "server": "b", "tool": "grow", "args": { "name": "new" } })).await;
        let mut cursor = Value::Null;
        let changed = |event: &Value| event["data"]["method"] == "notifications/tools/list_changed";
        loop {
            let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
            assert_ne!(seen["triggered_by"], "timeout", "it is told");
            cursor = seen["last_event_id"].clone();
            if seen["events"].as_array().unwrap().iter().any(changed) {
                break;
            }
        }
        // An update comes after whatever was said of the lists.
        client.tool("subscribe_resource", json!({ "server": "b", "uri": "test://one" })).await;
        let mut said = false;
        loop {
            let message = own.message().await;
            said |= message["method"] == "notifications/tools/list_changed";
            if message["method"] == "notifications/resources/updated" {
                break;
            }
        }
        assert_eq!(said, expose == Expose::Both, "{expose:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_level_that_is_none_is_refused() {
    let fixture = Fixture::start(&["--era=modern"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    for route in [Route::All, Route::One("b".into())] {
        let (client, _) = Client::open(&hub, "alice", route.clone(), json!({})).await;
        let refused = client.ask("logging/setLevel", json!({ "level": "loud" })).await;
        assert_eq!(refused["error"]["code"], -32602, "{route:?}: {refused}");
        let taken = client.ask("logging/setLevel", json!({ "level": "error" })).await;
        assert_eq!(taken["result"], json!({}), "{route:?}: {taken}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_a_program_says_outside_of_calls_is_heard_as_it_is_on_its_own_path_from_the_level_on() {
    let hub = hub(&[("b", spec(&stdio_entry(&["--chatty"])))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
    let mut own = Pieces::of(client.get(None).await);
    let say = async |method: &str, level: &str, data: &str| {
        let args = json!({ "method": method, "level": level, "data": data, "later": true });
        client.call("log", args).await;
    };
    let mut heard = async || loop {
        let message = own.message().await;
        if !message["params"]["data"].is_null() {
            return (message["method"].clone(), message["params"]["data"].clone());
        }
    };
    for method in ["notifications/message", "notifications/elicitation/complete", "notifications/custom"] {
        say(method, "debug", method).await;
        assert_eq!(heard().await, (json!(method), json!(method)));
    }
    client.ask("logging/setLevel", json!({ "level": "warning" })).await;
    say("notifications/message", "notice", "low").await;
    say("notifications/message", "error", "high").await;
    assert_eq!(heard().await.1, "high");
}
