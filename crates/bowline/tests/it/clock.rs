//! The wall clock jumps under running servers: nothing that lives is dropped, and nothing that is over comes back.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::nodes_scene::Scene;
use crate::support;
use crate::support::api::{Api, Stream, kinds};
use crate::support::process::Process;
use crate::support::{Client, PATIENCE};

const DAY: i64 = 24 * 3600;
/// The jumps, each from where the real clock is.
const JUMPS: [i64; 4] = [DAY + 3600, 8 * DAY, -DAY, 0];

/// A wall clock that a test can set. The steady clocks stay as they are.
struct WallClock {
    file: PathBuf,
    library: PathBuf,
}

impl WallClock {
    fn new(dir: &Path, name: &str) -> WallClock {
        let library = library().expect("libfaketime is installed");
        let clock = WallClock { file: dir.join(name), library };
        clock.jump(0);
        clock
    }

    /// Sets it to so many seconds from the real one.
    fn jump(&self, seconds: i64) {
        // A reader must not see half of it.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    fn env(&self) -> Vec<(&'static str, String)> {
        let on = || "1".to_owned();
        vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", on()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", on()),
            ("DONT_FAKE_MONOTONIC", on()),
            ("NO_FAKE_STAT", on()),
        ]
    }
}

fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.is_file())
}

/// Several sweeps are due in this time. Were they late, this would try less, and fail no more often.
async fn let_sweeps_pass() {
    tokio::time::sleep(Duration::from_millis(2500)).await;
}

async fn until_code(api: &Api, path: &str, code: &str) {
    let gone = async {
        while api.get(path).await.1["code"] != code {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("{path} never became {code}"));
}

fn settings(clock: &WallClock, more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let more = more.iter().map(|(key, value)| (*key, (*value).to_owned()));
    clock.env().into_iter().chain(more).collect()
}

/// An MCP server in a process of its own, and the file that names it.
async fn backend(dir: &Path) -> (Child, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/it/support/fixture.mjs");
    let mut command = Command::new("node");
    command.arg(script).arg("--port=0").arg(format!("--count={}", dir.join("ran").display()));
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("node runs");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it listens");
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let url = format!("http://127.0.0.1:{}/mcp", line.strip_prefix("listening ").unwrap());
    let file = dir.join("mcp.json");
    std::fs::write(&file, json!({ "mcpServers": { "b": { "url": url } } }).to_string()).unwrap();
    (child, file.display().to_string())
}

/// A client of the hub.
struct Mcp(Api);

impl Mcp {
    async fn open(api: &Api) -> Mcp {
        let api = api.with("content-type", "application/json").with("accept", "application/json, text/event-stream");
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let answer = api.start("/mcp", &hello).await;
        assert_eq!(answer.status, 200);
        let session = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
        Mcp(api.with("mcp-session-id", &session))
    }

    async fn begin(&self, tool: &str, arguments: Value) -> Stream {
        let params = json!({ "name": tool, "arguments": arguments });
        self.0.start("/mcp", &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })).await
    }

    /// What a tool of the hub answers, as text.
    async fn call(&self, tool: &str, arguments: Value) -> String {
        let params = json!({ "name": tool, "arguments": arguments });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let (status, answer) = self.0.post("/mcp", &request).await;
        assert_eq!(status, 200, "{tool}: {answer}");
        answer.to_string()
    }

    async fn is_there(&self) -> bool {
        self.0.post("/mcp", &json!({ "jsonrpc": "2.0", "id": 9, "method": "ping" })).await.0 == 200
    }
}

/// The `Date` of an answer, in seconds from the real clock.
async fn date_of(api: &Api) -> i64 {
    let date = api.stream("/healthz").await.headers["date"].to_str().unwrap().to_owned();
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(&date).unwrap();
    date.as_second() - bowline_env::clock::unix_seconds() as i64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs faketime and Node.js"]
async fn jumps_of_a_day_and_of_a_week_drop_nothing_that_lives() {
    let dir = TempDir::new().unwrap();
    let clock = WallClock::new(dir.path(), "wall");
    let (_backend, servers) = backend(dir.path()).await;
    // The sweeps come often, and everything lives for a day.
    let often = [
        ("BOWLINE_HUB__SERVERS_FILE", servers.as_str()),
        ("BOWLINE_HUB__ASK_TIMEOUT", "400ms"),
        ("BOWLINE_BUFFER__AGE_MAX", "2s"),
        ("BOWLINE_STREAM__TTL", "24h"),
    ];
    let server = Process::start(&dir.path().join("data"), &settings(&clock, &often)).await;
    let api = Api::new(server.address);

    let mut held = Client::dial(server.address, &[]).await.unwrap();
    held.expect("system.connected").await;
    held.create().await;
    held.say("/confirm the launch").await;
    let question = held.expect("agent.user_confirm").await;
    let (quiet, ended) = (api.session().await, api.session().await);
    assert_eq!(api.delete(&ended).await.0, 204);
    let (_, running) = api.post("/api/chat/tasks", &json!({ "tool_name": "painter" })).await;
    let running = format!("/api/chat/tasks/{}", running["task_id"].as_str().unwrap());
    let (_, done) = api.post("/api/chat/tasks", &json!({ "tool_name": "painter" })).await;
    let done = format!("/api/chat/tasks/{}", done["task_id"].as_str().unwrap());
    assert_eq!(api.post(&format!("{done}/complete"), &json!({})).await.0, 200);
    let (idle, listening) = (Mcp::open(&api).await, Mcp::open(&api).await);
    let _open = listening.0.stream("/mcp").await;
    let work = json!({ "server": "b", "tool": "count", "args": { "id": "x", "ms": 1 }, "as_task": true });
    let begun = idle.call("execute_tool", work).await;
    let task = begun
        .split("mcpt_")
        .nth(1)
        .unwrap_or_else(|| panic!("it became no task: {begun}"))
        .split(|c: char| !c.is_ascii_hexdigit())
        .next();
    let result = json!({ "task_id": format!("mcpt_{}", task.unwrap()) });
    let finished = async { while !idle.call("get_task_result", result.clone()).await.contains("done x") {} };
    tokio::time::timeout(PATIENCE, finished).await.expect("the task ends");

    for jump in JUMPS {
        clock.jump(jump);
        let_sweeps_pass().await;
        assert!((date_of(&api).await - jump).abs() < 60, "the date follows the wall clock by {jump} s");
        for path in [&quiet, &running, &done] {
            assert_eq!(api.get(path).await.0, 200, "{path} after {jump} s");
        }
        assert_eq!(api.get(&done).await.1["status"], "completed");
        assert_eq!(api.get(&running).await.1["status"], "running");
        assert_eq!(api.get(&ended).await.1["code"], "SESSION_INACTIVE", "after {jump} s");
        let chunk = json!([{ "type": "data-stroke", "data": jump }]);
        assert_eq!(api.post(&format!("{running}/messages"), &chunk).await.0, 200);
        assert!(idle.is_there().await && listening.is_there().await, "an MCP session was dropped after {jump} s");
        assert!(idle.call("get_task_result", result.clone()).await.contains("done x"), "after {jump} s");
    }
    let answer = json!({ "event": "user.response", "session_id": held.session, "step_id": question["step_id"], "content": { "confirmed": true } });
    held.send(answer).await;
    let frames = held.until(support::is_terminal).await;
    assert_eq!(frames.last().unwrap()["event"], "agent.final_answer", "the question could still be answered");
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs faketime and Node.js"]
async fn a_clock_that_is_set_back_prolongs_nothing_and_revives_nothing() {
    let dir = TempDir::new().unwrap();
    let clock = WallClock::new(dir.path(), "wall");
    let (_backend, servers) = backend(dir.path()).await;
    let short = [
        ("BOWLINE_HUB__SERVERS_FILE", servers.as_str()),
        ("BOWLINE_HUB__SESSION_TTL", "1s"),
        ("BOWLINE_HUB__ASK_TIMEOUT", "24h"),
        ("BOWLINE_SESSION__TTL", "1s"),
        ("BOWLINE_STREAM__TTL", "1s"),
    ];
    let server = Process::start(&dir.path().join("data"), &settings(&clock, &short)).await;
    let api = Api::new(server.address);
    let asked = Mcp::open(&api).await;
    // While its stream is open, its session is used, and its question waits.
    let _stream = asked.begin("b__ask", json!({})).await;
    let waits = || async { asked.call("get_elicitations", json!({})).await.contains("elicitation/create") };
    let begun = async { while !waits().await {} };
    tokio::time::timeout(PATIENCE, begun).await.expect("it is asked");
    let over = api.session().await;
    until_code(&api, &over, "SESSION_EXPIRED").await;
    for jump in [-DAY, 8 * DAY, 0] {
        let (session, client) = (api.session().await, Mcp::open(&api).await);
        let (_, task) = api.post("/api/chat/tasks", &json!({ "tool_name": "painter" })).await;
        let task = format!("/api/chat/tasks/{}", task["task_id"].as_str().unwrap());
        assert_eq!(api.post(&format!("{task}/complete"), &json!({})).await.0, 200);
        clock.jump(jump);
        until_code(&api, &session, "SESSION_EXPIRED").await;
        until_code(&api, &task, "TASK_EXPIRED").await;
        let expired = async {
            // Asking is using, so it is not asked more often than it lives.
            while client.is_there().await {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, expired).await.expect("an MCP session expires");
        assert_eq!(api.get(&over).await.1["code"], "SESSION_EXPIRED", "it stays over after {jump} s");
        assert!(waits().await, "a question was taken back after {jump} s");
    }
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis and faketime"]
async fn nodes_whose_wall_clocks_differ_agree_on_what_lives() {
    let dir = TempDir::new().unwrap();
    let (first, second) = (WallClock::new(dir.path(), "first"), WallClock::new(dir.path(), "second"));
    second.jump(8 * DAY);
    let mut scene = Scene::new(&[], 0, &[]).await;
    for clock in [&first, &second] {
        let env = settings(
            clock,
            &[("BOWLINE_SESSION__TTL", "1h"), ("BOWLINE_BUFFER__AGE_MAX", "1h"), ("BOWLINE_STREAM__TTL", "1s")],
        );
        let env: Vec<(&'static str, &str)> = env.iter().map(|(key, value)| (*key, value.as_str())).collect();
        scene.add(&env).await;
    }
    let (here, there) = (Api::new(scene.at(0)), Api::new(scene.at(1)));
    let quiet = here.session().await;
    let (idle, mut held) = (Mcp::open(&here).await, Client::dial(scene.at(0), &[]).await.unwrap());
    held.expect("system.connected").await;
    held.create().await;
    let session = format!("/api/chat/sessions/{}", held.session);
    for jump in JUMPS {
        first.jump(jump);
        let_sweeps_pass().await;
        for api in [&here, &there] {
            assert_eq!(api.get(&quiet).await.0, 200, "a session was dropped after {jump} s");
        }
        assert!(idle.is_there().await, "an MCP session was dropped after {jump} s");
        // The other node has to ask the first, which has the session.
        let turn = there.start(&format!("{session}/stream"), &json!({ "message": "/echo hello" })).await;
        assert_eq!(turn.status, 200, "after {jump} s");
        let said = kinds(&turn.all().await);
        assert!(said.contains(&"finish".to_owned()), "after {jump} s: {said:?}");
    }
}
