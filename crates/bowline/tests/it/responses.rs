//! The Responses API over HTTP, where its official clients cannot look: logs that were trimmed, queues, and secrets that prove ownership.

use bowline::config::{Ownership, WhenBusy};
use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::{Server, config};

async fn events(api: &Api, path: &str) -> Vec<Value> {
    let all = api.stream(path).await.all().await;
    assert_eq!(all.last().map(|event| event.data.as_str()), Some("[DONE]"));
    all[..all.len() - 1].iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect()
}

#[tokio::test]
async fn a_response_is_the_same_whole_streamed_and_resumed() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let (status, whole) = api.post("/v1/responses", &json!({ "model": "demo", "input": "hello" })).await;
    assert_eq!((status, &whole["status"]), (200, &json!("completed")), "{whole}");
    let path = format!("/v1/responses/{}", whole["id"].as_str().unwrap());
    assert_eq!(api.get(&path).await, (200, whole.clone()));
    let streamed = events(&api, &format!("{path}?stream=true")).await;
    assert_eq!(streamed.last().unwrap()["response"], whole);
    for (at, event) in streamed.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
        assert_eq!(events(&api, &format!("{path}?stream=true&starting_after={at}")).await, streamed[at + 1..]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_response_whose_beginning_is_gone_is_refused_and_never_renumbered() {
    let mut config = config();
    config.buffer.events_max = 100;
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let body = json!({ "model": "demo", "input": "/long 300 0", "background": true });
    let (_, begun) = api.post("/v1/responses", &body).await;
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    let (mut status, mut told) = api.get(&path).await;
    while status == 200 {
        (status, told) = api.get(&path).await;
    }
    assert_eq!((status, &told["error"]["code"]), (410, &json!("REPLAY_GAP")));
    assert_eq!(api.stream(&format!("{path}?stream=true&starting_after=3")).await.status, 410);
    server.stop().await;
}

#[tokio::test]
async fn a_response_that_waits_for_the_one_before_it_is_answered_in_its_turn() {
    let mut config = config();
    config.session.when_busy = WhenBusy::Queue;
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let ask = |input: &str| json!({ "model": "demo", "input": input, "conversation": "trip" });
    let (long, echo) = (ask("/long 50 5"), ask("/echo second"));
    let (first, second) = tokio::join!(api.post("/v1/responses", &long), api.post("/v1/responses", &echo));
    assert_eq!((first.0, second.0), (200, 200), "{} {}", first.1, second.1);
    assert_eq!(second.1["output"][0]["content"][0]["text"], "second");
    assert_ne!(first.1["id"], second.1["id"]);
    server.stop().await;
}

#[tokio::test]
async fn where_secrets_prove_ownership_a_name_opens_nothing() {
    let mut config = config();
    config.session.ownership = Ownership::Token;
    let server = Server::with(config).await;
    let (stranger, secret) = (Api::new(server.address), "s".repeat(40));
    let owner = stranger.with("bowline-resume-token", &secret);
    let (status, made) = owner.post("/v1/responses", &json!({ "model": "demo", "input": "/echo mine" })).await;
    assert_eq!(status, 200, "{made}");
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    let (status, told) = stranger.get(&path).await;
    let unknown = stranger.get("/v1/responses/resp_1_sess_00000000000000000000000000000001").await;
    assert_eq!((status, &told["error"]["code"]), (404, &json!("TASK_NOT_FOUND")));
    assert_eq!(unknown, (status, told), "what is another's and what is not there are told alike");
    assert_eq!(owner.get(&path).await, (200, made));
    server.stop().await;
}
