//! Our own restart, as a session sees it that survives: what it asked for is asked for again, and nothing is forgotten.

use std::sync::Arc;

use bowline_hub::{Hub, Options, Route};
use bowline_store::Store;
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, Fixture, Pieces, hub_with, modern, store, until};

fn one() -> Route {
    Route::One("b".into())
}

/// A new hub on what the old one left in the store. The old one does not get to say goodbye.
async fn again(store: &Arc<dyn Store>, fixture: &Fixture) -> Arc<Hub> {
    hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await
}

async fn activity(client: &Client, cursor: &Value) -> Value {
    client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn subscriptions_and_log_level_are_renewed_after_our_own_restart() {
    for route in [one(), Route::All] {
        let dir = tempfile::tempdir().unwrap();
        let told = dir.path().join("told");
        let fixture = Fixture::start(&[&format!("--count={}", told.display())]).await;
        let levels = || std::fs::read_to_string(&told).unwrap_or_default().matches("level warning").count();
        let store = store();
        let first = again(&store, &fixture).await;
        let (client, _) = Client::open(&first, "alice", route, json!({})).await;
        let mut own = Pieces::of(client.get(None).await);
        client.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
        client.ask("resources/subscribe", json!({ "uri": "test://two" })).await;
        client.ask("resources/unsubscribe", json!({ "uri": "test://two" })).await;
        client.ask("logging/setLevel", json!({ "level": "warning" })).await;
        let seen = own.next().await.unwrap().id.unwrap();
        until("the level is set", || levels() == 1).await;
        drop(own);
        first.close().await;
        let second = again(&store, &fixture).await;
        // Nobody uses the session; its server knows it again all the same.
        until("the level is set again", || levels() == 2).await;
        let client = Client { hub: second, ..client };
        let mut own = Pieces::of(client.get(Some(&seen)).await);
        // The fixture tells an update to whoever subscribes.
        let mut updated = Vec::new();
        while updated.iter().filter(|uri| **uri == json!("test://one")).count() < 1 {
            let message = own.message().await;
            if message["method"] == "notifications/resources/updated" && message["params"]["uri"] != "test://two" {
                updated.push(message["params"]["uri"].clone());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_is_away_after_our_own_restart_is_listed_as_it_was() {
    for era in ["legacy", "modern"] {
        let mut fixture = Fixture::start(&[&format!("--era={era}")]).await;
        let store = store();
        let first = again(&store, &fixture).await;
        let (client, _) = Client::open(&first, "alice", Route::All, json!({})).await;
        first.close().await;
        fixture.kill().await;
        let second = again(&store, &fixture).await;
        let client = Client { hub: second.clone(), ..client };
        let listed = client.ask("tools/list", json!({})).await["result"].clone();
        let has = |listed: &Value, name: &str| listed.as_array().unwrap().iter().any(|tool| tool["name"] == name);
        assert!(has(&listed["tools"], "b__echo"), "{era}: {listed}");
        let trouble = &listed["_meta"]["bowline/servers"][0];
        assert_eq!((&trouble["name"], &trouble["stale"]), (&json!("b"), &json!(true)));
        let (direct, _) = Client::open(&second, "alice", one(), json!({})).await;
        let listed = direct.ask("tools/list", json!({})).await["result"].clone();
        assert!(has(&listed["tools"], "echo"));
        assert_eq!(listed["_meta"]["bowline/stale"], true);
        // A server of that name elsewhere is another one, of which nothing is known.
        let elsewhere = support::spec(&json!({ "url": "http://127.0.0.1:1/mcp" }));
        let third = hub_with(Options::default(), store, &[("b", elsewhere)]).await;
        let client = Client { hub: third, ..client };
        let listed = client.ask("tools/list", json!({})).await["result"].clone();
        assert!(!has(&listed["tools"], "b__echo"));
        assert_eq!(listed["_meta"]["bowline/servers"][0]["stale"], false);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_happens_after_our_own_restart_is_told_to_sessions_that_nobody_has_used_yet() {
    let mut fixture = Fixture::start(&[]).await;
    let store = store();
    let first = again(&store, &fixture).await;
    let (client, _) = Client::open(&first, "alice", Route::All, json!({})).await;
    let before = client.tool("await_activity", json!({ "timeout_ms": 100 })).await["last_event_id"].clone();
    first.close().await;
    let second = again(&store, &fixture).await;
    let backend = second.all().remove(0);
    until("it is connected", || backend.snapshot().is_connected()).await;
    fixture.kill().await;
    until("the loss is seen", || !backend.snapshot().is_connected()).await;
    let client = Client { hub: second, ..client };
    let mut told: Vec<Value> = Vec::new();
    let mut cursor = before;
    while !told.iter().any(|event| event["type"] == "server_disconnected") {
        let seen = activity(&client, &cursor).await;
        assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
        cursor = seen["last_event_id"].clone();
        told.extend(seen["events"].as_array().unwrap().clone());
    }
    let kinds: Vec<&str> = told.iter().map(|event| event["type"].as_str().unwrap()).collect();
    // It was not added again, nor removed: we were away, not the server.
    assert_eq!(kinds[0], "server_connected", "{kinds:?}");
    assert!(!kinds.contains(&"server_added") && !kinds.contains(&"server_removed"), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn events_come_over_the_sessions_own_stream_to_those_who_asked_under_the_same_ids() {
    let fixture = Fixture::start(&[]).await;
    let store = store();
    let first = again(&store, &fixture).await;
    let (client, _) = Client::open(&first, "alice", Route::All, json!({})).await;
    let start = client.tool("await_activity", json!({ "timeout_ms": 200 })).await["last_event_id"].clone();
    let mut own = Pieces::of(client.get(None).await);
    client.tool("reconnect_server", json!({ "name": "b" })).await;
    client.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
    // Whoever did not ask for log messages gets none: the update comes first. A list may be new to it, and that is said.
    let mut update = own.message().await;
    while update["method"].as_str().unwrap().ends_with("/list_changed") {
        update = own.message().await;
    }
    assert_eq!(update["method"], "notifications/resources/updated");
    client.ask("logging/setLevel", json!({ "level": "info" })).await;
    client.tool("reconnect_server", json!({ "name": "b" })).await;
    let mut heard = Vec::new();
    while heard.len() < 2 {
        let event = own.next().await.unwrap();
        if event.data.is_empty() {
            continue;
        }
        let message: Value = serde_json::from_str(&event.data).unwrap();
        if message["method"] == "notifications/message" {
            assert_eq!(
                (&message["params"]["logger"], &message["params"]["level"]),
                (&json!("bowline"), &json!("info"))
            );
            assert_eq!(message["params"]["data"]["id"].as_str(), event.id.as_deref());
            heard.push(message["params"]["data"].clone());
        }
    }
    assert_eq!((&heard[0]["type"], &heard[1]["type"]), (&json!("server_disconnected"), &json!("server_reconnected")));
    drop(own);
    first.close().await;
    // A cursor of the tool is a cursor of the stream, also after our own restart; and it is a way to ask.
    let second = again(&store, &fixture).await;
    let client = Client { hub: second, ..client };
    let told = client.tool("await_activity", json!({ "timeout_ms": 200, "last_event_id": start })).await;
    let told: Vec<Value> = told["events"].as_array().unwrap().clone();
    assert!(told.iter().any(|event| event["id"] == heard[1]["id"]), "{told:?}");
    let mut own = Pieces::of(client.get(start.as_str()).await);
    // What stands on the stream as it is does not stand there twice.
    let (mut replayed, mut updates) = (Vec::new(), 0);
    while replayed.last() != Some(&heard[1]) {
        let message = own.message().await;
        match message["method"].as_str().unwrap() {
            "notifications/message" => replayed.push(message["params"]["data"].clone()),
            "notifications/resources/updated" => updates += 1,
            _ => {}
        }
    }
    let expected = told.iter().filter(|event| event["type"] != "notification").take(replayed.len());
    assert_eq!(replayed, expected.cloned().collect::<Vec<_>>());
    assert_eq!((replayed.len(), updates >= 1), (4, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_was_added_at_run_time_and_never_reached_is_not_told_as_new_after_our_own_restart() {
    let fixture = Fixture::start(&[]).await;
    let store = store();
    let first = again(&store, &fixture).await;
    let (client, _) = Client::open(&first, "alice", Route::All, json!({})).await;
    client.tool("add_server", json!({ "name": "down", "url": "http://127.0.0.1:9/mcp" })).await;
    let added = async |client: &Client| -> usize {
        let mut seen = activity(client, &Value::Null).await;
        // A later word of the same server comes after all that is told of its arrival.
        while !seen["events"].as_array().unwrap().iter().any(|event| event["type"] == "server_reconnecting") {
            seen = activity(client, &Value::Null).await;
        }
        let new = |event: &&Value| event["type"] == "server_added" && event["server"] == "down";
        seen["events"].as_array().unwrap().iter().filter(new).count()
    };
    assert_eq!(added(&client).await, 1);
    let last = activity(&client, &Value::Null).await["last_event_id"].clone();
    let client = Client { hub: again(&store, &fixture).await, ..client };
    let mut cursor = last;
    loop {
        let seen = activity(&client, &cursor).await;
        assert_ne!(seen["triggered_by"], "timeout", "nothing more is told of it");
        let events = seen["events"].as_array().unwrap();
        assert!(!events.iter().any(|event| event["type"] == "server_added"), "{events:?}");
        if events.iter().any(|event| event["server"] == "down" && event["type"] == "server_reconnecting") {
            break;
        }
        cursor = seen["last_event_id"].clone();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_that_waited_for_input_when_we_were_restarted_is_not_begun_anew() {
    let fixture = Fixture::start(&[]).await;
    let store = store();
    let first = again(&store, &fixture).await;
    let ask = json!({ "name": "ask", "arguments": {} });
    let can = json!({ "elicitation": {} });
    let asked = modern(&first, "alice", &one(), "tools/call", ask.clone(), can.clone()).await.messages().await;
    let asked = &asked.last().unwrap()["result"];
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let second = again(&store, &fixture).await;
    let (key, _) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    let mut answer = ask;
    answer["requestState"] = asked["requestState"].clone();
    answer["inputResponses"] = json!({ key: { "action": "decline" } });
    for (who, code) in [("alice", json!("OUTCOME_UNKNOWN")), ("bob", Value::Null)] {
        let ended = modern(&second, who, &one(), "tools/call", answer.clone(), can.clone()).await.messages().await;
        let ended = ended.last().unwrap();
        assert_eq!(ended["result"]["structuredContent"]["code"], code, "{who}: {ended}");
        assert_eq!(ended["error"].is_null(), who == "alice", "{ended}");
    }
}
