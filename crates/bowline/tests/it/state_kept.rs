//! What a signed state brings back besides the conversation: what the agent kept, the tools that were used, and which
//! secrets are missing.

use std::path::Path;

use bowline::config::{AgentConfig, AgentKind, Config, Format, HttpConfig, WireConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::state::{config, export, restore, signed};
use crate::support::upstream::Program;
use crate::support::{Client, PATIENCE, Server, is_terminal};

/// A server whose agent is a program in Python that speaks in events.
fn served_by(program: &Program) -> Config {
    let mut config = config();
    let http = HttpConfig { url: program.url.clone(), format: Some(Format::Events), wire: WireConfig::default() };
    config.agents.insert("mine".into(), AgentConfig { kind: AgentKind::Http(http) });
    config.default_agent = "mine".into();
    config
}

/// What the agent answers, read as JSON.
async fn told(client: &mut Client, question: &str) -> Value {
    let frames = client.ask(question).await;
    serde_json::from_str(frames.last().unwrap()["content"].as_str().unwrap()).unwrap()
}

async fn state_of(client: &mut Client) -> Value {
    signed(&export(client, Value::Null).await)
}

fn warnings(greeting: &Value) -> Vec<String> {
    serde_json::from_value(greeting["metadata"]["warnings"].clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Python"]
async fn what_an_agent_keeps_is_handed_to_its_next_run_also_after_a_restore() {
    let program = Program::python("events.py").await;
    let server = Server::with(served_by(&program)).await;
    let (mut client, _) = server.session().await;
    assert_eq!(told(&mut client, "state").await, json!({}), "nothing is kept yet");
    let frames = client.ask("remember the milk").await;
    assert!(frames.iter().all(|frame| frame["event"] != "agent.state"), "it is kept, not logged: {frames:?}");
    let first = json!({ "remembered": "the milk", "runs": 1 });
    assert_eq!(told(&mut client, "state").await, first);
    client.ask("remember the bread").await;
    let kept = json!({ "remembered": "the bread", "runs": 2 });
    let exported = export(&mut client, Value::Null).await;
    assert_eq!(exported["metadata"]["session_state"]["agent_state"], kept);
    let state = signed(&exported);
    assert_eq!(state["state"]["agent_state"], kept);
    // The session lives: it goes on with what its agent has kept since.
    client.ask("remember the eggs").await;
    drop(client);
    let mut client = server.connect().await;
    let (greeting, _) = restore(&mut client, &state, Value::Null).await;
    assert_eq!(greeting["metadata"]["source"], "live");
    assert_eq!(told(&mut client, "state").await["remembered"], "the eggs");
    server.stop().await;
    // It is gone: the state says what was kept.
    let server = Server::with(served_by(&program)).await;
    let mut client = server.connect().await;
    let (greeting, _) = restore(&mut client, &state, Value::Null).await;
    assert_eq!((&greeting["metadata"]["source"], warnings(&greeting)), (&json!("snapshot"), vec![]));
    assert_eq!(told(&mut client, "state").await, kept);
    assert_eq!(state_of(&mut client).await["state"]["agent_state"], kept, "and the next state says it again");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Python"]
async fn a_state_that_is_too_large_fails_the_run_that_saves_it() {
    let program = Program::python("events.py").await;
    let mut config = served_by(&program);
    config.state.agent_state_bytes_max = 100;
    let server = Server::with(config).await;
    let (mut client, _) = server.session().await;
    client.ask("remember me").await;
    let frames = client.ask(&format!("remember {}", "x".repeat(100))).await;
    let last = frames.last().unwrap();
    assert_eq!(last["metadata"]["error_code"], "AGENT_FAILED");
    assert!(last["content"].as_str().unwrap().contains("more than 100 bytes"), "{last}");
    assert_eq!(told(&mut client, "state").await["remembered"], "me", "what was kept before is kept");
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("bowline_limits_hit_total{limit=\"state.agent_state_bytes_max\"} 1"), "{metrics}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Python"]
async fn secrets_that_a_state_left_out_are_named_and_absent_after_a_restore() {
    let program = Program::python("events.py").await;
    let server = Server::with(served_by(&program)).await;
    let mut client = server.connect().await;
    let config = json!({ "api_key": "k", "style": "short", "headers": { "authorization": "x", "accept": "*/*" } });
    client.send(json!({ "event": "user.create_session", "content": { "config": config } })).await;
    client.session = client.expect("agent.session_created").await["session_id"].as_str().unwrap().to_owned();
    assert_eq!(told(&mut client, "config").await, config);
    client.ask("remember sk-abcdefghij0123456789 for me").await;
    let state = state_of(&mut client).await;
    assert!(!state.to_string().contains("sk-abc"), "{state}");
    server.stop().await;

    let server = Server::with(served_by(&program)).await;
    let mut client = server.connect().await;
    let (greeting, _) = restore(&mut client, &state, Value::Null).await;
    let warnings = warnings(&greeting);
    for path in [
        "/metadata/agent_config/api_key",
        "/metadata/agent_config/headers/authorization",
        "/agent_state/remembered",
        "/memory_snapshot/2/content",
    ] {
        assert!(warnings.iter().any(|warning| warning.ends_with(path)), "{path}: {warnings:?}");
    }
    assert_eq!(warnings.len(), 4, "{warnings:?}");
    assert_eq!(told(&mut client, "config").await, json!({ "style": "short", "headers": { "accept": "*/*" } }));
    assert_eq!(told(&mut client, "state").await["remembered"], " for me");
    let recalled = told(&mut client, "recall").await.to_string();
    assert!(!recalled.contains("redacted"), "{recalled}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_state_names_the_tools_that_were_used_and_a_restore_says_which_servers_are_missing() {
    let dir = TempDir::new().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/it/support/fixture.mjs");
    let file = dir.path().join("mcp.json");
    let servers = json!({ "mcpServers": { "b": { "command": "node", "args": [fixture, "--stdio"] } } });
    std::fs::write(&file, servers.to_string()).unwrap();
    let with_tools = || {
        let mut config = config();
        config.hub.servers_file = Some(file.clone());
        config
    };
    let server = Server::with(with_tools()).await;
    server.hub.all()[0].settled(PATIENCE).await;
    let (mut client, _) = server.session().await;
    assert_eq!(state_of(&mut client).await["state"]["tool_states"], json!({}));
    let frames = client.ask("/tool b echo {\"text\": \"hello\"}").await;
    assert!(frames.last().unwrap()["content"].as_str().unwrap().contains("hello"), "{frames:?}");
    client.ask("/tool made_up echo {}").await;
    let state = state_of(&mut client).await;
    let used = &state["state"]["tool_states"];
    let echo = &used["b__echo"];
    assert_eq!((&echo["name"], &echo["server"], &echo["tool"]), (&json!("b__echo"), &json!("b"), &json!("echo")));
    assert!(echo["command"].as_str().is_some_and(|command| command.starts_with("node")), "{echo}");
    assert_eq!(used.as_object().unwrap().len(), 1, "what does not exist was not used: {used}");
    server.stop().await;

    for (config, expected) in [(with_tools(), 0), (config(), 1)] {
        let server = Server::with(config).await;
        let mut client = server.connect().await;
        let (greeting, _) = restore(&mut client, &state, Value::Null).await;
        let warnings = warnings(&greeting);
        assert_eq!(warnings.len(), expected, "{warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains("MCP server `b`")), "{warnings:?}");
        let again = state_of(&mut client).await;
        assert_eq!(again["state"]["tool_states"]["b__echo"]["server"], "b", "it is still known");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_session_that_its_owner_ends_leaves_no_question_behind() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.say("/confirm pay").await;
    let step = client.expect("agent.user_confirm").await["step_id"].clone();
    let state = state_of(&mut client).await;
    client.send(json!({ "event": "user.end_session" })).await;
    client.expect("agent.session_end").await;
    let mut client = server.connect().await;
    let (greeting, _) = restore(&mut client, &state, Value::Null).await;
    assert_eq!(greeting["metadata"]["session_state"], "idle", "an older state does not bring it back");
    assert_eq!(warnings(&greeting).len(), 1);
    client.send(json!({ "event": "user.response", "step_id": step, "content": { "confirmed": true } })).await;
    assert_eq!(client.refusal().await.0, "UNKNOWN_STEP");
    client.say("/confirm again").await;
    client.until(|frame| frame["event"] == "agent.user_confirm" || is_terminal(frame)).await;
    server.stop().await;
}
