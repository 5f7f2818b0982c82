//! Agents of kind `openai`: against a real emulator of such servers, and against wires that break in every way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bowline::config::{AgentConfig, AgentKind, Config, OpenAiConfig, WireConfig};
use bowline::node::Own;
use bowline_api::{ToolCall, ToolOutcome, ToolSpec, Tools};
use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support;
use crate::support::process::Process;
use crate::support::upstream::{Act, Program, Scripted, answer, data, end, piece, sse, status, stop, text};
use crate::support::{Client, Server, config, streamed};

/// Of no shape that is known for a key: only whoever was given it can recognise it.
const KEY: &str = "correct horse battery";

fn openai(url: &str) -> OpenAiConfig {
    let wire = WireConfig { token: Some(Secret::new(KEY)), ..WireConfig::default() };
    OpenAiConfig { base_url: url.to_owned(), model: "m".into(), system: None, max_steps: 8, wire }
}

fn served_by(agent: OpenAiConfig) -> Config {
    let mut config = config();
    config.agents.insert("helper".into(), AgentConfig { kind: AgentKind::OpenAi(agent) });
    config.default_agent = "helper".into();
    config
}

async fn server(url: &str) -> Server {
    Server::with(served_by(openai(url))).await
}

fn named<'a>(frames: &'a [Value], event: &str) -> Vec<&'a Value> {
    frames.iter().filter(|frame| frame["event"] == event).collect()
}

/// The error that a run ended with: its code and its sentence.
fn error(frames: &[Value]) -> (String, String) {
    let last = frames.last().unwrap();
    assert_eq!(last["event"], "agent.error", "{last}");
    (last["metadata"]["error_code"].as_str().unwrap().to_owned(), last["content"].as_str().unwrap().to_owned())
}

/// One tool, which does what each test wants and remembers how often it was called.
struct Sky {
    outcome: ToolOutcome,
    /// Waits until it is cancelled.
    waits: bool,
    calls: Arc<Mutex<Vec<ToolCall>>>,
    cancelled: Arc<tokio::sync::Notify>,
}

impl Sky {
    fn new(outcome: ToolOutcome) -> Sky {
        Sky { outcome, waits: false, calls: Arc::default(), cancelled: Arc::default() }
    }
}

#[async_trait]
impl Tools for Sky {
    async fn list(&self, _owner: &Principal) -> Vec<ToolSpec> {
        vec![ToolSpec {
            name: "sky__weather".into(),
            server: "sky".into(),
            tool: "weather".into(),
            description: "The weather in a city".into(),
            input_schema: json!({ "type": "object", "properties": { "city": { "type": "string" } } }),
        }]
    }

    async fn call(&self, call: ToolCall, cancel: CancellationToken) -> ToolOutcome {
        self.calls.lock().unwrap().push(call);
        if self.waits {
            cancel.cancelled().await;
            self.cancelled.notify_one();
        }
        self.outcome.clone()
    }
}

async fn with_tools(agent: OpenAiConfig, sky: Sky) -> (Server, Arc<Mutex<Vec<ToolCall>>>) {
    let calls = sky.calls.clone();
    (Server::with_own(served_by(agent), Own { tools: Some(Arc::new(sky)), ..Own::default() }).await, calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn an_emulated_model_answers_thinks_remembers_and_is_counted() {
    let emulator = Program::node("openai.js").await;
    let mut agent = openai(&emulator.url);
    agent.system = Some("Be brief.".into());
    let server = Server::with(served_by(agent)).await;
    let (mut client, _) = server.session().await;

    let frames = client.ask("hello").await;
    let last = frames.last().unwrap();
    assert_eq!(last["content"], "Hello from the emulator.");
    assert_eq!(streamed(&frames), "Hello from the emulator.");
    assert_eq!(last["metadata"]["usage"]["total_tokens"], 9);
    assert_eq!((&last["metadata"]["model"], &last["metadata"]["finish_reason"]), (&json!("m"), &json!("stop")));

    let frames = client.ask("think about it").await;
    let thoughts = named(&frames, "agent.thinking");
    let thought: String = thoughts.iter().map(|frame| frame["content"].as_str().unwrap()).collect();
    assert_eq!(thought, "First this, then that.");
    let indexes: Vec<_> = thoughts.iter().map(|frame| frame["metadata"]["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, (0..thoughts.len() as u64).collect::<Vec<_>>());
    assert_eq!(frames.last().unwrap()["content"], "Thought through.");

    let frames = client.ask("recall").await;
    let expected = "system:Be brief.|user:hello|assistant:Hello from the emulator.|user:think about it|\
                    assistant:Thought through.|user:recall";
    assert_eq!(frames.last().unwrap()["content"], expected);

    let (code, why) = error(&client.ask("wrong model").await);
    assert_eq!(code, "AGENT_FAILED");
    assert!(why.contains("does not exist"), "{why}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_model_calls_a_tool_and_answers_with_what_it_said() {
    let emulator = Program::node("openai.js").await;
    let outcome = ToolOutcome::Success { text: "rain".into(), data: Some(json!({ "mm": 4 })) };
    let (server, calls) = with_tools(openai(&emulator.url), Sky::new(outcome)).await;
    let (mut client, session) = server.session().await;
    let frames = client.ask("weather please").await;

    let call = named(&frames, "agent.tool_call")[0];
    let result = named(&frames, "agent.tool_result")[0];
    assert_eq!(call["step_id"], result["step_id"]);
    assert_eq!((&call["metadata"]["tool"], &call["metadata"]["server"]), (&json!("weather"), &json!("sky")));
    assert_eq!(call["metadata"]["args"], json!({ "city": "Hamburg" }));
    assert_eq!((&result["metadata"]["status"], &result["metadata"]["data"]["mm"]), (&json!("success"), &json!(4)));
    assert_eq!(frames.last().unwrap()["content"], "Let me look.\n\nThe tool said: rain");
    assert_eq!(streamed(&frames), "Let me look.\n\nThe tool said: rain");

    let calls = calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 1);
    assert_eq!(
        (calls[0].session.as_str(), calls[0].step.as_str()),
        (session.as_str(), call["step_id"].as_str().unwrap())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_call_of_unknown_outcome_is_told_to_the_model_and_in_the_log() {
    let emulator = Program::node("openai.js").await;
    let outcome = ToolOutcome::Unknown { error: "the server went away".into() };
    let (server, calls) = with_tools(openai(&emulator.url), Sky::new(outcome)).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("weather please").await;
    assert_eq!(named(&frames, "agent.tool_result")[0]["metadata"]["status"], "unknown");
    let told = frames.last().unwrap()["content"].as_str().unwrap();
    assert!(told.contains("may or may not have run"), "{told}");
    assert_eq!(calls.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_too_large_for_an_event_is_cut_for_the_log_and_for_the_model() {
    let text = "rain ".repeat(400_000);
    let repeated = json!({ "content": [{ "type": "text", "text": text }] });
    let large = ToolOutcome::Success { text: text.clone(), data: Some(repeated) };
    let call = json!({ "choices": [{ "delta": { "tool_calls": [
        { "index": 0, "id": "a", "function": { "name": "sky__weather", "arguments": "{}" } },
    ] }, "finish_reason": "tool_calls" }] });
    let scripted = Scripted::start(vec![vec![sse(), data(&call), end()], answer("Much rain.")]).await;
    let mut config = served_by(openai(&scripted.url()));
    config.agents.extend(support::config().agents);
    let tools = Sky::new(large);
    let calls = tools.calls.clone();
    let server = Server::with_own(config, Own { tools: Some(Arc::new(tools)), ..Own::default() }).await;

    for agent in ["helper", "demo"] {
        let mut client = server.connect().await;
        client.create_with(agent).await;
        let frames = client.ask("/tool sky weather {}").await;
        let results = named(&frames, "agent.tool_result");
        assert_eq!(
            (results.len(), frames.last().unwrap()["event"].as_str()),
            (1, Some("agent.final_answer")),
            "{agent}"
        );
        let facts = &results[0]["metadata"];
        assert_eq!((&facts["status"], &facts["truncated"]), (&json!("success"), &json!(true)), "{agent}: {facts}");
        assert!(facts["bytes"].as_u64().unwrap() >= text.len() as u64 && facts.get("data").is_none(), "{facts}");
        let told = results[0]["content"].as_str().unwrap();
        assert!(told.starts_with("rain rain ") && told.len() > 1_000_000, "{agent}: {}", told.len());
        if agent == "helper" {
            assert_eq!(scripted.requests()[1].body["messages"][2]["content"], told);
        }
    }
    assert_eq!(calls.lock().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_model_that_never_stops_calling_tools_is_stopped() {
    let emulator = Program::node("openai.js").await;
    let outcome = ToolOutcome::Success { text: "for ever".into(), data: None };
    let (server, calls) = with_tools(OpenAiConfig { max_steps: 3, ..openai(&emulator.url) }, Sky::new(outcome)).await;
    let (mut client, _) = server.session().await;
    let (code, why) = error(&client.ask("loop").await);
    assert_eq!(code, "AGENT_FAILED");
    assert!(why.contains("3 steps"), "{why}");
    assert_eq!(calls.lock().unwrap().len(), 2, "the last step calls nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_is_made_up_or_called_with_garbage_fails_and_the_model_goes_on() {
    let calls = json!({ "choices": [{ "delta": { "tool_calls": [
        { "index": 0, "id": "a", "function": { "name": "made_up", "arguments": "{}" } },
        { "index": 1, "id": "b", "function": { "name": "sky__weather", "arguments": "{\"city\":" } },
    ] }, "finish_reason": "tool_calls" }] });
    let scripted = Scripted::start(vec![vec![sse(), data(&calls), end()], answer("I was wrong.")]).await;
    let (server, called) = with_tools(openai(&scripted.url()), Sky::new(ToolOutcome::failed("x"))).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("go").await;
    let results = named(&frames, "agent.tool_result");
    assert_eq!(results.len(), 2);
    assert!(results.iter().all(|result| result["metadata"]["status"] == "failed"), "{results:?}");
    assert_eq!(frames.last().unwrap()["content"], "I was wrong.");
    assert!(called.lock().unwrap().is_empty());
    let messages = scripted.requests()[1].body["messages"].clone();
    assert_eq!(messages[1]["tool_calls"][1]["function"]["arguments"], "{}");
    assert_eq!((&messages[2]["tool_call_id"], &messages[3]["tool_call_id"]), (&json!("a"), &json!("b")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_cancel_reaches_a_tool_that_is_being_called() {
    let emulator = Program::node("openai.js").await;
    let sky = Sky { waits: true, ..Sky::new(ToolOutcome::failed("cancelled")) };
    let cancelled = sky.cancelled.clone();
    let (server, _) = with_tools(openai(&emulator.url), sky).await;
    let (mut client, session) = server.session().await;
    client.say("weather please").await;
    client.expect("agent.tool_call").await;
    client.send(json!({ "event": "user.cancel", "session_id": session })).await;
    client.expect("agent.cancelled").await;
    tokio::time::timeout(support::PATIENCE, cancelled.notified()).await.expect("the tool is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn troubles_that_pass_are_sat_out_before_the_first_token() {
    let busy = status("429 Too Many Requests", "retry-after: 0\r\n", "{}");
    let broken = status("500 Internal Server Error", "", "oops");
    let cut_early = vec![sse(), Act::Reset];
    let ended_early = vec![sse(), data(&json!({ "choices": [{ "delta": { "role": "assistant" } }] })), end()];
    let scripted = Scripted::start(vec![busy, broken, cut_early, ended_early, answer("At last.")]).await;
    let mut agent = openai(&scripted.url());
    agent.wire.retries = 4;
    let server = Server::with(served_by(agent)).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("hello").await;
    assert_eq!(frames.last().unwrap()["content"], "At last.");
    assert_eq!(streamed(&frames), "At last.", "nothing of the failed tries is seen");
    let requests = scripted.requests();
    assert_eq!(requests.len(), 5);
    assert!(requests[0].head.to_lowercase().contains(&format!("authorization: bearer {KEY}")), "{}", requests[0].head);
    assert_eq!(requests[0].body["stream_options"]["include_usage"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_end_and_what_does_not_pass_is_not_retried() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut agent = openai(&format!("http://{nobody}/v1"));
    agent.wire.retries = 1;
    let server = Server::with(served_by(agent)).await;
    let (mut client, _) = server.session().await;
    let (code, why) = error(&client.ask("hello").await);
    assert_eq!(code, "AGENT_UNREACHABLE");
    assert!(!why.contains("127.0.0.1"), "an address is the operator's business: {why}");

    let refusal = json!({ "error": { "message": format!("Incorrect API key provided: {KEY}.") } }).to_string();
    let scripted = Scripted::start(vec![status("401 Unauthorized", "", &refusal)]).await;
    let server = self::server(&scripted.url()).await;
    let (mut client, _) = server.session().await;
    let (code, why) = error(&client.ask("hello").await);
    assert_eq!(code, "AGENT_FAILED");
    assert!(why.contains("Incorrect API key") && !why.contains(KEY), "{why}");
    assert_eq!(scripted.requests().len(), 1);
}

/// After the first token nothing is asked again, and a break in any form ends the run as what it is.
async fn breaks_off(rest: Vec<Act>, code: &str) {
    let mut script = vec![sse(), text("Half an "), text("answer")];
    script.extend(rest);
    let scripted = Scripted::start(vec![script, answer("from the start.")]).await;
    let mut agent = openai(&scripted.url());
    agent.wire.timeout = Duration::from_secs(2);
    let server = Server::with(served_by(agent)).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("hello").await;
    assert_eq!(error(&frames).0, code);
    assert_eq!(frames.last().unwrap()["metadata"]["recovery_action"], "retry");
    assert_eq!(streamed(&frames), "Half an answer", "what was said stays said");
    assert_eq!(scripted.requests().len(), 1, "it was not asked again");
    // The half is in the conversation, and the retry is a message like any other.
    client.ask("go on").await;
    let messages = scripted.requests()[1].body["messages"].clone();
    assert_eq!(messages[1], json!({ "role": "assistant", "content": "Half an answer" }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wire_cut_in_the_middle_of_an_answer_is_unreachable() {
    breaks_off(vec![Act::Reset], "AGENT_UNREACHABLE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_end_without_a_reason_is_unreachable_too() {
    breaks_off(vec![end()], "AGENT_UNREACHABLE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_in_the_middle_of_an_answer_is_unreachable() {
    breaks_off(vec![Act::Hold], "AGENT_UNREACHABLE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_in_the_middle_of_an_answer_is_a_failure() {
    breaks_off(vec![piece("data: <html>\n\n"), stop(), end()], "AGENT_FAILED").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_in_the_middle_of_an_answer_is_a_failure() {
    breaks_off(vec![data(&json!({ "error": { "message": "overloaded" } })), end()], "AGENT_FAILED").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_end_is_cut_at_its_limit() {
    let words: Vec<Act> = (0..100).map(|_| text(&"x".repeat(1000))).collect();
    let scripted = Scripted::start(vec![[vec![sse()], words, vec![stop(), end()]].concat()]).await;
    let mut agent = openai(&scripted.url());
    agent.wire.answer_bytes_max = 50_000;
    let server = Server::with(served_by(agent)).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("hello").await;
    assert_eq!(error(&frames).0, "AGENT_FAILED");
    assert_eq!(streamed(&frames).len(), 50_000);
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("limits_hit_total{limit=\"agents.answer_bytes_max\"} 1"), "{metrics}");

    let endless = Scripted::start(vec![vec![sse(), piece(&format!("data: {}", "x".repeat(300_000))), Act::Hold]]).await;
    let mut agent = openai(&endless.url());
    agent.wire.answer_bytes_max = 50_000;
    let server = Server::with(served_by(agent)).await;
    let (mut client, _) = server.session().await;
    assert_eq!(error(&client.ask("hello").await).0, "AGENT_FAILED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_stream_is_understood() {
    let whole = json!({ "model": "m", "choices": [{ "message": { "role": "assistant", "content": "All at once." }, "finish_reason": "stop" }] });
    let scripted =
        Scripted::start(vec![status("200 OK", "content-type: application/json\r\n", &whole.to_string())]).await;
    let server = server(&scripted.url()).await;
    let (mut client, _) = server.session().await;
    assert_eq!(client.ask("hello").await.last().unwrap()["content"], "All at once.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_closes_the_upstream_at_once() {
    let mut scripted = Scripted::start(vec![vec![sse(), text("Once "), Act::Hold]]).await;
    let server = server(&scripted.url()).await;
    let (mut client, session) = server.session().await;
    client.say("hello").await;
    client.expect("agent.partial_answer").await;
    let asked = std::time::Instant::now();
    client.send(json!({ "event": "user.cancel", "session_id": session })).await;
    // Nothing else would close it so soon: the upstream may be silent for a minute.
    scripted.closed(1).await;
    println!("closed after {:?}", asked.elapsed());
    let cancelled = client.expect("agent.cancelled").await;
    assert!(cancelled["seq"].is_u64());
    assert_eq!(scripted.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_while_the_model_has_not_answered_yet_closes_the_upstream_too() {
    let mut scripted = Scripted::start(vec![vec![Act::Hold]]).await;
    let server = server(&scripted.url()).await;
    let (mut client, session) = server.session().await;
    client.say("hello").await;
    while scripted.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.send(json!({ "event": "user.cancel", "session_id": session })).await;
    client.expect("agent.cancelled").await;
    scripted.closed(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_tells_its_run_lost_and_does_not_ask_again() {
    let dir = TempDir::new().unwrap();
    let scripted =
        Scripted::start(vec![vec![sse(), text("Half an "), text("answer"), Act::Hold], answer("Whole.")]).await;
    let env = [
        ("BOWLINE_DEFAULT_AGENT", "helper".to_owned()),
        ("BOWLINE_AGENTS__HELPER__KIND", "openai".to_owned()),
        ("BOWLINE_AGENTS__HELPER__BASE_URL", scripted.url()),
        ("BOWLINE_AGENTS__HELPER__MODEL", "m".to_owned()),
        ("BOWLINE_AGENTS__HELPER__API_KEY_ENV", "HELPER_KEY".to_owned()),
        ("HELPER_KEY", KEY.to_owned()),
    ];
    let process = Process::start(&dir.path().join("data"), &env).await;
    let mut client = Client::dial(process.address, &[]).await.unwrap();
    let session = client.create().await;
    client.say("hello").await;
    let frames = client.until(|frame| frame["content"] == "answer").await;
    assert_eq!(streamed(&frames), "Half an answer");
    drop(client);
    let process = process.kill_and_restart().await;
    let mut client = Client::dial(process.address, &[]).await.unwrap();
    let (_, frames) = client.resume(&session, json!({ "last_seq": 0 })).await;
    assert_eq!(error(&frames).0, "AGENT_LOST");
    assert_eq!(scripted.requests().len(), 1, "a restart asks nobody again");
    let frames = client.ask("go on").await;
    assert_eq!(frames.last().unwrap()["content"], "Whole.");
    assert_eq!(scripted.requests()[1].body["messages"][1]["content"], "Half an answer");
    process.kill().await;
}
