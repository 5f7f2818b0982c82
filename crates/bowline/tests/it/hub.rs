//! The hub inside the server: agents that call its tools, what operators see, who may come in, and kill -9.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use bowline::config::{AgentConfig, AgentKind, AuthMode, Config, OpenAiConfig, StaticToken, WireConfig};
use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support;
use crate::support::api::{Api, Stream};
use crate::support::process::Process;
use crate::support::upstream::{Scripted, answer, data, end, sse};
use crate::support::{PATIENCE, Server, config, get};

/// A real MCP server, in a process that can be killed.
struct Backend {
    child: Child,
    port: u16,
    ran: PathBuf,
}

impl Backend {
    async fn start(dir: &Path, port: u16) -> Backend {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/it/support/fixture.mjs");
        let ran = dir.join("ran");
        let mut command = Command::new("node");
        command.arg(script).arg(format!("--port={port}")).arg(format!("--count={}", ran.display()));
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("node runs");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it listens");
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Backend { child, port: line.strip_prefix("listening ").unwrap().parse().unwrap(), ran }
    }

    /// Writes the file that names it.
    fn named(&self, dir: &Path) -> PathBuf {
        let file = dir.join("mcp.json");
        let url = format!("http://127.0.0.1:{}/mcp", self.port);
        std::fs::write(&file, json!({ "mcpServers": { "b": { "url": url } } }).to_string()).unwrap();
        file
    }

    /// Waits until `count` has been called that often.
    async fn has_run(&self, times: usize) {
        until("the call has begun", || std::fs::read_to_string(&self.ran).unwrap_or_default().lines().count() >= times)
            .await;
    }
}

/// Polls, because what is waited for is another process.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn served(config: Config, file: PathBuf) -> Server {
    let mut config = config;
    config.hub.servers_file = Some(file);
    let server = Box::pin(Server::with(config)).await;
    for backend in server.hub.all() {
        backend.settled(PATIENCE).await;
    }
    server
}

fn results(frames: &[Value]) -> Vec<&Value> {
    frames.iter().filter(|frame| frame["event"] == "agent.tool_result").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_backend_that_dies_under_a_demo_agents_call_is_one_honest_outcome_in_the_log() {
    let dir = TempDir::new().unwrap();
    let mut backend = Backend::start(dir.path(), 0).await;
    let server = served(config(), backend.named(dir.path())).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("/tool b echo {\"text\": \"hello\"}").await;
    assert!(frames.last().unwrap()["content"].as_str().unwrap().contains("hello"), "{frames:?}");
    assert_eq!(results(&frames)[0]["metadata"]["status"], "success");

    client.say("/tool b count {\"id\": \"x\", \"ms\": 600000}").await;
    backend.has_run(1).await;
    backend.child.kill().await.unwrap();
    let frames = client.until(support::is_terminal).await;
    let told = results(&frames);
    assert_eq!(told.len(), 1, "{frames:?}");
    assert_eq!(told[0]["metadata"]["status"], "unknown", "{}", told[0]);
    assert_eq!(frames.iter().filter(|frame| frame["event"] == "agent.tool_call").count(), 1);

    let backend = Backend::start(dir.path(), backend.port).await;
    let frames = client.ask("/tool b echo {\"text\": \"back\"}").await;
    assert_eq!(results(&frames)[0]["metadata"]["status"], "success", "{frames:?}");
    assert_eq!(std::fs::read_to_string(&backend.ran).unwrap(), "x\n", "it was not sent again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_model_is_offered_the_hubs_tools_and_told_when_an_outcome_is_unknown() {
    let dir = TempDir::new().unwrap();
    let mut backend = Backend::start(dir.path(), 0).await;
    let call = |name: &str, arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        let calls = json!([{ "index": 0, "id": "a", "function": function }]);
        let chunk = json!({ "choices": [{ "delta": { "tool_calls": calls }, "finish_reason": "tool_calls" }] });
        vec![sse(), data(&chunk), end()]
    };
    let model = Scripted::start(vec![
        call("b__echo", "{\"text\":\"hello\"}"),
        answer("It said hello."),
        call("b__count", "{\"id\":\"x\",\"ms\":600000}"),
        answer("I do not know."),
    ])
    .await;
    let wire = WireConfig { token: Some(Secret::new("key")), ..WireConfig::default() };
    let agent = OpenAiConfig { base_url: model.url(), model: "m".into(), system: None, max_steps: 8, wire };
    let mut config = config();
    config.agents.insert("helper".into(), AgentConfig { kind: AgentKind::OpenAi(agent) });
    config.default_agent = "helper".into();
    let server = served(config, backend.named(dir.path())).await;
    let (mut client, _) = server.session().await;

    let frames = client.ask("say hello").await;
    assert_eq!(frames.last().unwrap()["content"], "It said hello.");
    assert_eq!(results(&frames)[0]["metadata"]["status"], "success");
    let offered = model.requests()[0].body["tools"].clone();
    let names: Vec<&str> =
        offered.as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"b__echo") && names.contains(&"b__count"), "{names:?}");

    client.say("count").await;
    backend.has_run(1).await;
    backend.child.kill().await.unwrap();
    let frames = client.until(support::is_terminal).await;
    let told = results(&frames);
    assert_eq!((told.len(), &told[0]["metadata"]["status"]), (1, &json!("unknown")), "{frames:?}");
    assert_eq!(frames.last().unwrap()["content"], "I do not know.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_operator_adds_a_server_for_all_clients_and_removes_it() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::start(dir.path(), 0).await;
    let server = served(config(), backend.named(dir.path())).await;
    let api = Api::new(server.address);
    let entry = json!({ "name": "c", "url": format!("http://127.0.0.1:{}/mcp", backend.port) });
    let (status, added) = api.post("/api/admin/backends", &entry).await;
    assert_eq!((status, &added["status"], &added["owner"]), (201, &json!("connected"), &Value::Null), "{added}");
    assert_eq!(added["configured"], false, "{added}");
    let sees = |who: &str| server.hub.find(&Principal::parse(who).unwrap(), "c").is_some();
    assert!(sees("anybody") && sees("local"));
    assert_eq!(api.post("/api/admin/backends", &entry).await.0, 409);
    for wrong in [json!({}), json!({ "name": "d" }), json!({ "name": "d", "command": "true" }), json!([])] {
        assert_eq!(api.post("/api/admin/backends", &wrong).await.0, 400, "{wrong}");
    }
    // The file does not know it, and leaves it alone when it is read again.
    server.hub.configure(std::collections::BTreeMap::new()).await;
    assert!(sees("anybody"));
    assert_eq!(api.delete("/api/admin/backends/nothing").await.0, 404);
    let (status, removed) = api.delete("/api/admin/backends/c").await;
    assert_eq!((status, &removed["removed"]), (200, &json!(true)), "{removed}");
    assert!(!sees("anybody"));
    assert_eq!(api.delete("/api/admin/backends/c").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_of_the_file_is_removed_by_an_admin_and_brought_back() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::start(dir.path(), 0).await;
    let token = |token: &str, principal: &str, admin: bool| StaticToken {
        token: Secret::new(token),
        principal: Principal::parse(principal).unwrap(),
        admin,
    };
    let mut config = config();
    config.auth.mode =
        AuthMode::Tokens(vec![token("user-secret", "alice", false), token("admin-secret", "root", true)]);
    let server = served(config, backend.named(dir.path())).await;
    let api = Api::new(server.address);
    let [user, admin] =
        ["user-secret", "admin-secret"].map(|token| api.with("authorization", &format!("Bearer {token}")));
    let (alice, root) = (Mcp::open(&user, "/mcp").await, Mcp::open(&admin, "/mcp").await);
    let tool = async |client: &Mcp, tool: &str, arguments: Value| -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        // What takes longer is answered on a stream.
        let answer = match client.api.post("/mcp", &call).await.1 {
            Value::String(stream) => {
                let data = stream.lines().filter_map(|line| line.strip_prefix("data:"));
                data.filter_map(|data| serde_json::from_str::<Value>(data).ok()).next_back().expect("an answer")
            }
            answer => answer,
        };
        answer["result"]["structuredContent"].clone()
    };
    let (_, shown) = admin.get("/api/admin/backends").await;
    assert_eq!((&shown["backends"][0]["configured"], &shown["removed"]), (&json!(true), &json!([])), "{shown}");
    let refused = tool(&alice, "remove_server", json!({ "name": "b" })).await;
    assert!(refused["error"].as_str().is_some_and(|why| why.contains("operator")), "{refused}");
    let removed = tool(&root, "remove_server", json!({ "name": "b" })).await;
    assert_eq!(removed["removed"], true, "{removed}");
    assert_eq!(tool(&alice, "list_servers", json!({})).await["servers"], json!([]));
    let (_, shown) = admin.get("/api/admin/backends").await;
    assert_eq!((&shown["backends"], &shown["removed"][0]["name"]), (&json!([]), &json!("b")), "{shown}");
    assert!(shown["removed"][0]["url"].is_string() && shown["removed"][0]["removedAt"].is_string(), "{shown}");
    assert_eq!(admin.delete("/api/admin/backends/b").await.0, 404, "it is removed already");
    assert_eq!(user.post("/api/admin/backends/b/restore", &json!({})).await.0, 403);
    let (status, restored) = admin.post("/api/admin/backends/b/restore", &json!({})).await;
    assert_eq!(
        (status, &restored["status"], &restored["configured"]),
        (200, &json!("connected"), &json!(true)),
        "{restored}"
    );
    assert_eq!(admin.post("/api/admin/backends/b/restore", &json!({})).await.0, 404);
    let (status, removed) = admin.delete("/api/admin/backends/b").await;
    assert_eq!((status, &removed["removed"]), (200, &json!(true)), "{removed}");
    let back = tool(&root, "add_server", json!({ "name": "b" })).await;
    assert_eq!(back["status"], "connected", "{back}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_removed_server_stays_away_over_kill_nine_and_returns_when_its_entry_changes() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::start(dir.path(), 0).await;
    let file = backend.named(dir.path());
    let env = [("BOWLINE_HUB__SERVERS_FILE", file.display().to_string())];
    let process = Process::start(&dir.path().join("data"), &env).await;
    let (status, removed) = Api::new(process.address).delete("/api/admin/backends/b").await;
    assert_eq!(status, 200, "without auth everybody operates it: {removed}");
    let process = process.kill_and_restart().await;
    let api = Api::new(process.address);
    let names = async || -> Vec<String> {
        let (_, shown) = api.get("/api/admin/backends").await;
        let backends = shown["backends"].as_array().unwrap_or_else(|| panic!("{shown}"));
        backends.iter().map(|backend| backend["name"].as_str().unwrap().to_owned()).collect()
    };
    let shows = async |wanted: &[&str]| {
        let started = Instant::now();
        while names().await != wanted {
            assert!(started.elapsed() < PATIENCE, "never shown: {wanted:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(names().await, [""; 0]);
    let url = format!("http://127.0.0.1:{}/mcp", backend.port);
    let write = |servers: Value| std::fs::write(&file, json!({ "mcpServers": servers }).to_string()).unwrap();
    // Read again, with the same entry.
    write(json!({ "b": { "url": url }, "c": { "url": url } }));
    shows(&["c"]).await;
    write(json!({ "b": { "url": url, "era": "legacy" } }));
    shows(&["b"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn the_client_of_a_hub_over_stdio_removes_its_servers_and_brings_them_back() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::start(dir.path(), 0).await;
    backend.named(dir.path());
    let arguments = ["--servers", "mcp.json", "--store", "disk:data"];
    let mut client = Spawned::start(dir.path(), &arguments, &[]).await;
    assert_eq!(client.call("remove_server", json!({ "name": "b" })).await["removed"], true);
    client.end().await;
    let mut client = Spawned::start(dir.path(), &arguments, &[]).await;
    assert_eq!(client.call("list_servers", json!({})).await["servers"], json!([]));
    assert_eq!(client.call("add_server", json!({ "name": "b" })).await["status"], "connected");
    client.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn operators_see_each_server_with_its_calls() {
    let dir = TempDir::new().unwrap();
    let mut backend = Backend::start(dir.path(), 0).await;
    let server = served(config(), backend.named(dir.path())).await;
    let (mut client, _) = server.session().await;
    client.ask("/tool b echo {\"text\": \"hello\"}").await;
    client.ask("/tool b nothing {}").await;
    let api = Api::new(server.address);
    let (_, shown) = api.get("/api/admin/backends").await;
    let shown = &shown["backends"][0];
    assert_eq!((&shown["status"], &shown["healthStatus"]), (&json!("connected"), &json!("healthy")), "{shown}");
    assert_eq!((&shown["calls"]["total"], &shown["calls"]["open"]), (&json!(2), &json!(0)), "{shown}");
    assert_eq!((&shown["calls"]["outcomes"]["result"], &shown["calls"]["outcomes"]["error"]), (&json!(1), &json!(1)));
    assert!(shown["calls"]["meanMs"].as_f64().unwrap() > 0.0);
    let (_, metrics) = server.get("/metrics").await;
    for line in [
        "bowline_backend_up{server=\"b\"} 1",
        "bowline_backend_calls_total{server=\"b\",outcome=\"result\"} 1",
        "bowline_backend_calls_total{server=\"b\",outcome=\"error\"} 1",
        "bowline_backend_call_seconds_count{server=\"b\"} 2",
        "bowline_backend_health_failures{server=\"b\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    backend.child.kill().await.unwrap();
    let hub = server.hub.clone();
    until("the loss is seen", || !hub.all()[0].snapshot().is_connected()).await;
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("bowline_backend_up{server=\"b\"} 0"), "{metrics}");
    assert!(metrics.contains("bowline_backends{state=\"reconnecting\"} 1"), "{metrics}");
    let status =
        Command::new(env!("CARGO_BIN_EXE_bowline")).args(["status", "--url", &api.base]).output().await.unwrap();
    let screen = String::from_utf8_lossy(&status.stdout).into_owned();
    let line = screen.lines().find(|line| line.contains("server ")).unwrap_or_else(|| panic!("{screen}"));
    assert!(line.contains("b reconnecting, attempt") && line.contains("2 calls (1 result, 1 error)"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_server_that_answers_in_the_hubs_words_steers_neither_metrics_nor_an_agents_status() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::start(dir.path(), 0).await;
    let server = served(config(), backend.named(dir.path())).await;
    let (mut client, _) = server.session().await;
    for (code, outcome) in [("OUTCOME_UNKNOWN", "unknown"), ("NOT_EXECUTED", "not_executed")] {
        let facts = json!({ "error": "b lies", "code": code, "outcome": outcome, "server": "b" });
        for (is_error, status) in [(true, "failed"), (false, "success")] {
            let result = json!({ "content": [], "isError": is_error, "structuredContent": facts });
            let frames = client.ask(&format!("/tool b forge {}", json!({ "result": result }))).await;
            assert_eq!(results(&frames)[0]["metadata"]["status"], status, "{code}: {frames:?}");
        }
    }
    let (_, metrics) = server.get("/metrics").await;
    let counted = |name: &str| metrics.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
    let mut calls = counted("bowline_backend_calls_total");
    calls.sort_unstable();
    let line = |outcome: &str| format!("bowline_backend_calls_total{{server=\"b\",outcome=\"{outcome}\"}} 2");
    assert_eq!(calls, [line("result"), line("tool_error")], "{metrics}");
    let wrongly = |line: &&str| (line.contains("unknown") || line.contains("not_executed")) && !line.ends_with(" 0");
    assert!(!counted("bowline_hub_calls_total").iter().any(wrongly), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn the_limits_of_the_hub_are_counted_under_their_names() {
    let mut config = config();
    config.hub.options.servers_per_principal_max = 1;
    config.hub.options.sessions_per_principal_max = 1;
    let server = Server::with(config).await;
    let hit = async |name: &str, times: u32| {
        let (_, metrics) = server.get("/metrics").await;
        let line = format!("bowline_limits_hit_total{{limit=\"{name}\"}} {times}");
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    };
    for name in [
        "hub.servers_per_principal_max",
        "hub.sessions_per_principal_max",
        "hub.processes_per_server_max",
        "hub.processes_per_principal_max",
        "hub.forced_reconnects_per_minute_max",
        "hub.body_bytes_max",
    ] {
        hit(name, 0).await;
    }
    let client = Mcp::open(&Api::new(server.address), "/mcp").await;
    for name in ["one", "two"] {
        let entry = json!({ "name": name, "url": "http://127.0.0.1:1/mcp" });
        while client.begin("/mcp", 1, "add_server", entry.clone()).await.next().await.is_some() {}
    }
    hit("hub.servers_per_principal_max", 1).await;
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} });
    let api = Api::new(server.address).with("content-type", "application/json");
    assert_eq!(api.post("/mcp", &hello).await.0, 429);
    hit("hub.sessions_per_principal_max", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_method_that_the_hub_does_not_take_is_answered_with_those_that_it_takes() {
    let server = Server::start().await;
    let answer = answer_to(&server, "PUT /mcp", "host: localhost\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("\r\nallow: GET, POST, DELETE\r\n"), "{answer}");
}

/// A client of the older era over a real socket.
struct Mcp {
    api: Api,
    session: String,
}

impl Mcp {
    async fn open(api: &Api, path: &str) -> Mcp {
        let api = api.with("content-type", "application/json").with("accept", "application/json, text/event-stream");
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let answer = api.start(path, &hello).await;
        assert_eq!(answer.status, 200);
        let session = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
        Mcp { api: api.with("mcp-session-id", &session), session }
    }

    async fn begin(&self, path: &str, id: u64, tool: &str, arguments: Value) -> Stream {
        let params = json!({ "name": tool, "arguments": arguments });
        self.api.start(path, &json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn after_kill_nine_a_client_takes_its_streams_up_again() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::start(dir.path(), 0).await;
    let file = backend.named(dir.path());
    let env = [("BOWLINE_HUB__SERVERS_FILE", file.display().to_string())];
    let process = Process::start(&dir.path().join("data"), &env).await;
    let client = Mcp::open(&Api::new(process.address), "/mcp/b").await;
    // One call is answered while nobody listens, the other is under way when the hub dies.
    let mut done = client.begin("/mcp/b", 1, "count", json!({ "id": "done", "ms": 300 })).await;
    let mut cut = client.begin("/mcp/b", 2, "count", json!({ "id": "cut", "ms": 600_000 })).await;
    let (done_at, cut_at) = (done.next().await.unwrap().id.unwrap(), cut.next().await.unwrap().id.unwrap());
    drop((done, cut));
    backend.has_run(2).await;
    let mut again = client.api.with("last-event-id", &done_at).stream("/mcp/b").await;
    let answer = again.next().await.unwrap();
    assert_eq!(answer.chunk()["result"]["content"][0]["text"], "done done");

    let process = process.kill_and_restart().await;
    let mut client = client;
    client.api.base = format!("http://{}", process.address);
    let mut again = client.api.with("last-event-id", &done_at).stream("/mcp/b").await;
    let replayed = again.next().await.unwrap();
    assert_eq!(replayed, answer, "the same event, under the same id");
    assert!(again.next().await.is_none());
    let mut again = client.api.with("last-event-id", &cut_at).stream("/mcp/b").await;
    let told = again.next().await.unwrap().chunk();
    assert_eq!((&told["id"], &told["result"]["structuredContent"]["code"]), (&json!(2), &json!("OUTCOME_UNKNOWN")));
    assert_eq!(std::fs::read_to_string(&backend.ran).unwrap().lines().count(), 2, "nothing ran twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn pages_of_strangers_and_clients_without_a_credential_stay_outside() {
    let token = |token: &str, principal: &str| StaticToken {
        token: Secret::new(token),
        principal: Principal::parse(principal).unwrap(),
        admin: false,
    };
    let mut config = config();
    config.auth.mode = AuthMode::Tokens(vec![token("alice-secret", "alice"), token("bob-secret", "bob")]);
    let server = Server::with(config).await;
    let api = Api::new(server.address).with("content-type", "application/json");
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} });
    assert_eq!(api.post("/mcp", &hello).await.0, 401);
    assert_eq!(api.with("authorization", "Bearer wrong").post("/mcp", &hello).await.0, 401);
    let alice = api.with("authorization", "Bearer alice-secret");
    assert_eq!(alice.with("origin", "https://evil.example").post("/mcp", &hello).await.0, 403);
    assert_eq!(alice.with("origin", "https://evil.example").get("/mcp").await.0, 403);
    let session = Mcp::open(&alice, "/mcp").await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(session.api.post("/mcp", &ping).await.0, 200);
    // A session belongs to whoever opened it.
    let thief = api.with("authorization", "Bearer bob-secret").with("mcp-session-id", &session.session);
    assert_eq!(thief.post("/mcp", &ping).await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_name_that_was_made_to_lead_here_is_refused_while_we_listen_on_loopback() {
    let server = Server::start().await;
    let (status, _) = get(server.address, "/mcp", &[]).await;
    assert_eq!(status, 400, "a session is missing, and that is all");
    let request = "GET /mcp HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// The answer to a request with these headers, whole.
async fn answer_to(server: &Server, request: &str, headers: &str) -> String {
    let request = format!("{request} HTTP/1.1\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n");
    let mut stream = tokio::net::TcpStream::connect(local(server)).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
    answer
}

async fn status_of(server: &Server, path: &str, headers: &str) -> String {
    answer_to(server, &format!("POST {path}"), headers).await.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_proxy_that_passes_the_public_name_on_every_endpoint_opens() {
    let mut config = config();
    config.auth.origins = vec!["https://agents.example".into()];
    let token = StaticToken { token: Secret::new("t"), principal: Principal::parse("alice").unwrap(), admin: true };
    config.auth.mode = AuthMode::Tokens(vec![token]);
    let server = Server::with(config).await;
    let credential = "authorization: Bearer t\r\n";
    let public = format!("host: agents.example\r\n{credential}");
    // What they say to a request that asks for nothing shows that it came in.
    assert_eq!(status_of(&server, "/mcp", &public).await, "415");
    assert_eq!(status_of(&server, "/api/chat/sessions", &public).await, "201");
    assert_eq!(status_of(&server, "/api/admin/backends/none/reconnect", &public).await, "404");
    let page = format!("{public}origin: https://agents.example\r\n");
    assert_eq!(status_of(&server, "/api/chat/sessions", &page).await, "201");
    let stranger = format!("{public}origin: https://evil.example\r\n");
    assert_eq!(status_of(&server, "/api/chat/sessions", &stranger).await, "403");
    for broken in [credential.to_owned(), format!("host: agents.example\r\n{public}")] {
        assert_eq!(status_of(&server, "/api/chat/sessions", &broken).await, "400", "{broken}");
        assert_eq!(status_of(&server, "/api/admin/backends/none/reconnect", &broken).await, "400", "{broken}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_was_made_to_lead_here_is_refused_also_where_others_may_reach_us_without_auth() {
    let mut config = config();
    config.listen = ([0, 0, 0, 0], 0).into();
    config.insecure_no_auth = true;
    let server = Server::with(config).await;
    for path in ["/mcp", "/api/chat/sessions", "/api/admin/backends/none/reconnect"] {
        assert_eq!(status_of(&server, path, "host: evil.example\r\n").await, "403", "{path}");
        assert_ne!(status_of(&server, path, "host: 10.0.0.1:8080\r\n").await, "403", "{path}");
    }
    let rebound = [("host", "evil.example:8080"), ("origin", "http://evil.example:8080")];
    assert!(support::Client::dial(local(&server), &rebound).await.is_err(), "its page is not our own");
    let own = [("host", "10.0.0.1:8080"), ("origin", "http://10.0.0.1:8080")];
    assert!(support::Client::dial(local(&server), &own).await.is_ok());
}

fn local(server: &Server) -> std::net::SocketAddr {
    ([127, 0, 0, 1], server.address.port()).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_over_stdio_that_is_asked_to_stop_takes_its_programs_with_it() {
    let dir = TempDir::new().unwrap();
    let (file, pid_file) = (dir.path().join("mcp.json"), dir.path().join("pid"));
    // What it starts itself is what would be left behind.
    let script = format!("sleep 1000 & echo $! > {}; cat", pid_file.display());
    let servers = json!({ "mcpServers": { "b": { "command": "sh", "args": ["-c", script] } } });
    std::fs::write(&file, servers.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
    command.args(["mcp", "--servers"]).arg(&file).env_remove("BOWLINE_TEST_SEED").current_dir(dir.path());
    let mut hub = command.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let pid = || std::fs::read_to_string(&pid_file).ok().filter(|text| text.ends_with('\n'));
    until("the program has started another", || pid().is_some()).await;
    let started = format!("/proc/{}/stat", pid().unwrap().trim());
    let ours = rustix::process::Pid::from_raw(hub.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(ours, rustix::process::Signal::TERM).unwrap();
    let ended = tokio::time::timeout(PATIENCE, hub.wait()).await.expect("it stops").unwrap();
    assert_eq!(ended.code(), Some(0));
    // A zombie is no process any more, only a memory of one.
    let gone = || std::fs::read_to_string(&started).map_or(true, |stat| stat.contains(") Z "));
    until("nothing of it is left", gone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_that_is_under_way_when_the_server_is_asked_to_stop_gets_its_answer() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::start(dir.path(), 0).await;
    let env = [("BOWLINE_HUB__SERVERS_FILE", backend.named(dir.path()).display().to_string())];
    let process = Process::start(&dir.path().join("data"), &env).await;
    let client = Mcp::open(&Api::new(process.address), "/mcp/b").await;
    let mut stream = client.begin("/mcp/b", 1, "count", json!({ "id": "x", "ms": 1500 })).await;
    backend.has_run(1).await;
    let stopped = tokio::spawn(process.terminate());
    let answer = loop {
        let event = stream.next().await.expect("the answer comes before the end");
        if !event.data.is_empty() {
            break event.chunk();
        }
    };
    assert_eq!(answer["result"]["content"][0]["text"], "done x", "{answer}");
    assert_eq!(stopped.await.unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_that_waits_for_a_person_is_not_waited_for_when_the_server_is_asked_to_stop() {
    let dir = TempDir::new().unwrap();
    let backend = Backend::start(dir.path(), 0).await;
    let file = backend.named(dir.path()).display().to_string();
    let env = [("BOWLINE_HUB__SERVERS_FILE", file), ("BOWLINE_DRAIN__TIMEOUT", "1h".to_owned())];
    let process = Process::start(&dir.path().join("data"), &env).await;
    let client = Mcp::open(&Api::new(process.address), "/mcp").await;
    // Answered by the tools, whenever that is.
    let _stream = client.begin("/mcp", 1, "b__ask", json!({})).await;
    let look = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "get_elicitations" } });
    let asked = async {
        loop {
            let (_, answer) = client.api.post("/mcp", &look).await;
            if answer.to_string().contains("elicitation/create") {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it is asked");
    assert_eq!(tokio::time::timeout(PATIENCE, process.terminate()).await.expect("it stops"), Some(0));
}

/// `bowline mcp`, and the client that has started it.
struct Spawned {
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Spawned {
    async fn start(dir: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Spawned {
        let mut child = spawn_hub(dir, arguments, env);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut client = Spawned { child, lines };
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        client.ask("initialize", params).await;
        client
    }

    /// Does not wait for the answer.
    async fn ask_only(&mut self, method: &str, params: Value) {
        let line = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params }).to_string() + "\n";
        let stdin = self.child.stdin.as_mut().unwrap();
        tokio::io::AsyncWriteExt::write_all(stdin, line.as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.ask_only(method, params).await;
        loop {
            let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("an answer").unwrap();
            let message: Value = serde_json::from_str(&line.expect("it goes on")).unwrap();
            if message["id"] == method {
                return message["result"].clone();
            }
        }
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await["structuredContent"].clone()
    }

    /// As a client does that leaves.
    async fn end(mut self) {
        drop(self.child.stdin.take());
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        assert_eq!(ended.code(), Some(0));
    }
}

fn spawn_hub(dir: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
    command.arg("mcp").args(arguments).envs(env.iter().copied()).env_remove("BOWLINE_TEST_SEED").current_dir(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_program_sees_nothing_of_our_own_settings_and_a_strangers_nothing_of_the_operators() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let program = |name: &str| json!({ "command": "sh", "args": ["-c", format!("env > {name}.new; mv {name}.new {name}; cat")], "cwd": dir, "env": { "GIVEN": "to it" } });
    std::fs::write(dir.join("mcp.json"), json!({ "mcpServers": { "own": program("own") } }).to_string()).unwrap();
    let env = [("BOWLINE_HUB__ALLOW_STDIO_ADD", "true"), ("OPERATORS_TOKEN", "secret"), ("HOME", "/home/of/ours")];
    let mut client = Spawned::start(dir, &["--servers", "mcp.json"], &env).await;
    let mut added = program("added");
    added["name"] = "added".into();
    client.ask_only("tools/call", json!({ "name": "add_server", "arguments": added })).await;
    for (name, inherits) in [("own", true), ("added", false)] {
        until("it runs", || dir.join(name).exists()).await;
        let seen = std::fs::read_to_string(dir.join(name)).unwrap();
        let has = |variable: &str| seen.lines().any(|line| line.starts_with(variable));
        assert!(has("GIVEN=to it") && has("HOME=/home/of/ours") && has("PATH="), "{name}: {seen}");
        assert_eq!((has("OPERATORS_TOKEN="), has("BOWLINE_")), (inherits, false), "{name}: {seen}");
    }
}

/// How `bowline mcp` ends that cannot begin.
async fn refused(dir: &Path, arguments: &[&str], env: &[(&str, &str)]) -> String {
    let output =
        tokio::time::timeout(PATIENCE, spawn_hub(dir, arguments, env).wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_hub_over_stdio_uses_the_store_of_its_settings_and_only_without_any_forgets() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("own.toml"), "[store]\nurl = \"disk:hub-data\"\n").unwrap();
    let by_file: (&[&str], &[(&str, &str)]) = (&["--config", "own.toml"], &[]);
    let by_variable: (&[&str], &[(&str, &str)]) = (&[], &[("BOWLINE_STORE__URL", "disk:hub-data")]);

    let mut client = Spawned::start(dir, by_file.0, by_file.1).await;
    let added = client.call("add_server", json!({ "name": "far", "url": "http://127.0.0.1:1/mcp" })).await;
    assert_eq!(added["name"], "far", "{added}");
    let why = refused(dir, by_variable.0, by_variable.1).await;
    assert!(why.contains("in use by another process") && why.contains("--store"), "{why}");
    client.end().await;

    for (arguments, env, kept) in [(by_file.0, by_file.1, 1), (by_variable.0, by_variable.1, 1), (&[], &[], 0)] {
        let mut client = Spawned::start(dir, arguments, env).await;
        let listed = client.call("list_servers", json!({})).await;
        assert_eq!(listed["servers"].as_array().unwrap().len(), kept, "{arguments:?} {env:?}: {listed}");
        client.end().await;
    }
    assert!(!dir.join("bowline-data").exists(), "without a store nothing is written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_over_stdio_says_at_once_what_it_cannot_have() {
    let dir = TempDir::new().unwrap();
    let why = refused(dir.path(), &["--servers", "nope.json"], &[]).await;
    assert!(why.contains("nope.json"), "{why}");
    let why = refused(dir.path(), &["--store", "redis://127.0.0.1:1"], &[]).await;
    assert!(why.contains("--store disk:DIR"), "{why}");
}
