//! The example program with an agent of its own, run as a program and talked to over a WebSocket.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::{Client, PATIENCE, is_terminal, streamed};

/// Where cargo has put the example; `cargo test --test …` alone does not build it.
fn example() -> PathBuf {
    let mut build = std::process::Command::new(env!("CARGO"));
    build.args(["build", "-p", "bowline", "--example", "own_agent", "--message-format", "json"]);
    let output = build.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "the example does not build");
    let lines =
        output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let mut built = lines.filter(|line| line["target"]["name"] == "own_agent");
    let path = built.find_map(|line| line["executable"].as_str().map(PathBuf::from));
    path.expect("cargo says where the example is")
}

async fn start(program: &Path, dir: &Path) -> (Child, std::net::SocketAddr) {
    let mut command = Command::new(program);
    command.current_dir(dir).env("BOWLINE_LISTEN", "127.0.0.1:0").env_remove("BOWLINE_TEST_SEED");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it says where it serves");
    let line = line.unwrap().expect("it serves before it ends");
    let address = line.strip_prefix("serving at http://").unwrap().trim_end_matches('/').parse().unwrap();
    (child, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_counts_asks_and_is_asked_again_after_a_crash() {
    let program = tokio::task::spawn_blocking(example).await.unwrap();
    let dir = TempDir::new().unwrap();
    let (mut child, address) = start(&program, dir.path()).await;
    let mut client = Client::dial(address, &[]).await.unwrap();
    let session = client.create().await;
    let frames = client.ask("3").await;
    assert_eq!(streamed(&frames), "1 2 3 ");
    assert_eq!(frames.last().unwrap()["content"], "1 2 3 ");

    client.say("12").await;
    let question = client.expect("agent.user_confirm").await;
    child.kill().await.unwrap();
    let (_child, address) = start(&program, dir.path()).await;
    let mut client = Client::dial(address, &[]).await.unwrap();
    client.resume(&session, json!({ "last_event_id": question["event_id"] })).await;
    let content = json!({ "confirmed": true });
    client.send(json!({ "event": "user.response", "session_id": session, "step_id": question["step_id"], "content": content })).await;
    let frames = client.until(is_terminal).await;
    assert_eq!(frames.last().unwrap()["content"], "1 2 3 4 5 6 7 8 9 10 11 12 ");
}

#[test]
fn the_example_is_short_enough_to_be_read() {
    let source = include_str!("../../examples/own_agent.rs");
    assert!(source.lines().count() < 80, "{} lines", source.lines().count());
}
