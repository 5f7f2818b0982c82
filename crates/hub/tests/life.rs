//! The life of servers from outside: how they are named, shown, configured, lost, asked for time, and found again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bowline_hub::{Expose, Hub, Options, Prefix, Route, file};
use serde_json::{Value, json};
use support::{Client, Fixture, hub, hub_with, spec, stdio_entry, store, until};

/// Everything a session is told, read on and on.
struct Heard<'a> {
    client: &'a Client,
    cursor: Value,
    all: Vec<Value>,
}

impl Heard<'_> {
    fn by(client: &Client) -> Heard<'_> {
        Heard { client, cursor: Value::Null, all: Vec::new() }
    }

    /// The first event that fits.
    async fn first(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(found) = self.all.iter().find(|event| fits(event)) {
                return found.clone();
            }
            let arguments = json!({ "timeout_ms": 20_000, "last_event_id": self.cursor });
            let seen = self.client.tool("await_activity", arguments).await;
            assert_eq!(seen["triggered_by"], "event", "{what} is not in {:?}", self.all);
            self.cursor = seen["last_event_id"].clone();
            self.all.extend(seen["events"].as_array().unwrap().clone());
        }
    }

    async fn kind(&mut self, kind: &str) -> Value {
        self.first(kind, |event| event["type"] == kind).await
    }
}

fn is_change(event: &Value) -> bool {
    event["data"]["method"] == "notifications/tools/list_changed"
}

async fn names(client: &Client) -> Vec<String> {
    let listed = client.ask("tools/list", json!({})).await["result"]["tools"].clone();
    listed.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn has(names: &[String], name: &str) -> bool {
    names.iter().any(|one| one == name)
}

async fn statuses(client: &Client) -> Vec<(String, String)> {
    let listed = client.tool("list_servers", json!({})).await["servers"].clone();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    listed.as_array().unwrap().iter().map(|one| (word(&one["name"]), word(&one["status"]))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_have_a_prefix_always_where_needed_or_never() {
    let (one, two) = (Fixture::start(&["--extra=only"]).await, Fixture::start(&[]).await);
    for (prefix, shown, hidden) in [
        (Prefix::Always, vec!["a__echo", "b__echo", "a__only"], vec!["echo", "only"]),
        (Prefix::Conditional, vec!["a__echo", "b__echo", "only"], vec!["echo", "a__only"]),
        (Prefix::Never, vec!["echo", "only"], vec!["a__echo", "b__echo", "a__only"]),
    ] {
        let options = Options { prefix, ..Options::default() };
        let hub = hub_with(options, store(), &[("a", one.spec()), ("b", two.spec())]).await;
        let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
        let listed = names(&client).await;
        assert!(shown.iter().all(|name| has(&listed, name)), "{prefix:?}: {listed:?}");
        assert!(!hidden.iter().any(|name| has(&listed, name)), "{prefix:?}: {listed:?}");
        let echoed = client.call(shown[0], json!({ "text": "x" })).await;
        assert_eq!(echoed["content"][0]["text"], "x", "{prefix:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hub_shows_its_own_tools_those_of_the_servers_or_both() {
    let fixture = Fixture::start(&[]).await;
    for (expose, meta, direct) in
        [(Expose::Meta, true, false), (Expose::Direct, false, true), (Expose::Both, true, true)]
    {
        let hub = hub_with(Options { expose, ..Options::default() }, store(), &[("b", fixture.spec())]).await;
        let (client, hello) = Client::open(&hub, "alice", Route::All, json!({})).await;
        let listed = names(&client).await;
        assert_eq!((has(&listed, "list_servers"), has(&listed, "b__echo")), (meta, direct), "{expose:?}");
        assert_eq!(hello["capabilities"]["resources"].is_object(), direct, "{expose:?}");
        let called = client.ask("tools/call", json!({ "name": "b__echo", "arguments": { "text": "x" } })).await;
        assert_eq!(called["result"]["content"][0]["text"] == "x", direct, "{expose:?}: {called}");
        let called = client.ask("tools/call", json!({ "name": "list_servers", "arguments": {} })).await;
        assert_eq!(called["result"]["structuredContent"]["servers"].is_array(), meta, "{expose:?}: {called}");
        // One server by itself is always as it is.
        let (single, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
        assert!(has(&names(&single).await, "echo"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_the_file_are_taken_over_and_what_did_not_change_is_left_alone() {
    let (one, two) = (Fixture::start(&[]).await, Fixture::start(&[]).await);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mcp.json");
    let write = |servers: Value| std::fs::write(&path, json!({ "mcpServers": servers }).to_string()).unwrap();
    write(json!({ "kept": { "url": one.url() }, "gone": { "url": two.url() } }));
    let hub = Hub::start(Options::default(), store(), None, None).await.unwrap();
    file::take(&hub, &path).await;
    tokio::spawn(file::follow(Arc::downgrade(&hub), path.clone()));
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let connected = |name: &str| {
        let found = hub.all().into_iter().find(|backend| backend.name() == name);
        found.is_some_and(|backend| backend.snapshot().is_connected())
    };
    until("both are connected", || connected("kept") && connected("gone")).await;
    let since = hub.find(&support::principal("alice"), "kept").unwrap().snapshot().connected_at_ms;
    write(
        json!({ "kept": { "url": one.url() }, "new": { "url": two.url() }, "off": { "url": two.url(), "disabled": true } }),
    );
    until("the new one is connected", || connected("new")).await;
    let mut expected = vec![("kept", "connected"), ("new", "connected"), ("off", "disconnected")];
    let shown = statuses(&client).await;
    assert_eq!(shown.iter().map(|(name, status)| (name.as_str(), status.as_str())).collect::<Vec<_>>(), expected);
    assert_eq!(hub.find(&support::principal("alice"), "kept").unwrap().snapshot().connected_at_ms, since);
    let mut heard = Heard::by(&client);
    heard.first("gone is removed", |event| event["type"] == "server_removed" && event["server"] == "gone").await;
    // A file that is broken changes nothing; one that is mended does, also what is off and on.
    std::fs::write(&path, "{").unwrap();
    file::take(&hub, &path).await;
    assert_eq!(statuses(&client).await.len(), 3);
    write(json!({ "kept": { "url": one.url() }, "new": { "url": two.url() }, "off": { "url": two.url() } }));
    until("it is on", || connected("off")).await;
    expected[2].1 = "connected";
    let shown = statuses(&client).await;
    assert_eq!(shown.iter().map(|(name, status)| (name.as_str(), status.as_str())).collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_oldest_transport_works_and_returns() {
    let mut fixture = Fixture::start(&["--sse=yes"]).await;
    let url = format!("http://127.0.0.1:{}/sse", fixture.port);
    let hub = hub(&[("b", spec(&json!({ "url": url, "type": "sse" })))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({ "elicitation": {} })).await;
    assert_eq!(client.call("b__echo", json!({ "text": "x" })).await["content"][0]["text"], "x");
    fixture.kill().await;
    let backend = hub.all().remove(0);
    until("the loss is seen", || !backend.snapshot().is_connected()).await;
    fixture.restart().await;
    assert_eq!(client.call("b__echo", json!({ "text": "y" })).await["content"][0]["text"], "y");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_for_time_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let busy = dir.path().join("busy");
    std::fs::write(&busy, "").unwrap();
    let fixture = Fixture::start(&[&format!("--busy={}", busy.display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let shown = client.tool("list_servers", json!({})).await["servers"][0].clone();
    assert_eq!(shown["status"], "reconnecting");
    assert!(shown["nextRetryMs"].as_u64().unwrap() > 2_000_000, "{shown}");
    std::fs::remove_file(&busy).unwrap();
    // Somebody who wants it now gets it now.
    assert_eq!(client.tool("reconnect_server", json!({ "name": "b" })).await["success"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_checks_that_fail_are_a_warning_and_a_good_call_restores() {
    let fixture = Fixture::start(&["--deaf=yes"]).await;
    let options = Options {
        health_interval: Duration::from_millis(30),
        health_timeout: Duration::from_millis(30),
        ..Options::default()
    };
    let hub = hub_with(options, store(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let mut heard = Heard::by(&client);
    let degraded = heard.kind("server_health_degraded").await;
    assert_eq!(degraded["data"]["consecutiveFailures"], 3);
    assert!(degraded["data"]["lastError"].is_string());
    let shown = client.tool("list_servers", json!({})).await["servers"][0].clone();
    assert_eq!((&shown["status"], &shown["connected"]), (&json!("connected"), &json!(true)), "a warning, no loss");
    assert_eq!(client.call("b__echo", json!({ "text": "x" })).await["content"][0]["text"], "x");
    heard.kind("server_health_restored").await;
    assert!(!heard.all.iter().any(|event| event["type"] == "server_disconnected"), "{:?}", heard.all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_tells_its_exit_code_and_its_stderr_is_kept() {
    let hub = hub(&[("b", spec(&stdio_entry(&["--wild=yes", "--stderr=remember me"])))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let ended = client.call("b__exit", json!({ "code": 3 })).await;
    assert_eq!(ended["structuredContent"]["code"], "OUTCOME_UNKNOWN");
    let crashed = Heard::by(&client).kind("server_process_crashed").await;
    assert_eq!((&crashed["data"]["exitCode"], &crashed["data"]["signal"]), (&json!(3), &Value::Null));
    // It is started again, and writes again.
    assert_eq!(client.call("b__echo", json!({ "text": "x" })).await["content"][0]["text"], "x");
    Heard::by(&client).first("its stderr", |event| event["type"] == "log").await;
    let logs = client.tool("get_logs", json!({ "server": "b" })).await;
    assert_eq!(logs["logs"][0]["data"]["line"], "remember me", "{logs}");
    // What a server writes there may speak of anybody, so with two people nobody hears it.
    let (bob, _) = Client::open(&hub, "bob", Route::All, json!({})).await;
    bob.tool("reconnect_server", json!({ "name": "b" })).await;
    Heard::by(&bob).kind("server_reconnected").await;
    assert_eq!(bob.call("b__echo", json!({ "text": "x" })).await["content"][0]["text"], "x");
    assert_eq!(bob.tool("get_logs", json!({})).await["logs"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_level_is_set_again_after_a_reconnect() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let mut fixture = Fixture::start(&[&format!("--count={}", ran.display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
    client.ask("logging/setLevel", json!({ "level": "debug" })).await;
    let times = || std::fs::read_to_string(&ran).unwrap_or_default().matches("level debug").count();
    assert_eq!(times(), 1);
    fixture.kill().await;
    fixture.restart().await;
    client.call("echo", json!({ "text": "x" })).await;
    until("it is set again", || times() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_did_not_change_is_not_told_and_one_that_did_is_told_once() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    hub.configure([("b".to_owned(), fixture.spec())].into()).await;
    let backend = hub.all().remove(0);
    backend.settled(support::PATIENCE).await;
    // The lists are fetched again each time, and are the same; so the first fetch is the only change.
    for _ in 0..3 {
        client.tool("reconnect_server", json!({ "name": "b" })).await;
        client.call("b__echo", json!({ "text": "x" })).await;
    }
    for name in ["grown-1", "grown-2"] {
        client.call("b__grow", json!({ "name": name })).await;
        let listed = || backend.catalogue().find(bowline_hub::catalogue::ListKind::Tools, name).is_some();
        until("it is listed", listed).await;
    }
    // Events are told in their order, so what is removed last has everything before it.
    hub.configure(std::collections::BTreeMap::new()).await;
    let mut heard = Heard::by(&client);
    heard.kind("server_removed").await;
    let changes = heard.all.iter().filter(|event| is_change(event)).count();
    assert_eq!(changes, 3, "the first lists, and two that grew: {:?}", heard.all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_off_or_wrong_is_shown_as_that_and_can_be_dialled_by_hand() {
    let fixture = Fixture::start(&[]).await;
    let off = spec(&json!({ "url": fixture.url(), "disabled": true }));
    let wrong = bowline_hub::ServerSpec::read(&json!({ "url": "ftp://x" }), &|_| None);
    let wrong = bowline_hub::ServerSpec::invalid(&wrong.unwrap_err());
    let hub = hub(&[("off", off), ("wrong", wrong)]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let backend = hub.find(&support::principal("alice"), "wrong").unwrap();
    until("it is known to be wrong", || backend.snapshot().status.as_str() == "error").await;
    let shown = client.tool("list_servers", json!({})).await["servers"].clone();
    assert_eq!((&shown[0]["status"], &shown[1]["status"]), (&json!("disconnected"), &json!("error")));
    assert!(shown[1]["lastError"].is_string(), "{shown}");
    let told = client.call("off__echo", json!({ "text": "x" })).await;
    assert_eq!(told["structuredContent"]["status"], "disconnected", "{told}");
    let dialled = client.tool("reconnect_server", json!({ "name": "off" })).await;
    assert_eq!((&dialled["success"], &dialled["status"]), (&json!(true), &json!("connected")));
    let dialled = client.tool("reconnect_server", json!({ "name": "wrong" })).await;
    assert_eq!((&dialled["success"], &dialled["status"]), (&json!(false), &json!("error")));
}
