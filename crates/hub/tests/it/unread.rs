//! Answers that cannot be taken: each hurts the call that it answers, and neither its connection nor its neighbours.

use std::path::Path;
use std::sync::Arc;

use bowline_hub::catalogue::ListKind;
use bowline_hub::{Hub, Options, Route, ServerSpec};
use serde_json::{Value, json};

use crate::support::{Client, Fixture, hub, hub_with, spec, stdio_entry, store, until};

/// Before one server on each transport, with a place where they note what they run.
async fn everywhere(ran: &Path) -> (Vec<Fixture>, Arc<Hub>) {
    let count = format!("--count={}", ran.display());
    let older = Fixture::start(&["--wild=yes", &count]).await;
    let modern = Fixture::start(&["--wild=yes", "--era=modern", &count]).await;
    let sse = Fixture::start(&["--wild=yes", "--sse=yes", &count]).await;
    let sse_spec = spec(&json!({ "url": format!("http://127.0.0.1:{}/sse", sse.port), "type": "sse" }));
    let program = spec(&stdio_entry(&["--wild=yes", &count]));
    let servers: [(&str, ServerSpec); 4] =
        [("older", older.spec()), ("modern", modern.spec()), ("sse", sse_spec), ("program", program)];
    let hub = hub_with(Options::default(), store(), &servers).await;
    assert!(hub.all().iter().all(|backend| backend.snapshot().is_connected()));
    (vec![older, modern, sse], hub)
}

/// No server was ever lost.
async fn unhurt(client: &Client) {
    let seen = client.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    let lost: Vec<&Value> =
        seen["events"].as_array().unwrap().iter().filter(|event| event["type"] == "server_disconnected").collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(client.hub.all().iter().all(|backend| backend.snapshot().is_connected()));
}

/// Answers of one server that cannot be taken, while another call of it is under way.
async fn untaken(client: &Client, ran: &Path, server: &str) {
    let (neighbour, name) = (client.clone(), server.to_owned());
    let other =
        tokio::spawn(async move { neighbour.call(&format!("{name}__count"), json!({ "id": name, "ms": 3000 })).await });
    let begun = || std::fs::read_to_string(ran).unwrap_or_default().lines().any(|line| line == server);
    until("its neighbour has begun", begun).await;
    let mut tools = vec![("huge", "bytes"), ("huge_last", "bytes"), ("deep", "deeply"), ("latin", "UTF-8")];
    if server != "modern" {
        tools.push(("unversioned", "JSON-RPC"));
    }
    match server {
        "program" => tools.push(("broken", "not JSON")),
        // A stream that is one call's alone says nothing else than what belongs to it.
        "older" => tools.extend([("noise", "not JSON"), ("garbage", "another request")]),
        _ => {}
    }
    for (tool, why) in tools {
        let params = json!({ "name": format!("{server}__{tool}"), "arguments": {} });
        let answer = client.ask("tools/call", params).await;
        let told = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{server} {tool}: {answer}"));
        assert!(told.contains(why), "{server} {tool}: {told}");
    }
    let fine = client.call(&format!("{server}__echo"), json!({ "text": "fine" })).await;
    assert_eq!(fine["content"][0]["text"], "fine", "{server}");
    assert_eq!(other.await.unwrap()["content"][0]["text"], format!("done {server}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_answer_that_cannot_be_taken_fails_its_call_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let (_fixtures, hub) = everywhere(&ran).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let each = ["program", "sse", "older", "modern"].map(|server| untaken(&client, &ran, server));
    futures_util::future::join_all(each).await;
    unhurt(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_answer_that_names_nobody_is_that_of_the_only_call() {
    let dir = tempfile::tempdir().unwrap();
    let (_fixtures, hub) = everywhere(&dir.path().join("ran")).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    for server in ["program", "sse", "older"] {
        let params = json!({ "name": format!("{server}__huge_nameless"), "arguments": {} });
        let answer = client.ask("tools/call", params).await;
        assert!(answer["error"]["message"].as_str().unwrap().contains("bytes"), "{server}: {answer}");
    }
    unhurt(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_answers_nothing_hurts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_fixtures, hub) = everywhere(&dir.path().join("ran")).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    // A notification that is too large, and what programs write besides messages.
    for tool in ["program__loud", "sse__loud", "older__loud", "program__chatter"] {
        let said = client.call(tool, json!({})).await;
        assert_eq!(said["content"][0]["text"], "said", "{tool}: {said}");
    }
    // A question that is too large is refused, so that the server does not wait for ever.
    for server in ["program", "sse", "older"] {
        let refused = client.call(&format!("{server}__ask_huge"), json!({})).await;
        assert_eq!(refused["content"][0]["text"], "refused", "{server}: {refused}");
    }
    unhurt(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_answer_under_a_wrong_name_fails_the_call_that_it_can_only_mean() {
    let sse = Fixture::start(&["--sse=yes"]).await;
    let sse_spec = spec(&json!({ "url": format!("http://127.0.0.1:{}/sse", sse.port), "type": "sse" }));
    let servers: [(&str, ServerSpec); 2] = [("sse", sse_spec), ("program", spec(&stdio_entry(&[])))];
    let hub = hub_with(Options::default(), store(), &servers).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    for server in ["sse", "program"] {
        let params = json!({ "name": format!("{server}__garbage"), "arguments": {} });
        let answer = client.ask("tools/call", params).await;
        assert_eq!(answer["error"]["message"], "it answered another request than the one asked", "{answer}");
        // An answer that comes again is nobody's, and the next call is not hurt by it.
        assert_eq!(client.call(&format!("{server}__twice"), json!({})).await["isError"], Value::Null);
        let fine = client.call(&format!("{server}__echo"), json!({ "text": "fine" })).await;
        assert_eq!(fine["content"][0]["text"], "fine", "{server}");
    }
    unhurt(&client).await;
}

/// What the client is told, word for word: a value of ours cannot hold it.
async fn told(client: &Client, tool: &str, arguments: Value) -> String {
    let params = json!({ "name": tool, "arguments": arguments });
    client.post(&json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params })).await.text().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn half_of_a_character_is_passed_on_and_costs_nobody_anything() {
    const HALF: &str = r"\ud83d";
    let older = Fixture::start(&["--half=yes"]).await;
    let program = spec(&stdio_entry(&["--half=yes"]));
    let hub = hub_with(Options::default(), store(), &[("older", older.spec()), ("program", program)]).await;
    for server in ["older", "program"] {
        let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
        assert!(told(&client, "list_servers", json!({})).await.contains(HALF), "what it can do is shown");
        let calling = client.clone();
        let arguments = json!({ "server": server, "tool": "half" });
        let called = tokio::spawn(async move { told(&calling, "execute_tool", arguments).await });
        let id = loop {
            let asked = told(&client, "get_elicitations", json!({})).await;
            if let Some((_, rest)) = asked.split_once(r#""id":"bl-"#) {
                assert!(asked.contains(HALF), "{asked}");
                break format!("bl-{}", rest.split('"').next().unwrap());
            }
            tokio::task::yield_now().await;
        };
        let answered = client.tool("respond_to_elicitation", json!({ "id": id, "action": "accept" })).await;
        assert_eq!(answered["answered"], true);
        let ended = called.await.unwrap();
        assert!(ended.contains(&format!("{HALF} accept")), "{ended}");
        // Whoever tells the sessions what happens does so still.
        assert_eq!(client.tool("reconnect_server", json!({ "name": server })).await["success"], true);
        let mut cursor = Value::Null;
        loop {
            let seen = told(&client, "await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
            if seen.contains("server_reconnected") {
                break;
            }
            let last = seen.rsplit_once(r#""last_event_id":""#).expect("a cursor").1;
            cursor = last.split('"').next().unwrap().into();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_list_that_does_not_end_is_given_up_and_said_to_be_missing() {
    let hub = hub(&[("b", spec(&stdio_entry(&["--endless=yes"])))]).await;
    let backend = hub.all().remove(0);
    let why = || backend.catalogue().trouble(ListKind::Tools).map(ToOwned::to_owned);
    until("it is given up", || why().is_some()).await;
    assert!(why().unwrap().contains("bytes"), "{:?}", why());
    assert!(backend.snapshot().is_connected());
}
