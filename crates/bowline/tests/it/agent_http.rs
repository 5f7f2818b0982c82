//! Agents of kind `http`: real programs in other languages, every format, and a POST that is never sent twice.

use std::sync::Arc;
use std::time::Duration;

use bowline::config::{AgentConfig, AgentKind, Config, Format, HttpConfig, WireConfig};
use bowline_core::dialect::Projection as _;
use bowline_core::dialect::ai_sdk::Projector;
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{LogId, Seq, SessionId};
use bowline_store::ReadLimit;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::support;
use crate::support::process::Process;
use crate::support::upstream::{Act, Program, Scripted, answer, data, end, head, piece, sse, status, text};
use crate::support::{Client, Server, config, post, seqs, streamed};

fn http(url: &str, format: Option<Format>) -> HttpConfig {
    HttpConfig { url: url.to_owned(), format, wire: WireConfig::default() }
}

fn served_by(agent: HttpConfig) -> Config {
    let mut config = config();
    config.agents.insert("mine".into(), AgentConfig { kind: AgentKind::Http(agent) });
    config.default_agent = "mine".into();
    config
}

async fn server(url: &str, format: Option<Format>) -> Server {
    Server::with(served_by(http(url, format))).await
}

fn named<'a>(frames: &'a [Value], event: &str) -> Vec<&'a Value> {
    frames.iter().filter(|frame| frame["event"] == event).collect()
}

fn error(frames: &[Value]) -> (String, String) {
    let last = frames.last().unwrap();
    assert_eq!(last["event"], "agent.error", "{last}");
    (last["metadata"]["error_code"].as_str().unwrap().to_owned(), last["content"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Python"]
async fn a_program_in_python_speaks_in_events() {
    let program = Program::python("events.py").await;
    let server = server(&program.url, None).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("where is it?").await;
    let names: Vec<_> = frames.iter().filter(|f| f["seq"].is_u64()).map(|f| f["event"].as_str().unwrap()).collect();
    let expected = [
        "user.message",
        "agent.thinking",
        "agent.tool_call",
        "agent.tool_result",
        "agent.mood",
        "weather.report",
        "agent.partial_answer",
        "agent.partial_answer",
        "agent.partial_answer",
        "agent.final_answer",
    ];
    assert_eq!(names, expected);
    assert_eq!(named(&frames, "agent.mood")[0]["content"], json!({ "b": 1.5, "a": "good" }));
    let weather = named(&frames, "weather.report")[0];
    assert_eq!((&weather["content"], &weather["metadata"]), (&json!({ "sky": "clear" }), &json!({ "z": 1 })));
    assert_eq!(named(&frames, "agent.tool_call")[0]["step_id"], "s1");
    assert_eq!(named(&frames, "agent.partial_answer")[2]["metadata"], json!({ "index": 2, "sure": true }));
    assert_eq!(streamed(&frames), "It is here.");
    let last = frames.last().unwrap();
    assert_eq!((&last["metadata"]["model"], &last["metadata"]["mood"]), (&json!("py"), &json!("good")));

    let frames = client.ask("recall").await;
    let messages: Value = serde_json::from_str(frames.last().unwrap()["content"].as_str().unwrap()).unwrap();
    let roles: Vec<_> = messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert_eq!(messages[1]["content"], "It is here.");
    assert_eq!(messages[2]["parts"], json!([{ "type": "text", "text": "recall" }]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Python"]
async fn what_is_not_the_programs_to_say_ends_the_run() {
    let program = Program::python("events.py").await;
    let server = server(&program.url, None).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("speak for the user").await;
    let (code, why) = error(&frames);
    assert_eq!(code, "AGENT_FAILED");
    assert!(why.contains("`user.message`, which is not an agent's to say"), "{why}");
    assert_eq!(named(&frames, "user.message").len(), 1, "only the person's own");

    let frames = client.ask("fail").await;
    assert_eq!(error(&frames), ("AGENT_FAILED".into(), "It went wrong.".into()));
    assert_eq!(frames.last().unwrap()["metadata"]["stage"], "cooking");

    // A body that ends as it should, but without an answer, is no answer.
    let frames = client.ask("break off").await;
    assert_eq!(error(&frames).0, "AGENT_UNREACHABLE");
    assert_eq!(streamed(&frames), "Half an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Python"]
async fn a_question_is_answered_in_the_next_post() {
    let program = Program::python("events.py").await;
    let server = server(&program.url, None).await;
    let (mut client, session) = server.session().await;
    client.say("deploy web").await;
    let question = client.expect("agent.user_confirm").await;
    assert_eq!(question["content"], "Deploy web?");
    assert_eq!(question["metadata"]["tool_name"], "deploy");
    assert!(!question.to_string().contains("target"), "the state is nobody's business: {question}");
    let answer = json!({ "confirmed": false, "reason": "friday" });
    let reply =
        json!({ "event": "user.response", "session_id": session, "step_id": question["step_id"], "content": answer });
    client.send(reply.clone()).await;
    let frames = client.until(support::is_terminal).await;
    assert_eq!(named(&frames, "agent.thinking")[0]["content"], "You said False to q1.");
    assert_eq!(frames.last().unwrap()["content"], "web is not deployed (friday).");
    client.send(reply).await;
    assert_eq!(client.refusal().await.0, "UNKNOWN_STEP");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Python"]
async fn a_question_outlives_the_server_that_passed_it_on() {
    let dir = TempDir::new().unwrap();
    let program = Program::python("events.py").await;
    // The flag takes a URL as it takes a name.
    let args = ["--agent".to_owned(), program.url.clone()];
    // A machine without certificates can still speak plain HTTP.
    let bare = [("SSL_CERT_FILE", "/nonexistent".to_owned()), ("SSL_CERT_DIR", "/nonexistent".to_owned())];
    let process = Process::start_with(&dir.path().join("data"), &bare, &args).await;
    let mut client = Client::dial(process.address, &[]).await.unwrap();
    let session = client.create().await;
    client.say("deploy web").await;
    let question = client.expect("agent.user_confirm").await;
    drop(client);
    let process = process.kill_and_restart().await;
    let mut client = Client::dial(process.address, &[]).await.unwrap();
    let (greeting, _) = client.resume(&session, json!({ "last_event_id": question["event_id"] })).await;
    assert_eq!(greeting["metadata"]["session_state"], "waiting");
    let content = json!({ "confirmed": true });
    client.send(json!({ "event": "user.response", "session_id": session, "step_id": question["step_id"], "content": content })).await;
    let frames = client.until(support::is_terminal).await;
    assert_eq!(frames.last().unwrap()["content"], "web is deployed.");
    process.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn chunks_of_a_model_are_read_as_such() {
    let emulator = Program::node("openai.js").await;
    let server = server(&format!("{}/chat/completions", emulator.url), None).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("think about it").await;
    assert_eq!(frames.last().unwrap()["content"], "Thought through.");
    assert!(named(&frames, "agent.thinking").len() > 1);
    // A program that wants us to call its tools has to be an agent of the other kind.
    let (code, why) = error(&client.ask("weather please").await);
    assert_eq!(code, "AGENT_FAILED");
    assert!(why.contains("openai"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_as_an_event_stream_too() {
    let events = [
        json!({ "event": "agent.partial_answer", "content": "Hi" }),
        json!({ "event": "agent.final_answer", "content": "Hi" }),
    ];
    let script = vec![sse(), data(&events[0]), piece(": still here\n\n"), data(&events[1]), end()];
    let scripted = Scripted::start(vec![script]).await;
    let mut agent = http(&scripted.url(), None);
    agent.wire.token = Some(Secret::new("t0ken"));
    agent.wire.headers = vec![("x-team".into(), Secret::new("blue"))];
    let server = Server::with(served_by(agent)).await;
    let (mut client, session) = server.session().await;
    assert_eq!(client.ask("hello").await.last().unwrap()["content"], "Hi");
    let request = scripted.requests().pop().unwrap();
    let head = request.head.to_lowercase();
    assert!(head.contains("authorization: bearer t0ken") && head.contains("x-team: blue"), "{head}");
    assert_eq!((&request.body["id"], &request.body["session_id"]), (&json!(session), &json!(session)));
    assert_eq!((&request.body["trigger"], &request.body["message"]), (&json!("submit-message"), &json!("hello")));
    assert!(request.body["run_id"].as_str().unwrap().starts_with("run_") && request.body["answer"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_was_heard_is_not_lost_with_the_wire() {
    let asks = json!({ "event": "agent.user_confirm", "content": "Shall I?", "state": 7 });
    let done = json!({ "event": "agent.final_answer", "content": "Done." });
    let scripted = Scripted::start(vec![vec![sse(), data(&asks), Act::Reset], vec![sse(), data(&done), end()]]).await;
    let server = server(&scripted.url(), None).await;
    let (mut client, session) = server.session().await;
    client.say("hello").await;
    let step = client.expect("agent.user_confirm").await["step_id"].clone();
    let content = json!({ "confirmed": true, "tasks": [1] });
    client.send(json!({ "event": "user.response", "session_id": session, "step_id": step, "content": content })).await;
    assert_eq!(client.until(support::is_terminal).await.last().unwrap()["content"], "Done.");
    let requests = scripted.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].body["answer"], json!({ "step_id": step, "confirmed": true, "tasks": [1], "state": 7 }));
    assert_eq!(requests[0].body["run_id"], requests[1].body["run_id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_has_answered_may_finish_in_peace() {
    let done = json!({ "event": "agent.final_answer", "content": "Done." });
    let answered = Arc::new(Notify::new());
    // Two pieces, since the first one to a closed connection seems to arrive.
    let rest = vec![Act::Wait(answered.clone()), piece(": saving\n\n"), piece(": saved\n\n"), end()];
    let mut scripted = Scripted::start(vec![[vec![sse(), data(&done)], rest].concat()]).await;
    let server = server(&scripted.url(), None).await;
    let (mut client, _) = server.session().await;
    assert_eq!(client.ask("hello").await.last().unwrap()["content"], "Done.");
    answered.notify_one();
    scripted.played(1).await;
}

/// A POST that may have been taken up goes out once, whatever becomes of it.
async fn sent_once(script: Vec<Act>, code: &str) -> String {
    let scripted = Scripted::start(vec![script, answer("a second time")]).await;
    let mut agent = http(&scripted.url(), None);
    agent.wire.timeout = Duration::from_secs(2);
    let server = Server::with(served_by(agent)).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("hello").await;
    let (told, why) = error(&frames);
    assert_eq!(told, code, "{why}");
    assert_eq!(scripted.requests().len(), 1, "nothing runs twice");
    streamed(&frames)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_that_may_have_run_is_never_sent_again() {
    sent_once(vec![Act::Reset], "AGENT_UNREACHABLE").await;
    sent_once(vec![], "AGENT_UNREACHABLE").await;
    sent_once(vec![Act::Hold], "AGENT_UNREACHABLE").await;
    sent_once(vec![sse(), Act::Reset], "AGENT_UNREACHABLE").await;
    sent_once(vec![sse(), end()], "AGENT_UNREACHABLE").await;
    sent_once(status("500 Internal Server Error", "retry-after: 0\r\n", ""), "AGENT_UNREACHABLE").await;
    sent_once(status("503 Service Unavailable", "", ""), "AGENT_UNREACHABLE").await;
    sent_once(status("307 Temporary Redirect", "location: /elsewhere\r\n", ""), "AGENT_FAILED").await;
    sent_once(status("404 Not Found", "", "<html>"), "AGENT_FAILED").await;
    sent_once(vec![head("text/html"), piece("<html></html>"), end()], "AGENT_FAILED").await;
    let half = vec![sse(), text("Half"), Act::Reset];
    assert_eq!(sent_once(half, "AGENT_UNREACHABLE").await, "Half");
    let lines = vec![
        head("application/x-ndjson"),
        piece("{\"event\":\"agent.partial_answer\",\"content\":\"Half\"}\n{\"eve"),
        end(),
    ];
    assert_eq!(sent_once(lines, "AGENT_UNREACHABLE").await, "Half");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_that_was_surely_not_taken_up_is_sent_again() {
    let busy = status("503 Service Unavailable", "retry-after: 0\r\n", "");
    let full = status("429 Too Many Requests", "retry-after: 0\r\n", "");
    let scripted = Scripted::start(vec![busy, full, answer("Here I am.")]).await;
    let server = server(&scripted.url(), None).await;
    let (mut client, _) = server.session().await;
    assert_eq!(client.ask("hello").await.last().unwrap()["content"], "Here I am.");
    assert_eq!(scripted.requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_closes_the_upstream_and_a_lost_client_does_not() {
    let thinking = json!({ "event": "agent.thinking", "content": "Hm." });
    let mut scripted = Scripted::start(vec![vec![sse(), data(&thinking), Act::Hold]]).await;
    let server = server(&scripted.url(), None).await;
    let (mut client, session) = server.session().await;
    client.say("hello").await;
    let seen = client.expect("agent.thinking").await;
    drop(client);
    let mut client = server.connect().await;
    let content = json!({ "last_event_id": seen["event_id"], "take_over": true });
    let (greeting, _) = client.resume(&session, content).await;
    assert_eq!(greeting["metadata"]["session_state"], "running", "the work goes on while nobody looks");
    client.send(json!({ "event": "user.cancel", "session_id": session })).await;
    // Nothing else would close it so soon: the upstream may be silent for a minute.
    scripted.closed(1).await;
    let cancelled = client.expect("agent.cancelled").await;
    assert_eq!(seqs(&[seen, cancelled]), [2, 3]);
    assert_eq!(scripted.requests().len(), 1);
}

/// The chunks that the program itself sends for a conversation of one message.
async fn said_by_itself(url: &str, message: &str) -> Vec<String> {
    let parts = json!([{ "type": "text", "text": message }]);
    let body = json!({ "id": "x", "messages": [{ "id": "m", "role": "user", "parts": parts }] });
    let (status, text) = post(url, &body).await;
    assert_eq!(status, 200, "{text}");
    text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
}

/// The chunks that a reader of a session's log is sent for its first turn.
async fn replayed(server: &Server, session: &str) -> Vec<String> {
    let log = LogId::from(&SessionId::parse(session).unwrap());
    let limit = ReadLimit { events: 10_000, bytes: 1 << 20 };
    let batch = server.store.read(&log, Seq::ZERO.next(), limit).await.unwrap();
    let (mut projector, mut chunks) = (Projector::new("m"), Vec::new());
    batch.events.iter().for_each(|event| projector.handle_event(event, &mut chunks));
    assert!(projector.is_over());
    chunks.iter().map(|chunk| String::from_utf8(chunk.json.to_vec()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_program_with_the_ai_sdk_is_kept_and_replayed_word_for_word() {
    let program = Program::node("ui.js").await;
    let server = server(&program.url, None).await;
    for message in ["hello", "weather please", "fail"] {
        let (mut client, session) = server.session().await;
        client.ask(message).await;
        let mut own = said_by_itself(&program.url, message).await;
        let mut ours = replayed(&server, &session).await;
        assert_eq!(own.pop().as_deref(), Some("[DONE]"));
        // The message's name is ours to give.
        assert_eq!(
            (own.remove(0).as_str(), ours.remove(0).as_str()),
            (r#"{"type":"start"}"#, r#"{"type":"start","messageId":"m"}"#)
        );
        if message == "fail" {
            // The first word on the end is the last: what follows an error says it again.
            own.truncate(own.iter().position(|chunk| chunk.contains("errorText")).unwrap() + 1);
            ours.truncate(own.len());
        }
        assert_eq!(ours, own, "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_page_that_talked_to_the_program_can_talk_to_the_server_instead() {
    let program = Program::node("ui.js").await;
    let server = server(&program.url, None).await;
    let own = said_by_itself(&program.url, "weather please").await;
    // The same request, to the same path at another address.
    let ours = said_by_itself(&format!("http://{}/api/chat", server.address), "weather please").await;
    assert_eq!(ours[1..], own[1..], "the start alone differs: it names the message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_program_with_the_ai_sdk_is_also_one_over_a_websocket() {
    let program = Program::node("ui.js").await;
    let server = server(&program.url, None).await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("hello").await;
    assert_eq!(named(&frames, "agent.thinking")[0]["content"], "Who is that?");
    assert_eq!(streamed(&frames), "Hello from the SDK.");
    assert_eq!(frames.last().unwrap()["content"], "Hello from the SDK.");

    let frames = client.ask("weather please").await;
    assert_eq!(named(&frames, "agent.tool_call")[0]["metadata"]["args"], json!({ "city": "Hamburg" }));
    assert_eq!(named(&frames, "agent.tool_result")[0]["metadata"]["data"]["rain"], true);
    assert_eq!(frames.last().unwrap()["content"], "It rains.");

    let frames = client.ask("fail").await;
    assert_eq!(error(&frames), ("AGENT_FAILED".into(), "overloaded".into()));
    assert_eq!(streamed(&frames), "Half an answer");

    // The SDK takes the whole conversation as we post it: thoughts, calls with their results, the half answer.
    let frames = client.ask("recall").await;
    let expected = "user:hello|assistant:Who is that?Hello from the SDK.|user:weather please|assistant:|tool:|\
                    assistant:It rains.|user:fail|assistant:Half an answer|user:recall";
    assert_eq!(frames.last().unwrap()["content"], expected);

    // Files and calls go along, in the shape that the SDK knows.
    let file = json!({ "type": "file", "mediaType": "text/plain", "url": "data:text/plain,x" });
    let parts = json!([{ "type": "text", "text": "parts" }, file]);
    let content = json!({ "text": "parts", "parts": parts });
    client.send(json!({ "event": "user.message", "content": content, "message_id": "with-a-file" })).await;
    let frames = client.until(support::is_terminal).await;
    let told = frames.last().unwrap()["content"].as_str().unwrap();
    assert!(told.ends_with("with-a-file:text,file"), "{told}");
    assert!(told.contains(":step-start,tool-weather,step-start,text|"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn a_program_with_the_ai_sdk_sees_a_cancel_and_its_death_is_told() {
    let mut program = Program::node("ui.js").await;
    let server = server(&program.url, Some(Format::Ui)).await;
    let (mut client, session) = server.session().await;
    client.say("slow").await;
    client.expect("agent.partial_answer").await;
    let asked = std::time::Instant::now();
    client.send(json!({ "event": "user.cancel", "session_id": session })).await;
    client.expect("agent.cancelled").await;
    let observed = program.url.replace("/api/chat", "/observed");
    while post(&observed, &json!({})).await.1 != "closed by the other side" {
        assert!(asked.elapsed() < support::PATIENCE, "the program was not told");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("the program saw it within {:?}", asked.elapsed());

    client.say("slow").await;
    let mut frames = client.until(|frame| frame["event"] == "agent.partial_answer").await;
    program.kill().await;
    frames.extend(client.until(support::is_terminal).await);
    assert_eq!(error(&frames).0, "AGENT_UNREACHABLE");
    assert!(streamed(&frames).starts_with("word "));
    // It is gone altogether now: tried again, and then told.
    let (code, why) = error(&client.ask("slow").await);
    assert_eq!((code.as_str(), why.as_str()), ("AGENT_UNREACHABLE", "The agent's upstream cannot be reached."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_that_end_without_an_end_mark_are_no_answer_and_what_is_no_chunk_is_a_failure() {
    let chunk = |text: &str| piece(&format!("data: {text}\n\n"));
    let begun = || {
        let delta = chunk(r#"{"type":"text-delta","id":"t","delta":"Half"}"#);
        vec![sse(), chunk(r#"{"type":"start"}"#), chunk(r#"{"type":"text-start","id":"t"}"#), delta]
    };
    for rest in [vec![end()], vec![Act::Reset]] {
        assert_eq!(sent_once([begun(), rest].concat(), "AGENT_UNREACHABLE").await, "Half");
    }
    for rest in [r#"{"type":"nonsense"}"#, r#"{"type":"text-end","id":"other"}"#, "hello", r#"{"event":"agent.mood"}"#]
    {
        assert_eq!(sent_once([begun(), vec![chunk(rest), end()]].concat(), "AGENT_FAILED").await, "Half");
    }
    // An event stream that gives no hint is taken for chunks, and is none.
    sent_once(vec![sse(), chunk("hello"), end()], "AGENT_FAILED").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js and Python"]
async fn every_kind_of_agent_serves_its_own_sessions_on_one_server() {
    let (python, emulator) = (Program::python("events.py").await, Program::node("openai.js").await);
    let sdk = Program::node("ui.js").await;
    let mut config = served_by(http(&python.url, Some(Format::Events)));
    let chunks = http(&format!("{}/chat/completions", emulator.url), Some(Format::OpenAi));
    config.agents.insert("chunks".into(), AgentConfig { kind: AgentKind::Http(chunks) });
    config.agents.insert("sdk".into(), AgentConfig { kind: AgentKind::Http(http(&sdk.url, None)) });
    let server = Server::with(config).await;
    let mut client = server.connect().await;
    for (agent, said, expected) in
        [("mine", "where?", "It is here."), ("chunks", "hello", "Hello from the emulator."), ("demo", "/echo me", "me")]
    {
        client.create_with(agent).await;
        assert_eq!(client.ask(said).await.last().unwrap()["content"], expected, "{agent}");
    }
    client.send(json!({ "event": "user.create_session", "content": { "agent": "nobody" } })).await;
    client.refusal().await;
}
