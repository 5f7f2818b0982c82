//! Bad input, strangers and limits: the documented refusal, and nobody else notices.

use std::time::Duration;

use bowline::config::{AuthMode, StaticToken, StoreUrl};
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{LogId, Principal};
use bowline_store::{Claim, Commit, Item, Leased, LogKind, Record};
use futures_util::SinkExt;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config as Cases, TestRunner};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};

use crate::support;
use crate::support::api::Api;
use crate::support::{Client, PATIENCE, Server, get};

fn with_tokens() -> bowline::config::Config {
    let token = |token: &str, principal: &str, admin| StaticToken {
        token: Secret::new(token),
        principal: Principal::parse(principal).unwrap(),
        admin,
    };
    let mut config = support::config();
    let tokens = vec![
        token("alice-secret", "alice", false),
        token("bob-secret", "bob", false),
        token("root-secret", "root", true),
    ];
    config.auth.mode = AuthMode::Tokens(tokens);
    config.session.ownership = bowline::config::Ownership::Principal;
    config.auth.first_frame_timeout = Duration::from_millis(300);
    config
}

async fn as_user(server: &Server, token: &str) -> Client {
    let mut client = Client::dial(server.address, &[("authorization", &format!("Bearer {token}"))]).await.unwrap();
    client.expect("system.connected").await;
    client
}

#[tokio::test]
async fn binary_oversize_and_broken_text_get_their_close_codes() {
    let server = Server::start().await;
    let (mut bystander, _) = server.session().await;
    let mut client = server.connect().await;
    client.socket.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(client.closed().await, Some(1003));
    let mut client = server.connect().await;
    let huge = format!("{{\"event\":\"user.message\",\"content\":\"{}\"}}", "x".repeat(1 << 20));
    let _ = client.socket.send(Message::text(huge)).await;
    assert_eq!(client.closed().await, Some(1009));
    let mut client = server.connect().await;
    let header = FrameHeader { opcode: OpCode::Data(Data::Text), mask: Some([1, 2, 3, 4]), ..FrameHeader::default() };
    client.socket.send(Message::Frame(Frame::from_payload(header, vec![0xff, 0xfe, 0xfd].into()))).await.unwrap();
    assert_eq!(client.closed().await, Some(1007));
    assert_eq!(bystander.ask("/echo unharmed").await.last().unwrap()["content"], "unharmed");
    server.stop().await;
}

#[tokio::test]
async fn bad_frames_are_answered_and_the_hundredth_closes() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let frames = ["{", "[]", "{}", "{\"event\":\"user.nothing\"}", "{\"event\":\"user.message\"}"];
    let codes = ["INVALID_JSON", "INVALID_PAYLOAD", "INVALID_PAYLOAD", "UNKNOWN_EVENT", "INVALID_PAYLOAD"];
    for (frame, code) in frames.iter().zip(codes) {
        client.send_text((*frame).into()).await;
        let error = client.expect("system.error").await;
        assert_eq!(error["metadata"]["error_code"], code);
        assert_eq!(error["metadata"]["recovery_action"], "fix_request");
    }
    // Good frames do not help, and acks are never bad.
    client.send_text("{\"event\":\"user.ack\",\"content\":\"?\"}".into()).await;
    for _ in 5..100 {
        client.send_text("nonsense".into()).await;
    }
    assert_eq!(client.closed().await, Some(4202));
    server.stop().await;
}

/// Frames of every wrong kind, from a printed seed.
fn garbage() -> impl Strategy<Value = Message> {
    let words = prop::sample::select(vec![
        "{\"event\":\"user.message\",\"content\":",
        "{\"event\":\"user.reconnect\",\"session_id\":\"sess_x\",\"content\":",
        "{\"event\":\"user.ack\",\"seq\":99999999999999999999}",
        "{\"event\":\"user.create_session\",\"content\":{\"agent\":\"nobody\"}}",
        "{\"event\":\"user.response\",\"step_id\":\"\",\"content\":{}}",
        "null",
        "\"\\ud800\"",
    ]);
    prop_oneof![
        ".{0,200}".prop_map(Message::text),
        words.prop_map(Message::text),
        (1..5000usize)
            .prop_map(|depth| Message::text(format!("{{\"event\":\"user.message\",\"content\":{}", "[".repeat(depth)))),
        prop::collection::vec(any::<u8>(), 0..100).prop_map(Message::binary),
        Just(Message::text("x".repeat((1 << 20) + 1))),
    ]
}

#[tokio::test]
async fn a_thousand_frames_of_garbage_harm_no_client() {
    let mut config = support::config();
    config.limits.bad_frames_max = 1_000_000;
    let server = Server::with(config).await;
    let (mut bystander, _) = server.session().await;
    let mut runner = TestRunner::new(Cases::default());
    println!("seed: {:?}", runner.rng());
    let mut client = server.connect().await;
    for n in 0..1000 {
        let frame = garbage().new_tree(&mut runner).unwrap().current();
        let ends = frame.is_binary() || frame.len() > 1 << 20;
        let _ = client.socket.send(frame).await;
        if ends {
            let code = client.closed().await;
            assert!(matches!(code, Some(1003 | 1009)), "{code:?}");
            client = server.connect().await;
        } else {
            // Every frame is survived: the connection still answers.
            client.send(json!({ "event": "user.reconnect", "session_id": format!("sess_{n}") })).await;
            let marker = |frame: &Value| frame["session_id"] == format!("sess_{n}");
            client.until(marker).await;
        }
    }
    assert_eq!(bystander.ask("/echo unharmed").await.last().unwrap()["content"], "unharmed");
    drop(client);
    server.stop().await;
}

#[tokio::test]
async fn bytes_that_are_not_websocket_at_all_harm_no_client() {
    let server = Server::start().await;
    for bytes in
        [&b"\x00\xff\xfe garbage\r\n\r\n"[..], b"GET /ws HTTP/1.1\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
    }
    let (status, body) = server.get("/nowhere").await;
    assert_eq!(status, 404);
    assert!(body.contains("recovery_action"));
    assert_eq!(server.get("/healthz").await, (200, "ok\n".into()));
    server.stop().await;
}

#[tokio::test]
async fn half_a_header_is_not_waited_for_for_ever() {
    let mut config = support::config();
    config.limits.header_timeout = Duration::from_millis(200);
    let server = Server::with(config).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /ws HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is cut").ok();
    server.stop().await;
}

#[tokio::test]
async fn half_a_body_is_not_waited_for_for_ever_while_readers_and_connections_are() {
    let mut config = support::config();
    config.limits.body_timeout = Duration::from_millis(100);
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let (mut client, _) = server.session().await;
    let (_, task) = api.post("/api/chat/tasks", &json!({})).await;
    let task = format!("/api/chat/tasks/{}", task["task_id"].as_str().unwrap());
    let reader = api.stream(&format!("{task}/stream")).await;
    for path in ["/api/chat/sessions", &format!("{task}/messages"), "/mcp", "/api/admin/backends"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!("POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: 100\r\n\r\n{{", server.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is cut").unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 408 ") && head.contains("\r\nconnection: close"), "{path}: {head}");
        let body: Value = serde_json::from_str(body).expect("a refusal like any other");
        assert_eq!((&body["code"], &body["recovery_action"]), (&json!("INVALID_PAYLOAD"), &json!("fix_request")));
    }
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("bowline_limits_hit_total{limit=\"limits.body_timeout\"} 4"), "{metrics}");
    // Both were silent for longer than that.
    assert_eq!(client.ask("/echo here").await.last().unwrap()["content"], "here");
    assert_eq!(api.post(&format!("{task}/complete"), &json!({ "result": "x" })).await.0, 200);
    assert_eq!(reader.all().await.last().unwrap().data, "[DONE]");
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_that_leaves_a_body_unread_says_that_the_connection_closes() {
    let server = Server::with(with_tokens()).await;
    let alice = "authorization: Bearer alice-secret\r\n";
    for (path, header, sent, status, closes) in [
        ("/api/chat/sessions", "", "{", 401, true),
        ("/mcp", "", "{", 401, true),
        ("/nowhere", "", "{", 404, true),
        ("/healthz", "", "{", 405, true),
        ("/api/chat/config/ttl", "", "{", 405, true),
        ("/api/chat/sessions", alice, "[1]", 400, false),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let length = if closes { 100 } else { sent.len() };
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: {}\r\n{header}content-length: {length}\r\n\r\n", server.address);
        stream.write_all(format!("{head}{sent}").as_bytes()).await.unwrap();
        let answer = whole(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert_eq!(answer.contains("\r\nconnection: close\r\n"), closes, "{path}: {answer}");
        if closes {
            let rest = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("it is closed");
            assert!(matches!(rest, Ok(0) | Err(_)), "{path}");
        } else {
            stream.write_all(format!("{head}{sent}").as_bytes()).await.unwrap();
            assert!(whole(&mut stream).await.starts_with("HTTP/1.1 400 "), "it goes on");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn messages_sessions_frames_and_connections_have_limits() {
    let mut config = support::config();
    config.limits.sessions_per_principal_max = 3;
    config.limits.sessions_per_connection_max = 2;
    config.limits.events_per_second = 5;
    config.limits.connections_max = 3;
    let server = Server::with(config).await;
    let mut client = server.connect().await;
    client.create().await;
    client.create().await;
    client.send(json!({ "event": "user.create_session" })).await;
    assert_eq!(client.refusal().await, ("TOO_MANY_SESSIONS".into(), "retry_later".into()));
    let (mut second, third_session) = server.session().await;
    second.send(json!({ "event": "user.create_session" })).await;
    assert_eq!(second.refusal().await.0, "TOO_MANY_SESSIONS");
    second.say(&"x".repeat(300 << 10)).await;
    assert_eq!(second.refusal().await, ("MESSAGE_TOO_LARGE".into(), "fix_request".into()));
    second.send(json!({ "event": "user.end_session", "session_id": third_session })).await;
    second.expect("agent.session_end").await;
    second.create().await;
    for _ in 0..30 {
        client.send(json!({ "event": "user.reconnect", "session_id": "sess_x" })).await;
    }
    let limited = client.until(|frame| frame["metadata"]["error_code"] == "RATE_LIMITED").await.pop().unwrap();
    assert!(limited["metadata"]["retry_after_ms"].as_u64().unwrap() > 0);
    let _third = server.connect().await;
    let refused = Client::dial(server.address, &[]).await;
    assert!(refused.is_err(), "one more than connections_max");
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("bowline_limits_hit_total{limit=\"limits.connections_max\"} 1"), "{metrics}");
    server.stop().await;
}

#[tokio::test]
async fn a_message_is_as_long_as_what_it_says_however_it_is_written_and_wherever_it_comes() {
    let mut config = support::config();
    config.limits.message_bytes_max = 32;
    let server = Server::with(config).await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let (mut client, _) = server.session().await;
    // As JSON writes them. Each says `/echo ` and 26 bytes, and then one byte more.
    let ascii = format!("/echo {}", "x".repeat(26));
    let escaped = format!("/echo {}", "\\u00e9".repeat(13));
    let quoted = format!("/echo {}", "\\\"\\n".repeat(13));
    for (n, fits) in [ascii, escaped, quoted].into_iter().enumerate() {
        let too_long = format!("{fits}x");
        for (text, longer) in [(&fits, false), (&too_long, true)] {
            client.send_text(format!("{{\"event\":\"user.message\",\"content\":\"{text}\"}}")).await;
            if longer {
                let refused = client.until(|frame| frame["metadata"]["error_code"].is_string()).await.pop().unwrap();
                assert_eq!(refused["metadata"]["error_code"], "MESSAGE_TOO_LARGE");
                assert!(refused["content"].as_str().unwrap().contains("is 33 bytes long"), "{refused}");
            } else {
                let ends = |frame: &Value| {
                    frame["event"] == "agent.final_answer" || frame["metadata"]["error_code"].is_string()
                };
                assert_eq!(client.until(ends).await.pop().unwrap()["event"], "agent.final_answer", "{text}");
            }
            let part = format!("{{\"type\":\"text\",\"text\":\"{text}\"}}");
            let id = format!("m{n}{longer}");
            let chat =
                format!("{{\"id\":\"c\",\"messages\":[{{\"id\":\"{id}\",\"role\":\"user\",\"parts\":[{part}]}}]}}");
            for (path, body) in
                [(format!("{session}/stream"), format!("{{\"message\":\"{text}\"}}")), ("/api/chat".into(), chat)]
            {
                let (status, answer) = api.call("POST".parse().unwrap(), &path, Some(body)).await;
                let expected = if longer { (413, &json!("MESSAGE_TOO_LARGE")) } else { (200, &Value::Null) };
                assert_eq!((status, &answer["code"]), expected, "{path} {text}: {answer}");
            }
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn the_session_of_another_principal_does_not_exist() {
    let server = Server::with(with_tokens()).await;
    let mut alice = as_user(&server, "alice-secret").await;
    let session = alice.create().await;
    alice.ask("/echo mine").await;
    let mut bob = as_user(&server, "bob-secret").await;
    let attempts = |session: &str| {
        [
            json!({ "event": "user.reconnect", "session_id": session, "content": { "last_seq": 0 } }),
            json!({ "event": "user.reconnect", "session_id": session, "content": { "mode": "observe" } }),
            json!({ "event": "user.reconnect", "session_id": session, "content": { "take_over": true } }),
            json!({ "event": "user.message", "session_id": session, "content": "x" }),
            json!({ "event": "user.cancel", "session_id": session }),
            json!({ "event": "user.end_session", "session_id": session }),
            json!({ "event": "user.response", "session_id": session, "step_id": "s", "content": { "confirmed": true } }),
        ]
    };
    let unknown = "sess_ffffffffffffffffffffffffffffffff";
    for (foreign, nothing) in attempts(&session).into_iter().zip(attempts(unknown)) {
        let mut answers = Vec::new();
        for frame in [foreign, nothing] {
            bob.send(frame).await;
            let mut answer = bob.until(|frame| frame["metadata"]["error_code"].is_string()).await.pop().unwrap();
            answer["session_id"] = Value::Null;
            answer["timestamp"] = Value::Null;
            answers.push(answer);
        }
        assert_eq!(answers[0], answers[1], "a stranger cannot tell `exists` from `does not`");
        assert_eq!(answers[0]["metadata"]["error_code"], "SESSION_NOT_FOUND");
    }
    assert_eq!(alice.ask("/echo still mine").await.last().unwrap()["content"], "still mine");
    server.stop().await;
}

#[tokio::test]
async fn a_token_may_come_by_header_by_subprotocol_or_by_first_frame() {
    let server = Server::with(with_tokens()).await;
    let mut client =
        Client::dial(server.address, &[("sec-websocket-protocol", "bowline.v1, bearer.alice-secret")]).await.unwrap();
    client.create().await;

    let mut client = Client::dial(server.address, &[]).await.unwrap();
    assert_eq!(client.expect("system.connected").await["content"]["authenticated"], false);
    client.send(json!({ "event": "user.authenticate", "content": { "token": "alice-secret" } })).await;
    let notice = client.expect("system.notice").await;
    assert_eq!(notice["metadata"]["action"], "authenticated");
    client.create().await;
    // A refresh keeps the position; another principal's token is refused.
    client.send(json!({ "event": "user.authenticate", "content": { "token": "alice-secret" } })).await;
    client.expect("system.notice").await;
    assert_eq!(client.ask("/echo x").await.last().unwrap()["seq"], 2);
    client.send(json!({ "event": "user.authenticate", "content": { "token": "bob-secret" } })).await;
    assert_eq!(client.refusal().await, ("UNAUTHORIZED".into(), "authenticate".into()));
    assert_eq!(client.ask("/echo y").await.last().unwrap()["seq"], 4);

    let wrong = Client::dial(server.address, &[("authorization", "Bearer wrong")]).await;
    assert!(wrong.err().unwrap().to_string().contains("401"));
    let mut browser =
        Client::dial(server.address, &[("sec-websocket-protocol", "bowline.v1, bearer.wrong")]).await.unwrap();
    assert_eq!(browser.closed().await, Some(4203));
    let mut impatient = Client::dial(server.address, &[]).await.unwrap();
    impatient.send(json!({ "event": "user.create_session" })).await;
    assert_eq!(impatient.refusal().await.0, "UNAUTHORIZED");
    assert_eq!(impatient.closed().await, Some(4203));
    let mut silent = Client::dial(server.address, &[]).await.unwrap();
    assert_eq!(silent.closed().await, Some(4203));
    server.stop().await;
}

#[tokio::test]
async fn a_credential_that_expires_ends_the_connection_but_not_the_position() {
    let mut config = with_tokens();
    let secret = "a secret that is long enough for HS256!";
    config.auth.mode = AuthMode::Jwt(bowline::config::JwtConfig {
        keys: bowline::config::JwtKeys::Secret(Secret::new(secret)),
        issuer: None,
        audience: None,
        principal_claim: "sub".into(),
        admin_claim: "admin".into(),
    });
    let server = Server::with(config).await;
    let token = |seconds: i64| {
        let now = bowline_env::clock::unix_seconds() as i64;
        let claims = json!({ "sub": "carol", "exp": now + seconds });
        support::token::hs256(secret, &claims)
    };
    let mut client = as_user(&server, &token(3)).await;
    client.until(|frame| frame["metadata"]["action"] == "token_expiring").await;
    let session = client.create().await;
    client.ask("/long 5 0").await;
    assert_eq!(client.refusal().await.0, "UNAUTHORIZED");
    assert_eq!(client.closed().await, Some(4203));
    let mut client = as_user(&server, &token(60)).await;
    let (_, replayed) = client.resume(&session, json!({ "last_seq": 5 })).await;
    assert_eq!(support::seqs(&replayed), [6, 7]);
    // An expiry further away than any clock goes is survived.
    let claims = json!({ "sub": "carol", "exp": u64::MAX });
    let for_ever = support::token::hs256(secret, &claims);
    if let Ok(mut other) = Client::dial(server.address, &[("authorization", &format!("Bearer {for_ever}"))]).await {
        other.create().await;
    }
    // A refresh in time keeps the connection: the old expiry passes and nothing happens.
    client.send(json!({ "event": "user.authenticate", "content": { "token": token(3600) } })).await;
    client.until(|frame| frame["metadata"]["action"] == "authenticated").await;
    assert_eq!(client.ask("/echo x").await.last().unwrap()["content"], "x");
    server.stop().await;
}

#[tokio::test]
async fn foreign_pages_are_refused_before_the_upgrade() {
    let mut config = support::config();
    config.auth.origins = vec!["https://app.example".into()];
    let server = Server::with(config).await;
    for origin in [
        "null",
        "https://evil.example",
        "https://app.example.evil.example",
        "http://app.example",
        "https://app.example:8443",
    ] {
        let refused = Client::dial(server.address, &[("origin", origin)]).await;
        assert!(refused.err().unwrap().to_string().contains("403"), "{origin}");
        assert_eq!(get(server.address, "/api/admin/node", &[("origin", origin)]).await.0, 403);
    }
    for origin in ["https://app.example", &format!("http://{}", server.address)] {
        assert!(Client::dial(server.address, &[("origin", origin)]).await.is_ok(), "{origin}");
    }
    // A name that was rebound to loopback is not our own page.
    let rebound = [("origin", "http://evil.example"), ("host", "evil.example")];
    assert!(Client::dial(server.address, &rebound).await.is_err());
    server.stop().await;
}

#[tokio::test]
async fn an_endpoint_that_wants_a_credential_says_of_which_kind() {
    let server = Server::with(with_tokens()).await;
    for path in ["/api/chat/sessions", "/api/admin/node", "/mcp", "/produce"] {
        for header in [None, Some(("authorization", "Bearer wrong"))] {
            let answer = raw(&server, "GET", path, header.as_slice()).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{path}: {answer}");
            assert!(answer.contains("\r\nwww-authenticate: Bearer\r\n"), "{path}: {answer}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn what_does_not_become_a_websocket_is_told_why_as_everywhere() {
    let server = Server::start().await;
    let (upgrade, version) = (("upgrade", "websocket"), ("sec-websocket-version", "13"));
    let connection = ("connection", "upgrade");
    for (path, headers) in [
        ("/ws", vec![]),
        ("/ws", vec![connection, upgrade, version]),
        (
            "/ws",
            vec![
                connection,
                upgrade,
                ("sec-websocket-version", "7"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
        ),
        ("/", vec![connection, upgrade, version]),
        ("/produce", vec![]),
    ] {
        let answer = raw(&server, "GET", path, &headers).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 ") && head.contains("content-type: application/json"), "{path}: {head}");
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["code"], "INVALID_PAYLOAD", "{path} {headers:?}");
    }
    server.stop().await;
}

/// The whole answer to a request without a body.
async fn raw(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", server.address);
    if !headers.iter().any(|(name, _)| *name == "connection") {
        request.push_str("connection: close\r\n");
    }
    headers.iter().for_each(|(name, value)| request.push_str(&format!("{name}: {value}\r\n")));
    stream.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
    whole(&mut stream).await
}

/// One answer, to its end.
async fn whole(stream: &mut TcpStream) -> String {
    let (mut answer, mut some) = (String::new(), [0; 4096]);
    let all = async {
        // The connection may be kept, so the length says where the answer ends.
        loop {
            if let Some((head, body)) = answer.split_once("\r\n\r\n") {
                let length = head.split_once("content-length: ").and_then(|(_, rest)| rest.split("\r\n").next());
                if length.and_then(|length| length.parse().ok()).is_some_and(|length: usize| body.len() >= length) {
                    return;
                }
            }
            match stream.read(&mut some).await.unwrap() {
                0 => return,
                read => answer.push_str(std::str::from_utf8(&some[..read]).unwrap()),
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("an answer");
    answer
}

#[tokio::test]
async fn the_admin_api_needs_an_admin() {
    let server = Server::with(with_tokens()).await;
    for path in ["node", "sessions", "sessions/x", "sessions/x/events", "config"] {
        let path = format!("/api/admin/{path}");
        assert_eq!(get(server.address, &path, &[]).await.0, 401, "{path}");
        assert_eq!(get(server.address, &path, &[("authorization", "Bearer alice-secret")]).await.0, 403, "{path}");
    }
    let root = [("authorization", "Bearer root-secret")];
    let (status, node) = get(server.address, "/api/admin/node", &root).await;
    assert_eq!(status, 200);
    assert!(node.contains("loss_window"));
    let (_, config) = get(server.address, "/api/admin/config", &root).await;
    assert!(!config.contains("-secret"), "secrets are hidden: {config}");
    server.stop().await;
}

#[tokio::test]
async fn a_session_may_be_followed_by_an_operator_with_a_cursor() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.ask("/long 5 0").await;
    let api = Api::new(server.address);
    let mut events = api.stream(&format!("/api/admin/sessions/{session}/events?from=3")).await;
    assert_eq!(events.status, 200);
    assert!(events.next().await.unwrap().id.unwrap().ends_with("-4"));
    client.send(json!({ "event": "user.end_session" })).await;
    // The stream ends with the session.
    let last = events.all().await.pop().unwrap();
    assert_eq!(last.data, "{}");
    let (status, _) = server.get(&format!("/api/admin/sessions/{session}/events?from=x")).await;
    assert_eq!(status, 400);
    server.stop().await;
}

#[tokio::test]
async fn the_bare_origin_takes_old_clients_and_shows_people_a_page() {
    let server = Server::start().await;
    let (status, page) = server.get("/").await;
    assert_eq!(status, 200);
    assert!(page.contains("Bowline"));
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/", server.address)).await.unwrap();
    let first = futures_util::StreamExt::next(&mut socket).await.unwrap().unwrap();
    assert!(first.to_text().unwrap().contains("system.connected"));
    drop(socket);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_never_reads_cannot_make_the_server_grow() {
    let server = Server::start().await;
    let (mut greedy, session) = server.session().await;
    let (mut polite, _) = server.session().await;
    // Every answer is owed to somebody who does not take it.
    let flood = async {
        for _ in 0..200_000 {
            let frame = json!({ "event": "user.reconnect", "session_id": session, "content": { "last_seq": 0, "mode": "observe" } });
            if greedy.socket.send(Message::text(frame.to_string())).await.is_err() {
                return;
            }
        }
    };
    // It is held back long before all are taken; how soon is not the point.
    let _ = tokio::time::timeout(Duration::from_secs(2), flood).await;
    assert_eq!(polite.ask("/echo unharmed").await.last().unwrap()["content"], "unharmed");
    drop(greedy);
    server.stop().await;
}

#[tokio::test]
async fn a_name_lent_to_loopback_reads_nothing_from_the_admin_api() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // A page that rebound its own name sends no origin when it reads from itself.
    let request = b"GET /api/admin/sessions HTTP/1.1\r\nhost: evil.example:8080\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert_eq!(server.get("/api/admin/sessions").await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn what_clients_tell_in_acks_is_counted() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    client.ask("/long 3 0").await;
    client
        .send(json!({ "event": "user.ack", "content": { "last_seq": 5, "received_count": 5, "gap_detected": true } }))
        .await;
    client.ask("/echo x").await;
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("bowline_client_received_total 5") && metrics.contains("bowline_client_gaps_total 1"));
    assert!(metrics.contains("bowline_acks_total 1"));
    server.stop().await;
}

#[tokio::test]
async fn refusals_are_counted_whichever_way_they_went() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let before = counted(&server).await;
    client.send(json!({ "event": "user.reconnect", "session_id": "sess_x" })).await;
    client.refusal().await;
    assert_eq!(counted(&server).await, before + 1);
    server.get("/api/chat/sessions/sess_x").await;
    server.get("/nowhere").await;
    assert_eq!(counted(&server).await, before + 3);
    server.stop().await;
}

/// Refusals so far, of all codes.
async fn counted(server: &Server) -> u64 {
    let (_, metrics) = server.get("/metrics").await;
    let lines = metrics.lines().filter(|line| line.starts_with("bowline_refusals_total{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Puts something that cannot be read where a fact was. Whoever writes to that log notices that another has.
async fn spoil(server: &Server, log: &LogId, key: Option<&str>) {
    let store = &server.store;
    let fence = store.lease(log, &Claim::alone()).await.and_then(Leased::fence).unwrap();
    let mut commit = Commit::to(log.clone(), fence, 0);
    match key {
        Some(key) => {
            assert!(store.item(log, key).await.unwrap().is_some(), "there is no {key} to spoil");
            commit.items = vec![Item::put(key, &b"\xff no JSON"[..])];
        }
        None => {
            let record = store.record(log).await.unwrap().expect("there is a record to spoil");
            commit.record = Some(Record { body: b"\xff nothing"[..].into(), ..record });
        }
    }
    store.commit(commit).await.unwrap();
}

#[tokio::test]
async fn a_message_whose_key_cannot_be_read_does_not_run_again() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    let message =
        json!({ "event": "user.message", "session_id": session, "message_id": "m1", "content": "/echo once" });
    client.send(message.clone()).await;
    client.until(support::is_terminal).await;
    spoil(&server, &LogId::parse(&session).unwrap(), Some("i/m1")).await;
    for _ in 0..2 {
        client.send(message.clone()).await;
        let frame =
            client.until(|frame| frame["metadata"]["error_code"].is_string() || frame["seq"].is_u64()).await.pop();
        let metadata = frame.unwrap()["metadata"].clone();
        assert_eq!(metadata["error_code"], "STORE_UNAVAILABLE", "{metadata}");
        assert_eq!(metadata["details"]["unreadable"], "i/m1", "{metadata}");
    }
    // The session itself goes on. It first notices that another has written to its log, and begins anew.
    let other = json!({ "event": "user.message", "session_id": session, "message_id": "m2", "content": "/echo two" });
    client.send(other.clone()).await;
    client.closed().await;
    let mut client = server.connect().await;
    client.resume(&session, json!({ "last_seq": 0 })).await;
    client.send(other).await;
    assert_eq!(client.until(support::is_terminal).await.pop().unwrap()["content"], "two", "others go on");
}

#[tokio::test]
async fn an_append_of_a_producer_whose_position_cannot_be_read_is_not_taken_again() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let (_, made) = api.post("/api/chat/tasks", &json!({ "tool_name": "painter" })).await;
    let task = made["task_id"].as_str().unwrap().to_owned();
    let path = format!("/api/chat/tasks/{task}");
    let chunks = json!([{ "type": "text-start", "id": "t" }, { "type": "text-delta", "id": "t", "delta": "once" }]);
    let append = |seq: &str| {
        let producer = api.with("producer-id", "p1").with("producer-seq", seq);
        let (path, chunks) = (format!("{path}/messages"), chunks.clone());
        async move { producer.post(&path, &chunks).await }
    };
    assert_eq!(append("0").await.0, 200);
    spoil(&server, &LogId::parse(&task).unwrap(), Some("p/p1")).await;
    // The first finds out that another has written, and what it knew by heart is void.
    append("1").await;
    let (status, refused) = append("0").await;
    assert_eq!((status, &refused["details"]["unreadable"]), (503, &json!("p/p1")), "{refused}");
    assert_eq!(api.post(&format!("{path}/complete"), &json!({})).await.0, 200);
    let events = api.stream(&format!("{path}/stream")).await.all().await;
    assert_eq!(support::api::text(&events), "once");
}

#[tokio::test]
async fn an_operation_whose_key_cannot_be_read_is_not_begun_again() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let session = api.session().await;
    let order = json!({ "tool_name": "demo", "arguments": { "steps": 1, "delay_ms": 0 }, "tool_call_id": "call-1" });
    let (status, begun) = api.post(&format!("{session}/operations"), &order).await;
    assert_eq!(status, 202, "{begun}");
    let task = format!("/api/chat/tasks/{}", begun["task_id"].as_str().unwrap());
    api.stream(&format!("{task}/stream")).await.all().await;
    let log = LogId::parse(session.rsplit('/').next().unwrap()).unwrap();
    spoil(&server, &log, Some("o/0000000000")).await;
    let (status, refused) = api.post(&format!("{session}/operations"), &order).await;
    assert_eq!((status, refused["code"].as_str()), (503, Some("STORE_UNAVAILABLE")), "{refused}");
    let tasks = server.store.list(LogKind::Task, None).await.unwrap();
    assert_eq!(tasks.len(), 1, "it was begun once");
}

#[tokio::test]
async fn a_chat_whose_name_cannot_be_read_does_not_become_another_one() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    let submit = |id: &str| {
        let message = json!({ "id": id, "role": "user", "parts": [{ "type": "text", "text": "/echo hello" }] });
        json!({ "id": "chat-1", "messages": [message], "trigger": "submit-message" })
    };
    api.start("/api/chat", &submit("u1")).await.all().await;
    let (name, _) = server.store.list(LogKind::Alias, None).await.unwrap().pop().unwrap();
    spoil(&server, &name, None).await;
    let (status, refused) = api.post("/api/chat", &submit("u2")).await;
    assert_eq!((status, &refused["details"]["unreadable"]), (503, &json!("alias")), "{refused}");
    assert_eq!(api.get("/api/chat/sessions").await.1["total"], 1);
}

#[tokio::test]
async fn a_message_reads_only_the_messages_that_its_agent_is_given() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::TempDir::new().unwrap();
    let mut config = support::config();
    config.store.url = StoreUrl::Disk(dir.path().join("data"));
    config.limits.conversation_messages_max = 2;
    let server = Server::with(config).await;
    let (mut client, _) = server.session().await;
    let old = "an old message, too long to be kept in memory beside its log. ".repeat(3);
    // The first words of the first message are the session's title, which stands in every commit.
    client.ask("/echo first").await;
    client.ask(&format!("/echo {old}")).await;
    for n in 0..3 {
        client.ask(&format!("/echo {n}")).await;
    }
    // The old message is unreadable now. Whoever reads it finds its log damaged.
    let segment = std::fs::read_dir(dir.path().join("data")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|extension| extension == "log")).max().unwrap();
    let (bytes, file) =
        (std::fs::read(&segment).unwrap(), std::fs::File::options().write(true).open(&segment).unwrap());
    let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"an old message")).collect();
    assert!(places.len() >= 4, "an event and an item each for the message and its answer: {places:?}");
    places.iter().for_each(|at| file.write_all_at(b"AN", *at as u64).unwrap());
    let answer = client.ask("/echo fine").await.pop().unwrap();
    assert_eq!(answer["content"], "fine", "{answer}");
}
