//! The program as a script sees it: what it prints, when it comes back, and its exit code.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Value, json};

use crate::support;

/// Runs the program with these arguments and this input until it ends.
async fn bowline(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("BOWLINE_TOKEN").current_dir(std::env::temp_dir());
    let input = input.to_owned();
    let run = move || {
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Serves on a free port; returns `host:port`.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn say(socket: &mut WebSocket, frame: Value) {
    socket.send(Message::text(frame.to_string())).await.unwrap();
}

/// The next frame of the client that is no ack.
async fn hear(socket: &mut WebSocket) -> Value {
    loop {
        let Message::Text(text) = socket.recv().await.unwrap().unwrap() else {
            continue;
        };
        let frame: Value = serde_json::from_str(text.as_str()).unwrap();
        if frame["event"] != "user.ack" {
            return frame;
        }
    }
}

fn event(seq: u64, name: &str, content: &str, message_id: &Value) -> Value {
    json!({ "event": name, "session_id": "sess_1", "seq": seq, "event_id": format!("e-{seq}"), "content": content,
        "metadata": { "message_id": message_id } })
}

/// A server that drops the first connection without a word, in the middle of an answer.
async fn cut_once(mut socket: WebSocket, connections: Arc<AtomicUsize>) {
    let first = connections.fetch_add(1, Ordering::SeqCst) == 0;
    say(&mut socket, json!({ "event": "system.connected", "content": { "heartbeat_interval_ms": 30_000 } })).await;
    let asked = hear(&mut socket).await;
    if first {
        assert_eq!(asked["event"], "user.create_session");
        let metadata = json!({ "epoch": "e", "last_seq": 0 });
        say(
            &mut socket,
            json!({ "event": "agent.session_created", "session_id": "sess_1", "content": {}, "metadata": metadata }),
        )
        .await;
        let message = hear(&mut socket).await;
        assert_eq!(message["content"], "hello");
        say(&mut socket, event(1, "user.message", "hello", &message["message_id"])).await;
        say(&mut socket, event(2, "agent.partial_answer", "wor", &Value::Null)).await;
        return;
    }
    assert_eq!(asked["event"], "user.reconnect");
    assert_eq!(asked["content"]["last_event_id"], "e-2");
    let metadata = json!({ "reconnected": true, "epoch": "e", "last_seq": 4, "session_state": "idle", "resume": { "verdict": "replay", "from_seq": 3 } });
    say(
        &mut socket,
        json!({ "event": "agent.session_created", "session_id": "sess_1", "content": "", "metadata": metadata }),
    )
    .await;
    say(&mut socket, event(3, "agent.partial_answer", "ld", &Value::Null)).await;
    say(&mut socket, event(4, "agent.final_answer", "world", &Value::Null)).await;
    say(
        &mut socket,
        json!({ "event": "system.notice", "content": "", "metadata": { "action": "replay", "replayed": 2 } }),
    )
    .await;
    while socket.recv().await.is_some_and(|frame| frame.is_ok()) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_gets_its_whole_answer_once_although_the_connection_broke() {
    let connections = Arc::new(AtomicUsize::new(0));
    let endpoint = |upgrade: WebSocketUpgrade, State(count): State<Arc<AtomicUsize>>| async move {
        upgrade.on_upgrade(move |socket| cut_once(socket, count))
    };
    let address = serve(Router::new().route("/ws", get(endpoint)).with_state(connections.clone())).await;
    let output = bowline(&["chat", &format!("ws://{address}")], "hello\n").await;
    assert_eq!(text(&output.stdout), "world\n", "{}", text(&output.stderr));
    assert!(output.status.success());
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    assert_eq!(text(&output.stderr).lines().count(), 1, "the break is told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_says_what_to_do_when_it_is_not_let_in() {
    let closed = serve(Router::new().route("/ws", get(|| async { StatusCode::UNAUTHORIZED }))).await;
    let output = bowline(&["chat", &closed], "hello\n").await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--token"), "{}", text(&output.stderr));
    let output = bowline(&["chat", "ftp://chat.example"], "").await;
    assert!(text(&output.stderr).starts_with("error: `ftp://chat.example` must begin with ws://"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_follows_across_a_break_and_ends_with_the_session() {
    #[derive(serde::Deserialize)]
    struct From {
        from: Option<String>,
    }
    let sse = |body: String| ([(header::CONTENT_TYPE, "text/event-stream")], body);
    let line = |seq: u64| {
        format!("id: e-{seq}\ndata: {{\"event\":\"agent.thinking\",\"seq\":{seq},\"content\":\"t{seq}\"}}\n\n")
    };
    let events = move |Query(query): Query<From>| async move {
        match query.from.as_deref() {
            None => sse(line(1) + &line(2) + "id: e-3\ndata: {\"half").into_response(),
            Some("e-2") => sse(line(3) + "event: end\ndata: {}\n\n").into_response(),
            Some(_) => StatusCode::BAD_REQUEST.into_response(),
        }
    };
    let address = serve(Router::new().route("/api/admin/sessions/sess_1/events", get(events))).await;
    let output = bowline(&["tail", "sess_1", "--url", &address, "--json"], "").await;
    let seqs: Vec<u64> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, [1, 2, 3], "{}", text(&output.stderr));
    assert!(output.status.success());
    let output = bowline(&["tail", "sess_2", "--url", &address], "").await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("there is no session or task `sess_2`"));
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_the_token_and_reads_the_answer() {
    let node = |headers: HeaderMap| async move {
        match headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) {
            Some("Bearer sesame") => axum::Json(json!({ "version": "9.9.9" })).into_response(),
            _ => StatusCode::UNAUTHORIZED.into_response(),
        }
    };
    let sessions = || async { axum::Json(json!({ "sessions": [], "total": 0 })) };
    let backends = || async { axum::Json(json!({ "servers": [] })) };
    let router = Router::new()
        .route("/api/admin/node", get(node))
        .route("/api/admin/sessions", get(sessions))
        .route("/api/admin/backends", get(backends));
    let address = serve(router).await;
    let output = bowline(&["status", "--url", &address, "--token", "sesame"], "").await;
    assert!(text(&output.stdout).starts_with("bowline 9.9.9"), "{}", text(&output.stderr));
    let output = bowline(&["status", "--url", &address, "--token", "sesame", "--json"], "").await;
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["node"]["version"], "9.9.9");
    let output = bowline(&["status", "--url", &address], "").await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("BOWLINE_TOKEN"));
    let output = bowline(&["status", "--url", "127.0.0.1:1"], "").await;
    assert!(text(&output.stderr).contains("Is the server running?"));
}

#[tokio::test(flavor = "multi_thread")]
async fn config_is_printed_and_checked() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[auth]\nmode = \"tokens\"\ntokens = [{ token = \"sesame\", principal = \"ali\" }]\n")
        .unwrap();
    let path = file.path().to_str().unwrap();
    let output = bowline(&["config", "print", "--config", path], "").await;
    let printed = text(&output.stdout);
    assert!(
        printed.contains("session.ownership") && printed.contains(":2") && !printed.contains("sesame"),
        "{printed}"
    );
    assert!(bowline(&["config", "check", "--config", path], "").await.status.success());
    std::fs::write(file.path(), "lisen = 1").unwrap();
    let output = bowline(&["config", "check", "--config", path], "").await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("did you mean `listen`?"), "{}", text(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_the_settings_reads_the_servers_that_they_name() {
    let dir = tempfile::tempdir().unwrap();
    let (config, servers) = (dir.path().join("bowline.toml"), dir.path().join("mcp.json"));
    std::fs::write(&config, format!("[hub]\nservers_file = {:?}\n", servers.to_str().unwrap())).unwrap();
    let check = ["config", "check", "--config", config.to_str().unwrap()];
    for (content, complaint) in [
        (None, "cannot be read"),
        (Some("{"), "is not JSON"),
        (Some(r#"{"mcpServers":{"good":{"command":"true"},"bad":{"url":"ftp://x"}}}"#), "`bad`: "),
    ] {
        if let Some(content) = content {
            std::fs::write(&servers, content).unwrap();
        }
        let output = bowline(&check, "").await;
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("mcp.json") && told.contains(complaint) && !told.contains("`good`"), "{told}");
    }
    std::fs::write(&servers, r#"{"mcpServers":{"good":{"command":"true"}}}"#).unwrap();
    assert!(bowline(&check, "").await.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn bench_counts_what_its_clients_saw_also_when_their_wires_are_cut() {
    let server = support::Server::start().await;
    let url = format!("ws://{}/ws", server.address);
    let load = ["--clients", "3", "--messages", "2", "--tokens", "40", "--pause", "1", "--cut", "--json"];
    let output = bowline(&[&["bench", url.as_str()], &load[..]].concat(), "").await;
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(output.status.success(), "{report}");
    // Each answer is a message, its tokens, and the whole text.
    assert_eq!((&report["answers"], &report["events"]), (&json!(6), &json!(6 * 42)));
    assert_eq!((&report["reconnects"], &report["lost"], &report["twice"]), (&json!(6), &json!(0), &json!(0)));
    assert!(report["caught_up"]["p99_ms"].is_number());
    let output = bowline(&["bench", url.as_str(), "--clients", "1", "--messages", "1", "--tokens", "5"], "").await;
    assert!(text(&output.stdout).contains("lost, twice   0, 0"), "{}", text(&output.stdout));
    let nobody = bowline(&["bench", "ws://127.0.0.1:1/ws", "--clients", "1"], "").await;
    assert_eq!(nobody.status.code(), Some(1));
    assert_eq!(text(&nobody.stdout), "", "no figures of nothing");
    assert!(text(&nobody.stderr).contains("cannot reach ws://127.0.0.1:1/ws"), "{}", text(&nobody.stderr));
    assert!(text(&nobody.stderr).contains("`bowline serve`"), "{}", text(&nobody.stderr));
}

#[tokio::test]
async fn the_start_says_in_one_line_what_is_open_to_whom() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let token = ("BOWLINE_AUTH__ADMIN_TOKEN", "the operator's own secret");
    let jwt = ("BOWLINE_AUTH__JWT_SECRET", "a secret that is long enough for HS256!");
    for (listen, variables, said) in [
        ("127.0.0.1:0", vec![], vec!["this machine", "all sessions", "the admin API: this machine"]),
        ("0.0.0.0:0", vec![], vec!["EVERY CLIENT", "resume token", "the admin API: closed", "auth.admin_token"]),
        (
            "0.0.0.0:0",
            vec![token],
            vec!["EVERY CLIENT", "resume token", "the admin API: holders of `auth.admin_token`"],
        ),
        ("0.0.0.0:0", vec![("BOWLINE_AUTH__MODE", "jwt"), jwt], vec!["JWT", "the admin API", "`admin`"]),
    ] {
        let dir = tempfile::TempDir::new().unwrap();
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_bowline"));
        command.args(["serve", "--insecure-no-auth", "--store", "memory:", "--listen", listen]);
        command.envs(variables.iter().copied()).env_remove("BOWLINE_TEST_SEED").current_dir(dir.path());
        let mut server = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let access = loop {
            let line = tokio::time::timeout(support::PATIENCE, lines.next_line()).await;
            let line = line.unwrap().unwrap().unwrap();
            if let Some((_, access)) = line.split_once("  access  ") {
                break access.to_owned();
            }
        };
        for words in said {
            assert!(access.contains(words), "{listen}: `{words}` is not in: {access}");
        }
        assert!(!access.contains("secret"), "{access}");
        server.kill().await.unwrap();
    }
}
