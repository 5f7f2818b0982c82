//! The result of background work reaches everybody who asks, by stream, by poll and by task, for as long as its session lives.

use std::time::Duration;

use bowline::config::{Config, StoreUrl};
use serde_json::{Value, json};

use crate::support::api::{Api, Event, kinds};
use crate::support::{Server, config};

/// Asks until what is asked for is there. Each answer takes a round trip, and the number of them is bounded.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(found) = ask().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}")
}

fn id_of(session: &str) -> &str {
    session.rsplit('/').next().unwrap()
}

/// Begins an operation of the demo agent, and says which task it is.
async fn operate(api: &Api, session: &str, arguments: Value) -> Value {
    let (status, begun) =
        api.post(&format!("{session}/operations"), &json!({ "tool_name": "demo", "arguments": arguments })).await;
    assert_eq!(status, 202, "{begun}");
    begun
}

fn path_of(begun: &Value) -> String {
    format!("/api/chat/tasks/{}", begun["task_id"].as_str().unwrap())
}

async fn produce(api: &Api, session: Option<&str>, tool: &str) -> Value {
    let mut body = json!({ "tool_name": tool });
    if let Some(session) = session {
        body["session_id"] = id_of(session).into();
    }
    let (status, made) = api.post("/api/chat/tasks", &body).await;
    assert_eq!(status, 201, "{made}");
    made
}

async fn streamed(api: &Api, path: &str) -> Vec<Event> {
    api.stream(&format!("{path}/stream?fold=0")).await.all().await
}

async fn ended(api: &Api, path: &str) -> Value {
    until("the task has ended", async || Some(api.get(path).await.1).filter(|task| task["status"] != "running")).await
}

#[tokio::test]
async fn a_session_tells_of_everything_that_is_at_work_in_it() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let (_, quiet) = api.get(&session).await;
    assert_eq!((&quiet["status"], &quiet["active_streams"]), (&json!("idle"), &json!([])));
    let long = json!({ "steps": 100_000, "delay_ms": 5 });
    let first = operate(&api, &session, long.clone()).await;
    let second = produce(&api, Some(&session), "render").await;
    let mut turn = api.start(&format!("{session}/stream"), &json!({ "message": "/long 100000 5" })).await;
    let running = turn.task();
    let third = operate(&api, &session, long).await;
    turn.until("text-delta").await;
    let (_, shown) = api.get(&session).await;
    let names = |shown: &Value| -> Vec<Value> {
        shown["active_streams"].as_array().unwrap().iter().map(|stream| stream["task_id"].clone()).collect()
    };
    let expected =
        vec![first["task_id"].clone(), second["task_id"].clone(), running.clone().into(), third["task_id"].clone()];
    assert_eq!((&shown["status"], names(&shown)), (&json!("running"), expected));
    assert_eq!(shown["active_stream"], shown["active_streams"][3], "the newest");
    let streams = shown["active_streams"].as_array().unwrap();
    assert_eq!(
        (&streams[1]["operation_id"], &streams[1]["tool_name"]),
        (&second["operation_id"], &json!("render")),
        "{shown}"
    );
    assert_eq!(streams[2].as_object().unwrap().len(), 2, "a turn is no operation: {shown}");
    assert!(streams.iter().all(|stream| stream["last_message_id"].is_string()), "{shown}");

    assert_eq!(api.post(&format!("/api/chat/tasks/{running}/cancel"), &json!({})).await.1["cancelled"], true);
    let listed = async || api.get("/api/chat/sessions").await.1["sessions"][0]["status"].clone();
    for (task, left) in [(&first, 2), (&third, 1), (&second, 0)] {
        let (_, shown) = api.get(&session).await;
        assert_eq!((&shown["status"], names(&shown).len()), (&json!("running"), left + 1), "{shown}");
        assert_eq!(listed().await, "running");
        assert_eq!(api.post(&format!("{}/cancel", path_of(task)), &json!({})).await.0, 200);
    }
    let (_, shown) = api.get(&session).await;
    assert_eq!((&shown["status"], &shown["active_stream"]), (&json!("idle"), &Value::Null));
    assert_eq!((listed().await, names(&shown).len()), (json!("idle"), 0));
}

#[tokio::test]
async fn the_stream_of_an_agents_operation_ends_with_its_output() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let arguments = json!({ "steps": 2, "delay_ms": 1 });
    let begun = operate(&api, &session, arguments.clone()).await;
    let events = streamed(&api, &path_of(&begun)).await;
    let expected = [
        "start",
        "start-step",
        "tool-input-available",
        "data-progress",
        "data-progress",
        "tool-output-available",
        "finish-step",
        "finish",
        "[DONE]",
    ];
    assert_eq!(kinds(&events), expected);
    let id = begun["operation_id"].clone();
    let call = json!({ "type": "tool-input-available", "toolCallId": id, "toolName": "demo", "input": arguments });
    assert_eq!(events[2].chunk(), call);
    let output = json!({ "type": "tool-output-available", "toolCallId": id, "output": { "tool": "demo", "steps": 2 } });
    assert_eq!(events[5].chunk(), output);
    // A reader that was cut anywhere in it gets the rest of it.
    for (at, event) in events.iter().enumerate().filter(|(_, event)| event.id.is_some()) {
        let resumed = api.with("last-event-id", event.id.as_deref().unwrap());
        let rest = resumed.stream(&format!("{}/stream", path_of(&begun))).await.all().await;
        assert_eq!(rest, if kinds(&events)[at] == "finish" { &[][..] } else { &events[at + 1..] }, "behind {event:?}");
    }

    // The caller's own name for the call is the call's name, in a failure as well.
    let order = json!({ "tool_name": "demo", "arguments": { "steps": 999_999_999 }, "tool_call_id": "call-7" });
    let (_, begun) = api.post(&format!("{session}/operations"), &order).await;
    let events = streamed(&api, &path_of(&begun)).await;
    let expected = ["start", "start-step", "tool-input-available", "tool-output-error", "error", "finish", "[DONE]"];
    assert_eq!(kinds(&events), expected);
    assert_eq!(events[2].chunk()["toolCallId"], "call-7");
    assert_eq!(
        (&events[3].chunk()["toolCallId"], &events[3].chunk()["errorText"]),
        (&json!("call-7"), &events[4].chunk()["errorText"])
    );

    let begun = operate(&api, &session, json!({ "steps": 100_000, "delay_ms": 5 })).await;
    api.post(&format!("{}/cancel", path_of(&begun)), &json!({})).await;
    let events = streamed(&api, &path_of(&begun)).await;
    assert_eq!(kinds(&events)[events.len() - 3..], ["tool-output-error", "abort", "[DONE]"]);
}

#[tokio::test]
async fn the_stream_of_a_producers_operation_ends_with_its_output() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let text = json!([
        { "type": "text-start", "id": "t" }, { "type": "text-delta", "id": "t", "delta": "x" }, { "type": "text-end", "id": "t" },
    ]);
    for session in [None, Some(session.as_str())] {
        let made = produce(&api, session, "render").await;
        let path = path_of(&made);
        assert_eq!(api.post(&format!("{path}/messages"), &text).await.0, 200);
        assert_eq!(api.post(&format!("{path}/complete"), &json!({ "result": "a picture" })).await.0, 200);
        let events = streamed(&api, &path).await;
        let expected = [
            "start",
            "text-start",
            "text-delta",
            "text-end",
            "tool-input-available",
            "tool-output-available",
            "finish",
            "[DONE]",
        ];
        assert_eq!(kinds(&events), expected);
        assert_eq!((&events[4].chunk()["toolName"], &events[4].chunk()["input"]), (&json!("render"), &json!({})));
        assert_eq!(events[4].chunk()["toolCallId"], made["operation_id"]);
        let output = json!({
            "type": "tool-output-available", "toolCallId": made["operation_id"], "output": "a picture"
        });
        assert_eq!(events[5].chunk(), output);
    }
    // By webhook, without a word before, and in vain.
    let made = produce(&api, Some(&session), "render").await;
    let hook = format!("/api/chat/operations/{}/complete", made["operation_id"].as_str().unwrap());
    assert_eq!(api.post(&hook, &json!({ "success": false, "error": "out of paint" })).await.0, 200);
    let events = streamed(&api, &path_of(&made)).await;
    let expected = ["start", "tool-input-available", "tool-output-error", "error", "finish", "[DONE]"];
    assert_eq!(kinds(&events), expected);
    assert_eq!(events[2].chunk()["errorText"], "out of paint");
}

#[tokio::test]
async fn what_a_producer_told_of_its_call_is_not_told_twice() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let result = json!({ "url": "u", "frames": 24 });
    let input =
        json!({ "type": "tool-input-available", "toolCallId": "c1", "toolName": "render", "input": { "n": 1 } });
    let output = json!({ "type": "tool-output-available", "toolCallId": "c1", "output": { "frames": 24, "url": "u" } });
    let preliminary = json!({
        "type": "tool-output-available", "toolCallId": "c1", "output": { "frames": 3 }, "preliminary": true
    });
    let other = json!({ "type": "tool-input-available", "toolCallId": "c2", "toolName": "look", "input": {} });
    let ended = async |sent: &[&Value], how: Value| {
        let made = produce(&api, None, "render").await;
        let path = path_of(&made);
        assert_eq!(api.post(&format!("{path}/messages"), &json!(sent)).await.0, 200);
        assert_eq!(api.post(&format!("{path}/complete"), &how).await.0, 200);
        let events = streamed(&api, &path).await;
        let said: Vec<Value> = events[1..events.len() - 1].iter().map(Event::chunk).collect();
        (said, made["operation_id"].clone())
    };
    let finish = json!({ "type": "finish" });
    let done = json!({ "result": result });
    let (said, _) = ended(&[&input, &output], done.clone()).await;
    assert_eq!(said, [input.clone(), output.clone(), finish.clone()], "the whole call was there");
    let (said, _) = ended(&[&input], done.clone()).await;
    assert_eq!(said, [input.clone(), output.clone(), finish.clone()], "its output was missing");
    let (said, _) = ended(&[&input, &preliminary], done.clone()).await;
    assert_eq!(
        said,
        [input.clone(), preliminary.clone(), output.clone(), finish.clone()],
        "there was only a first look"
    );
    let (said, operation) = ended(&[&other], done).await;
    assert_eq!(said.len(), 4, "the call of another tool is another call: {said:?}");
    assert_eq!((&said[1]["toolCallId"], &said[2]["toolCallId"]), (&operation, &operation));
    let (said, operation) = ended(&[&input, &output], json!({ "result": 7 })).await;
    assert_eq!(said.len(), 5, "another result is not what was told: {said:?}");
    assert_eq!((&said[3]["toolCallId"], &said[3]["output"]), (&operation, &json!(7)));
    let (said, _) = ended(&[&input], json!({})).await;
    assert_eq!(said, [input, finish], "without a result there is nothing to tell");
}

#[tokio::test]
async fn a_producers_stream_is_what_the_producer_sent() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let whole = json!([
        { "type": "start", "messageId": "theirs", "messageMetadata": { "z": 1, "a": 2 } }, { "type": "start-step" },
        { "type": "text-start", "id": "t" }, { "type": "text-delta", "id": "t", "delta": "x" }, { "type": "text-end", "id": "t" },
        { "type": "finish-step" }, { "type": "start-step" }, { "type": "data-n", "data": 1 }, { "type": "finish-step" },
        { "type": "finish", "messageMetadata": { "b": 1 } },
    ]);
    let stepless =
        json!([{ "type": "start", "messageId": "m" }, { "type": "data-n", "data": 1 }, { "type": "finish" }]);
    let open = json!([{ "type": "start-step" }, { "type": "data-n", "data": 1 }]);
    let bare = json!([{ "type": "data-n", "data": 1 }, { "type": "abort" }]);
    let nothing = json!([{ "type": "finish" }]);
    for (sent, added_start) in [(&whole, false), (&stepless, false), (&open, true), (&bare, true), (&nothing, true)] {
        let made = produce(&api, None, "render").await;
        let path = path_of(&made);
        let (status, appended) = api.post(&format!("{path}/messages"), sent).await;
        assert_eq!(status, 200, "{appended}");
        let mut expected: Vec<String> = sent.as_array().unwrap().iter().map(Value::to_string).collect();
        if added_start {
            expected.insert(0, json!({ "type": "start", "messageId": made["task_id"] }).to_string());
        }
        if *sent == open {
            assert_eq!(api.post(&format!("{path}/complete"), &json!({})).await.0, 200);
            expected.push(json!({ "type": "finish" }).to_string());
        } else {
            assert_eq!(api.get(&path).await.1["last_message_id"], appended["last_message_id"]);
        }
        let events = streamed(&api, &path).await;
        let data: Vec<Value> =
            events[..events.len() - 1].iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect();
        let expected: Vec<Value> = expected.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        assert_eq!(data, expected);
        // Cut behind each of them, the same reader reads on, and a fresh one is given the same message.
        for (at, event) in events[..events.len() - 2].iter().enumerate() {
            let resumed = api.with("last-event-id", event.id.as_deref().unwrap());
            let rest = resumed.stream(&format!("{path}/stream?fold=0")).await.all().await;
            assert_eq!(rest, events[at + 1..]);
            let framed = resumed.stream(&format!("{path}/stream?fold=0&frame=1")).await.all().await;
            assert_eq!(framed[0].data, events[0].data, "with its own beginning");
        }
    }
}

/// Streams are let go of soon, and so are tombstones; sessions live.
fn short_lived() -> Config {
    let mut config = config();
    config.stream.ttl = Duration::from_millis(200);
    config.session.tombstone_ttl = Duration::from_millis(300);
    config
}

async fn expired(api: &Api, path: &str) {
    until("the stream has expired", async || {
        let (status, answer) = api.get(&format!("{path}/stream")).await;
        (status == 410).then(|| assert_eq!(answer["code"], "TASK_EXPIRED"))
    })
    .await;
}

#[tokio::test]
async fn a_result_outlives_its_stream_as_long_as_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = short_lived();
    config.store.url = StoreUrl::Disk(dir.path().join("data"));
    let server = Server::with(config.clone()).await;
    let mut api = Api::new(server.address);
    let session = api.session().await;
    let done = operate(&api, &session, json!({ "steps": 2, "delay_ms": 1 })).await;
    let failed = operate(&api, &session, json!({ "steps": 999_999_999 })).await;
    let cancelled = operate(&api, &session, json!({ "steps": 100_000, "delay_ms": 5 })).await;
    api.post(&format!("{}/cancel", path_of(&cancelled)), &json!({})).await;
    let pushed = produce(&api, Some(&session), "render").await;
    api.post(&format!("{}/complete", path_of(&pushed)), &json!({ "result": [1, 2] })).await;
    let mut known = Vec::new();
    for (task, status) in [(&done, "completed"), (&failed, "failed"), (&cancelled, "cancelled"), (&pushed, "completed")]
    {
        let shown = ended(&api, &path_of(task)).await;
        assert_eq!(shown["status"], status);
        known.push((path_of(task), shown));
    }
    let alone = path_of(&produce(&api, None, "render").await);
    api.post(&format!("{alone}/complete"), &json!({ "result": 1 })).await;
    for (path, _) in &known {
        expired(&api, path).await;
    }
    // A task that belongs to no session is forgotten in the meantime, so tombstones do go.
    until("a tombstone is forgotten", async || (api.get(&alone).await.0 == 404).then_some(())).await;
    assert_eq!(known[0].1["result"], json!({ "tool": "demo", "steps": 2 }));
    assert_eq!(known[3].1["result"], json!([1, 2]));
    for (path, before) in &known {
        assert_eq!(api.get(path).await, (200, before.clone()), "as it was");
        let asked = api.post(&format!("{path}/cancel"), &json!({})).await;
        assert_eq!(asked, (200, json!({ "cancelled": false, "status": before["status"] })));
    }
    server.stop().await;

    let server = Server::with(config).await;
    api = Api::new(server.address);
    for (path, before) in &known {
        assert_eq!(api.get(path).await, (200, before.clone()), "as it was, after a restart too");
        expired(&api, path).await;
    }
    assert_eq!(api.delete(&session).await.0, 204);
    for (path, _) in &known {
        assert!([404, 410].contains(&api.get(path).await.0), "it went with its session");
    }
}

#[tokio::test]
async fn the_polled_session_shows_the_result_where_it_said_that_work_goes_on() {
    let server = Server::with(short_lived()).await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let part = async |nth: usize| {
        let (_, shown) = api.get(&session).await;
        let messages: Vec<Value> = shown["messages"].as_array().unwrap().clone();
        let answers: Vec<Value> = messages.into_iter().filter(|message| message["role"] == "assistant").collect();
        let parts = answers[nth]["parts"].as_array().unwrap().clone();
        (shown, parts.into_iter().find(|part| part["type"] == "tool-demo").unwrap())
    };
    let say = async |message: &str| {
        api.start(&format!("{session}/stream"), &json!({ "message": message })).await.all().await;
    };
    say("/op demo 100000 5").await;
    let (shown, at_work) = part(0).await;
    assert_eq!(
        (&at_work["state"], &at_work["output"]["type"]),
        (&json!("output-available"), &json!("operation_started"))
    );
    assert_eq!(shown["status"], "running");
    let path = path_of(&at_work["output"]);
    api.post(&format!("{path}/cancel"), &json!({ "reason": "enough" })).await;
    say("/op demo 3 1").await;
    say("/op demo 999999999").await;
    let settled = until("everything has ended", async || {
        let (shown, _) = part(0).await;
        (shown["status"] == "idle").then_some(shown)
    })
    .await;
    assert_eq!(settled["active_streams"], json!([]));
    let look = async || {
        // At the moment when nothing is at work any more, every part says how it ended.
        let parts = [part(0).await.1, part(1).await.1, part(2).await.1];
        assert_eq!(
            (&parts[0]["state"], &parts[0]["errorText"]),
            (&json!("output-error"), &json!("The operation was cancelled.")),
            "{parts:?}"
        );
        assert_eq!(parts[0].get("output"), None);
        assert_eq!(parts[0]["toolCallId"], at_work["toolCallId"], "the same call");
        assert_eq!(parts[1]["state"], "output-available");
        assert_eq!(parts[1]["output"], json!({ "tool": "demo", "steps": 3 }));
        assert_eq!(parts[1]["input"], json!({ "steps": 3, "delay_ms": 1 }));
        assert_eq!(parts[2]["state"], "output-error");
        assert!(parts[2]["errorText"].as_str().unwrap().contains("steps"), "{parts:?}");
    };
    look().await;
    expired(&api, &path).await;
    look().await;
}

#[tokio::test]
async fn a_session_keeps_so_many_operations_and_so_many_bytes_of_their_results() {
    let mut config = config();
    config.stream.ttl = Duration::from_millis(200);
    config.limits.operations_kept_max = 4;
    config.limits.operation_results_bytes_max = 3000;
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let complete = async |bytes: usize| {
        let path = path_of(&produce(&api, Some(&session), "render").await);
        assert_eq!(api.post(&format!("{path}/complete"), &json!({ "result": "x".repeat(bytes) })).await.0, 200);
        until("its session was told", async || {
            let (_, shown) = api.get(&session).await;
            (shown["status"] == "idle").then_some(())
        })
        .await;
        expired(&api, &path).await;
        path
    };
    let (first, second, third) = (complete(1000).await, complete(1000).await, complete(1500).await);
    let shown = async |path: &str| {
        let (status, shown) = api.get(path).await;
        (status, shown["status"].clone(), shown["result"].as_str().map(str::len), shown["result_expired"].clone())
    };
    let done = || json!("completed");
    assert_eq!(shown(&first).await, (200, done(), None, json!(true)), "the oldest result went");
    assert_eq!(shown(&second).await, (200, done(), Some(1000), Value::Null));
    assert_eq!(shown(&third).await, (200, done(), Some(1500), Value::Null));
    let fourth = complete(5000).await;
    assert_eq!(shown(&fourth).await, (200, done(), None, json!(true)), "one alone is too much");
    assert_eq!(shown(&third).await, (200, done(), Some(1500), Value::Null), "and costs the others nothing");
    let fifth = complete(10).await;
    assert_eq!(shown(&fifth).await, (200, done(), Some(10), Value::Null));
    assert_eq!(api.get(&first).await.1["code"], "TASK_EXPIRED", "the session has forgotten it");
    assert_eq!(shown(&second).await.0, 200);
}
