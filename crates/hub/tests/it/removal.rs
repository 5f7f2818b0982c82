//! Servers of the configuration that are removed at run time: by operators, in whatever state, until their entry changes.

use std::sync::Arc;

use bowline_hub::{Hub, Options, Requester, Route, ServerSpec, downstream};
use serde_json::{Value, json};

use crate::support;
use crate::support::{Answer, Client, Fixture, Pieces, hub_with, spec, store, until};

/// What one of the hub's tools says to an operator, in the client's own session.
async fn as_operator(client: &Client, tool: &str, arguments: Value) -> Value {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": arguments } });
    let request = http::Request::post("/mcp").header("content-type", "application/json");
    let request = request.header("mcp-session-id", &client.session).body(call.to_string().into()).unwrap();
    let who = Requester::operator(client.who.clone());
    let (parts, body) =
        downstream::streamable_http::handle(&client.hub, who, client.route.clone(), request).await.into_parts();
    let answer = Answer { status: parts.status.as_u16(), headers: parts.headers, body };
    answer.messages().await.pop().unwrap()["result"].clone()
}

async fn open(hub: &Arc<Hub>) -> Client {
    Client::open(hub, "alice", Route::All, json!({})).await.0
}

async fn listed(client: &Client) -> Vec<String> {
    let servers = client.tool("list_servers", json!({})).await["servers"].clone();
    servers.as_array().unwrap().iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect()
}

/// What a session was told of a server, up to its removal.
async fn told_of(client: &Client, server: &str) -> Vec<(String, Value)> {
    let (mut cursor, mut told): (Value, Vec<(String, Value)>) = (Value::Null, Vec::new());
    while !told.iter().any(|(kind, _)| kind == "server_removed") {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
        cursor = seen["last_event_id"].clone();
        let its = seen["events"].as_array().unwrap().iter().filter(|event| event["server"] == server);
        told.extend(
            its.map(|event| (event["type"].as_str().unwrap().to_owned(), event["data"]["wasIntentional"].clone())),
        );
    }
    told
}

fn invalid() -> ServerSpec {
    let entry = json!({ "url": "ftp://x" });
    let error = ServerSpec::read(&entry, &|_| None).unwrap_err();
    ServerSpec::invalid(&entry, &error)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_operator_removes_a_server_of_the_configuration_in_any_state() {
    let fixture = Fixture::start(&[]).await;
    let off = spec(&json!({ "url": fixture.url(), "disabled": true }));
    let away = spec(&json!({ "url": "http://127.0.0.1:9/mcp" }));
    for (state, entry, is_let_go) in [
        ("connected", fixture.spec(), true),
        ("reconnecting", away, true),
        ("error", invalid(), true),
        ("disconnected", off, false),
    ] {
        let hub = hub_with(Options::default(), store(), &[("b", entry)]).await;
        let client = open(&hub).await;
        let backend = hub.all().remove(0);
        until(state, || backend.snapshot().status.as_str() == state).await;
        let removed = as_operator(&client, "remove_server", json!({ "name": "b" })).await;
        assert_eq!(removed["structuredContent"], json!({ "removed": true, "name": "b" }), "{state}: {removed}");
        assert_eq!(listed(&client).await, [""; 0], "{state}");
        let told = told_of(&client, "b").await;
        let let_go: Vec<_> = told.iter().filter(|(kind, _)| kind == "server_disconnected").map(|(_, on)| on).collect();
        let expected = vec![json!(true); usize::from(is_let_go)];
        assert_eq!(let_go, expected.iter().collect::<Vec<_>>(), "{state}: {told:?}");
        assert_eq!(hub.removed().len(), 1, "{state}");
        let again = as_operator(&client, "remove_server", json!({ "name": "b" })).await;
        assert_eq!(again["isError"], true, "{state}: {again}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_under_way_at_a_server_that_is_removed_ends_honestly() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let fixture = Fixture::start(&[&format!("--count={}", ran.display())]).await;
    let hub = hub_with(Options::default(), store(), &[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    let params = json!({ "name": "b__count", "arguments": { "id": "x", "ms": 600_000 } });
    let request = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    let mut calling = Pieces::of(client.post(&request).await);
    until("it runs", || ran.exists()).await;
    as_operator(&client, "remove_server", json!({ "name": "b" })).await;
    let ended = calling.message().await;
    assert_eq!(
        (&ended["id"], &ended["result"]["structuredContent"]["code"]),
        (&json!(7), &json!("OUTCOME_UNKNOWN")),
        "{ended}"
    );
    let after = client.call("execute_tool", json!({ "server": "b", "tool": "echo" })).await;
    assert_eq!(after["isError"], true, "{after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn who_may_not_remove_a_server_is_told_who_may() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub_with(Options::default(), store(), &[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    let refused = client.call("remove_server", json!({ "name": "b" })).await;
    let why = refused["structuredContent"]["error"].as_str().unwrap();
    assert!(why.contains("operator") && why.contains("admin"), "{why}");
    for name in ["nobody", "b/", "removed:b", ""] {
        let unknown = as_operator(&client, "remove_server", json!({ "name": name })).await;
        assert!(unknown["isError"] == true && !unknown.to_string().contains("operator"), "{unknown}");
    }
    assert_eq!(listed(&client).await, ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_removal_lasts_over_restarts_until_the_entry_changes_or_an_operator_wants_it_back() {
    let (fixture, other) = (Fixture::start(&[]).await, Fixture::start(&[]).await);
    let store = store();
    let first = hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await;
    let client = open(&first).await;
    as_operator(&client, "remove_server", json!({ "name": "b" })).await;
    // The file is read again as it was, with another entry beside it.
    first.configure([("b".to_owned(), fixture.spec()), ("c".to_owned(), other.spec())].into()).await;
    assert_eq!(listed(&client).await, ["c"]);
    first.close().await;
    let second = hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await;
    let client = open(&second).await;
    assert_eq!(listed(&client).await, [""; 0]);
    // The name alone brings it back, for those who may.
    let refused = client.call("add_server", json!({ "name": "b" })).await;
    assert_eq!(refused["isError"], true, "{refused}");
    let restored = as_operator(&client, "add_server", json!({ "name": "b" })).await;
    assert_eq!(restored["structuredContent"]["status"], "connected", "{restored}");
    assert_eq!((listed(&client).await, second.removed().len()), (vec!["b".to_owned()], 0));
    as_operator(&client, "remove_server", json!({ "name": "b" })).await;
    second.configure([("b".to_owned(), other.spec())].into()).await;
    assert_eq!(listed(&client).await, ["b"], "its entry has changed");
    second.configure([("b".to_owned(), fixture.spec())].into()).await;
    assert_eq!(listed(&client).await, ["b"], "and nothing is remembered of it");
    as_operator(&client, "remove_server", json!({ "name": "b" })).await;
    second.close().await;
    let third = hub_with(Options::default(), store, &[("b", other.spec())]).await;
    assert_eq!(listed(&open(&third).await).await, ["b"], "it has changed while nobody looked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn the_name_of_a_removed_server_is_free_for_who_adds_it_again() {
    let (fixture, other) = (Fixture::start(&[]).await, Fixture::start(&[]).await);
    let store = store();
    let hub = hub_with(Options::default(), store.clone(), &[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    as_operator(&client, "remove_server", json!({ "name": "b" })).await;
    let added = hub.add_for_all("b", &json!({ "url": other.url() })).await.unwrap();
    added.settled(support::PATIENCE).await;
    assert_eq!((listed(&client).await, hub.removed().len()), (vec!["b".to_owned()], 0));
    hub.close().await;
    let hub = hub_with(Options::default(), store, &[("b", fixture.spec())]).await;
    let client = open(&hub).await;
    let shown = client.tool("list_servers", json!({})).await["servers"][0].clone();
    assert_eq!(shown["url"], other.url(), "{shown}");
    as_operator(&client, "remove_server", json!({ "name": "b" })).await;
    assert_eq!((listed(&client).await, hub.removed().len()), (Vec::new(), 1), "the one of the file is removed still");
}

/// Other nodes carry requests to one that is leaving until they have noticed, and their clients are to hear what is so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_has_let_its_servers_go_does_not_deny_that_they_exist() {
    let away = spec(&json!({ "url": "http://127.0.0.1:9/mcp" }));
    let hub = hub_with(Options::default(), store(), &[("b", away)]).await;
    let (all, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let (one, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
    hub.close().await;
    for (client, tool) in [(all, "b__echo"), (one, "echo")] {
        let said = client.tool(tool, json!({})).await;
        assert_eq!((&said["code"], &said["status"]), (&json!("SERVER_UNAVAILABLE"), &json!("disconnected")), "{said}");
    }
}
