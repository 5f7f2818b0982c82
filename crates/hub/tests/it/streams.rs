//! Streams that are held at servers: their end is looked into, and what hangs on them comes back by itself.

use std::path::Path;
use std::time::Duration;

use bowline_hub::Route;
use bowline_hub::catalogue::ListKind;
use serde_json::{Value, json};

use crate::support::curtain::Curtain;
use crate::support::{Client, Fixture, Pieces, hub, modern, spec, until};

fn lines(path: &Path, mark: &str) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().filter(|line| line.contains(mark)).count()
}

/// A stream that is younger is looked after in another way.
const OLD: Duration = Duration::from_millis(1100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_comes_back_mute_is_away_until_it_speaks_and_is_heard_again_then() {
    let dir = tempfile::tempdir().unwrap();
    let each = ["legacy", "modern"].map(async |era| {
        let asked = dir.path().join(era);
        let server = Fixture::start(&[&format!("--era={era}"), &format!("--requests={}", asked.display())]).await;
        let curtain = Curtain::before(server.port).await;
        let hub = hub(&[("b", spec(&json!({ "url": curtain.url() })))]).await;
        let backend = hub.all().remove(0);
        let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
        until("its stream is asked for", || era == "modern" || lines(&asked, "GET") > 0).await;
        tokio::time::sleep(OLD).await;
        curtain.fall();
        until("it is away", || !backend.snapshot().is_connected()).await;
        curtain.rise();
        until("it is back", || backend.snapshot().is_connected()).await;
        // A change before its stream is open again is heard with the next one, so it changes until then.
        let knows = |n: usize| backend.catalogue().find(ListKind::Tools, &format!("grown{n}")).is_some();
        let mut changes = 0;
        while !(1..=changes).any(knows) {
            changes += 1;
            client.call("b__grow", json!({ "name": format!("grown{changes}") })).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(changes < 300, "its changes are not heard");
        }
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_breaks_on_streams_and_answers_all_the_same_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let asked = dir.path().join("asked");
    let server = Fixture::start(&["--resets=yes", &format!("--requests={}", asked.display())]).await;
    let hub = hub(&[("b", server.spec())]).await;
    until("its stream is asked for", || lines(&asked, "GET") > 0).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    for id in ["x", "y"] {
        let done = client.call("b__count", json!({ "id": id, "ms": 500 })).await;
        assert_eq!(done["content"][0]["text"], format!("done {id}"), "{done}");
    }
    assert!(hub.all()[0].snapshot().is_connected());
    let seen = client.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    let lost = |event: &Value| event["type"] == "server_disconnected";
    assert!(!seen["events"].as_array().unwrap().iter().any(lost), "{seen}");
    assert_eq!(lines(&asked, "GET"), 2, "once for us, and once for the client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_client_whose_session_a_server_forgot_is_subscribed_again_without_asking() {
    let dir = tempfile::tempdir().unwrap();
    let (asked, subscribed) = (dir.path().join("asked"), dir.path().join("subscribed"));
    let notes = [format!("--requests={}", asked.display()), format!("--subscribed={}", subscribed.display())];
    let server = Fixture::start(&[&notes[0], &notes[1]]).await;
    let hub = hub(&[("b", server.spec())]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::One("b".into()), json!({})).await;
    assert_eq!(alice.ask("resources/subscribe", json!({ "uri": "test://one" })).await["result"], json!({}));
    until("her stream is asked for besides ours", || lines(&asked, "GET") > 1).await;
    let (bob, _) = Client::open(&hub, "bob", Route::One("b".into()), json!({})).await;
    assert_eq!(bob.call("forget", json!({})).await["content"][0]["text"], "forgotten");
    until("it is asked for again", || lines(&subscribed, "test://one") == 2).await;
    assert!(hub.all()[0].snapshot().is_connected(), "nobody else is hurt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_subscription_that_was_granted_outlives_a_server_that_is_busy_for_a_while() {
    let fixture = Fixture::start(&["--era=modern"]).await;
    let hub = hub(&[("b", fixture.spec())]).await;
    let route = Route::One("b".into());
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    let mut heard = Pieces::of(modern(&hub, "alice", &route, "subscriptions/listen", filter, json!({})).await);
    assert_eq!(heard.message().await["method"], "notifications/subscriptions/acknowledged");
    // Its streams are cut, and asked for again by us and for the client; the next four times it answers 503.
    let (client, _) = Client::open(&hub, "alice", route, json!({})).await;
    client.call("deploy", json!({ "name": "new", "refusing": 4 })).await;
    let changed = heard.message();
    let growing = async {
        for n in 0.. {
            client.call("grow", json!({ "name": format!("new{n}") })).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let told = tokio::select! { told = changed => told, () = growing => unreachable!() };
    assert_eq!(told["method"], "notifications/tools/list_changed", "it goes on: {told}");
}
