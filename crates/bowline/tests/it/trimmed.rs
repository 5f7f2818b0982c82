//! Readers of a stream whose head is gone: a cursor that is retained goes on exactly, and its end is its end.

use bowline::config::StoreUrl;
use serde_json::{Value, json};

use crate::support::api::{Api, Event, kinds};
use crate::support::{Server, config};

/// A server that keeps 400 events of each session. A reader who follows is never that far behind.
async fn forgetful() -> (Server, Api) {
    let mut config = config();
    config.buffer.events_max = 400;
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    (server, api)
}

/// Tries ids of a stream that was read to its end: whatever is retained goes on exactly.
async fn try_all(api: &Api, path: &str, whole: &[Event], first_retained: u64) {
    let chunks = whole.iter().take_while(|event| event.kind() != "[DONE]").count();
    for at in (0..chunks).filter(|at| at % 29 == 0 || chunks - at < 12) {
        let id = whole[at].id.clone().unwrap();
        let place = id.split_once('-').unwrap().1;
        let (seq, whole_event) = (place.split('.').next().unwrap().parse::<u64>().unwrap(), !place.contains('.'));
        let owed = if whole_event { seq + 1 } else { seq };
        let stream = api.with("last-event-id", &id).stream(path).await;
        if at + 1 == chunks {
            assert_eq!(stream.status, 204, "{id} is the end");
        } else if owed < first_retained {
            let rest = stream.all().await;
            let gap = json!({ "lost": first_retained - owed, "first_retained": first_retained });
            assert_eq!(rest[0].chunk()["data"], gap, "after {id}");
            let numbered: Vec<&Event> = rest.iter().filter(|event| event.id.is_some()).collect();
            let expected = &whole[whole.len() - 1 - numbered.len()..whole.len() - 1];
            assert_eq!(numbered, expected.iter().collect::<Vec<_>>(), "an id means the same to everybody");
        } else {
            assert_eq!(stream.all().await, whole[at + 1..], "after {id}");
        }
    }
}

#[tokio::test]
async fn a_retained_cursor_goes_on_exactly_and_its_end_is_the_end() {
    let (_server, api) = forgetful().await;
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 800 1" })).await;
    let path = format!("/api/chat/tasks/{}/stream", stream.task());
    let whole = stream.all().await;
    assert!(whole.iter().rev().skip(1).all(|event| event.id.is_some()), "it missed nothing");
    // 1 message, 800 words and the answer.
    try_all(&api, &path, &whole, 403).await;
    // The next turn takes more of the first away; what is left of it still goes on.
    api.start(&format!("{session}/stream"), &json!({ "message": "/echo next" })).await.all().await;
    try_all(&api, &path, &whole, 405).await;
}

#[tokio::test]
async fn a_reader_that_comes_back_while_the_head_goes_reads_on_in_the_same_part() {
    let (_server, api) = forgetful().await;
    let session = api.session().await;
    let mut stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 900 1" })).await;
    let path = format!("/api/chat/tasks/{}/stream", stream.task());
    let mut seen = Vec::new();
    loop {
        let event = stream.next().await.unwrap();
        let done = event.data.contains("tok700\"");
        seen.push(event);
        if done {
            break;
        }
    }
    drop(stream);
    let last = seen.last().unwrap().id.clone().unwrap();
    let rest = api.with("last-event-id", &last).stream(&path).await.all().await;
    let words: Vec<String> = seen
        .iter()
        .chain(&rest)
        .filter(|event| event.kind() == "text-delta")
        .map(|event| event.chunk()["delta"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(words.len(), 900, "each word once");
    let starts = seen.iter().chain(&rest).filter(|event| event.kind() == "text-start").count();
    assert_eq!(starts, 1, "one part");
    assert_eq!(kinds(&rest)[rest.len() - 4..], ["text-end", "finish-step", "finish", "[DONE]"]);
}

#[tokio::test]
async fn a_producers_stream_goes_on_exactly_also_after_a_restart_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config();
    config.stream.events_max = 50;
    config.store.url = StoreUrl::Disk(dir.path().join("data"));
    let server = Server::with(config.clone()).await;
    let api = Api::new(server.address);
    let (_, made) = api.post("/api/chat/tasks", &json!({})).await;
    let path = format!("/api/chat/tasks/{}", made["task_id"].as_str().unwrap());
    let words = |from: u64, to: u64| -> Value {
        (from..to).map(|n| json!({ "type": "text-delta", "id": "t", "delta": format!("w{n} ") })).collect()
    };
    let mut live = api.stream(&format!("{path}/stream")).await;
    let open = json!([{ "type": "text-start", "id": "t" }, { "type": "tool-input-start", "toolCallId": "c", "toolName": "look" }]);
    assert_eq!(api.post(&format!("{path}/messages"), &open).await.0, 200);
    let mut whole = Vec::new();
    // In pieces, so that the reader is never trimmed past.
    for (from, to) in [(0, 40), (40, 80)] {
        assert_eq!(api.post(&format!("{path}/messages"), &words(from, to)).await.0, 200);
        while whole.len() < to as usize + 3 {
            whole.push(live.next().await.unwrap());
        }
    }
    drop(live);
    server.stop().await;

    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let end = json!([
        { "type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "{}" },
        { "type": "tool-input-available", "toolCallId": "c", "toolName": "look", "input": {} },
        { "type": "tool-output-available", "toolCallId": "c", "output": 1 },
        { "type": "text-end", "id": "t" },
        { "type": "finish-step" },
        { "type": "finish" },
    ]);
    let (status, answer) = api.post(&format!("{path}/messages"), &end).await;
    assert_eq!(status, 200, "what began in the part that is gone can still be ended: {answer}");
    let last = whole.last().unwrap().id.clone().unwrap();
    let rest = api.with("last-event-id", &last).stream(&format!("{path}/stream")).await.all().await;
    let expected = [
        "tool-input-delta",
        "tool-input-available",
        "tool-output-available",
        "text-end",
        "finish-step",
        "finish",
        "[DONE]",
    ];
    assert_eq!(kinds(&rest), expected);
    whole.extend(rest);
    try_all(&api, &format!("{path}/stream"), &whole, 40).await;
    drop(server);
}
