//! The life of servers from outside: how they are named, shown, configured, lost, asked for time, and found again.

use std::sync::Arc;
use std::time::Duration;

use bowline_hub::{Expose, Hub, Options, Prefix, Route, file_watch};
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, Fixture, hub, hub_with, spec, stdio_entry, store, until};

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
            assert_ne!(seen["triggered_by"], "timeout", "{what} is not in {:?}", self.all);
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
#[ignore = "needs Node.js"]
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
#[ignore = "needs Node.js"]
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
#[ignore = "needs Node.js"]
async fn a_list_that_could_not_be_had_is_named_and_fetched_again_until_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let listless = dir.path().join("listless");
    for (trouble, why) in [("refuse", "no list today"), ("garble", "the answer to tools/list has no list `tools`")] {
        std::fs::write(&listless, trouble).unwrap();
        let fixture = Fixture::start(&[&format!("--listless={}", listless.display())]).await;
        let hub = hub(&[("b", fixture.spec())]).await;
        let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
        let listed = client.tool("list_tools", json!({})).await;
        assert_eq!(listed["failed"][0]["lastError"], why, "a list that is not there is no empty list: {listed}");
        std::fs::remove_file(&listless).unwrap();
        Heard::by(&client).first("the change", is_change).await;
        let listed = client.tool("list_tools", json!({})).await;
        assert_eq!(listed["failed"], Value::Null, "{listed}");
        assert!(has(&names(&client).await, "b__echo"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_list_that_is_never_answered_hides_none_of_the_others() {
    let fixture = Fixture::start(&["--mute=prompts/list"]).await;
    let hub = Hub::start(Options::default(), store(), None, None).await.unwrap();
    hub.configure([("b".to_owned(), fixture.spec())].into()).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let listed = client.tool("list_tools", json!({})).await;
    assert!(listed["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "echo"), "{listed}");
    let listed = client.tool("list_prompts", json!({})).await;
    assert_eq!(listed["failed"][0]["name"], "b", "a list that is not there is no empty list: {listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_a_server_was_given_in_confidence_is_shown_to_nobody_also_if_it_repeats_it() {
    let entry = stdio_entry(&["--stderr=my key is s3cret-key"]);
    let mut told = entry.clone();
    told["env"] = json!({ "KEY": "s3cret-key" });
    let hub = hub(&[("b", spec(&told))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    client.tool("reconnect_server", json!({ "name": "b" })).await;
    let log = Heard::by(&client).kind("log").await;
    assert_eq!(log["data"]["line"], "my key is [hidden]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_refuses_a_client_does_not_tell_it_how_we_are_known_there() {
    let server = Fixture::start(&["--alone=yes"]).await;
    let entry = json!({ "url": server.url(), "headers": { "Authorization": "Bearer s3cret-key" } });
    let hub = hub(&[("b", spec(&entry))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let answer = client.ask("tools/call", json!({ "name": "b__echo", "arguments": {} })).await;
    assert_eq!(answer["error"]["message"], "the server refused a new session: no room for [hidden]", "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn changes_of_the_file_are_taken_over_and_what_did_not_change_is_left_alone() {
    let (one, two) = (Fixture::start(&[]).await, Fixture::start(&[]).await);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mcp.json");
    let write = |servers: Value| std::fs::write(&path, json!({ "mcpServers": servers }).to_string()).unwrap();
    write(json!({ "kept": { "url": one.url() }, "gone": { "url": two.url() } }));
    let hub = Hub::start(Options::default(), store(), None, None).await.unwrap();
    let seen = file_watch::take(&hub, &path).await;
    // What is written before anybody follows is not missed either.
    write(json!({ "kept": { "url": one.url() }, "gone": { "url": two.url() }, "early": { "url": two.url() } }));
    tokio::spawn(file_watch::follow(Arc::downgrade(&hub), path.clone(), seen));
    until("it is there", || hub.all().iter().any(|backend| backend.name() == "early")).await;
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
    file_watch::take(&hub, &path).await;
    assert_eq!(statuses(&client).await.len(), 3);
    write(json!({ "kept": { "url": one.url() }, "new": { "url": two.url() }, "off": { "url": two.url() } }));
    until("it is on", || connected("off")).await;
    expected[2].1 = "connected";
    let shown = statuses(&client).await;
    assert_eq!(shown.iter().map(|(name, status)| (name.as_str(), status.as_str())).collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_was_added_returns_when_the_configuration_no_longer_has_its_name() {
    let (added, configured) = (Fixture::start(&[]).await, Fixture::start(&[]).await);
    let hub = hub(&[]).await;
    hub.add_for_all("b", &json!({ "url": added.url() })).await.unwrap();
    let address = || hub.all().into_iter().map(|backend| backend.shown().to_value()["url"].clone()).collect::<Vec<_>>();
    for _ in 0..2 {
        assert_eq!(address(), [json!(added.url())]);
        hub.configure([("b".to_owned(), configured.spec())].into()).await;
        assert_eq!(address(), [json!(configured.url())]);
        hub.configure([].into()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_that_a_server_wants_later_is_made_later_and_runs_once() {
    let dir = tempfile::tempdir().unwrap();
    let (later, ran) = (dir.path().join("later"), dir.path().join("ran"));
    for era in ["legacy", "modern"] {
        let options = [format!("--later={}", later.display()), format!("--count={}", ran.display())];
        let fixture = Fixture::start(&[&format!("--era={era}"), &options[0], &options[1]]).await;
        let hub = hub(&[("b", fixture.spec())]).await;
        let (client, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
        std::fs::write(&later, "xx").unwrap();
        let done = client.call("count", json!({ "id": era })).await;
        assert_eq!(done["content"][0]["text"], format!("done {era}"), "{done}");
        // One that wants all calls later does not get them all.
        std::fs::write(&later, "x".repeat(50)).unwrap();
        let refused = client.call("count", json!({ "id": "never" })).await["structuredContent"].clone();
        assert_eq!((&refused["code"], &refused["retryAfterMs"]), (&json!("NOT_EXECUTED"), &json!(0)), "{refused}");
        assert!(refused["lastError"].as_str().unwrap().contains("503"), "{refused}");
        std::fs::write(&later, "").unwrap();
    }
    let ran = std::fs::read_to_string(&ran).unwrap();
    let ran: Vec<&str> = ran.lines().filter(|line| *line != "session ended").collect();
    assert_eq!(ran, ["legacy", "modern"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_died_unseen_is_found_out_by_a_check() {
    let mut fixture = Fixture::start(&["--no-stream="]).await;
    let options = Options { health_interval: Duration::from_millis(50), ..Options::default() };
    let hub = hub_with(options, store(), &[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    fixture.kill().await;
    let mut heard = Heard::by(&client);
    heard.kind("server_disconnected").await;
    assert_eq!(statuses(&client).await, [("b".to_owned(), "reconnecting".to_owned())]);
    fixture.restart().await;
    heard.kind("server_reconnected").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
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
#[ignore = "needs Node.js"]
async fn three_checks_that_fail_are_a_warning_and_a_good_call_restores() {
    // It says nothing, it fails, it says something that is no answer.
    for how in ["--deaf=yes", "--sick=500", "--sick=200"] {
        let fixture = Fixture::start(&[how]).await;
        let options = Options {
            health_interval: Duration::from_millis(30),
            health_timeout: Duration::from_millis(30),
            ..Options::default()
        };
        let hub = hub_with(options, store(), &[("b", fixture.spec())]).await;
        let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
        let calling = client.clone();
        let slow = tokio::spawn(async move { calling.call("b__count", json!({ "id": "slow", "ms": 1000 })).await });
        let mut heard = Heard::by(&client);
        let degraded = heard.kind("server_health_degraded").await;
        assert_eq!(degraded["data"]["consecutiveFailures"], 3, "{how}");
        assert!(degraded["data"]["lastError"].is_string(), "{how}");
        let shown = client.tool("list_servers", json!({})).await["servers"][0].clone();
        assert_eq!((&shown["status"], &shown["connected"]), (&json!("connected"), &json!(true)), "a warning, no loss");
        assert_eq!(client.call("b__echo", json!({ "text": "x" })).await["content"][0]["text"], "x", "{how}");
        heard.kind("server_health_restored").await;
        assert_eq!(slow.await.unwrap()["content"][0]["text"], "done slow", "{how}: calls are not hurt by checks");
        assert!(!heard.all.iter().any(|event| event["type"] == "server_disconnected"), "{how}: {:?}", heard.all);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
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
#[ignore = "needs Node.js"]
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
#[ignore = "needs Node.js"]
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
    let before = heard.all.iter().take_while(|event| event["type"] != "server_removed");
    let changes = before.filter(|event| is_change(event)).count();
    assert_eq!(changes, 3, "the first lists, and two that grew: {:?}", heard.all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_is_removed_while_it_is_away_is_told_as_disconnected_on_purpose() {
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    fixture.kill().await;
    let backend = hub.all().remove(0);
    until("the loss is seen", || !backend.snapshot().is_connected()).await;
    hub.configure(std::collections::BTreeMap::new()).await;
    let mut heard = Heard::by(&client);
    heard.kind("server_removed").await;
    let cut = heard.all.iter().filter(|event| event["type"] == "server_disconnected");
    let cut: Vec<bool> = cut.map(|event| event["data"]["wasIntentional"].as_bool().unwrap()).collect();
    assert_eq!(cut, [false, true], "{:?}", heard.all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_anothers_place_is_told_after_it_and_before_anything_else_of_it() {
    let hub = hub(&[]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    // Nobody listens there, so the first word of the next one comes as fast as can be.
    for path in 0..50 {
        let next = spec(&json!({ "url": format!("http://127.0.0.1:1/{path}") }));
        hub.configure([("b".to_owned(), next)].into()).await;
    }
    hub.configure(std::collections::BTreeMap::new()).await;
    let (mut told, mut cursor): (Vec<String>, Value) = (Vec::new(), Value::Null);
    while told.iter().filter(|kind| *kind == "server_removed").count() < 50 {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
        cursor = seen["last_event_id"].clone();
        let events = seen["events"].as_array().unwrap();
        told.extend(events.iter().map(|event| event["type"].as_str().unwrap().to_owned()));
    }
    for one in told.split_inclusive(|kind| kind == "server_removed") {
        assert_eq!((one[0].as_str(), one.iter().filter(|kind| *kind == "server_added").count()), ("server_added", 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_is_off_or_wrong_is_shown_as_that_and_can_be_dialled_by_hand() {
    let fixture = Fixture::start(&[]).await;
    let off = spec(&json!({ "url": fixture.url(), "disabled": true }));
    let entry = json!({ "url": "ftp://x" });
    let wrong = bowline_hub::ServerSpec::read(&entry, &|_| None);
    let wrong = bowline_hub::ServerSpec::invalid(&entry, &wrong.unwrap_err());
    let hub = hub(&[("off", off), ("wrong", wrong)]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let backend = hub.find(&support::principal("alice"), "wrong").unwrap();
    until("it is known to be wrong", || backend.snapshot().status.as_str() == "error").await;
    let shown = client.tool("list_servers", json!({})).await["servers"].clone();
    assert_eq!((&shown[0]["status"], &shown[1]["status"]), (&json!("disconnected"), &json!("error")));
    assert!(shown[1]["lastError"].is_string(), "{shown}");
    assert_eq!((&shown[1]["url"], &shown[1]["invalid"]), (&json!("ftp://x"), &Value::Null));
    let told = client.call("off__echo", json!({ "text": "x" })).await;
    assert_eq!(told["structuredContent"]["status"], "disconnected", "{told}");
    let dialled = client.tool("reconnect_server", json!({ "name": "off" })).await;
    assert_eq!((&dialled["success"], &dialled["status"]), (&json!(true), &json!("connected")));
    let dialled = client.tool("reconnect_server", json!({ "name": "wrong" })).await;
    assert_eq!((&dialled["success"], &dialled["status"]), (&json!(false), &json!("error")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_a_removed_server_offered_is_told_to_be_gone() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    client.tool("add_server", json!({ "name": "mine", "url": fixture.url() })).await;
    hub.all()[0].settled(support::PATIENCE).await;
    let mut own = support::Pieces::of(client.get(None).await);
    client.tool("remove_server", json!({ "name": "mine" })).await;
    while own.message().await["method"] != "notifications/tools/list_changed" {}
    let listed = client.ask("tools/list", json!({})).await;
    let mine = |tool: &Value| tool["name"].as_str().unwrap().starts_with("mine__");
    assert!(!listed["result"]["tools"].as_array().unwrap().iter().any(mine));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_another_process_behind_the_same_address_offers_is_seen_when_its_stream_is_open_again() {
    for (kind, refusing) in [("--era=modern", 2), ("--sessionless=yes", 0)] {
        let fixture = Fixture::start(&[kind]).await;
        let hub = hub(&[("b", fixture.spec())]).await;
        let backend = hub.all().remove(0);
        let (client, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
        let since = backend.snapshot().connected_at_ms;
        let deployed = client.call("deploy", json!({ "name": "new", "refusing": refusing })).await;
        assert_eq!(deployed["content"][0]["text"], "deployed", "{kind}: {deployed}");
        until("the new tool is listed", || {
            backend.catalogue().find(bowline_hub::catalogue::ListKind::Tools, "new").is_some()
        })
        .await;
        assert_eq!(backend.snapshot().connected_at_ms, since, "{kind}: nothing was lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_is_restarted_again_and_again_is_dialled_as_soon_each_time() {
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let mut heard = Heard::by(&client);
    for restart in 1..=6 {
        fixture.kill().await;
        fixture.restart().await;
        heard.kind("server_reconnected").await;
        let outage = std::mem::take(&mut heard.all);
        let first = outage.iter().find(|event| event["type"] == "server_reconnecting");
        assert_eq!(first.map(|event| &event["data"]["attempt"]), Some(&json!(1)), "restart {restart}: {outage:?}");
    }
}
