//! What strangers may not do: reach inside, run programs, see what is not theirs, or fill us up.

use bowline_hub::{BackendEvent, Options, Route};
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, Fixture, hub_with, spec, stdio_entry, store};

async fn client(options: Options) -> Client {
    let hub = hub_with(options, store(), &[]).await;
    Client::open(&hub, "alice", Route::All, json!({})).await.0
}

async fn refused(client: &Client, entry: Value) -> String {
    let mut arguments = entry;
    arguments["name"] = "x".into();
    let result = client.call("add_server", arguments).await;
    assert_eq!(result["isError"], true, "{result}");
    result["structuredContent"]["error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn addresses_inside_are_refused_to_those_who_add_servers_at_run_time() {
    let strict = client(Options { allow_private: false, ..Options::default() }).await;
    for url in [
        "http://127.0.0.1:1/",
        "http://localhost:1/",
        "http://[::1]/",
        "http://10.0.0.1/",
        "http://2130706433/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[fd00::1]/",
        "http://0.0.0.0/",
    ] {
        let why = refused(&strict, json!({ "url": url })).await;
        assert!(why.contains("may not be reached"), "{url}: {why}");
    }
    let loose = client(Options { allow_private: true, ..Options::default() }).await;
    for url in
        ["http://169.254.169.254/latest", "http://[fe80::1]/", "http://0xa9fea9fe/", "http://[::ffff:169.254.169.254]/"]
    {
        let why = refused(&loose, json!({ "url": url })).await;
        assert!(why.contains("may not be reached"), "{url}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn add_server_tells_nothing_that_a_name_resolved_to() {
    let strict = client(Options { allow_private: false, ..Options::default() }).await;
    for url in ["http://localhost:1/", "http://127.0.0.1:1/", "http://x.localhost./", "http://10.1.2.3/"] {
        let why = refused(&strict, json!({ "url": url })).await;
        assert!(!why.contains(|letter: char| letter.is_ascii_digit()), "{url}: {why}");
    }
    // The name of this machine leads inside, as the names of others in its network do; the other name leads nowhere.
    let inside = std::process::Command::new("hostname").output().unwrap().stdout;
    let inside = String::from_utf8(inside).unwrap().trim().to_owned();
    let mut answers = Vec::new();
    for (name, host) in [("inside", &*inside), ("nowhere", "no-such-host.invalid")] {
        let mut answer =
            strict.call("add_server", json!({ "name": name, "url": format!("http://{host}:1/mcp") })).await;
        assert!(!answer.to_string().contains("127."), "{answer}");
        let facts = &mut answer["structuredContent"];
        facts["nextRetryMs"].take();
        assert_eq!(facts["url"].take(), format!("http://{host}:1/mcp"), "{host}");
        assert_eq!(facts["name"].take(), name);
        let facts = facts.take();
        answers.push((answer["isError"].take(), facts));
    }
    assert_eq!(answers[0], answers[1], "which of the names is known inside is not told");
    let listed = strict.tool("list_servers", json!({})).await["servers"].clone();
    assert_eq!(listed[0]["lastError"], listed[1]["lastError"], "{listed}");
}

#[tokio::test]
async fn a_server_of_the_configuration_may_be_wherever_this_machine_can_reach() {
    // Like a link-local address it is refused to strangers, and nobody answers there, which this machine knows at once.
    let entry = json!({ "url": "http://255.255.255.255:1/mcp" });
    let strict = Options { allow_private: false, ..Options::default() };
    let hub = hub_with(strict, store(), &[("b", spec(&entry))]).await;
    let (client, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let listed = client.tool("list_servers", json!({})).await["servers"][0].clone();
    assert!(listed["status"] == "reconnecting", "it was tried: {listed}");
    let why = refused(&client, entry).await;
    assert!(why.contains("may not be reached"), "{why}");
}

#[tokio::test]
#[ignore = "needs Node.js"]
async fn programs_are_added_only_where_an_operator_allows_it() {
    let strict = client(Options::default()).await;
    let why = refused(&strict, stdio_entry(&[])).await;
    assert!(why.contains("hub.allow_stdio_add"), "{why}");
    let loose = client(Options { allow_stdio_add: true, ..Options::default() }).await;
    let mut entry = stdio_entry(&[]);
    entry["name"] = "x".into();
    let added = loose.tool("add_server", entry).await;
    assert_eq!(added["status"], "connected", "{added}");
}

#[tokio::test]
#[ignore = "needs Node.js"]
async fn a_server_belongs_to_whoever_added_it_and_returns_after_a_restart() {
    let fixture = Fixture::start(&[]).await;
    let store = store();
    let first = hub_with(Options::default(), store.clone(), &[]).await;
    let (alice, _) = Client::open(&first, "alice", Route::All, json!({})).await;
    let (bob, _) = Client::open(&first, "bob", Route::All, json!({})).await;
    let entry = json!({ "name": "mine", "url": fixture.url(), "headers": { "authorization": "Bearer s3cret" } });
    let added = alice.tool("add_server", entry.clone()).await;
    assert_eq!(added["status"], "connected");
    assert!(!added.to_string().contains("s3cret"));
    let again = alice.call("add_server", entry).await;
    assert_eq!(again["isError"], true, "an existing name is refused");
    assert_eq!(bob.tool("list_servers", json!({})).await["servers"], json!([]));
    let stranger = bob.call("mine__echo", json!({ "text": "x" })).await;
    assert_eq!(stranger, Value::Null, "to bob there is no such tool: {stranger}");
    assert_eq!(bob.call("remove_server", json!({ "name": "mine" })).await["isError"], true);
    let heard = bob.tool("await_activity", json!({ "timeout_ms": 100 })).await;
    assert_eq!(heard["events"], json!([]));
    first.close().await;
    let second = hub_with(Options::default(), store, &[]).await;
    let (alice, _) = Client::open(&second, "alice", Route::All, json!({})).await;
    let servers = alice.tool("list_servers", json!({})).await;
    assert_eq!(
        (&servers["servers"][0]["name"], &servers["servers"][0]["status"]),
        (&json!("mine"), &json!("connected"))
    );
    assert_eq!(alice.tool("remove_server", json!({ "name": "mine" })).await["removed"], true);
    assert_eq!(alice.tool("list_servers", json!({})).await["servers"], json!([]));
}

#[tokio::test]
async fn a_server_that_is_down_is_added_and_shows_that_it_is_being_dialled() {
    let alice = client(Options::default()).await;
    let added = alice.tool("add_server", json!({ "name": "down", "url": "http://127.0.0.1:9/mcp" })).await;
    assert_eq!((&added["status"], &added["connected"]), (&json!("reconnecting"), &json!(false)), "{added}");
    assert!(added["lastError"].is_string() && added["reconnectAttempt"].is_u64() && added["nextRetryMs"].is_u64());
}

#[tokio::test]
async fn sessions_of_one_principal_are_limited_and_bad_messages_are_refused() {
    let hub = hub_with(Options { sessions_per_principal_max: 1, ..Options::default() }, store(), &[]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let second = Client { session: String::new(), ..alice.clone() };
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} });
    assert_eq!(second.post(&hello).await.status, 429);
    for body in ["{", "[]", "{\"jsonrpc\":\"2.0\"}"] {
        let request = http::Request::post("/mcp").header("content-type", "application/json");
        let request = request.header("mcp-session-id", &alice.session).body(body.into()).unwrap();
        assert_eq!(support::send(&hub, &alice.who, &Route::All, request).await.status, 400, "{body}");
    }
    let unknown = Client { session: "mcp_nothing".into(), ..alice.clone() };
    assert_eq!(unknown.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })).await.status, 404);
    let nowhere = Client { route: Route::One("nobody".into()), ..alice };
    assert_eq!(nowhere.get(None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_redirect_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    let inside = Fixture::start(&[&format!("--requests={}", seen.display())]).await;
    let outside = Fixture::start(&[&format!("--redirect={}", inside.url())]).await;
    let alice = client(Options::default()).await;
    let entry = json!({ "name": "x", "url": outside.url(), "headers": { "authorization": "Bearer s3cret" } });
    let added = alice.tool("add_server", entry).await;
    assert_eq!(added["connected"], false, "{added}");
    assert!(!seen.exists(), "nobody was sent on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn headers_arguments_and_environments_are_shown_to_nobody() {
    let options = Options { allow_stdio_add: true, ..Options::default() };
    let hub = hub_with(options, store(), &[]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let mut program = stdio_entry(&["--secret=s3cret-argument"]);
    program["name"] = "program".into();
    program["env"] = json!({ "KEY": "s3cret-variable" });
    let fixture = Fixture::start(&[]).await;
    let url = json!({ "name": "url", "url": fixture.url(), "headers": { "x-key": "s3cret-header" } });
    let down = json!({ "name": "down", "url": "http://127.0.0.1:9/mcp", "headers": { "x-key": "s3cret-header" } });
    let mut shown = Vec::new();
    for entry in [program, url, down] {
        shown.push(alice.tool("add_server", entry).await);
    }
    shown.push(alice.tool("list_servers", json!({})).await);
    shown.push(alice.tool("await_activity", json!({ "timeout_ms": 20_000 })).await);
    shown.push(alice.call("down__echo", json!({})).await);
    shown.push(alice.ask("tools/list", json!({})).await);
    for one in &shown {
        assert!(!one.to_string().contains("s3cret"), "{one}");
    }
    for backend in hub.all() {
        let debugged = format!("{:?} {:?} {:?}", backend.spec, backend, backend.snapshot());
        assert!(!debugged.contains("s3cret"), "{debugged}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_answer_that_is_given_twice_hurts_nobody() {
    let fixture = Fixture::start(&["--wild=yes"]).await;
    let program = spec(&stdio_entry(&["--wild=yes"]));
    let hub = hub_with(Options::default(), store(), &[("http", fixture.spec()), ("pipe", program)]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    for server in ["http", "pipe"] {
        let once = alice.call(&format!("{server}__twice"), json!({})).await;
        assert_eq!(once["content"][0]["text"], "once", "{server}");
        let fine = alice.call(&format!("{server}__echo"), json!({ "text": "fine" })).await;
        assert_eq!(fine["content"][0]["text"], "fine", "{server}");
    }
    assert!(hub.all().iter().all(|backend| backend.snapshot().is_connected()));
}

/// What a session has been told when something that everybody hears has been told: the removal of all servers.
async fn told_until_removed(client: &Client) -> Vec<Value> {
    client.hub.configure(std::collections::BTreeMap::new()).await;
    let (mut all, mut cursor) = (Vec::new(), Value::Null);
    while !all.iter().any(|event: &Value| event["type"] == "server_removed") {
        let seen = client.tool("await_activity", json!({ "timeout_ms": 20_000, "last_event_id": cursor })).await;
        assert_ne!(seen["triggered_by"], "timeout", "{all:?}");
        cursor = seen["last_event_id"].clone();
        all.extend(seen["events"].as_array().unwrap().clone());
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn what_a_shared_program_writes_is_not_for_the_only_session_if_somebody_without_one_has_used_it() {
    for (user, heard) in [("alice", 0), ("bob", 1)] {
        let hub = support::hub(&[("b", spec(&stdio_entry(&["--chatty"])))]).await;
        let mut happenings = hub.happenings();
        let (bob, _) = Client::open(&hub, "bob", Route::All, json!({})).await;
        let params = json!({ "name": "b__mutter", "arguments": { "text": "of nobody else" } });
        support::modern(&hub, user, &Route::All, "tools/call", params, json!({})).await.messages().await;
        while !matches!(&happenings.recv().await.unwrap().1, BackendEvent::Stderr(line) if line == "of nobody else") {}
        let told = told_until_removed(&bob).await;
        assert_eq!(told.iter().filter(|event| event["type"] == "log").count(), heard, "{user}: {told:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn of_two_servers_with_one_name_a_person_sees_its_own() {
    let (own, shared) = (Fixture::start(&["--extra=own"]).await, Fixture::start(&["--extra=shared"]).await);
    let hub = support::hub(&[]).await;
    let (alice, _) = Client::open(&hub, "alice", Route::All, json!({})).await;
    let (bob, _) = Client::open(&hub, "bob", Route::All, json!({})).await;
    alice.tool("add_server", json!({ "name": "b", "url": own.url() })).await;
    hub.configure([("b".to_owned(), shared.spec())].into()).await;
    for backend in hub.all() {
        backend.settled(support::PATIENCE).await;
    }
    for (client, url) in [(&alice, own.url()), (&bob, shared.url())] {
        let servers = client.tool("list_servers", json!({})).await["servers"].clone();
        assert_eq!((servers.as_array().unwrap().len(), &servers[0]["url"]), (1, &json!(url)), "{servers}");
    }
    let listed = alice.tool("list_tools", json!({})).await.to_string();
    assert!(listed.contains("the tool own") && !listed.contains("the tool shared"), "{listed}");
    told_until_removed(&bob).await;
    let told = alice.tool("await_activity", json!({ "timeout_ms": 20_000 })).await["events"].clone();
    let told: Vec<&str> = told.as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(told.iter().filter(|kind| kind.starts_with("server_")).count(), 2, "added and connected: {told:?}");
}
