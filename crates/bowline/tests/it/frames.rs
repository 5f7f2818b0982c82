//! Frames at the edge of the protocol: what each is answered with, to the field.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::support;
use crate::support::{Client, PATIENCE, Server};

/// Says goodbye and reads to the end of the wire: the close frame that came back, and whether the wire ended cleanly.
async fn goodbye(client: &mut Client, frame: Option<CloseFrame>) -> (Option<Option<u16>>, bool) {
    client.socket.send(Message::Close(frame)).await.unwrap();
    let mut answered = None;
    loop {
        match tokio::time::timeout(PATIENCE, client.socket.next()).await.expect("the wire ends") {
            Some(Ok(Message::Close(frame))) => answered = Some(frame.map(|frame| frame.code.into())),
            Some(Ok(_)) => {}
            None | Some(Err(Error::ConnectionClosed)) => return (answered, true),
            Some(Err(_)) => return (answered, false),
        }
    }
}

#[tokio::test]
async fn a_close_frame_is_answered_with_one() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    client.say("/long 20000 0").await;
    client.until(|frame| frame["seq"] == 3).await;
    let normal = CloseFrame { code: CloseCode::Normal, reason: "bye".into() };
    // In the middle of a stream, and quietly; with a code, and without.
    assert_eq!(goodbye(&mut client, Some(normal.clone())).await, (Some(Some(1000)), true));
    let mut quiet = server.connect().await;
    assert_eq!(goodbye(&mut quiet, None).await, (Some(None), true));
    let mut away = server.connect().await;
    let leaving = CloseFrame { code: CloseCode::Away, reason: "".into() };
    assert_eq!(goodbye(&mut away, Some(leaving)).await, (Some(Some(1001)), true));
    let (producer, _) = tokio_tungstenite::connect_async(format!("ws://{}/produce", server.address)).await.unwrap();
    let mut producer = Client { socket: producer, hello: Value::Null, session: String::new() };
    assert_eq!(goodbye(&mut producer, Some(normal)).await, (Some(Some(1000)), true));
    server.stop().await;
}

#[tokio::test]
async fn what_clients_count_is_read_wherever_their_cursor_stands() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.ask("/echo x").await;
    for ack in [
        json!({ "event": "user.ack", "content": { "last_seq": 1, "received_count": 1, "gap_detected": true } }),
        json!({ "event": "user.ack", "metadata": { "last_seq": 1, "received_count": 10, "gap_detected": true } }),
        json!({ "event": "user.ack", "seq": 1, "received_count": 100, "gap_detected": true }),
        json!({ "event": "user.ack", "seq": 1, "metadata": { "received_count": 1000, "gap_detected": true } }),
        json!({ "event": "user.ack", "content": 2, "metadata": { "received_count": 10000, "gap_detected": true } }),
    ] {
        client.send(ack).await;
    }
    client.send(json!({ "event": "user.nonsense", "session_id": session })).await;
    assert_eq!(client.refusal().await.0, "UNKNOWN_EVENT", "acks are never answered");
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("bowline_client_received_total 11111"), "{metrics}");
    assert!(metrics.contains("bowline_client_gaps_total 5"));
    server.stop().await;
}

#[tokio::test]
async fn a_position_that_was_claimed_may_be_acknowledged() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.ask("/echo x").await;
    drop(client);
    let mut client = server.connect().await;
    let (greeting, _) = client.resume(&session, json!({ "last_seq": 9 })).await;
    assert_eq!(greeting["metadata"]["resume"]["verdict"], "ahead_of_log");
    for seq in [9, 5, 2] {
        client.send(json!({ "event": "user.ack", "session_id": session, "content": { "last_seq": seq } })).await;
    }
    client.send(json!({ "event": "user.ack", "session_id": session, "content": { "last_seq": 10 } })).await;
    let refused = client.next().await;
    assert_eq!(refused["metadata"]["error_code"], "CURSOR_AHEAD");
    assert!(refused["content"].as_str().unwrap().contains("10"), "only what was neither sent nor claimed: {refused}");
    // Nothing has changed by the acks beyond the log: without a cursor, reading goes on after what was really sent.
    drop(client);
    let mut client = server.connect().await;
    let (greeting, _) = client.resume(&session, Value::Null).await;
    assert_eq!(greeting["metadata"]["resume"]["verdict"], "caught_up");
    assert_eq!(client.ask("/echo y").await[0]["seq"], 3);
    server.stop().await;
}

#[tokio::test]
async fn a_long_way_back_that_cannot_be_read_fails_in_its_own_words() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    for content in [json!({ "last_seq": -1 }), json!({ "last_event_id": 1.5 }), json!({ "mode": "wat" }), json!("x")] {
        for state in [Value::Null, json!("eyJ")] {
            let frame = json!({
                "event": "user.reconnect_with_state",
                "session_id": session,
                "signed_state": state,
                "content": content,
            });
            client.send(frame).await;
            let failed = client.next().await;
            assert_eq!(failed["event"], "error.recovery_failed", "{content}: {failed}");
            assert_eq!(failed["session_id"], session.as_str());
            let facts = &failed["metadata"];
            assert_eq!(
                (&facts["error_code"], &facts["recovery_strategy"]),
                (&json!("INVALID_PAYLOAD"), &json!("fix_request"))
            );
            assert_eq!(facts["recovery_strategy"], facts["recovery_action"]);
            assert!(facts["details"]["field"].as_str().unwrap().starts_with("content"), "{failed}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_bad_frame_is_answered_with_the_session_that_it_named() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    let bad = [
        json!({ "event": "user.message", "session_id": session }),
        json!({ "event": "user.request_state", "session_id": session, "content": { "format": "yaml" } }),
        json!({ "event": "user.solve_tasks", "session_id": session, "content": { "tasks": [5] } }),
    ];
    for frame in bad {
        client.send(frame).await;
        let refused = client.next().await;
        assert_eq!((&refused["event"], &refused["session_id"]), (&json!("system.error"), &json!(session)), "{refused}");
        assert_eq!(refused["metadata"]["error_code"], "INVALID_PAYLOAD");
        assert!(refused["metadata"]["details"]["field"].as_str().unwrap().starts_with("content"));
    }
    client.send(json!({ "event": "user.message" })).await;
    assert!(client.next().await.get("session_id").is_none(), "it named none");
    server.stop().await;
}

#[tokio::test]
async fn an_id_of_another_server_is_no_cursor() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.ask("/long 3 0").await;
    client.send(json!({ "event": "user.ack", "session_id": session, "content": { "last_seq": 2 } })).await;
    for id in ["evt_999", ""] {
        let (_, owed) = client.resume(&session, json!({ "last_event_id": id })).await;
        assert_eq!(support::seqs(&owed), [3, 4, 5], "after the last ack");
    }
    server.stop().await;
}
