//! How long sessions and tasks live: work in the background keeps its session, and what it left outlives it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::api::{Api, kinds};
use crate::support::{Server, config};

/// A server whose sessions live for a moment only.
async fn hasty() -> (Server, Api) {
    let mut config = config();
    config.session.ttl = Duration::from_millis(300);
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    (server, api)
}

/// Waits until this session has expired.
async fn expired(api: &Api, session: &str) {
    let answer = loop {
        let answer = api.get(session).await;
        if answer.0 != 200 {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(answer.1["code"], "SESSION_EXPIRED");
}

fn path_of(begun: &Value) -> String {
    format!("/api/chat/tasks/{}", begun["task_id"].as_str().unwrap())
}

#[tokio::test]
async fn a_session_with_work_in_the_background_does_not_expire() {
    let (_server, api) = hasty().await;
    let busy = api.session().await;
    let order = json!({ "tool_name": "demo", "arguments": { "steps": 100000, "delay_ms": 1 } });
    let (_, operation) = api.post(&format!("{busy}/operations"), &order).await;
    let pushed_for = api.session().await;
    let id = pushed_for.rsplit('/').next().unwrap();
    let (_, pushed) = api.post("/api/chat/tasks", &json!({ "session_id": id, "tool_name": "painter" })).await;
    let mut reader = api.stream(&format!("{}/stream", path_of(&operation))).await;
    // Three lifetimes of a session in which nothing happens.
    for _ in 0..3 {
        let quiet = api.session().await;
        expired(&api, &quiet).await;
    }
    for session in [&busy, &pushed_for] {
        assert_eq!(api.get(session).await.0, 200, "its work is not done");
    }
    let chunk = json!([{ "type": "data-stroke", "data": 1 }]);
    assert_eq!(api.post(&format!("{}/messages", path_of(&pushed)), &chunk).await.0, 200);
    assert_eq!(api.get(&path_of(&operation)).await.1["status"], "running", "nobody cancelled it");
    reader.until("start").await;

    // When the work is done, the session's lifetime counts from there, and what it left lives by `stream.ttl`.
    assert_eq!(api.post(&format!("{}/complete", path_of(&pushed)), &json!({ "result": 7 })).await.0, 200);
    expired(&api, &pushed_for).await;
    let (status, shown) = api.get(&path_of(&pushed)).await;
    assert_eq!((status, &shown["status"], &shown["result"]), (200, &json!("completed"), &json!(7)));
    let events = api.stream(&format!("{}/stream", path_of(&pushed))).await.all().await;
    assert_eq!(kinds(&events).last().unwrap(), "[DONE]");

    // Only its owner's own word ends a session together with its work.
    assert_eq!(api.delete(&busy).await.0, 204);
    assert!(kinds(&reader.all().await).contains(&"abort".to_owned()));
    assert_eq!(api.get(&path_of(&operation)).await.0, 410);
}

#[tokio::test]
async fn a_turn_that_never_was_is_not_one_that_expired() {
    let mut config = config();
    config.limits.messages_kept_max = 2;
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let id = session.rsplit('/').next().unwrap();
    let turn = |seq: u64| format!("/api/chat/tasks/turn_{seq}_{id}");
    api.start(&format!("{session}/stream"), &json!({ "message": "/long 3 0" })).await.all().await;
    assert_eq!(api.get(&turn(1)).await.0, 200);
    for seq in [2, 5, 6, 1000] {
        let (status, refused) = api.get(&turn(seq)).await;
        assert_eq!((status, &refused["code"]), (404, &json!("TASK_NOT_FOUND")), "{seq}");
        assert_eq!(api.get(&format!("{}/stream", turn(seq))).await.0, 404);
    }
    // With its message goes what is known of a turn; that it was one can still be seen.
    for _ in 0..3 {
        api.start(&format!("{session}/stream"), &json!({ "message": "/echo x" })).await.all().await;
    }
    let (status, refused) = api.get(&turn(1)).await;
    assert_eq!((status, &refused["code"]), (410, &json!("TASK_EXPIRED")));
    assert_eq!(api.get(&turn(2)).await.0, 404);
}
