//! Tasks with a log of their own: what producers push, and what goes on in the background of a session.

use std::time::Duration;

use bowline::config::StoreUrl;
use bowline::node::Own;
use bowline_api::{ToolCall, ToolOutcome, ToolSpec, Tools};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::api::{Api, kinds, text};
use crate::support::{PATIENCE, Server, config};

fn delta(text: &str) -> Value {
    json!({ "type": "text-delta", "id": "t1", "delta": text })
}

async fn task(api: &Api) -> (String, String) {
    let (status, made) = api.post("/api/chat/tasks", &json!({ "tool_name": "painter" })).await;
    assert_eq!(status, 201, "{made}");
    (made["task_id"].as_str().unwrap().to_owned(), made["operation_id"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn an_append_is_durable_once_however_often_it_is_sent() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let (task, _) = task(&api).await;
    let path = format!("/api/chat/tasks/{task}");
    let messages = format!("{path}/messages");
    let producer = api.with("producer-id", "p1");
    let nth = |n: u64| producer.with("producer-seq", &n.to_string());
    let first = nth(0).post(&messages, &json!([{ "type": "text-start", "id": "t1" }, delta("Hello")])).await;
    assert_eq!(first.0, 200, "{}", first.1);
    let second = nth(1).post(&messages, &json!([delta(", ")])).await;
    let third = nth(2).post(&messages, &json!([delta("world")])).await;
    assert_eq!(nth(1).post(&messages, &json!([delta(", ")])).await, second, "the same answer for a repetition");
    assert_eq!(nth(2).post(&messages, &json!([delta("world")])).await, third);
    let other = nth(1).post(&messages, &json!([delta("other")])).await;
    assert_eq!((other.0, &other.1["code"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    let hole = nth(4).post(&messages, &json!([delta("!")])).await;
    assert_eq!((hole.0, &hole.1["details"]["expected"]), (409, &json!(3)));
    let alone = producer.post(&messages, &json!([delta("!")])).await;
    assert_eq!((alone.0, &alone.1["details"]["field"]), (400, &json!("Producer-Seq")));
    // One wrong chunk, and none of the append is taken; NDJSON is as good as an array.
    let wrong = nth(3).post(&messages, &json!([delta("!"), { "type": "no-such-chunk" }])).await;
    assert_eq!((wrong.0, &wrong.1["code"]), (400, &json!("INVALID_PAYLOAD")));
    let lines = format!("{}\n{}\n", delta("!"), json!({ "type": "text-end", "id": "t1" }));
    assert_eq!(nth(3).call("POST".parse().unwrap(), &messages, Some(lines)).await.0, 200);
    let (_, running) = api.get(&path).await;
    assert_eq!((&running["status"], &running["tool_name"]), (&json!("running"), &json!("painter")));
    let mut live = api.stream(&format!("{path}/stream")).await;
    live.until("text-end").await;
    let done = api.post(&format!("{path}/complete"), &json!({ "result": { "picture": 7 } })).await;
    assert_eq!((done.0, &done.1["status"]), (200, &json!("completed")));
    assert_eq!(api.post(&format!("{path}/complete"), &json!({})).await, done, "ending it twice is harmless");
    let ended = nth(4).post(&messages, &json!([delta("late")])).await;
    assert_eq!((ended.0, &ended.1["code"]), (409, &json!("TASK_ENDED")));
    let told = ["tool-input-available", "tool-output-available", "finish", "[DONE]"];
    assert_eq!(kinds(&live.all().await), told);
    let events = api.stream(&format!("{path}/stream")).await.all().await;
    assert_eq!(text(&events), "Hello, world!");
    assert_eq!(api.get(&path).await.1["result"], json!({ "picture": 7 }));
}

#[tokio::test]
async fn an_old_append_is_answered_as_the_first_time_or_refused_and_never_otherwise() {
    let mut config = config();
    config.limits.producer_appends_kept_max = 256;
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let (task, _) = task(&api).await;
    let messages = format!("/api/chat/tasks/{task}/messages");
    let producer = api.with("producer-id", "p1");
    let chunk = |n: u64| json!([{ "type": "data-x", "data": { "n": n, "m": "\u{e9}" } }]);
    let mut answers = Vec::new();
    for n in 0..500u64 {
        let (status, answer) = producer.with("producer-seq", &n.to_string()).post(&messages, &chunk(n)).await;
        assert_eq!(status, 200);
        answers.push(answer);
    }
    let again = async |n: u64, body: String| {
        producer.with("producer-seq", &n.to_string()).call("POST".parse().unwrap(), &messages, Some(body)).await
    };
    for n in [244, 300, 384, 435, 436, 447, 448, 498, 499] {
        assert_eq!(again(n, chunk(n).to_string()).await, (200, answers[n as usize].clone()), "{n}");
        // The same by value, whatever it looks like.
        let written_otherwise =
            format!("[ {{\"data\" : {{\"m\":\"\\u00e9\", \"n\":{n}}},\n\"type\":\"data-\\u0078\"}} ]");
        assert_eq!(again(n, written_otherwise).await, (200, answers[n as usize].clone()), "{n}");
        let (status, refused) = again(n, chunk(999).to_string()).await;
        assert_eq!((status, &refused["code"]), (409, &json!("IDEMPOTENCY_CONFLICT")), "{n}");
    }
    let (status, refused) = again(3, chunk(3).to_string()).await;
    assert_eq!((status, &refused["code"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    assert_eq!(refused["details"]["expected"], 500);
    let (_, shown) = api.get(&format!("/api/chat/tasks/{task}")).await;
    assert_eq!(shown["last_message_id"], answers[499]["last_message_id"], "nothing was added");
}

#[tokio::test]
async fn a_producer_that_ends_its_own_stream_ends_the_task_with_its_own_words() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let (task, _) = task(&api).await;
    let path = format!("/api/chat/tasks/{task}");
    let chunks = json!([
        { "type": "start", "messageId": "theirs" }, { "type": "start-step" },
        { "type": "text-start", "id": "t1" }, delta("x"), { "type": "text-end", "id": "t1" },
        { "type": "finish-step" }, { "type": "finish", "messageMetadata": { "z": 1, "a": 2 } },
    ]);
    assert_eq!(api.post(&format!("{path}/messages"), &chunks).await.0, 200);
    let events = api.stream(&format!("{path}/stream")).await.all().await;
    let expected = ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish", "[DONE]"];
    assert_eq!(kinds(&events), expected);
    assert_eq!(events[6].data, chunks[6].to_string());
    assert_eq!(api.get(&path).await.1["status"], "completed");
}

#[tokio::test]
async fn a_completion_that_says_otherwise_than_the_first_is_refused() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let (task, operation) = task(&api).await;
    let endpoints = [format!("/api/chat/tasks/{task}/complete"), format!("/api/chat/operations/{operation}/complete")];
    let first = api.post(&endpoints[0], &json!({ "success": true, "result": { "a": 1, "b": [0.1] } })).await;
    assert_eq!(first.0, 200, "{}", first.1);
    for endpoint in &endpoints {
        for (said, status) in [
            (json!({ "success": true, "result": { "b": [0.1], "a": 1 } }), 200),
            (json!({ "success": true }), 200),
            (json!({ "success": true, "result": { "a": 2, "b": [0.1] } }), 409),
            (json!({ "success": true, "result": 1 }), 409),
            (json!({ "success": false, "error": "x" }), 409),
        ] {
            let answer = api.post(endpoint, &said).await;
            assert_eq!(answer.0, status, "{said}: {}", answer.1);
            if status == 200 {
                assert_eq!(answer, first, "as the first time");
            } else {
                assert_eq!(answer.1["code"], "TASK_ENDED");
            }
        }
    }
    let (_, shown) = api.get(&format!("/api/chat/tasks/{task}")).await;
    assert_eq!(shown["result"], json!({ "a": 1, "b": [0.1] }));
}

#[tokio::test]
async fn a_result_that_comes_after_an_end_without_one_is_not_dropped_silently() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let (task, _) = task(&api).await;
    let complete = format!("/api/chat/tasks/{task}/complete");
    assert_eq!(api.post(&format!("/api/chat/tasks/{task}/messages"), &json!([{ "type": "finish" }])).await.0, 200);
    assert_eq!(api.post(&complete, &json!({})).await.0, 200);
    let late = api.post(&complete, &json!({ "result": 1 })).await;
    assert_eq!((late.0, &late.1["code"]), (409, &json!("TASK_ENDED")));
}

#[tokio::test]
async fn one_connection_serves_a_busy_producer() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let (one, _) = task(&api).await;
    let (two, _) = task(&api).await;
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/produce", server.address)).await.unwrap();
    for n in 0..200u64 {
        for task in [&one, &two] {
            let frame = json!({ "task_id": task, "producer_seq": n, "chunks": [delta(&format!("{n} "))] });
            socket.send(Message::text(frame.to_string())).await.unwrap();
        }
    }
    // Repeated, out of order, unknown, and garbage: each is answered, and costs nobody else anything.
    for bad in [
        json!({ "task_id": one, "producer_seq": 999, "chunks": [delta("x")] }).to_string(),
        json!({ "task_id": "task_none", "producer_seq": 0, "chunks": [delta("x")] }).to_string(),
        json!({ "task_id": one }).to_string(),
        "{".to_owned(),
        json!({ "task_id": one, "producer_seq": 199, "chunks": [delta("199 ")] }).to_string(),
    ] {
        socket.send(Message::text(bad)).await.unwrap();
    }
    let mut answers: Vec<Value> = Vec::new();
    while answers.len() < 405 {
        let message = tokio::time::timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
        if let Message::Text(text) = message {
            answers.push(serde_json::from_str(&text).unwrap());
        }
    }
    for (at, answer) in answers[..400].iter().enumerate() {
        assert_eq!(answer["producer_seq"], at / 2);
        assert!(answer["last_message_id"].is_string(), "{answer}");
    }
    let codes: Vec<&str> = answers[400..404].iter().map(|answer| answer["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["CURSOR_AHEAD", "TASK_NOT_FOUND", "INVALID_PAYLOAD", "INVALID_JSON"]);
    assert_eq!(answers[404]["last_message_id"], answers[398]["last_message_id"], "a repetition is answered as before");
    let expected: String = (0..200).map(|n| format!("{n} ")).collect();
    for task in [one, two] {
        api.post(&format!("/api/chat/tasks/{task}/complete"), &json!({})).await;
        assert_eq!(text(&api.stream(&format!("/api/chat/tasks/{task}/stream")).await.all().await), expected);
    }
}

#[tokio::test]
async fn one_connection_serves_many_tasks_that_send_ahead_of_their_answers() {
    const TASKS: usize = 20;
    const FRAMES: usize = 200;
    let server = Server::start().await;
    let api = Api::new(server.address);
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(task(&api).await.0);
    }
    let (socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/produce", server.address)).await.unwrap();
    let (mut sink, mut stream) = socket.split();
    // The first task sends everything at once, more than may be under way for one; the others take turns.
    let turns = (0..FRAMES).flat_map(|n| (1..TASKS).map(move |task| (task, n)));
    let sent: Vec<(usize, usize)> = (0..FRAMES).map(|n| (0, n)).chain(turns).collect();
    let expected = sent.clone();
    let names = tasks.clone();
    let sending = tokio::spawn(async move {
        for (task, n) in sent {
            let frame = json!({ "task_id": names[task], "producer_seq": n, "chunks": [delta(&format!("{n} "))] });
            sink.feed(Message::text(frame.to_string())).await.unwrap();
        }
        sink.flush().await.unwrap();
        sink
    });
    for (task, n) in expected {
        let message = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
        let Message::Text(text) = message else { panic!("{message:?}") };
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&answer["task_id"], &answer["producer_seq"]), (&json!(tasks[task]), &json!(n)));
        assert!(answer["last_message_id"].is_string(), "{answer}");
    }
    let _sink = sending.await.unwrap();
    let expected: String = (0..FRAMES).map(|n| format!("{n} ")).collect();
    for task in tasks {
        api.post(&format!("/api/chat/tasks/{task}/complete"), &json!({})).await;
        assert_eq!(text(&api.stream(&format!("/api/chat/tasks/{task}/stream")).await.all().await), expected);
    }
}

/// Waits for an event in the session's log.
async fn logged(server: &Server, session: &str, event: &str) -> Value {
    let mut client = server.connect().await;
    let content = json!({ "mode": "observe", "last_seq": 0 });
    client.reconnect(session.rsplit('/').next().unwrap(), content).await;
    client.until(|frame| frame["event"] == event).await.pop().unwrap()
}

#[tokio::test]
async fn a_background_operation_answers_at_once_and_tells_its_session_when_it_is_done() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let order = json!({ "tool_name": "demo", "arguments": { "steps": 3, "delay_ms": 1 }, "tool_call_id": "c1" });
    let (status, begun) = api.post(&format!("{session}/operations"), &order).await;
    assert_eq!((status, &begun["type"]), (202, &json!("operation_started")));
    assert_eq!(api.post(&format!("{session}/operations"), &order).await, (202, begun.clone()), "one operation");
    let other = json!({ "tool_name": "demo", "arguments": {}, "tool_call_id": "c1" });
    assert_eq!(api.post(&format!("{session}/operations"), &other).await.0, 409);
    let done = logged(&server, &session, "agent.operation_completed").await;
    assert_eq!(done["content"]["operation_id"], begun["operation_id"]);
    assert_eq!((&done["content"]["status"], &done["content"]["result"]["steps"]), (&json!("completed"), &json!(3)));
    let path = format!("/api/chat/tasks/{}", begun["task_id"].as_str().unwrap());
    let events = api.stream(&format!("{path}/stream")).await.all().await;
    let progress = kinds(&events).iter().filter(|kind| *kind == "data-progress").count();
    assert_eq!(progress, 3);
    let (_, shown) = api.get(&path).await;
    assert_eq!((&shown["status"], &shown["operation_id"]), (&json!("completed"), &begun["operation_id"]));
    // The agent itself can begin one; its turn ends while the work goes on.
    let turn = api.start(&format!("{session}/stream"), &json!({ "message": "/op sweep 100000 1" })).await.all().await;
    let started = turn.iter().find(|event| event.kind() == "tool-output-available").unwrap().chunk();
    assert_eq!(started["output"]["type"], "operation_started");
    let (_, shown) = api.get(&session).await;
    assert_eq!((&shown["status"], &shown["active_stream"]["tool_name"]), (&json!("running"), &json!("sweep")));
    let task = format!("/api/chat/tasks/{}", started["output"]["task_id"].as_str().unwrap());
    assert_eq!(
        api.post(&format!("{task}/cancel"), &json!({})).await.1,
        json!({ "cancelled": true, "status": "cancelled" })
    );
    let events = api.stream(&format!("{task}/stream")).await.all().await;
    assert_eq!(kinds(&events)[events.len() - 2..], ["abort", "[DONE]"]);
}

/// Something that can add, and can be cut in the middle of it.
struct Abacus;

#[async_trait::async_trait]
impl Tools for Abacus {
    async fn list(&self, _owner: &bowline_protocol::Principal) -> Vec<ToolSpec> {
        let tool = |tool: &str| ToolSpec {
            name: format!("calc__{tool}"),
            server: "calc".into(),
            tool: tool.into(),
            description: String::new(),
            input_schema: json!({ "type": "object" }),
        };
        vec![tool("add"), tool("cut")]
    }

    async fn call(&self, call: ToolCall, _cancel: tokio_util::sync::CancellationToken) -> ToolOutcome {
        match call.name.as_str() {
            "calc__add" => {
                let sum = call.args.values().filter_map(Value::as_i64).sum::<i64>();
                ToolOutcome::Success { text: sum.to_string(), data: Some(json!({ "sum": sum })) }
            }
            _ => ToolOutcome::Unknown { error: "It was cut.".into() },
        }
    }
}

#[tokio::test]
async fn a_tool_of_the_hub_can_work_in_the_background() {
    let own = Own { tools: Some(std::sync::Arc::new(Abacus)), ..Own::default() };
    let server = Server::with_own(config(), own).await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let ended = async |tool: &str| {
        let order = json!({ "tool_name": tool, "arguments": { "a": 2, "b": 3 } });
        let (status, begun) = api.post(&format!("{session}/operations"), &order).await;
        assert_eq!(status, 202, "{begun}");
        let path = format!("/api/chat/tasks/{}", begun["task_id"].as_str().unwrap());
        let events = api.stream(&format!("{path}/stream")).await.all().await;
        (kinds(&events), api.get(&path).await.1)
    };
    let (kinds, shown) = ended("calc__add").await;
    assert_eq!((&shown["status"], &shown["result"]), (&json!("completed"), &json!({ "sum": 5 })));
    assert!(kinds.contains(&"tool-input-available".to_owned()) && kinds.contains(&"tool-output-available".to_owned()));
    let (_, shown) = ended("calc__cut").await;
    assert_eq!((&shown["status"], &shown["error"]["code"]), (&json!("failed"), &json!("OUTCOME_UNKNOWN")));
}

#[tokio::test]
async fn a_webhook_completes_what_a_program_outside_does() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let id = session.rsplit('/').next().unwrap();
    let body = json!({ "session_id": id, "tool_name": "render", "operation_id": "job 7/ö" });
    let (status, made) = api.post("/api/chat/tasks", &body).await;
    assert_eq!((status, &made["operation_id"]), (201, &json!("job 7/ö")));
    assert_eq!(api.post("/api/chat/tasks", &body).await, (201, made.clone()), "the same name is the same task");
    let hook = "/api/chat/operations/job%207%2F%C3%B6/complete";
    assert_eq!(api.post(hook, &json!({})).await.0, 400, "success is missing");
    assert_eq!(api.post(hook, &json!({ "success": false, "error": "out of paint" })).await.0, 200);
    assert_eq!(api.post(hook, &json!({ "success": false, "error": "out of paint" })).await.0, 200, "again is harmless");
    let contrary = api.post(hook, &json!({ "success": true })).await;
    assert_eq!((contrary.0, &contrary.1["code"]), (409, &json!("TASK_ENDED")));
    let done = logged(&server, &session, "agent.operation_completed").await;
    assert_eq!(
        (&done["content"]["status"], &done["content"]["error"]["message"]),
        (&json!("failed"), &json!("out of paint"))
    );
    assert_eq!(api.post("/api/chat/operations/unknown/complete", &json!({ "success": true })).await.0, 404);
}

#[tokio::test]
async fn the_end_of_a_session_is_the_end_of_its_work() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let order = json!({ "tool_name": "demo", "arguments": { "steps": 100000, "delay_ms": 1 } });
    let (_, begun) = api.post(&format!("{session}/operations"), &order).await;
    let stream = api.stream(&format!("/api/chat/tasks/{}/stream", begun["task_id"].as_str().unwrap())).await;
    assert_eq!(api.delete(&session).await.0, 204);
    assert_eq!(kinds(&stream.all().await).last().unwrap(), "[DONE]");
    assert_eq!(api.get(&session).await.1["code"], "SESSION_INACTIVE");
}

#[tokio::test]
async fn a_key_is_a_key_whatever_else_is_sent_with_it() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let operate = async |call: Option<&str>, key: Option<&str>, steps: u64| {
        let api = key.map_or(api.clone(), |key| api.with("idempotency-key", key));
        let mut order = json!({ "tool_name": "demo", "arguments": { "steps": steps } });
        if let Some(call) = call {
            order["tool_call_id"] = call.into();
        }
        let (status, answer) = api.post(&format!("{session}/operations"), &order).await;
        (status, answer["task_id"].as_str().unwrap_or_default().to_owned())
    };
    let first = operate(Some("T"), Some("K"), 1).await;
    assert_eq!(first.0, 202);
    assert_eq!(operate(Some("T"), None, 1).await, first);
    assert_eq!(operate(None, Some("K"), 1).await, first);
    assert_eq!(operate(Some("U"), Some("K"), 1).await, first);
    assert_ne!(operate(None, Some("T"), 1).await.1, first.1, "a tool call and a key may be called the same");
    assert_eq!(operate(None, Some("K"), 2).await.0, 409, "other arguments");
    let other = operate(Some("V"), None, 1).await;
    assert_eq!(operate(Some("V"), Some("L"), 1).await, other);
    assert_eq!(operate(None, Some("L"), 1).await, other, "it was used with that call");
    assert_eq!(operate(Some("T"), Some("L"), 1).await.0, 409, "two keys of two operations");

    let say = async |id: Option<&str>, key: Option<&str>, text: &str| {
        let api = key.map_or(api.clone(), |key| api.with("idempotency-key", key));
        let mut message = json!({ "message": text });
        if let Some(id) = id {
            message["message_id"] = id.into();
        }
        let stream = api.start(&format!("{session}/stream"), &message).await;
        let (status, task) = (stream.status, stream.headers.get("x-workflow-run-id").cloned());
        stream.all().await;
        (status, task)
    };
    let turn = say(Some("m1"), Some("k1"), "/echo a").await;
    assert_eq!(turn.0, 200);
    assert_eq!(say(None, Some("k1"), "/echo a").await, turn);
    assert_eq!(say(Some("m1"), None, "/echo a").await, turn);
    assert_eq!(say(None, Some("k1"), "/echo b").await.0, 409);
    let next = say(Some("m2"), None, "/echo c").await;
    assert_eq!(say(Some("m2"), Some("k2"), "/echo c").await, next);
    assert_eq!(say(None, Some("k2"), "/echo c").await, next);
    assert_eq!(say(Some("m1"), Some("k2"), "/echo a").await.0, 409);
}

#[tokio::test]
async fn a_name_that_means_something_else_elsewhere_is_refused() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let (one, two) = (api.session().await, api.session().await);
    let id = |session: &str| session.rsplit('/').next().unwrap().to_owned();
    let make = async |session: &str, tool: &str| {
        let body = json!({ "session_id": id(session), "operation_id": "X", "tool_name": tool });
        api.post("/api/chat/tasks", &body).await
    };
    let made = make(&one, "painter").await;
    assert_eq!(made.0, 201);
    assert_eq!(make(&one, "painter").await, made, "the same twice is one");
    for (session, tool) in [(&two, "painter"), (&one, "sculptor")] {
        let (status, refused) = make(session, tool).await;
        assert_eq!((status, &refused["code"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    }
    let alone = api.post("/api/chat/tasks", &json!({ "operation_id": "X", "tool_name": "painter" })).await;
    assert_eq!(alone.0, 409);
    let keyed = api.with("idempotency-key", "K");
    let first = keyed.post("/api/chat/tasks", &json!({ "operation_id": "o1" })).await;
    assert_eq!(keyed.post("/api/chat/tasks", &json!({ "operation_id": "o1" })).await, first);
    assert_eq!(keyed.post("/api/chat/tasks", &json!({ "operation_id": "o2" })).await.0, 409);
    assert_eq!(keyed.post("/api/chat/tasks", &json!({})).await, first);
}

#[tokio::test]
async fn a_finished_stream_is_kept_for_a_while_and_then_its_tombstone_says_so() {
    let mut config = config();
    config.stream.ttl = Duration::from_millis(200);
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let ttl = json!({ "stream_ttl_seconds": 0.2, "stream_ttl_ms": 200 });
    assert_eq!(api.get("/api/chat/config/ttl").await, (200, ttl));
    let (running, _) = task(&api).await;
    let (task, _) = task(&api).await;
    let path = format!("/api/chat/tasks/{task}");
    api.post(&format!("{path}/complete"), &json!({})).await;
    let expired = loop {
        let answer = api.get(&format!("{path}/stream")).await;
        if answer.0 != 200 {
            break answer;
        }
    };
    assert_eq!((expired.0, &expired.1["code"]), (410, &json!("TASK_EXPIRED")));
    assert_eq!(api.get(&path).await.0, 410);
    assert_eq!(api.get(&format!("/api/chat/tasks/{running}")).await.1["status"], "running", "never while it runs");
}

#[tokio::test]
async fn a_restart_ends_our_work_and_not_a_producers() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config();
    config.store.url = StoreUrl::Disk(dir.path().join("data"));
    config.drain.timeout = Duration::ZERO;
    let server = Server::with(config.clone()).await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let order = json!({ "tool_name": "demo", "arguments": { "steps": 400000, "delay_ms": 1 } });
    let (_, begun) = api.post(&format!("{session}/operations"), &order).await;
    let (pushed, _) = task(&api).await;
    let messages = format!("/api/chat/tasks/{pushed}/messages");
    let nth = |api: &Api, n: u64| api.with("producer-id", "p").with("producer-seq", &n.to_string());
    let open = json!([{ "type": "text-start", "id": "t1" }, delta("before ")]);
    let first = nth(&api, 0).post(&messages, &open).await;
    server.stop().await;

    let server = Server::with(config).await;
    let api = Api::new(server.address);
    assert_eq!(nth(&api, 0).post(&messages, &open).await, first, "what it repeats is known after a restart too");
    assert_eq!(nth(&api, 1).post(&messages, &json!([delta("after"), { "type": "text-end", "id": "t1" }])).await.0, 200);
    api.post(&format!("/api/chat/tasks/{pushed}/complete"), &json!({})).await;
    let events = api.stream(&format!("/api/chat/tasks/{pushed}/stream")).await.all().await;
    assert_eq!(text(&events), "before after");
    let path = format!("/api/chat/tasks/{}", begun["task_id"].as_str().unwrap());
    let (_, shown) = api.get(&path).await;
    assert_eq!((&shown["status"], &shown["error"]["code"]), (&json!("failed"), &json!("AGENT_LOST")));
    let events = api.stream(&format!("{path}/stream")).await.all().await;
    assert_eq!(kinds(&events)[events.len() - 3..], ["error", "finish", "[DONE]"]);
    let done = logged(&server, &session, "agent.operation_completed").await;
    assert_eq!(done["content"]["error"]["code"], "AGENT_LOST");
}

#[tokio::test]
async fn a_long_task_goes_on_after_a_restart_as_if_nothing_had_been() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config();
    config.store.url = StoreUrl::Disk(dir.path().join("data"));
    config.drain.timeout = Duration::ZERO;
    let mut server = Server::with(config.clone()).await;
    let mut api = Api::new(server.address);
    let (pushed, _) = task(&api).await;
    let path = format!("/api/chat/tasks/{pushed}");
    let messages = format!("{path}/messages");
    let nth = |api: &Api, n: u64| api.with("producer-id", "p").with("producer-seq", &n.to_string());
    let mut answers = Vec::new();
    // Some three hundred events between two restarts, so that the writer has kept where it stands more than once.
    for round in 0..3u64 {
        for n in round * 101..round * 101 + 100 {
            let words = json!([delta(&format!("{n}a ")), delta(&format!("{n}b ")), delta(&format!("{n}c "))]);
            let (status, answer) = nth(&api, n).post(&messages, &words).await;
            assert_eq!(status, 200, "{answer}");
            answers.push((words, answer));
        }
        let call = json!([{ "type": "tool-input-start", "toolCallId": format!("c{round}"), "toolName": "x" }]);
        let (status, answer) = nth(&api, round * 101 + 100).post(&messages, &call).await;
        assert_eq!(status, 200, "{answer}");
        answers.push((call, answer));
        server.stop().await;
        server = Server::with(config.clone()).await;
        api = Api::new(server.address);
        for (n, (chunks, answer)) in answers.iter().enumerate().rev().step_by(7) {
            assert_eq!(nth(&api, n as u64).post(&messages, chunks).await, (200, answer.clone()), "append {n}");
        }
    }
    // What was begun before is known, and what was not is not.
    let never = nth(&api, 303).post(&messages, &json!([{ "type": "text-end", "id": "t2" }])).await;
    assert_eq!((never.0, &never.1["code"]), (400, &json!("INVALID_PAYLOAD")));
    let rest = json!([
        { "type": "tool-input-delta", "toolCallId": "c0", "inputTextDelta": "{}" },
        { "type": "text-end", "id": "t1" },
    ]);
    let (status, answer) = nth(&api, 303).post(&messages, &rest).await;
    assert_eq!(status, 200, "{answer}");
    api.post(&format!("{path}/complete"), &json!({})).await;
    let events = api.stream(&format!("{path}/stream")).await.all().await;
    let words = |n: u64| format!("{n}a {n}b {n}c ");
    let expected: String = (0..303).filter(|n| n % 101 != 100).map(words).collect();
    assert_eq!(text(&events), expected);
}
