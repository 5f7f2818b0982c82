//! Resume tokens: what proves whose session it is, for how long, and what those are told who had it.

use bowline::config::Ownership;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support;
use crate::support::api::Api;
use crate::support::{Client, PATIENCE, Server};

async fn server() -> Server {
    let mut config = support::config();
    config.session.ownership = Ownership::Token;
    Server::with(config).await
}

/// A connection with a new session, and its token.
async fn session(server: &Server) -> (Client, String) {
    let mut client = server.connect().await;
    client.send(json!({ "event": "user.create_session" })).await;
    let created = client.expect("agent.session_created").await;
    client.session = created["session_id"].as_str().unwrap().to_owned();
    (client, created["metadata"]["resume_token"].as_str().unwrap().to_owned())
}

/// Comes back with a token; the new one, or none if it was refused.
async fn resume(server: &Server, session: &str, token: &str) -> (Client, Option<String>) {
    let mut client = server.connect().await;
    client.reconnect(session, json!({ "resume_token": token, "take_over": true })).await;
    let frames =
        client.until(|f| f["event"] == "agent.session_created" || f["metadata"]["error_code"].is_string()).await;
    let token = frames.last().unwrap()["metadata"]["resume_token"].as_str().map(str::to_owned);
    (client, token)
}

async fn status(server: &Server, path: &str, token: &str) -> u16 {
    Api::new(server.address).with("bowline-resume-token", token).get(path).await.0
}

#[tokio::test]
async fn a_token_is_worth_nothing_once_its_successor_was_used_over_http() {
    let server = server().await;
    let (mut client, first) = session(&server).await;
    client.ask("/echo x").await;
    let id = client.session.clone();
    drop(client);
    let path = format!("/api/chat/sessions/{id}");
    let (_client, second) = resume(&server, &id, &first).await;
    let second = second.expect("the first token is good");
    assert_eq!(status(&server, &path, &first).await, 200, "the answer with the second might have been lost");
    assert_eq!(status(&server, &path, &second).await, 200);
    assert_eq!(status(&server, &path, &first).await, 404, "but it was not");
    assert_eq!(resume(&server, &id, &first).await.1, None);
    assert!(resume(&server, &id, &second).await.1.is_some());
    server.stop().await;
}

#[tokio::test]
async fn every_endpoint_that_takes_a_token_uses_it() {
    let endpoints = ["", "/cancel", "list", "task"];
    for endpoint in endpoints {
        let server = server().await;
        let (mut client, first) = session(&server).await;
        let id = client.session.clone();
        client.ask("/echo x").await;
        drop(client);
        let path = format!("/api/chat/sessions/{id}");
        let (_client, second) = resume(&server, &id, &first).await;
        let api = Api::new(server.address).with("bowline-resume-token", &second.unwrap());
        let used = match endpoint {
            "/cancel" => api.post(&format!("{path}/cancel"), &json!({})).await.0,
            "list" => api.get("/api/chat/sessions").await.0,
            "task" => api.get(&format!("/api/chat/tasks/turn_1_{id}")).await.0,
            _ => api.get(&path).await.0,
        };
        assert_eq!(used, 200, "{endpoint}");
        assert_eq!(status(&server, &path, &first).await, 404, "{endpoint}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_token_that_was_shown_only_to_watch_has_arrived_too() {
    let server = server().await;
    let (client, first) = session(&server).await;
    let id = client.session.clone();
    drop(client);
    let (_client, second) = resume(&server, &id, &first).await;
    let second = second.unwrap();
    let mut watcher = server.connect().await;
    watcher.resume(&id, json!({ "resume_token": second, "mode": "observe" })).await;
    assert_eq!(resume(&server, &id, &first).await.1, None);
    assert!(resume(&server, &id, &second).await.1.is_some());
    server.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_refused_has_used_its_token_all_the_same() {
    let server = server().await;
    let (client, first) = session(&server).await;
    let id = client.session.clone();
    drop(client);
    let (mut holder, second) = resume(&server, &id, &first).await;
    let second = second.unwrap();
    let holding = tokio::spawn(async move { holder.expect("agent.final_answer").await });
    let mut other = server.connect().await;
    other.reconnect(&id, json!({ "resume_token": second })).await;
    assert_eq!(other.refusal().await.0, "SESSION_ALREADY_ACTIVE");
    assert_eq!(resume(&server, &id, &first).await.1, None);
    holding.abort();
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_had_the_session_is_notified_of_what_became_of_it() {
    let server = server().await;
    let (mut loser, first) = session(&server).await;
    let id = loser.session.clone();
    let (mut holder, second) = resume(&server, &id, &first).await;
    assert!(second.is_some());
    loser.until(|frame| frame["metadata"]["code"] == "SESSION_TAKEN_OVER").await;
    let refused = |frame: &Value| frame["metadata"]["error_code"].as_str().map(str::to_owned);
    for frame in [
        json!({ "event": "user.message", "session_id": id, "content": "x" }),
        json!({ "event": "user.request_state", "session_id": id }),
        json!({ "event": "user.cancel", "session_id": id }),
    ] {
        loser.send(frame).await;
        assert_eq!(loser.refusal().await, ("SESSION_READ_ONLY".into(), "reconnect".into()));
    }
    holder.session = id.clone();
    holder.send(json!({ "event": "user.end_session" })).await;
    holder.expect("agent.session_end").await;
    for client in [&mut loser, &mut holder] {
        client.send(json!({ "event": "user.message", "session_id": id, "content": "x" })).await;
        assert_eq!(client.refusal().await.0, "SESSION_INACTIVE");
    }
    // To everybody else there is no such session.
    let mut stranger = server.connect().await;
    stranger.send(json!({ "event": "user.message", "session_id": id, "content": "x" })).await;
    let frame = stranger.until(|frame| refused(frame).is_some()).await.pop().unwrap();
    assert_eq!(refused(&frame).as_deref(), Some("SESSION_NOT_FOUND"));
    server.stop().await;
}

/// A task for a producer: its id. With no session it belongs to whoever made it, and has a token of its own.
async fn task(api: &Api, session: Option<&str>, operation: &str) -> String {
    let (status, made) =
        api.post("/api/chat/tasks", &json!({ "session_id": session, "operation_id": operation })).await;
    assert_eq!(status, 201, "{made}");
    made["task_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_webhook_proves_whose_session_its_operation_is_of() {
    let server = server().await;
    let (client, token) = session(&server).await;
    let stranger = Api::new(server.address);
    let owner = stranger.with("bowline-resume-token", &token);
    let task = task(&owner, Some(&client.session), "render-42").await;
    let (path, done) = ("/api/chat/operations/render-42/complete", json!({ "success": true, "result": 1 }));
    let unknown = stranger.post("/api/chat/operations/render-43/complete", &done).await;
    assert_eq!((unknown.0, &unknown.1["code"]), (404, &json!("TASK_NOT_FOUND")));
    assert_eq!(stranger.post(path, &done).await, unknown);
    assert_eq!(stranger.with("bowline-resume-token", "guessed").post(path, &done).await, unknown);
    assert_eq!(owner.get(&format!("/api/chat/tasks/{task}")).await.1["status"], "running");
    assert_eq!(owner.post(path, &done).await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_producers_connection_proves_whose_sessions_its_tasks_are_of() {
    let server = server().await;
    let (client, token) = session(&server).await;
    let anybody = Api::new(server.address);
    let owner = anybody.with("bowline-resume-token", &token);
    let owned = task(&owner, Some(&client.session), "owned").await;
    let (_, made) = anybody.post("/api/chat/tasks", &json!({ "operation_id": "free" })).await;
    let (free, free_token) = (text(&made, "task_id"), text(&made, "resume_token"));
    let address = format!("ws://{}/produce", server.address);
    let (stranger, _) = tokio_tungstenite::connect_async(&address).await.unwrap();
    let mut request = address.into_client_request().unwrap();
    request.headers_mut().insert("bowline-resume-token", token.parse().unwrap());
    let (known, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    const STRANGER: usize = 0;
    const KNOWN: usize = 1;
    let mut sockets = [stranger, known];
    let mut appended = 0;
    for (by, task, shown, refused) in [
        (STRANGER, &owned, None, true),
        (STRANGER, &owned, Some("guessed"), true),
        (STRANGER, &owned, Some(token.as_str()), false),
        (STRANGER, &owned, None, true),
        (STRANGER, &free, None, true),
        (STRANGER, &free, Some(free_token.as_str()), false),
        (KNOWN, &free, None, true),
        (KNOWN, &owned, None, false),
        // What a frame shows counts before what the upgrade showed.
        (KNOWN, &owned, Some("guessed"), true),
    ] {
        let seq = if *task == owned { appended } else { 0 };
        let mut frame = json!({ "task_id": task, "producer_seq": seq, "chunks": [{ "type": "data-x", "data": seq }] });
        if let Some(shown) = shown {
            frame["resume_token"] = shown.into();
        }
        sockets[by].send(Message::text(frame.to_string())).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, sockets[by].next()).await.unwrap().unwrap().unwrap();
        let answer: Value = serde_json::from_str(answer.to_text().unwrap()).unwrap();
        let code = if refused { json!("TASK_NOT_FOUND") } else { Value::Null };
        assert_eq!(answer["code"], code, "{frame}: {answer}");
        appended += u64::from(*task == owned && !refused);
    }
    assert_eq!(appended, 2);
    server.stop().await;
}

fn text(answer: &Value, key: &str) -> String {
    answer[key].as_str().unwrap_or_else(|| panic!("{key} is missing in {answer}")).to_owned()
}

#[tokio::test]
async fn a_task_without_a_session_is_proven_by_a_token_of_its_own() {
    let server = server().await;
    let stranger = Api::new(server.address);
    let make = async |api: &Api| api.post("/api/chat/tasks", &json!({ "operation_id": "render-42" })).await;
    let (status, made) = make(&stranger).await;
    assert_eq!(status, 201, "{made}");
    let (task, token) = (text(&made, "task_id"), text(&made, "resume_token"));
    let owner = stranger.with("bowline-resume-token", &token);
    let (chunk, done) = (json!([{ "type": "data-x", "data": 1 }]), json!({ "success": true, "result": 1 }));
    let unknown = "task_00000000000000000000000000000000";
    for guess in [
        &stranger,
        &stranger.with("bowline-resume-token", "guessed"),
        &stranger.with("bowline-resume-token", &"0".repeat(64)),
    ] {
        for (method, path, body) in [
            ("GET", "/api/chat/tasks/{}", None),
            ("GET", "/api/chat/tasks/{}/stream", None),
            ("GET", "/api/chat/{}/stream", None),
            ("POST", "/api/chat/tasks/{}/messages", Some(&chunk)),
            ("POST", "/api/chat/tasks/{}/complete", Some(&done)),
            ("POST", "/api/chat/tasks/{}/cancel", Some(&done)),
        ] {
            let call = async |id: &str| {
                let body = body.map(Value::to_string);
                guess.call(method.parse().unwrap(), &path.replace("{}", id), body).await
            };
            let foreign = call(&task).await;
            assert_eq!(foreign, call(unknown).await, "{method} {path}");
            assert!(matches!(foreign.0, 404 | 204), "{method} {path}: {foreign:?}");
        }
        let complete = async |name: &str| guess.post(&format!("/api/chat/operations/{name}/complete"), &done).await;
        assert_eq!(complete("render-42").await, complete("render-43").await);
        assert_eq!(complete("render-42").await.0, 404);
        // The same name makes a task of the stranger's own, as any new name does.
        let (status, other) = make(guess).await;
        assert_eq!(status, 201, "{other}");
        assert_ne!(other["task_id"], made["task_id"]);
    }
    // Over the WebSocket too.
    let mut client = server.connect().await;
    let watch = |content: Value| json!({ "event": "user.watch_task", "task_id": task, "content": content });
    client.send(watch(json!({}))).await;
    assert_eq!(client.refusal().await.0, "TASK_NOT_FOUND");
    client.send(watch(json!({ "resume_token": token }))).await;

    assert_eq!(owner.get(&format!("/api/chat/tasks/{task}")).await.1["status"], "running");
    assert_eq!(owner.post(&format!("/api/chat/tasks/{task}/messages"), &chunk).await.0, 200);
    client.until(|frame| frame["event"] == "task.chunk" && frame["content"]["type"] == "data-x").await;
    let (status, again) = make(&owner).await;
    assert_eq!((status, &again["task_id"]), (201, &made["task_id"]), "the same name, proven, is the same task");
    assert_eq!(owner.post("/api/chat/operations/render-42/complete", &done).await.0, 200);
    client.until(|frame| frame["event"] == "task.end").await;
    server.stop().await;
}

#[tokio::test]
async fn a_producer_that_brings_its_own_secret_may_repeat_itself() {
    let server = server().await;
    let anybody = Api::new(server.address);
    let secret = "a secret that the producer made up itself";
    let keyed = anybody.with("idempotency-key", "job-1");
    let owner = keyed.with("bowline-resume-token", secret);
    let (status, made) = owner.post("/api/chat/tasks", &json!({})).await;
    assert_eq!(status, 201, "{made}");
    let (_, again) = owner.post("/api/chat/tasks", &json!({})).await;
    assert_eq!(again["task_id"], made["task_id"], "the first answer may have been lost");
    // A guessed key finds nothing, with or without a secret.
    for guess in [keyed.clone(), keyed.with("bowline-resume-token", "another secret, of somebody else's making")] {
        let (status, other) = guess.post("/api/chat/tasks", &json!({})).await;
        assert_eq!(status, 201, "{other}");
        assert_ne!(other["task_id"], made["task_id"]);
    }
    let path = format!("/api/chat/tasks/{}", text(&made, "task_id"));
    assert_eq!((anybody.get(&path).await.0, owner.get(&path).await.0), (404, 200));
    server.stop().await;
}

/// What a stranger sees of an answer: everything but what is random in it.
async fn seen(api: &Api, body: &Value) -> (u16, Vec<String>, Vec<String>, Option<String>) {
    let stream = api.start("/api/chat", body).await;
    let mut names: Vec<String> = stream.headers.keys().map(ToString::to_string).filter(|name| name != "date").collect();
    names.sort();
    let token = stream.headers.get("bowline-resume-token").map(|token| token.to_str().unwrap().to_owned());
    (stream.status, names, support::api::kinds(&stream.all().await), token)
}

#[tokio::test]
async fn a_stranger_cannot_tell_a_foreign_chat_from_a_new_one() {
    let server = server().await;
    let stranger = Api::new(server.address);
    let body = |chat: &str, text: &str| {
        let message = json!({ "id": format!("m-{text}"), "role": "user", "parts": [{ "type": "text", "text": format!("/echo {text}") }] });
        json!({ "id": chat, "messages": [message] })
    };
    let (status, _, _, token) = seen(&stranger, &body("mine", "a")).await;
    let owner = stranger.with("bowline-resume-token", &token.expect("a new chat has a token"));
    assert_eq!(status, 200);
    for guess in [&stranger, &stranger.with("bowline-resume-token", "guessed")] {
        let (foreign, new) = (seen(guess, &body("mine", "b")).await, seen(guess, &body("never seen", "b")).await);
        assert_eq!((foreign.0, &foreign.1, &foreign.2), (new.0, &new.1, &new.2));
        assert_eq!(foreign.0, 200);
        assert!(foreign.3.is_some() && foreign.3 != new.3);
        for trigger in ["regenerate-message", "no such thing"] {
            let ask = |chat: &str| json!({ "id": chat, "trigger": trigger, "messages": [] });
            assert_eq!(guess.post("/api/chat", &ask("mine")).await, guess.post("/api/chat", &ask("nowhere")).await);
        }
        assert_eq!(guess.get("/api/chat/mine/stream").await, guess.get("/api/chat/nowhere/stream").await);
    }
    // The owner's chat goes on, untouched.
    let (status, ..) = seen(&owner, &body("mine", "c")).await;
    assert_eq!(status, 200);
    let (_, sessions) = owner.get("/api/chat/sessions").await;
    assert_eq!(sessions["total"], 1, "{sessions}");
    let path = format!("/api/chat/sessions/{}", sessions["sessions"][0]["id"].as_str().unwrap());
    let (_, shown) = owner.get(&path).await;
    let users = shown["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user");
    let said: Vec<&str> = users.map(|message| message["parts"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(said, ["/echo a", "/echo c"]);
    server.stop().await;
}

#[tokio::test]
async fn a_first_message_whose_answer_was_lost_is_sent_again_with_the_callers_own_secret() {
    let server = server().await;
    let own = Api::new(server.address).with("bowline-resume-token", "a secret that the page made up for itself");
    let message = json!({ "id": "m1", "role": "user", "parts": [{ "type": "text", "text": "/echo once" }] });
    let body = json!({ "id": "chat", "messages": [message] });
    let first = own.start("/api/chat", &body).await;
    let session = first.headers["bowline-session-id"].clone();
    first.all().await;
    let second = own.start("/api/chat", &body).await;
    assert_eq!(second.headers["bowline-session-id"], session);
    second.all().await;
    let (_, shown) = own.get(&format!("/api/chat/sessions/{}", session.to_str().unwrap())).await;
    assert_eq!(shown["messages"].as_array().unwrap().len(), 2, "it ran once: {shown}");
    server.stop().await;
}
