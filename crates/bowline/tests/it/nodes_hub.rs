//! The MCP hub on several nodes and one Redis: each request of a client goes to another node, questions are answered where
//! they were not asked, and nodes die with calls in hand.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bowline_hub::sse;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::real_redis::Redis;
use crate::support;
use crate::support::PATIENCE;
use crate::support::process::Process;

/// Two nodes, and a real MCP server behind each.
struct Scene {
    _redis: Redis,
    nodes: Vec<Process>,
    _backend: Child,
    backend_url: String,
    _dir: TempDir,
}

impl Scene {
    async fn new(more: &[(&'static str, &str)]) -> Scene {
        let (redis, dir) = (Redis::start(&[]), TempDir::new().unwrap());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/it/support/fixture.mjs");
        let mut command = Command::new("node");
        command.arg(script).arg("--port=0").arg(format!("--count={}", dir.path().join("count").display()));
        let mut backend = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("node runs");
        let mut lines = BufReader::new(backend.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it listens");
        let backend_url = format!("http://127.0.0.1:{}/mcp", line.strip_prefix("listening ").unwrap());
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let servers = dir.path().join("mcp.json");
        std::fs::write(&servers, json!({ "mcpServers": { "one": { "url": backend_url } } }).to_string()).unwrap();
        let mut env = vec![
            ("BOWLINE_STORE__URL", redis.url()),
            ("BOWLINE_LOG__LEVEL", std::env::var("NODES_LOG").unwrap_or("error".into())),
            ("BOWLINE_HUB__SERVERS_FILE", servers.display().to_string()),
        ];
        env.extend(more.iter().map(|(key, value)| (*key, (*value).to_owned())));
        let mut nodes = Vec::new();
        for _ in 0..2 {
            nodes.push(Process::start(&dir.path().join("data"), &env).await);
        }
        Scene { _redis: redis, nodes, _backend: backend, backend_url, _dir: dir }
    }

    fn at(&self, node: usize) -> SocketAddr {
        self.nodes[node].address
    }

    fn executions(&self) -> usize {
        let noted = std::fs::read_to_string(self._dir.path().join("count")).unwrap_or_default();
        // The server also notes that a call was taken back.
        noted.lines().filter(|line| *line != "cancelled").count()
    }
}

/// A client of the older era, which chooses a node for each request.
struct Client {
    http: reqwest::Client,
    path: &'static str,
    session: String,
}

impl Client {
    async fn open(node: SocketAddr, path: &'static str, capabilities: Value) -> Client {
        let mut client = Client { http: support::http_client().build().unwrap(), path, session: String::new() };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": { "name": "test", "version": "1" },
        });
        let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let response = client.post(node, &initialize).await;
        assert_eq!(response.status(), 200);
        client.session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        client
    }

    async fn post(&self, node: SocketAddr, message: &Value) -> reqwest::Response {
        let mut request =
            self.http.post(format!("http://{node}{}", self.path)).header("content-type", "application/json");
        request = request.header("accept", "application/json, text/event-stream");
        if !self.session.is_empty() {
            request = request.header("mcp-session-id", &self.session);
        }
        tokio::time::timeout(PATIENCE, request.body(message.to_string()).send()).await.expect("an answer").unwrap()
    }

    async fn get(&self, node: SocketAddr, after: Option<&str>) -> reqwest::Response {
        let mut request = self.http.get(format!("http://{node}{}", self.path)).header("accept", "text/event-stream");
        request = request.header("mcp-session-id", &self.session);
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        tokio::time::timeout(PATIENCE, request.send()).await.expect("an answer").unwrap()
    }

    async fn call(&self, node: SocketAddr, tool: &str, arguments: Value) -> Stream {
        let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "p" } });
        let request = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
        Stream::of(self.post(node, &request).await)
    }

    /// What one of the hub's own tools says.
    async fn tool(&self, node: SocketAddr, tool: &str, arguments: Value) -> Value {
        self.call(node, tool, arguments).await.end().await["result"]["structuredContent"].clone()
    }
}

/// A request of the modern era.
async fn modern(node: SocketAddr, name: &str, mut params: Value, capabilities: Value) -> Value {
    params["name"] = name.into();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
    });
    let body = json!({ "jsonrpc": "2.0", "id": "m", "method": "tools/call", "params": params });
    let request = support::http_client()
        .build()
        .unwrap()
        .post(format!("http://{node}/mcp"))
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", name);
    let response = tokio::time::timeout(PATIENCE, request.body(body.to_string()).send()).await.unwrap().unwrap();
    Stream::of(response).end().await["result"].clone()
}

/// The messages of a response, whether it is one or a stream of them.
struct Stream {
    parser: Option<sse::SseParser>,
    body: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    ready: std::collections::VecDeque<Value>,
    last_id: Option<String>,
}

impl Stream {
    fn of(response: reqwest::Response) -> Stream {
        let streamed = response.headers().get("content-type").is_some_and(|kind| kind == sse::CONTENT_TYPE);
        Stream {
            parser: streamed.then(|| sse::SseParser::new(1 << 24)),
            body: response.bytes_stream().boxed(),
            ready: std::collections::VecDeque::new(),
            last_id: None,
        }
    }

    /// The next message; `None` if the wire was cut or all was said.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let bytes = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("something comes")?.ok()?;
            let Some(parser) = &mut self.parser else {
                return Some(serde_json::from_slice(&bytes).unwrap());
            };
            for piece in parser.push(&bytes) {
                let sse::SseItem::Event(event) = piece else { panic!("{piece:?}") };
                self.last_id = event.id.or(self.last_id.take());
                self.ready.extend(serde_json::from_str::<Value>(&event.data).ok());
            }
        }
    }

    /// The response, passing over everything before it.
    async fn end(mut self) -> Value {
        loop {
            let message = self.next().await.expect("a response");
            if message["method"].is_null() {
                return message;
            }
        }
    }
}

fn text(response: &Value) -> &str {
    response["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {response}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn every_node_serves_every_session_of_the_hub() {
    let scene = Scene::new(&[]).await;
    let client = Client::open(scene.at(0), "/mcp/one", json!({})).await;
    for node in [0, 1, 0, 1] {
        let echo = client.call(scene.at(node), "echo", json!({ "text": "héllo" })).await.end().await;
        assert_eq!(text(&echo), "héllo");
    }
    let mut steps = client.call(scene.at(1), "progress", json!({})).await;
    for step in 1..=3 {
        assert_eq!(steps.next().await.unwrap()["params"]["progress"], step);
    }
    assert_eq!(text(&steps.end().await), "progressed");
    // What belongs to no call comes on a stream, wherever that is held; the newest of them wins.
    let mut older = Stream::of(client.get(scene.at(0), None).await);
    let mut newer = Stream::of(client.get(scene.at(1), None).await);
    let subscribe =
        json!({ "jsonrpc": "2.0", "id": 3, "method": "resources/subscribe", "params": { "uri": "test://one" } });
    Stream::of(client.post(scene.at(1), &subscribe).await).end().await;
    assert_eq!(newer.next().await.unwrap()["method"], "notifications/resources/updated");
    assert_eq!(older.next().await, None);
    // A call is taken back from where it was not made.
    let slow = client.call(scene.at(0), "count", json!({ "id": "slow", "ms": 60_000 })).await;
    let taken_back = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    assert_eq!(client.post(scene.at(1), &taken_back).await.status(), 202);
    let mut slow = slow;
    assert_eq!(slow.next().await, None);
    let request = client.http.delete(format!("http://{}/mcp/one", scene.at(1)));
    assert_eq!(request.header("mcp-session-id", &client.session).send().await.unwrap().status(), 200);
    for node in [0, 1] {
        assert_eq!(client.get(scene.at(node), None).await.status(), 404);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_question_is_answered_on_another_node_than_asked() {
    let scene = Scene::new(&[]).await;
    let client = Client::open(scene.at(0), "/mcp/one", json!({ "elicitation": {} })).await;
    for (asks, answers) in [(0, 1), (1, 0), (1, 1)] {
        let mut call = client.call(scene.at(asks), "ask", json!({})).await;
        let question = call.next().await.unwrap();
        assert_eq!(question["method"], "elicitation/create");
        let result = json!({ "action": "accept", "content": { "name": "Ada" } });
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
        assert_eq!(client.post(scene.at(answers), &answer).await.status(), 202);
        assert_eq!(text(&call.end().await), "accept Ada");
    }
    // The same without a session: the answer comes with the next request, to whichever node.
    let asked = modern(scene.at(0), "one__ask", json!({ "arguments": {} }), json!({ "elicitation": {} })).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let again = json!({
        "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": { key: { "action": "accept", "content": { "name": "Bob" } } },
    });
    let done = modern(scene.at(1), "one__ask", again.clone(), json!({ "elicitation": {} })).await;
    assert_eq!(done["content"][0]["text"], "accept Bob", "{done}");
    // Once.
    assert_eq!(modern(scene.at(1), "one__ask", again, json!({ "elicitation": {} })).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_client_with_a_handle_finds_its_questions_from_everywhere() {
    let scene = Scene::new(&[]).await;
    let begun = modern(scene.at(0), "await_activity", json!({ "arguments": { "timeout_ms": 100 } }), json!({})).await;
    let handle = begun["structuredContent"]["handle"].as_str().unwrap().to_owned();
    let there = scene.at(1);
    let named = json!({ "arguments": { "handle": handle } });
    let call = tokio::spawn(async move { modern(there, "one__ask", named, json!({})).await });
    let mut cursor = begun["structuredContent"]["last_event_id"].clone();
    let question = loop {
        let arguments = json!({ "handle": handle, "timeout_ms": 20_000, "last_event_id": cursor });
        let told = modern(scene.at(1), "await_activity", json!({ "arguments": arguments }), json!({})).await;
        let told = &told["structuredContent"];
        cursor = told["last_event_id"].clone();
        let events = told["events"].as_array().unwrap_or_else(|| panic!("{told}"));
        if let Some(event) = events.iter().find(|event| event["type"] == "elicitation_request") {
            break event["data"]["id"].clone();
        }
    };
    let arguments = json!({ "handle": handle });
    for node in [0, 1] {
        let open = modern(scene.at(node), "get_elicitations", json!({ "arguments": arguments }), json!({})).await;
        assert_eq!(open["structuredContent"]["requests"][0]["id"], question);
    }
    let answer = json!({ "handle": handle, "id": question, "action": "accept", "content": { "name": "Eve" } });
    let taken = modern(scene.at(1), "respond_to_elicitation", json!({ "arguments": answer }), json!({})).await;
    assert_eq!(taken["structuredContent"]["answered"], true, "{taken}");
    assert_eq!(call.await.unwrap()["content"][0]["text"], "accept Eve");
    let twice = modern(scene.at(0), "respond_to_elicitation", json!({ "arguments": answer }), json!({})).await;
    assert_eq!(twice["isError"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn calls_of_a_node_that_dies_end_once_and_honestly() {
    let mut scene = Scene::new(&[("BOWLINE_LEASE__TTL", "1s")]).await;
    let client = Client::open(scene.at(0), "/mcp/one", json!({})).await;
    // One that has a stream, held by the other node, and one that is still undecided.
    let mut call = client.call(scene.at(1), "count", json!({ "id": "a", "ms": 600_000 })).await;
    while scene.executions() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scene.nodes.remove(0).kill().await;
    let left = &scene.nodes[0];
    let end = loop {
        match call.next().await {
            Some(message) => break message,
            None => {
                let after = call.last_id.clone().expect("a stream that can be taken up");
                let response = client.get(left.address, Some(&after)).await;
                assert!(response.status().is_success() || response.status() == 503, "{}", response.status());
                call = Stream { last_id: Some(after), ..Stream::of(response) };
            }
        }
    };
    assert_eq!(end["result"]["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{end}");
    // The session goes on, and nothing ran twice.
    let echo = client.call(left.address, "echo", json!({ "text": "on" })).await.end().await;
    assert_eq!(text(&echo), "on");
    assert_eq!(scene.executions(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_node_that_wakes_up_leaves_a_session_to_its_new_node() {
    use rustix::process::{Pid, Signal, kill_process};
    let scene = Scene::new(&[("BOWLINE_LEASE__TTL", "1s")]).await;
    let client = Client::open(scene.at(0), "/mcp", json!({})).await;
    let before = client.tool(scene.at(0), "await_activity", json!({ "timeout_ms": 100 })).await;
    let frozen = Pid::from_raw(scene.nodes[0].pid() as i32).unwrap();
    kill_process(frozen, Signal::STOP).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
        let asked = client.post(scene.at(1), &request);
        if let Ok(response) = tokio::time::timeout(Duration::from_secs(3), asked).await
            && Stream::of(response).end().await["result"].is_object()
        {
            break;
        }
        assert!(Instant::now() < until, "the session was never taken over");
    }
    kill_process(frozen, Signal::CONT).unwrap();
    for node in [0, 1, 0] {
        let echo = client.call(
            scene.at(node),
            "execute_tool",
            json!({ "server": "one", "tool": "echo", "args": { "text": "hi" } }),
        );
        assert_eq!(text(&echo.await.end().await), "hi");
    }
    // The cursor still means the same, on both.
    let cursor = before["last_event_id"].clone();
    let arguments = json!({ "timeout_ms": 100, "last_event_id": cursor });
    let here = client.tool(scene.at(0), "await_activity", arguments.clone()).await;
    let there = client.tool(scene.at(1), "await_activity", arguments).await;
    assert!(here["events"].is_array(), "{here}");
    assert_eq!(here["events"], there["events"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn servers_that_are_added_on_one_node_are_there_on_all() {
    let scene = Scene::new(&[]).await;
    let client = Client::open(scene.at(0), "/mcp", json!({})).await;
    let other = Client::open(scene.at(1), "/mcp", json!({})).await;
    let entry = json!({ "name": "two", "url": scene.backend_url });
    let added = client.tool(scene.at(0), "add_server", entry.clone()).await;
    assert!(added["error"].is_null(), "{added}");
    let echo = json!({ "server": "two", "tool": "echo", "args": { "text": "there" } });
    assert_eq!(text(&other.call(scene.at(1), "execute_tool", echo).await.end().await), "there");
    let twice = other.call(scene.at(1), "add_server", entry).await.end().await;
    assert_eq!(twice["result"]["isError"], true, "{twice}");
    // Each node shows the backends of both.
    let until = Instant::now() + PATIENCE;
    loop {
        let (status, body) = support::get(scene.at(1), "/api/admin/backends", &[]).await;
        assert_eq!(status, 200);
        let shown: Value = serde_json::from_str(body.trim()).unwrap_or_default();
        let backends = shown["backends"].as_array().cloned().unwrap_or_default();
        let nodes: std::collections::BTreeSet<_> = backends.iter().map(|one| one["node"].to_string()).collect();
        let connected = backends.iter().filter(|one| one["status"] == "connected").count();
        // Of each node's two, one is in its file.
        assert!(backends.iter().all(|one| one["configured"] == (one["name"] == "one")), "{shown}");
        if (backends.len(), nodes.len(), connected) == (4, 2, 4) {
            break;
        }
        assert!(Instant::now() < until, "not all are shown: {shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let removed = other.tool(scene.at(1), "remove_server", json!({ "name": "two" })).await;
    assert!(removed["error"].is_null(), "{removed}");
    loop {
        let listed = client.tool(scene.at(0), "list_servers", json!({})).await;
        if listed["servers"].as_array().is_some_and(|servers| servers.len() == 1) {
            break;
        }
        assert!(Instant::now() < until, "it is still there: {listed}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_server_of_the_file_that_is_removed_on_one_node_is_gone_on_all() {
    let scene = Scene::new(&[]).await;
    let clients =
        [Client::open(scene.at(0), "/mcp", json!({})).await, Client::open(scene.at(1), "/mcp", json!({})).await];
    let shows = async |node: usize, count: usize| {
        let until = Instant::now() + PATIENCE;
        loop {
            let listed = clients[node].tool(scene.at(node), "list_servers", json!({})).await;
            if listed["servers"].as_array().is_some_and(|servers| servers.len() == count) {
                return;
            }
            assert!(Instant::now() < until, "node {node} has not {count}: {listed}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // The session is on the other node, to which the request is carried.
    let removed = clients[0].tool(scene.at(1), "remove_server", json!({ "name": "one" })).await;
    assert_eq!(removed["removed"], true, "{removed}");
    for node in [0, 1] {
        shows(node, 0).await;
        let (mut told, mut cursor) = (Vec::new(), Value::Null);
        while !told.iter().any(|(kind, _)| kind == "server_removed") {
            let arguments = json!({ "timeout_ms": 20_000, "last_event_id": cursor });
            let seen = clients[node].tool(scene.at(node), "await_activity", arguments).await;
            assert_ne!(seen["triggered_by"], "timeout", "{told:?}");
            cursor = seen["last_event_id"].clone();
            let events = seen["events"].as_array().unwrap();
            let kinds = events.iter().map(|event| (event["type"].as_str().unwrap().to_owned(), event["data"].clone()));
            told.extend(kinds.filter(|(kind, _)| kind.starts_with("server_")));
        }
        let gone: Vec<_> = told.iter().filter(|(kind, _)| kind == "server_disconnected").collect();
        assert_eq!((gone.len(), &gone[0].1["wasIntentional"]), (1, &json!(true)), "node {node}: {told:?}");
    }
    let api = support::api::Api::new(scene.at(1));
    let (_, shown) = api.get("/api/admin/backends").await;
    assert_eq!(shown["removed"][0]["name"], "one", "{shown}");
    let (status, restored) = api.post("/api/admin/backends/one/restore", &json!({})).await;
    assert_eq!((status, &restored["status"]), (200, &json!("connected")), "{restored}");
    for node in [0, 1] {
        shows(node, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_task_is_seen_and_cancelled_from_everywhere() {
    let mut scene = Scene::new(&[("BOWLINE_LEASE__TTL", "1s")]).await;
    let begun = modern(scene.at(0), "await_activity", json!({ "arguments": { "timeout_ms": 100 } }), json!({})).await;
    let handle = begun["structuredContent"]["handle"].clone();
    let mut tasks = Vec::new();
    for id in ["a", "b"] {
        let args = json!({ "id": id, "ms": 600_000 });
        let arguments = json!({ "server": "one", "tool": "count", "args": args, "as_task": true, "handle": handle });
        let made = modern(scene.at(0), "execute_tool", json!({ "arguments": arguments }), json!({})).await;
        tasks.push(made["structuredContent"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned());
    }
    for node in [0, 1] {
        let arguments = json!({ "arguments": { "task_id": tasks[0], "handle": handle } });
        let seen = modern(scene.at(node), "get_task", arguments, json!({})).await;
        assert_eq!(seen["structuredContent"]["status"], "working", "{seen}");
    }
    let arguments = json!({ "task_id": tasks[0], "handle": handle });
    let cancelled = modern(scene.at(1), "cancel_task", json!({ "arguments": arguments }), json!({})).await;
    assert_eq!(cancelled["structuredContent"]["cancelled"], true, "{cancelled}");
    while scene.executions() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The other one's node dies; nobody knows whether it ran, and that is what is said of it.
    scene.nodes.remove(0).kill().await;
    let until = Instant::now() + PATIENCE;
    loop {
        let arguments = json!({ "arguments": { "task_id": tasks[1], "handle": handle } });
        let seen = modern(scene.at(0), "get_task", arguments, json!({})).await;
        if seen["structuredContent"]["status"] == "failed" {
            break;
        }
        // Until the death is known, the question itself may be cut on its way there.
        let cut = seen["structuredContent"]["code"] == "OUTCOME_UNKNOWN";
        assert!(cut || seen["structuredContent"]["status"] == "working", "{seen}");
        assert!(Instant::now() < until, "it never ends");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let arguments = json!({ "arguments": { "task_id": tasks[1], "handle": handle } });
    let result = modern(scene.at(0), "get_task_result", arguments, json!({})).await;
    assert_eq!(result["structuredContent"]["code"], "OUTCOME_UNKNOWN", "{result}");
    assert_eq!(scene.executions(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_request_whose_node_does_not_answer_is_answered_within_the_limit() {
    // The lease is so long that nobody takes the frozen node for dead meanwhile.
    let scene = Scene::new(&[("BOWLINE_LEASE__TTL", "60s"), ("BOWLINE_LEASE__ANSWER_TIMEOUT", "2s")]).await;
    let client = Client::open(scene.at(0), "/mcp", json!({})).await;
    scene.nodes[0].freeze();
    let asked = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {} });
    let answer = client.post(scene.at(1), &asked).await.text().await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["id"], 3, "{answer}");
    scene.nodes[0].wake();
    // It is reached again, by the same way.
    let until = Instant::now() + PATIENCE;
    loop {
        // The answer may be one message or a stream with one.
        let answer = client.post(scene.at(1), &asked).await.text().await.unwrap();
        if answer.contains(r#""tools":["#) {
            break;
        }
        assert!(Instant::now() < until, "the node that woke is not asked again: {answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
