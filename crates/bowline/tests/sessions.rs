//! Sessions over a real WebSocket: what each frame of the protocol does.

mod support;

use serde_json::json;
use support::{Server, is_terminal, seqs};

#[tokio::test]
async fn a_message_is_answered_and_every_event_has_its_number() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    let frames = client.ask("/long 5 0").await;
    let logged: Vec<_> = frames.iter().filter(|frame| frame["seq"].is_u64()).collect();
    assert_eq!(seqs(&frames), (1..=7).collect::<Vec<_>>());
    assert_eq!(logged[0]["event"], "user.message");
    assert_eq!(logged[1]["content"], "tok1");
    assert_eq!(logged[2]["content"], " tok2");
    assert_eq!(logged[6]["event"], "agent.final_answer");
    assert_eq!(logged[6]["content"], "tok1 tok2 tok3 tok4 tok5");
    assert!(logged.iter().all(|frame| frame["session_id"] == session.as_str()));
    let epoch = logged[0]["event_id"].as_str().unwrap().split('-').next().unwrap().to_owned();
    assert!(logged.iter().all(|frame| frame["event_id"] == format!("{epoch}-{}", frame["seq"])));
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_comes_back_gets_exactly_what_it_missed() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.say("/long 50 1").await;
    let seen = client.until(|frame| frame["seq"] == 10).await;
    drop(client);
    let mut client = server.connect().await;
    let (greeting, mut replayed) = client.resume(&session, json!({ "last_seq": 10 })).await;
    assert_eq!(greeting["content"], "Session reconnected successfully");
    assert_eq!(greeting["metadata"]["reconnected"], true);
    let ended = replayed.last().is_some_and(is_terminal);
    if !ended {
        replayed.extend(client.until(is_terminal).await);
    }
    let mut all = seqs(&seen);
    all.extend(seqs(&replayed));
    assert_eq!(all, (1..=52).collect::<Vec<_>>());
    server.stop().await;
}
