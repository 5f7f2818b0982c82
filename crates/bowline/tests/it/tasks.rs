//! Turns over HTTP: one log and two views, cursors, repetition, cancel, and who may see what.

use std::collections::BTreeSet;

use bowline::config::{AuthMode, Ownership, StaticToken, WhenBusy};
use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;
use serde_json::{Value, json};

use crate::support;
use crate::support::api::{Api, kinds, text};
use crate::support::{Server, config};

const ENDS: [&str; 3] = ["finish", "abort", "error"];

fn api(server: &Server) -> Api {
    Api::new(server.address)
}

#[tokio::test]
async fn a_turn_streams_ends_once_and_is_then_history() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 5 0", "message_id": "m1" })).await;
    assert_eq!(stream.status, 200);
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache, no-transform"),
        ("x-accel-buffering", "no"),
        ("x-vercel-ai-ui-message-stream", "v1"),
    ] {
        assert_eq!(stream.headers[name], value);
    }
    let task = stream.task();
    let events = stream.all().await;
    assert_eq!(text(&events), "tok1 tok2 tok3 tok4 tok5");
    assert_eq!(kinds(&events)[..2], ["start", "start-step"]);
    assert_eq!(kinds(&events)[events.len() - 3..], ["finish-step", "finish", "[DONE]"]);
    assert_eq!(kinds(&events).iter().filter(|kind| ENDS.contains(&kind.as_str())).count(), 1);
    let ids: Vec<&String> = events.iter().filter_map(|event| event.id.as_ref()).collect();
    let distinct: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!((ids.len(), distinct.len()), (events.len() - 1, events.len() - 1), "every chunk has an id of its own");

    let (status, shown) = api.get(&session).await;
    assert_eq!((status, &shown["status"], &shown["active_stream"]), (200, &json!("idle"), &Value::Null));
    assert_eq!(shown["messages"][0]["id"], "m1");
    assert_eq!(shown["messages"][1]["id"], json!(task));
    assert_eq!(shown["messages"][1]["parts"][1]["text"], "tok1 tok2 tok3 tok4 tok5");
    let (status, shown) = api.get(&format!("/api/chat/tasks/{task}")).await;
    assert_eq!((status, &shown["status"]), (200, &json!("completed")));
    assert_eq!(shown["result"]["text"], "tok1 tok2 tok3 tok4 tok5");
    assert!(shown["finished_at"].is_string() && shown["operation_id"].is_null());
    assert_eq!(api.get(&format!("{session}/stream")).await.0, 204, "nothing runs");
}

#[tokio::test]
async fn what_starts_over_http_is_seen_on_the_websocket_and_the_reverse() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    let api = api(&server);
    let path = format!("/api/chat/sessions/{session}/stream");
    // The holder's connection sees a turn that somebody else of theirs started.
    let stream = api.start(&path, &json!({ "message": "/long 3 0" })).await;
    let frames = client.until(support::is_terminal).await;
    assert_eq!(support::streamed(&frames), "tok1 tok2 tok3");
    assert_eq!(text(&stream.all().await), "tok1 tok2 tok3");
    // And a turn that was started there can be read here, while it waits for an answer given here.
    client.say("/confirm go").await;
    client.expect("agent.user_confirm").await;
    let mut stream = api.stream(&path).await;
    let asked = stream.until("data-user_confirm").await.pop().unwrap().chunk();
    let step = asked["data"]["step_id"].clone();
    let answer = json!({ "step_id": step, "confirmed": true });
    let respond = format!("/api/chat/sessions/{session}/respond");
    assert_eq!(api.post(&respond, &answer).await.0, 200);
    assert_eq!(text(&stream.all().await), "confirmed: go");
    let (status, again) = api.post(&respond, &answer).await;
    assert_eq!((status, &again["code"]), (404, &json!("UNKNOWN_STEP")), "an answer counts once");
    client.until(support::is_terminal).await;
}

#[tokio::test]
async fn a_repeated_post_runs_nothing_twice() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let path = format!("{session}/stream");
    let message = json!({ "message": "/confirm it", "message_id": "same" });
    let mut first = api.start(&path, &message).await;
    let asked = first.until("data-user_confirm").await.pop().unwrap().chunk();
    // While it runs, the second one joins; the header is as good as the field.
    let with_header = api.with("idempotency-key", "same");
    let second = with_header.start(&path, &json!({ "message": "/confirm it" })).await;
    assert_eq!(second.task(), first.task());
    let other = json!({ "message": "something else", "message_id": "same" });
    let (status, refused) = api.post(&path, &other).await;
    assert_eq!((status, &refused["code"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    let busy = api.post(&path, &json!({ "message": "/echo x", "message_id": "new" })).await;
    assert_eq!((busy.0, &busy.1["code"]), (409, &json!("AGENT_BUSY")));
    let answer = json!({ "step_id": asked["data"]["step_id"], "confirmed": false });
    assert_eq!(api.post(&format!("{session}/respond"), &answer).await.0, 200);
    first.all().await;
    let joined = second.all().await;
    assert_eq!(text(&joined), "declined: it");
    // Once it is over, the repetition replays it.
    let replayed = api.start(&path, &message).await.all().await;
    assert_eq!(text(&replayed), "declined: it");
    let (_, shown) = api.get(&session).await;
    assert_eq!(shown["messages"].as_array().unwrap().len(), 2, "one message and one answer");
}

#[tokio::test]
async fn the_same_parser_gets_exactly_what_follows_its_cursor() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/plan a house" })).await;
    let path = format!("/api/chat/tasks/{}/stream", stream.task());
    stream.all().await;
    let whole = api.stream(&format!("{path}?fold=0")).await.all().await;
    for at in 0..whole.len() - 1 {
        let id = whole[at].id.clone().unwrap();
        let header = api.with("last-event-id", &id);
        let stream = header.stream(&format!("{path}?last_message_id=1")).await;
        if at == whole.len() - 2 {
            assert_eq!(stream.status, 204, "it has everything");
            continue;
        }
        let rest = stream.all().await;
        assert!(rest == whole[at + 1..], "after {id}");
    }
    let bare = api.stream(&format!("{path}?last_message_id=0&fold=0")).await.all().await;
    assert!(bare == whole, "0 is the beginning");
    let ahead = api.get(&format!("{path}?last_message_id=999999")).await;
    assert_eq!(ahead.0, 204, "a task that has ended owes nothing to somebody who is past its end");
    let wrong = api.get(&format!("{path}?last_message_id=x.y")).await;
    assert_eq!((wrong.0, &wrong.1["code"]), (400, &json!("INVALID_PAYLOAD")));
}

#[tokio::test]
async fn a_fresh_parser_gets_a_long_answer_in_few_pieces() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 5000 0" })).await;
    let path = format!("/api/chat/tasks/{}/stream", stream.task());
    let live = stream.all().await;
    let folded = api.stream(&path).await.all().await;
    assert!(folded.len() < 20, "{} events", folded.len());
    assert!(text(&folded) == text(&live), "the same text");
    // Framed from the middle: a fresh parser is told what is open there.
    let middle = live.iter().filter(|event| event.kind() == "text-delta").nth(2500).unwrap();
    let id = middle.id.clone().unwrap();
    let framed = api.stream(&format!("{path}?frame=1&last_message_id={id}")).await.all().await;
    assert_eq!(kinds(&framed)[..3], ["start", "start-step", "text-start"]);
    assert!(framed[..3].iter().all(|event| event.id.is_none()), "what is made up has no id");
    assert!(text(&live).ends_with(&text(&framed)) && text(&framed).starts_with(" tok2502"), "and only the rest");
}

#[tokio::test]
async fn cancel_is_not_disconnect() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let mut stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 100000 1" })).await;
    let task = format!("/api/chat/tasks/{}", stream.task());
    stream.until("text-delta").await;
    drop(stream);
    let mut back = api.stream(&format!("{session}/stream")).await;
    assert_eq!(back.status, 200, "closing the response stopped nothing");
    back.until("text-delta").await;
    let (status, cancelled) = api.post(&format!("{task}/cancel"), &json!({ "reason": "enough" })).await;
    assert_eq!((status, cancelled), (200, json!({ "cancelled": true, "status": "cancelled" })));
    let rest = back.all().await;
    assert_eq!(kinds(&rest)[rest.len() - 3..], ["text-end", "abort", "[DONE]"]);
    assert_eq!(api.get(&task).await.1["status"], "cancelled");
    let again = api.post(&format!("{task}/cancel"), &json!({})).await;
    assert_eq!(again, (200, json!({ "cancelled": false, "status": "cancelled" })));
    let idle = api.post(&format!("{session}/cancel"), &json!({})).await;
    assert_eq!(idle, (200, json!({ "cancelled": false, "status": "idle" })));
    // The log says who and why, and the partial answer is kept.
    let (mut client, _) = server.session().await;
    let id = session.rsplit('/').next().unwrap();
    let (_, frames) = client.resume(id, json!({ "last_seq": 0 })).await;
    let told = frames.iter().find(|frame| frame["event"] == "agent.cancelled").unwrap();
    assert_eq!((&told["metadata"]["by"], &told["metadata"]["reason"]), (&json!("local"), &json!("enough")));
    let (_, shown) = api.get(&session).await;
    assert!(shown["messages"][1]["parts"][1]["text"].as_str().unwrap().starts_with("tok1"));
    assert_eq!(shown["messages"][1]["metadata"]["interrupted"], true);
}

#[tokio::test]
async fn a_failed_run_is_an_error_and_then_the_end() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/fail 2" })).await;
    let task = format!("/api/chat/tasks/{}", stream.task());
    let events = stream.all().await;
    assert_eq!(kinds(&events)[events.len() - 3..], ["error", "finish", "[DONE]"]);
    assert_eq!(text(&events), "tok1 tok2");
    let (_, shown) = api.get(&task).await;
    assert_eq!((&shown["status"], &shown["error"]["code"]), (&json!("failed"), &json!("AGENT_FAILED")));
}

#[tokio::test]
async fn a_message_that_must_wait_is_a_stream_that_waits() {
    let mut config = config();
    config.session.when_busy = WhenBusy::Queue;
    let server = Server::with(config).await;
    let api = api(&server);
    let session = api.session().await;
    let path = format!("{session}/stream");
    let mut first = api.start(&path, &json!({ "message": "/confirm one" })).await;
    let asked = first.until("data-user_confirm").await.pop().unwrap().chunk();
    let second = api.start(&path, &json!({ "message": "/echo two" })).await;
    let third = api.start(&path, &json!({ "message": "/echo three" })).await;
    assert_eq!((second.status, third.status), (200, 200));
    let answer = json!({ "step_id": asked["data"]["step_id"], "confirmed": true });
    api.post(&format!("{session}/respond"), &answer).await;
    assert_eq!(text(&second.all().await), "two");
    assert_eq!(text(&third.all().await), "three");
    // One that waits when its session ends is told so, and does not hang.
    let _busy = api.start(&path, &json!({ "message": "/confirm again" })).await;
    let never = api.start(&path, &json!({ "message": "/echo never" })).await;
    assert_eq!(api.delete(&session).await.0, 204);
    assert_eq!(kinds(&never.all().await), ["abort", "[DONE]"]);
}

#[tokio::test]
async fn a_reader_that_was_trimmed_past_is_told_and_can_go_on() {
    let mut config = config();
    config.buffer.events_max = 50;
    let server = Server::with(config).await;
    let api = api(&server);
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 200 0" })).await;
    let path = format!("/api/chat/tasks/{}/stream", stream.task());
    drop(stream);
    while api.get(path.trim_end_matches("/stream")).await.1["status"] == "running" {}
    let events = api.stream(&format!("{path}?last_message_id=10")).await.all().await;
    let gap = events[0].chunk();
    assert_eq!((gap["type"].as_str(), events[0].id.as_ref()), (Some("data-gap"), None));
    // 202 events, the last 50 of them kept.
    assert_eq!(gap["data"], json!({ "lost": 142, "first_retained": 153 }));
    assert_eq!(kinds(&events)[1..4], ["start", "start-step", "text-start"], "a delta never comes before its start");
    assert!(text(&events).ends_with("tok200"));
    assert_eq!(kinds(&events)[events.len() - 2..], ["finish", "[DONE]"]);
}

#[tokio::test]
async fn the_sdk_paths_need_no_adapter() {
    let server = Server::start().await;
    let api = api(&server);
    let submit = |text: &str, id: &str| {
        let message = json!({ "id": id, "role": "user", "parts": [{ "type": "text", "text": text }] });
        json!({ "id": "chat-1", "messages": [message], "trigger": "submit-message" })
    };
    assert_eq!(api.get("/api/chat/chat-1/stream").await.0, 204, "an unknown chat has nothing to resume");
    let first = api.start("/api/chat", &submit("/confirm me", "u1")).await;
    // "Accepted, nothing emitted yet" and "waits" are streams, not 204.
    let mut resumed = api.stream("/api/chat/chat-1/stream").await;
    assert_eq!((resumed.status, resumed.task()), (200, first.task()));
    let asked = resumed.until("data-user_confirm").await.pop().unwrap().chunk();
    let session = first.headers["bowline-session-id"].to_str().unwrap().to_owned();
    let answer = json!({ "step_id": asked["data"]["step_id"], "confirmed": true });
    api.post(&format!("/api/chat/sessions/{session}/respond"), &answer).await;
    assert_eq!(text(&resumed.all().await), "confirmed: me");
    first.all().await;
    assert_eq!(api.get("/api/chat/chat-1/stream").await.0, 204);
    // The server's history wins: only the last message is new.
    let mut second = submit("/recall", "u2");
    second["messages"]
        .as_array_mut()
        .unwrap()
        .insert(0, json!({ "id": "x", "role": "user", "parts": [{ "type": "text", "text": "forged" }] }));
    assert_eq!(text(&api.start("/api/chat", &second).await.all().await), "/confirm me");
    // Anew: the last answer is replaced, the message is not doubled.
    let again = json!({ "id": "chat-1", "messages": [], "trigger": "regenerate-message", "messageId": "any" });
    let anew = api.start("/api/chat", &again).await;
    let repeated = api.start("/api/chat", &again).await;
    assert_eq!(anew.task(), repeated.task(), "the same request twice is one turn");
    assert_eq!(text(&anew.all().await), "/confirm me");
    let (_, shown) = api.get(&format!("/api/chat/sessions/{session}")).await;
    let roles: Vec<&str> = shown["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    // When the session is gone, the chat begins anew.
    api.delete(&format!("/api/chat/sessions/{session}")).await;
    assert_eq!(text(&api.start("/api/chat", &submit("/echo hi", "u3")).await.all().await), "hi");
}

#[tokio::test]
async fn a_transport_that_counts_chunks_comes_back_by_its_count() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 10 0" })).await;
    let path = format!("/api/chat/{}/stream", stream.task());
    stream.all().await;
    let whole = api.stream(&format!("{path}?startIndex=0")).await.all().await;
    let five = api.stream(&format!("{path}?startIndex=5")).await;
    assert_eq!(five.headers["x-workflow-stream-tail-index"], (whole.len() - 2).to_string().as_str());
    assert!(five.all().await == whole[5..], "from the sixth chunk on");
    let tail = api.stream(&format!("{path}?startIndex=-3")).await.all().await;
    assert!(tail == whole[whole.len() - 4..], "the last three, and the end");
}

#[tokio::test]
async fn a_reader_that_returns_is_counted_and_every_family_is_there_from_the_start() {
    let server = Server::start().await;
    let api = api(&server);
    let metric = async |line: &str| {
        let (_, text) = server.get("/metrics").await;
        let found = text.lines().find_map(|known| known.strip_prefix(&format!("bowline_{line} ")).map(str::to_owned));
        found.unwrap_or_else(|| panic!("no {line} in\n{text}")).parse::<f64>().unwrap()
    };
    for line in [
        "events_trimmed_total{acked=\"false\"}",
        "reconnects_total{verdict=\"gap\"}",
        "reconnect_refusals_total{code=\"SESSION_NOT_FOUND\"}",
        "state_restores_total{source=\"live\"}",
        "state_refusals_total{reason=\"expired\"}",
        "takeovers_total{outcome=\"granted\"}",
        "hub_calls_total{outcome=\"unknown\"}",
        "runs_total{ending=\"lost\"}",
        "refusals_total{code=\"RATE_LIMITED\"}",
        "limits_hit_total{limit=\"limits.streams_max\"}",
        "store_errors_total{kind=\"full\"}",
        "sessions{state=\"idle\"}",
        "tasks{state=\"failed\"}",
    ] {
        assert_eq!(metric(line).await, 0.0, "{line}");
    }
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 5 0" })).await;
    let path = format!("/api/chat/tasks/{}/stream", stream.task());
    let whole = stream.all().await;
    let last = whole.iter().rev().find_map(|event| event.id.clone()).unwrap();
    api.with("last-event-id", "3").stream(&path).await.all().await;
    assert_eq!(api.with("last-event-id", &last).stream(&path).await.status, 204);
    api.with("last-event-id", "other-3").stream(&path).await.all().await;
    for (line, count) in [
        ("reconnect_attempts_total", 3.0),
        ("reconnects_total{verdict=\"replay\"}", 1.0),
        ("reconnects_total{verdict=\"caught_up\"}", 1.0),
        ("reconnects_total{verdict=\"other_epoch\"}", 1.0),
        ("events_lost_per_reconnect_count", 3.0),
        ("reconnect_seconds_count", 3.0),
        // 4 after the third event, none behind the last, and all 7.
        ("events_replayed_total", 11.0),
    ] {
        assert_eq!(metric(line).await, count, "{line}");
    }
}

#[tokio::test]
async fn the_running_turn_of_a_session_is_followed_from_a_cursor_on() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let mut stream = api.start(&format!("{session}/stream"), &json!({ "message": "/confirm go" })).await;
    let seen = stream.until("data-user_confirm").await;
    let first = seen[0].id.clone().unwrap();
    let path = format!("{session}/stream");
    let header = api.with("last-event-id", &first).stream(&path).await.next().await;
    let query = api.stream(&format!("{path}?last_message_id={first}")).await.next().await;
    assert_eq!((header.as_ref(), query.as_ref()), (Some(&seen[1]), Some(&seen[1])));
    assert_eq!(api.stream(&path).await.next().await.unwrap(), seen[0], "without one, from the start");
}

#[tokio::test]
async fn cancelling_a_session_stops_what_is_at_work_in_its_background() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let order = json!({ "tool_name": "demo", "arguments": { "steps": 100000, "delay_ms": 1 } });
    let (_, begun) = api.post(&format!("{session}/operations"), &order).await;
    let task = format!("/api/chat/tasks/{}", begun["task_id"].as_str().unwrap());
    let stopped = json!({ "cancelled": true, "status": "cancelled" });
    assert_eq!(api.post(&format!("{session}/cancel"), &json!({})).await, (200, stopped));
    assert_eq!(api.get(&task).await.1["status"], "cancelled");
    let nothing = json!({ "cancelled": false, "status": "idle" });
    assert_eq!(api.post(&format!("{session}/cancel"), &json!({})).await, (200, nothing));
}

#[tokio::test]
async fn a_session_says_the_same_of_its_beginning_at_every_endpoint() {
    let server = Server::start().await;
    let api = api(&server);
    for _ in 0..20 {
        let (_, made) = api.post("/api/chat/sessions", &json!({})).await;
        let (_, shown) = api.get(&format!("/api/chat/sessions/{}", made["id"].as_str().unwrap())).await;
        assert_eq!(made["created_at"], shown["created_at"]);
    }
}

#[tokio::test]
async fn a_chat_without_a_name_is_known_by_its_first_message() {
    let server = Server::start().await;
    let api = api(&server);
    let said = |id: &str, text: &str| json!({ "id": id, "role": "user", "parts": [{ "type": "text", "text": text }] });
    let first = api.start("/api/chat", &json!({ "messages": [said("u-1", "/echo one")] })).await;
    assert_eq!(first.status, 200);
    let (chat, run) = (first.headers["bowline-session-id"].clone(), first.task());
    assert_eq!(text(&first.all().await), "one");
    let resumed = api.stream(&format!("/api/chat/{run}/stream")).await;
    assert_eq!(text(&resumed.all().await), "one", "its run can be come back to");
    let more = json!({ "messages": [said("u-1", "/echo one"), said("u-2", "/recall")] });
    let second = api.start("/api/chat", &more).await;
    assert_eq!(second.headers["bowline-session-id"], chat);
    assert_eq!(text(&second.all().await), "/echo one");
    let other = api.start("/api/chat", &json!({ "messages": [said("u-9", "/echo two")] })).await;
    assert_ne!(other.headers["bowline-session-id"], chat);
}

#[tokio::test]
async fn an_operator_that_follows_a_turn_is_done_when_it_is() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let mut stream = api.start(&format!("{session}/stream"), &json!({ "message": "/confirm go" })).await;
    let path = format!("/api/admin/tasks/{}/events", stream.task());
    let live = tokio::spawn({
        let (api, path) = (api.clone(), path.clone());
        async move { api.stream(&path).await.all().await }
    });
    let step = stream.until("data-user_confirm").await.pop().unwrap().chunk()["data"]["step_id"].clone();
    api.post(&format!("{session}/respond"), &json!({ "step_id": step, "confirmed": true })).await;
    stream.all().await;
    api.start(&format!("{session}/stream"), &json!({ "message": "/echo after" })).await.all().await;
    let names = |events: &[support::api::Event]| -> Vec<Value> {
        events.iter().map(|event| event.chunk()["event"].clone()).collect()
    };
    let (live, late) = (live.await.unwrap(), api.stream(&path).await.all().await);
    for events in [live, late] {
        let names = names(&events);
        assert_eq!(names[names.len() - 2..], [json!("agent.final_answer"), Value::Null], "its end, and that it is one");
    }
}

fn tokens() -> bowline::config::Config {
    let token = |name: &str| StaticToken {
        token: Secret::new(format!("{name}-secret")),
        principal: Principal::parse(name).unwrap(),
        admin: false,
    };
    let mut config = config();
    config.auth.mode = AuthMode::Tokens(vec![token("alice"), token("bob")]);
    config.session.ownership = Ownership::Principal;
    config
}

#[tokio::test]
async fn a_stranger_cannot_tell_what_exists() {
    let server = Server::with(tokens()).await;
    let nobody = api(&server);
    let alice = nobody.with("authorization", "Bearer alice-secret");
    let bob = nobody.with("authorization", "Bearer bob-secret");
    assert_eq!(nobody.get("/api/chat/sessions").await.0, 401);
    let session = alice.session().await;
    let stream = alice.start(&format!("{session}/stream"), &json!({ "message": "/echo mine" })).await;
    let task = stream.task();
    stream.all().await;
    let unknown = ("sess_00000000000000000000000000000000", "task_00000000000000000000000000000000");
    let id = session.rsplit('/').next().unwrap().to_owned();
    let cases = [
        ("GET", format!("/api/chat/sessions/{id}"), format!("/api/chat/sessions/{}", unknown.0)),
        ("DELETE", format!("/api/chat/sessions/{id}"), format!("/api/chat/sessions/{}", unknown.0)),
        ("POST", format!("/api/chat/sessions/{id}/cancel"), format!("/api/chat/sessions/{}/cancel", unknown.0)),
        ("GET", format!("/api/chat/sessions/{id}/stream"), format!("/api/chat/sessions/{}/stream", unknown.0)),
        ("GET", format!("/api/chat/tasks/{task}"), format!("/api/chat/tasks/{}", unknown.1)),
        ("GET", format!("/api/chat/tasks/{task}/stream"), format!("/api/chat/tasks/{}/stream", unknown.1)),
        ("POST", format!("/api/chat/tasks/{task}/cancel"), format!("/api/chat/tasks/{}/cancel", unknown.1)),
    ];
    for (method, foreign, unknown) in cases {
        let foreign = bob.call(method.parse().unwrap(), &foreign, None).await;
        let unknown = bob.call(method.parse().unwrap(), &unknown, None).await;
        assert_eq!(foreign, unknown, "{method}");
        assert_eq!(foreign.0, 404, "{method}: {}", foreign.1);
    }
    assert_eq!(bob.get("/api/chat/sessions").await.1, json!({ "sessions": [], "total": 0 }));
    assert_eq!(alice.get("/api/chat/sessions").await.1["total"], 1);
    assert_eq!(alice.get(&session).await.0, 200, "nothing was ended by a stranger");
}

#[tokio::test]
async fn sessions_are_listed_by_their_last_use_page_by_page() {
    let server = Server::with(config()).await;
    let api = api(&server);
    let mut sessions = Vec::new();
    for _ in 0..5 {
        sessions.push(api.session().await);
    }
    // The first is used again, and the third ends.
    api.start(&format!("{}/stream", sessions[0]), &json!({ "message": "/echo x" })).await.all().await;
    assert_eq!(api.call("DELETE".parse().unwrap(), &sessions[2], None).await.0 / 100, 2);
    let expected: BTreeSet<_> =
        [0, 1, 3, 4].map(|at: usize| sessions[at].rsplit('/').next().unwrap().to_owned()).into();
    let mut listed = Vec::new();
    for offset in [0, 2, 4] {
        let (_, page) = api.get(&format!("/api/chat/sessions?limit=2&offset={offset}")).await;
        assert_eq!(page["total"], 4, "{page}");
        let of = |session: &Value, member: &str| session[member].as_str().unwrap().to_owned();
        let shown = page["sessions"].as_array().unwrap().iter();
        listed.extend(shown.map(|session| (of(session, "updated_at"), of(session, "id"))));
    }
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert_eq!(listed.iter().map(|(_, id)| id.clone()).collect::<BTreeSet<_>>(), expected);
    assert!(listed.is_sorted_by(|(newer, _), (older, _)| newer >= older), "{listed:?}");
    // Two may have been used in the same millisecond.
    let used_last = listed.iter().find(|(_, id)| sessions[0].ends_with(id)).unwrap();
    assert_eq!(used_last.0, listed[0].0, "the one that was used last is not first: {listed:?}");
    let (_, all) = api.get("/api/admin/sessions?limit=2").await;
    assert_eq!((&all["total"], all["sessions"].as_array().map(Vec::len)), (&json!(5), Some(2)), "{all}");
}

#[tokio::test]
async fn with_resume_tokens_a_name_proves_nothing() {
    let mut config = config();
    config.session.ownership = Ownership::Token;
    let server = Server::with(config).await;
    let api = api(&server);
    let (_, made) = api.post("/api/chat/sessions", &json!({})).await;
    let path = format!("/api/chat/sessions/{}", made["id"].as_str().unwrap());
    assert_eq!(api.get(&path).await.0, 404);
    let owner = api.with("bowline-resume-token", made["resume_token"].as_str().unwrap());
    assert_eq!(owner.get(&path).await.0, 200);
    let stream = owner.start(&format!("{path}/stream"), &json!({ "message": "/echo x" })).await;
    let task = format!("/api/chat/tasks/{}", stream.task());
    stream.all().await;
    assert_eq!((api.get(&task).await.0, owner.get(&task).await.0), (404, 200));
    assert_eq!(api.get("/api/chat/sessions").await.1["total"], 0);
    assert_eq!(owner.get("/api/chat/sessions").await.1["total"], 1);
}

#[tokio::test]
async fn a_watched_task_comes_over_the_websocket() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let stream = api.start(&format!("{session}/stream"), &json!({ "message": "/long 4 0" })).await;
    let task = stream.task();
    let live = stream.all().await;
    let mut client = server.connect().await;
    let watch =
        |cursor: &str| json!({ "event": "user.watch_task", "task_id": task, "content": { "last_message_id": cursor } });
    client.send(watch("0")).await;
    let frames = client.until(|frame| frame["event"] == "task.end").await;
    assert_eq!(frames.last().unwrap()["content"]["status"], "completed");
    let chunks: Vec<&Value> = frames.iter().filter(|frame| frame["event"] == "task.chunk").collect();
    let said: String = chunks.iter().filter_map(|frame| frame["content"]["delta"].as_str()).collect();
    assert_eq!(said, "tok1 tok2 tok3 tok4");
    assert!(chunks.iter().all(|frame| frame["task_id"] == json!(task) && frame["id"].is_string()));
    let cursor = live.iter().find(|event| event.kind() == "text-delta").unwrap().id.clone().unwrap();
    client.send(watch(&cursor)).await;
    let frames = client.until(|frame| frame["event"] == "task.end").await;
    let said: String = frames.iter().filter_map(|frame| frame["content"]["delta"].as_str()).collect();
    assert_eq!(said, " tok2 tok3 tok4");
    client.send(json!({ "event": "user.watch_task", "task_id": "task_none", "content": {} })).await;
    let refused = client.expect("system.error").await;
    assert_eq!(refused["metadata"]["error_code"], "TASK_NOT_FOUND");
}

#[tokio::test]
async fn bad_requests_say_what_is_wrong() {
    let server = Server::start().await;
    let api = api(&server);
    let session = api.session().await;
    let path = format!("{session}/stream");
    let cases: [(&str, String, &str, u16, &str); 9] = [
        ("POST", path.clone(), "{", 400, "INVALID_JSON"),
        ("POST", path.clone(), "[]", 400, "INVALID_PAYLOAD"),
        ("POST", path.clone(), "{}", 400, "INVALID_PAYLOAD"),
        ("POST", path.clone(), r#"{"message":5}"#, 400, "INVALID_PAYLOAD"),
        ("POST", path.clone(), r#"{"message":"x","message_id":7}"#, 400, "INVALID_PAYLOAD"),
        ("POST", format!("{session}/respond"), r#"{"step_id":"s"}"#, 400, "INVALID_PAYLOAD"),
        ("POST", format!("{session}/operations"), r#"{"tool_name":"nope"}"#, 400, "INVALID_PAYLOAD"),
        ("POST", "/api/chat".into(), r#"{"id":"x","messages":[{"role":"assistant"}]}"#, 400, "INVALID_PAYLOAD"),
        ("GET", "/api/chat/sessions?limit=101".into(), "", 400, "INVALID_PAYLOAD"),
    ];
    for (method, path, body, status, code) in cases {
        let body = (!body.is_empty()).then(|| body.to_owned());
        let answer = api.call(method.parse().unwrap(), &path, body.clone()).await;
        assert_eq!(
            (answer.0, answer.1["code"].as_str()),
            (status, Some(code)),
            "{method} {path} {body:?}: {}",
            answer.1
        );
        assert!(answer.1["message"].is_string() && answer.1["recovery_action"].is_string());
    }
    let deep = format!("{{\"message\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
    assert_eq!(api.call("POST".parse().unwrap(), &path, Some(deep)).await.1["code"], "INVALID_JSON");
    let huge = json!({ "message": "x".repeat(2 << 20) }).to_string();
    assert_eq!(api.call("POST".parse().unwrap(), &path, Some(huge)).await.0, 413);
}
