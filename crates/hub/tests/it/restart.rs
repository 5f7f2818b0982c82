//! Backends that die and come back: each call has one honest ending, nothing runs twice, and nothing is forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bowline_hub::{Hub, Route};
use serde_json::{Value, json};

use crate::support::{Client, Fixture, PATIENCE, Pieces, hub, until};

fn one() -> Route {
    Route::One("b".into())
}

/// What a call came to: its text, or the code of what went wrong.
fn ending(result: &Value) -> String {
    let code = result["structuredContent"]["code"].as_str();
    code.map(ToOwned::to_owned).unwrap_or_else(|| result["content"][0]["text"].as_str().unwrap_or("?").to_owned())
}

/// Looks at the hub all the time, as a second client would, and holds it to the truth.
struct Watch {
    client: Client,
    over: Arc<AtomicBool>,
    looking: tokio::task::JoinHandle<usize>,
}

impl Watch {
    async fn begin(hub: &Arc<Hub>) -> Watch {
        let (client, _) = Client::open(hub, "alice", Route::All, json!({})).await;
        let over = Arc::new(AtomicBool::new(false));
        let (looking, seen) = (client.clone(), over.clone());
        let looking = tokio::spawn(async move {
            let mut looks = 0;
            while !seen.load(Ordering::Acquire) {
                Watch::look(&looking).await;
                looks += 1;
                tokio::task::yield_now().await;
            }
            looks
        });
        Watch { client, over, looking }
    }

    /// One look; whether the backend is said to be connected.
    async fn look(client: &Client) -> bool {
        let server = client.tool("list_servers", json!({})).await["servers"][0].clone();
        let connected = server["connected"] == true;
        let words = if connected { ["connected", "connected"] } else { ["reconnecting", "connecting"] };
        assert!(words.contains(&server["status"].as_str().unwrap()), "{server}");
        assert!(server["status"] != "reconnecting" || server["lastError"].is_string(), "{server}");
        let listed = client.ask("tools/list", json!({})).await["result"]["tools"].clone();
        assert!(listed.as_array().unwrap().iter().any(|tool| tool["name"] == "b__count"), "the list is never blank");
        connected
    }

    /// How often it looked, and what was told of the backend's life, in order.
    async fn end(self) -> (usize, Vec<String>) {
        self.over.store(true, Ordering::Release);
        let looks = self.looking.await.unwrap();
        let mut told = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let seen = self.client.tool("await_activity", json!({ "timeout_ms": 100, "last_event_id": cursor })).await;
            let events = seen["events"].as_array().unwrap();
            if events.is_empty() {
                return (looks, told);
            }
            told.extend(events.iter().map(|event| event["type"].as_str().unwrap().to_owned()));
            cursor = seen["last_event_id"].clone();
        }
    }
}

async fn drill(era: &str, restarts: usize, calls: usize) {
    let dir = tempfile::tempdir().unwrap();
    let counted = dir.path().join("ran");
    std::fs::write(&counted, "").unwrap();
    let count = format!("--count={}", counted.display());
    let mut fixture = Fixture::start(&[&format!("--era={era}"), &count]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let watch = Watch::begin(&hub).await;
    let mut endings: HashMap<String, usize> = HashMap::new();
    for round in 0..restarts {
        let running = (0..calls).map(|n| {
            let (client, id) = (client.clone(), format!("{round}-{n}"));
            tokio::spawn(async move { client.call("count", json!({ "id": id, "ms": n % 40 })).await })
        });
        let running: Vec<_> = running.collect();
        tokio::time::sleep(Duration::from_millis(15)).await;
        fixture.kill().await;
        let killed = Instant::now();
        if round % 2 == 1 {
            // It stays away until that is known; from then on nobody is told that it is there.
            let backend = hub.all().remove(0);
            until("the loss is seen", || !backend.snapshot().is_connected()).await;
            for _ in 0..5 {
                assert!(!Watch::look(&watch.client).await, "it is said to be there, and is dead");
            }
        }
        fixture.restart().await;
        for call in running {
            let result = tokio::time::timeout(PATIENCE, call).await.expect("each call ends").unwrap();
            let word = ending(&result);
            let known = word.starts_with("done ") || word == "OUTCOME_UNKNOWN" || word == "SERVER_UNAVAILABLE";
            assert!(known, "{result}");
            *endings.entry(word.split(' ').next().unwrap().to_owned()).or_default() += 1;
        }
        // The first call after the backend is back works, without anybody's help.
        let result = client.call("count", json!({ "id": format!("{round}-after"), "ms": 0 })).await;
        assert_eq!(ending(&result), format!("done {round}-after"), "{:?} after the kill", killed.elapsed());
        assert!(Watch::look(&watch.client).await, "it answered, and is said to be away");
    }
    let (looks, told) = watch.end().await;
    let life: Vec<&String> = told.iter().filter(|kind| kind.contains("connected")).collect();
    let alternate = life
        .iter()
        .enumerate()
        .all(|(at, kind)| kind.as_str() == if at % 2 == 0 { "server_disconnected" } else { "server_reconnected" });
    assert!(alternate, "a loss was told twice, or a return that was none: {life:?}");
    let losses = life.len().div_ceil(2);
    assert!(losses >= restarts / 2 && losses <= restarts, "{losses} losses in {restarts} restarts");
    let ran = std::fs::read_to_string(&counted).unwrap();
    let mut times: HashMap<&str, usize> = HashMap::new();
    for id in ran.lines() {
        *times.entry(id).or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "these ran twice: {twice:?}");
    println!("{era}: {endings:?}, {} executions, {losses} losses told, {looks} looks", times.len());
    assert!(endings.values().sum::<usize>() == restarts * calls);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn fifty_calls_survive_twenty_restarts_of_an_older_backend_and_none_runs_twice() {
    drill("legacy", 20, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn fifty_calls_survive_twenty_restarts_of_a_modern_backend_and_none_runs_twice() {
    drill("modern", 20, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_in_flight_when_the_backend_dies_ends_at_once_and_says_that_it_may_have_run() {
    for era in ["legacy", "modern"] {
        let dir = tempfile::tempdir().unwrap();
        let ran = dir.path().join("ran");
        let mut fixture = Fixture::start(&[&format!("--era={era}"), &format!("--count={}", ran.display())]).await;
        let hub = hub(&[("b", fixture.spec())]).await;
        let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
        let calling = client.clone();
        let call = tokio::spawn(async move { calling.call("count", json!({ "id": "x", "ms": 60_000 })).await });
        until("the call has begun", || !std::fs::read_to_string(&ran).unwrap_or_default().is_empty()).await;
        fixture.kill().await;
        let result = tokio::time::timeout(Duration::from_secs(20), call).await.expect("it ends at once").unwrap();
        assert_eq!(result["isError"], true);
        assert_eq!(result["structuredContent"]["outcome"], "unknown", "{result}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_that_was_refused_waits_for_the_backend_and_runs_once() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    // Without a stream that is held, nobody notices the death before the call does.
    let asked = dir.path().join("asked");
    let options = [format!("--no-stream={}", asked.display()), format!("--count={}", ran.display())];
    let mut fixture = Fixture::start(&options.each_ref().map(String::as_str)).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    // The hub and the client each ask for a stream once; an answer that does not come would be a sign of death too.
    let refused = || std::fs::read_to_string(&asked).unwrap_or_default().lines().count();
    until("both are told that there is none", || refused() == 2).await;
    client.call("echo", json!({ "text": "and still there" })).await;
    fixture.kill().await;
    let backend = hub.all().remove(0);
    assert!(backend.snapshot().is_connected(), "nobody knows yet");
    let calling = client.clone();
    let call = tokio::spawn(async move { calling.call("count", json!({ "id": "x" })).await });
    until("a dial has failed", || backend.snapshot().last_error.is_some()).await;
    // A call that was never sent anywhere is told at once instead.
    let told = client.call("count", json!({ "id": "y" })).await;
    assert_eq!(ending(&told), "SERVER_UNAVAILABLE", "{told}");
    fixture.restart().await;
    let result = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap();
    assert_eq!(ending(&result), "done x", "{result}");
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "x\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn while_a_backend_is_away_its_lists_stay_and_calls_say_why() {
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let (direct, _) = Client::open(&hub, "alice", one(), json!({})).await;
    fixture.kill().await;
    let backend = hub.all().remove(0);
    until("the loss is seen", || !backend.snapshot().is_connected()).await;
    let listed = direct.ask("tools/list", json!({})).await["result"].clone();
    assert_eq!(listed["tools"].as_array().unwrap().len(), 8);
    assert_eq!((&listed["ttlMs"], &listed["_meta"]["bowline/stale"]), (&json!(0), &json!(true)));
    let merged = client.ask("tools/list", json!({})).await["result"].clone();
    assert!(merged["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "b__echo"));
    assert_eq!(merged["_meta"]["bowline/servers"][0]["name"], "b");
    let failed = client.call("b__echo", json!({ "text": "x" })).await;
    let facts = &failed["structuredContent"];
    assert_eq!((&failed["isError"], &facts["status"]), (&json!(true), &json!("reconnecting")));
    assert!(
        facts["nextRetryMs"].is_u64() && facts["lastError"].is_string() && facts["lastAttempt"].is_u64(),
        "{facts}"
    );
    let servers = client.tool("list_servers", json!({})).await;
    assert_eq!(
        (&servers["servers"][0]["status"], &servers["servers"][0]["connected"]),
        (&json!("reconnecting"), &json!(false))
    );
    // It comes back with one tool more, which is told once.
    fixture.with("--extra=newcomer");
    fixture.restart().await;
    let answered = client.call("b__echo", json!({ "text": "hello" })).await;
    assert_eq!(answered["content"][0]["text"], "hello");
    let mut cursor = Value::Null;
    let mut told = Vec::new();
    // The first lists may have been told of late; what counts is what follows the return.
    let changed_since = |told: &[Value]| {
        let returned = told.iter().position(|event| event["type"] == "server_reconnected");
        returned.is_some_and(|at| {
            told[at..].iter().any(|event| event["data"]["method"] == "notifications/tools/list_changed")
        })
    };
    while !changed_since(&told) {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
        told.extend(seen["events"].as_array().unwrap().clone());
        cursor = seen["last_event_id"].clone();
    }
    let kinds: Vec<&str> = told.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let at = |kind: &str| kinds.iter().position(|one| *one == kind).unwrap_or_else(|| panic!("{kind} in {kinds:?}"));
    assert!(
        at("server_disconnected") < at("server_reconnecting") && at("server_reconnecting") < at("server_reconnected")
    );
    assert_eq!(kinds.iter().filter(|kind| **kind == "server_disconnected").count(), 1);
    let names = client.tool("list_tools", json!({ "tool": "newc*" })).await;
    assert_eq!(names["tools"][0]["name"], "newcomer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn reconnect_server_works_from_every_state_and_tells_how_it_went() {
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let connected = client.tool("reconnect_server", json!({ "name": "b" })).await;
    assert_eq!((&connected["success"], &connected["status"]), (&json!(true), &json!("connected")));
    fixture.kill().await;
    let away = client.tool("reconnect_server", json!({ "name": "b" })).await;
    assert_eq!(away["success"], false);
    fixture.restart().await;
    let back = client.tool("reconnect_server", json!({ "name": "b" })).await;
    assert_eq!((&back["success"], &back["status"]), (&json!(true), &json!("connected")));
    let unknown = client.call("reconnect_server", json!({ "name": "nobody" })).await;
    assert_eq!(unknown["isError"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_reconnect_of_a_shared_server_is_forced_only_so_often_and_of_ones_own_always() {
    let fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let (bob, _) = Client::open(&hub, "bob", Route::All, json!({})).await;
    alice.tool("add_server", json!({ "name": "mine", "url": fixture.url() })).await;
    let mut limited = None;
    for _ in 0..100 {
        assert_eq!(alice.tool("reconnect_server", json!({ "name": "mine" })).await["success"], true);
        let answer = alice.call("reconnect_server", json!({ "name": "b" })).await;
        if answer["isError"] == true {
            limited = Some(answer);
            break;
        }
    }
    let limited = limited.expect("it is limited");
    let facts = &limited["structuredContent"];
    assert_eq!(
        (&facts["code"], &facts["limit"]),
        (&json!("RATE_LIMITED"), &json!("hub.forced_reconnects_per_minute_max"))
    );
    assert!(facts["retryAfterMs"].as_u64().is_some_and(|ms| (1..=10_001).contains(&ms)), "{facts}");
    assert!(facts["error"].as_str().unwrap().contains("operator"), "{facts}");
    assert_eq!(bob.tool("reconnect_server", json!({ "name": "b" })).await["success"], true, "bob has his own");
    assert_eq!(alice.call("b__echo", json!({ "text": "x" })).await["content"][0]["text"], "x", "the server is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_session_that_is_said_to_be_gone_under_the_calls_own_id_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    // Without a stream that is held, nobody notices the restart before the call does.
    let mut fixture = Fixture::start(&["--no-stream", "--correlated", &format!("--count={}", ran.display())]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    client.call("echo", json!({ "text": "once" })).await;
    fixture.kill().await;
    fixture.restart().await;
    let result = client.call("count", json!({ "id": "x" })).await;
    assert_eq!(ending(&result), "done x", "{result}");
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "x\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn subscriptions_are_renewed_after_a_reconnect() {
    let mut fixture = Fixture::start(&[]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let (client, _) = Client::open(&hub, "alice", one(), json!({})).await;
    let mut own = Pieces::of(client.get(None).await);
    // Lists that have just become known may be told on the same stream.
    let mut updated = async || loop {
        let message = own.message().await;
        if message["method"] == "notifications/resources/updated" {
            return message["params"]["uri"].clone();
        }
    };
    client.ask("resources/subscribe", json!({ "uri": "test://one" })).await;
    assert_eq!(updated().await, "test://one");
    fixture.kill().await;
    fixture.restart().await;
    // The fixture tells an update to whoever subscribes; so one that comes now was subscribed to again.
    assert_eq!(updated().await, "test://one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn updates_of_a_server_without_sessions_are_heard_by_those_who_want_them_also_after_its_return() {
    let mut fixture = Fixture::start(&["--sessionless=yes"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let mut clients = Vec::new();
    for (who, uri) in [("alice", "test://one"), ("bob", "test://two")] {
        let (client, _) = Client::open(&hub, who, one(), json!({})).await;
        let mut heard = Pieces::of(client.get(None).await);
        client.ask("resources/subscribe", json!({ "uri": uri })).await;
        assert_eq!(updated(&mut heard).await, uri);
        clients.push((client, heard, uri));
    }
    fixture.kill().await;
    let backend = hub.all().remove(0);
    until("the loss is seen", || !backend.snapshot().is_connected()).await;
    fixture.restart().await;
    // The fixture tells an update to whoever subscribes, so each hears of its own when all is as it was.
    for (_, heard, uri) in &mut clients {
        assert_eq!(updated(heard).await, *uri);
    }
}

/// The next resource that is told to have changed.
async fn updated(heard: &mut Pieces) -> Value {
    let updated = async {
        loop {
            let message = heard.message().await;
            if message["method"] == "notifications/resources/updated" {
                return message["params"]["uri"].clone();
            }
        }
    };
    tokio::time::timeout(PATIENCE, updated).await.expect("an update")
}
