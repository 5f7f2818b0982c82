//! Sessions over a real WebSocket: what each frame of the protocol does.

use serde_json::{Value, json};

use crate::support;
use crate::support::{Server, is_terminal, seqs};

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

#[tokio::test]
async fn the_same_message_id_runs_once() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    let message =
        json!({ "event": "user.message", "session_id": session, "message_id": "m1", "content": "/echo once" });
    client.send(message.clone()).await;
    client.send(message.clone()).await;
    let mut first = client.until(is_terminal).await;
    if !first.iter().any(|frame| frame["metadata"]["action"] == "duplicate_message") {
        first.push(client.next().await);
    }
    assert!(first.iter().any(|frame| frame["metadata"]["action"] == "duplicate_message"), "never AGENT_BUSY");
    client.send(message.clone()).await;
    let frames = client.until(|frame| frame["metadata"]["action"] == "duplicate_message").await;
    assert_eq!(frames.len(), 1, "no event comes twice on one link: {frames:?}");
    let facts = &frames[0]["metadata"];
    assert_eq!((&facts["seq"], &facts["first_seq"], &facts["last_seq"]), (&json!(1), &json!(1), &json!(2)));
    // Whoever does not have the answer knows where it is.
    let (_, answer) = client.resume(&session, json!({ "last_seq": facts["first_seq"].as_u64().unwrap() - 1 })).await;
    assert_eq!(seqs(&answer), [1, 2]);
    assert_eq!(first.iter().filter(|frame| frame["event"] == "user.message").count(), 1);
    assert_eq!(first[0]["metadata"]["message_id"], "m1");
    let mut other = message;
    other["content"] = "/echo twice".into();
    client.send(other).await;
    assert_eq!(client.refusal().await.0, "IDEMPOTENCY_CONFLICT");
    // Nothing of this took a number.
    let frames = client.ask("/echo next").await;
    assert_eq!(seqs(&frames), [3, 4]);
    server.stop().await;
}

#[tokio::test]
async fn a_busy_agent_says_so_and_takes_the_next_message_right_after_its_last_event() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    client.say("/long 100000 5").await;
    client.until(|frame| frame["event"] == "agent.partial_answer").await;
    client.say("/echo too early").await;
    assert_eq!(client.refusal().await, ("AGENT_BUSY".into(), "retry_later".into()));
    client.send(json!({ "event": "user.cancel" })).await;
    client.until(is_terminal).await;
    for n in 0..50 {
        let frames = client.ask(&format!("/echo {n}")).await;
        assert_eq!(frames.last().unwrap()["content"], n.to_string());
    }
    server.stop().await;
}

#[tokio::test]
async fn messages_can_wait_in_a_queue() {
    let mut config = support::config();
    config.session.when_busy = bowline::config::WhenBusy::Queue;
    config.session.queue_max = 2;
    let server = Server::with(config).await;
    let (mut client, _) = server.session().await;
    client.say("/confirm first").await;
    let question = client.expect("agent.user_confirm").await;
    for text in ["/echo second", "/echo third", "/echo too many"] {
        client.say(text).await;
    }
    let queued =
        client.until(|frame| frame["metadata"]["action"] == "queued" && frame["metadata"]["position"] == 2).await;
    assert_eq!(queued.len(), 2);
    assert_eq!(client.refusal().await.0, "AGENT_BUSY");
    client
        .send(json!({ "event": "user.response", "step_id": question["step_id"], "content": { "approved": true } }))
        .await;
    for answer in ["confirmed: first", "second", "third"] {
        assert_eq!(client.until(is_terminal).await.pop().unwrap()["content"], answer);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_confirmation_is_answered_once_and_an_unknown_step_is_refused() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.say("/confirm the launch").await;
    let question = client.expect("agent.user_confirm").await;
    assert_eq!(question["metadata"]["scope"], "custom");
    let answer = |step: Value, confirmed: bool| json!({ "event": "user.response", "session_id": session, "step_id": step, "content": { "confirmed": confirmed, "reason": "because" } });
    client.send(answer("nonsense".into(), true)).await;
    assert_eq!(client.refusal().await, ("UNKNOWN_STEP".into(), "fix_request".into()));
    client.send(answer(question["step_id"].clone(), false)).await;
    let frames = client.until(is_terminal).await;
    let logged = frames.iter().find(|frame| frame["event"] == "user.response").unwrap();
    assert_eq!(logged["content"], json!({ "confirmed": false, "reason": "because" }));
    assert_eq!(logged["step_id"], question["step_id"]);
    assert_eq!(frames.last().unwrap()["content"], "declined: the launch");
    client.send(answer(question["step_id"].clone(), true)).await;
    assert_eq!(client.refusal().await.0, "UNKNOWN_STEP");
    server.stop().await;
}

#[tokio::test]
async fn a_pending_confirmation_shows_as_waiting_and_can_be_answered_after_a_reconnect() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.say("/confirm later").await;
    let question = client.expect("agent.user_confirm").await;
    drop(client);
    let mut client = server.connect().await;
    let (greeting, _) = client.resume(&session, json!({ "last_event_id": question["event_id"] })).await;
    assert_eq!(greeting["metadata"]["session_state"], "waiting");
    assert_eq!(greeting["metadata"]["resume"]["verdict"], "caught_up");
    client
        .send(json!({ "event": "user.response", "step_id": question["step_id"], "content": { "confirmed": true } }))
        .await;
    assert_eq!(client.until(is_terminal).await.pop().unwrap()["content"], "confirmed: later");
    server.stop().await;
}

#[tokio::test]
async fn cancel_stops_the_run_and_keeps_the_session() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.say("/long 100000 10").await;
    client.until(|frame| frame["seq"] == 5).await;
    client.send(json!({ "event": "user.cancel", "session_id": session, "reason": "enough" })).await;
    let cancelled = client.until(is_terminal).await.pop().unwrap();
    assert_eq!(cancelled["event"], "agent.cancelled");
    assert_eq!(cancelled["metadata"], json!({ "by": "local", "reason": "enough" }));
    client.send(json!({ "event": "user.cancel" })).await;
    let notice = client.expect("system.notice").await;
    assert_eq!(notice["metadata"], json!({ "action": "cancel", "ok": false }));
    let frames = client.ask("/recall").await;
    assert_eq!(frames.last().unwrap()["content"], "/long 100000 10");
    assert_eq!(seqs(&frames)[0], cancelled["seq"].as_u64().unwrap() + 1, "nothing follows the end of a run");
    server.stop().await;
}

#[tokio::test]
async fn a_run_that_fails_says_so_once() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("/fail 3").await;
    let error = frames.last().unwrap();
    assert_eq!(error["event"], "agent.error");
    assert_eq!(error["metadata"]["error_code"], "AGENT_FAILED");
    assert_eq!(error["metadata"]["recovery_action"], "retry");
    assert_eq!(frames.iter().filter(|frame| frame["event"] == "agent.partial_answer").count(), 3);
    server.stop().await;
}

#[tokio::test]
async fn recall_and_echo_are_true_to_the_letter() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    let odd = "  two  spaces \u{2028} \"quotes\" \\ 漢字\n\ttab ";
    let frames = client.ask(&format!("/echo {odd}")).await;
    assert_eq!(frames.last().unwrap()["content"], odd);
    client.send(json!({ "event": "user.message", "session_id": session, "content": { "text": "/echo object", "extra": [1, 2] } })).await;
    let frames = client.until(is_terminal).await;
    assert_eq!(frames[0]["content"], json!({ "text": "/echo object", "extra": [1, 2] }));
    let frames = client.ask("/recall").await;
    assert_eq!(frames.last().unwrap()["content"], format!("/echo {odd}\n/echo object"));
    let frames = client.ask("hello").await;
    assert!(frames.last().unwrap()["content"].as_str().unwrap().contains("/long N [MS]"));
    server.stop().await;
}

#[tokio::test]
async fn content_that_spans_lines_is_kept_on_one() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    client.send_text("{\"event\":\"user.message\",\n\"content\":{\n\"text\":\r\n\"/echo x\"}}".into()).await;
    let frames = client.until(is_terminal).await;
    assert_eq!(frames[0]["content"], json!({ "text": "/echo x" }));
    let (_, events) = server.get(&format!("/api/admin/sessions/{}", client.session)).await;
    assert!(events.contains("\"last_seq\":2"), "{events}");
    server.stop().await;
}

#[tokio::test]
async fn a_plan_is_solved_two_tasks_at_a_time() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    let frames = client.ask("/plan a picnic").await;
    let names: Vec<&str> = frames.iter().filter_map(|frame| frame["event"].as_str()).collect();
    for name in ["plan.start", "plan.completed", "aggregate.start", "aggregate.completed", "pipeline.completed"] {
        assert_eq!(names.iter().filter(|seen| **seen == name).count(), 1, "{name}");
    }
    assert_eq!(names.iter().filter(|name| **name == "solver.completed").count(), 3);
    let mut open = 0;
    for name in &names {
        open += i32::from(*name == "solver.start") - i32::from(*name == "solver.completed");
        assert!(open <= 2);
    }
    let plan = frames.iter().find(|frame| frame["event"] == "plan.completed").unwrap();
    assert_eq!(plan["content"]["tasks"].as_array().unwrap().len(), 3);
    assert_eq!(plan["content"]["tasks"][0]["id"], "task_1");
    assert_eq!(frames.last().unwrap()["event"], "agent.final_answer");
    server.stop().await;
}

#[tokio::test]
async fn a_plan_obeys_while_it_runs_and_after() {
    let mut config = support::config();
    let slow = bowline::config::AgentKind::Demo { seed: 1, speed: 3.0 };
    config.agents.insert("demo".into(), bowline::config::AgentConfig { kind: slow });
    let server = Server::with(config).await;
    let (mut client, _) = server.session().await;
    let notice = |action: &'static str, ok: bool| {
        move |frame: &Value| frame["metadata"] == json!({ "action": action, "ok": ok })
    };
    client.send(json!({ "event": "user.cancel_task", "task_id": "task_1" })).await;
    client.until(notice("cancel_task", false)).await;

    client.say("/plan a trip").await;
    client.expect("solver.start").await;
    client.send(json!({ "event": "user.cancel_task", "task_id": "task_3" })).await;
    client.until(notice("cancel_task", true)).await;
    assert_eq!(client.expect("solver.cancelled").await["content"]["task"]["id"], "task_3");
    client.send(json!({ "event": "user.restart_task", "task_id": "task_1" })).await;
    assert_eq!(client.expect("solver.restarted").await["content"]["task"]["id"], "task_1");
    client.send(json!({ "event": "user.solve_tasks", "content": { "tasks": ["x"] } })).await;
    assert_eq!(client.refusal().await.0, "AGENT_BUSY");
    client.send(json!({ "event": "user.replan", "content": { "question": "a voyage" } })).await;
    client.expect("plan.cancelled").await;
    assert_eq!(client.expect("plan.start").await["content"]["question"], "a voyage");
    client.send(json!({ "event": "user.cancel_plan", "content": { "reason": "rain" } })).await;
    assert_eq!(client.expect("plan.cancelled").await["content"]["reason"], "rain");
    let cancelled = client.until(is_terminal).await.pop().unwrap();
    assert_eq!(cancelled["event"], "agent.cancelled");
    assert_eq!((&cancelled["metadata"]["by"], &cancelled["metadata"]["reason"]), (&json!("local"), &json!("rain")));

    client.send(json!({ "event": "user.solve_tasks", "content": { "tasks": [{ "id": "t9", "title": "Own" }] } })).await;
    let frames = client.until(is_terminal).await;
    assert!(frames.iter().any(|frame| frame["event"] == "solver.completed" && frame["content"]["task"]["id"] == "t9"));
    client.send(json!({ "event": "user.restart_task", "task_id": "t9" })).await;
    let frames = client.until(is_terminal).await;
    assert!(frames.iter().any(|frame| frame["event"] == "solver.restarted"));
    assert_eq!(frames.last().unwrap()["event"], "agent.final_answer");
    server.stop().await;
}

#[tokio::test]
async fn an_ended_session_is_over_for_good() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.ask("/echo x").await;
    client.send(json!({ "event": "user.end_session" })).await;
    let end = client.expect("agent.session_end").await;
    assert_eq!((end["seq"].as_u64(), end["metadata"]["reason"].as_str()), (Some(3), Some("ended")));
    client.send(json!({ "event": "user.message", "session_id": session, "content": "hello?" })).await;
    assert_eq!(client.refusal().await, ("SESSION_INACTIVE".into(), "create_new_session".into()));
    let mut other = server.connect().await;
    other.reconnect(&session, json!({ "last_seq": 3 })).await;
    assert_eq!(other.refusal().await.0, "SESSION_INACTIVE");
    server.stop().await;
}

#[tokio::test]
async fn one_connection_may_hold_many_sessions() {
    let server = Server::start().await;
    let (mut client, first) = server.session().await;
    let second = client.create().await;
    client.send(json!({ "event": "user.message", "content": "which?" })).await;
    assert_eq!(client.refusal().await.0, "INVALID_PAYLOAD");
    for session in [&first, &second] {
        client.send(json!({ "event": "user.message", "session_id": session, "content": "/long 200 0" })).await;
    }
    let mut ends = std::collections::HashSet::new();
    let mut next = std::collections::HashMap::from([(first.clone(), 1), (second.clone(), 1)]);
    while ends.len() < 2 {
        let frame = client.next().await;
        if let Some(seq) = frame["seq"].as_u64() {
            let expected = next.get_mut(frame["session_id"].as_str().unwrap()).unwrap();
            assert_eq!(seq, *expected);
            *expected += 1;
        }
        if is_terminal(&frame) {
            ends.insert(frame["session_id"].as_str().unwrap().to_owned());
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_message_may_follow_its_create_without_waiting() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.send(json!({ "event": "user.create_session", "session_id": null })).await;
    client.send(json!({ "event": "user.message", "content": "/echo at once" })).await;
    assert_eq!(client.until(is_terminal).await.pop().unwrap()["content"], "at once");
    server.stop().await;
}

#[tokio::test]
async fn a_conversation_keeps_its_newest_messages_and_their_keys() {
    let mut config = support::config();
    config.limits.messages_kept_max = 4;
    let server = Server::with(config).await;
    let (mut client, session) = server.session().await;
    let say = |n: u32| json!({ "event": "user.message", "session_id": session, "message_id": format!("m{n}"), "content": format!("/echo {n}") });
    for n in 0..6 {
        client.send(say(n)).await;
        client.until(is_terminal).await;
    }
    client.send(say(5)).await;
    client.until(|frame| frame["metadata"]["action"] == "duplicate_message").await;
    let recalled = client.ask("/recall").await.pop().unwrap()["content"].as_str().unwrap().to_owned();
    assert!(recalled.ends_with("/echo 4\n/echo 5") && !recalled.contains("/echo 0"), "{recalled}");
    server.stop().await;
}

#[tokio::test]
async fn plan_commands_tell_the_truth() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    let said = |action: &'static str| move |frame: &Value| frame["metadata"]["action"] == action;
    client.say("/long 100000 5").await;
    client.expect("agent.partial_answer").await;
    for (event, action) in [("user.cancel_plan", "cancel_plan"), ("user.replan", "replan")] {
        client.send(json!({ "event": event })).await;
        let notice = client.until(said(action)).await.pop().unwrap();
        assert_eq!(notice["metadata"]["ok"], false, "there is no plan in this run");
    }
    client.send(json!({ "event": "user.cancel" })).await;
    client.until(is_terminal).await;
    client.ask("/plan a feast").await;
    client.send(json!({ "event": "user.restart_task", "task_id": "nonsense" })).await;
    assert_eq!(client.until(said("restart_task")).await.pop().unwrap()["metadata"]["ok"], false);
    // A restarted task leaves the rest of the plan as it was, so another can be restarted after it.
    for task in ["task_1", "task_2"] {
        client.send(json!({ "event": "user.restart_task", "task_id": task })).await;
        let frames = client.until(is_terminal).await;
        assert_eq!(frames[0]["metadata"], json!({ "action": "restart_task", "ok": true }), "the notice comes first");
        assert_eq!(frames.last().unwrap()["event"], "agent.final_answer");
        assert!(frames.last().unwrap()["content"].as_str().unwrap().contains("3 of 3"));
    }
    client.send(json!({ "event": "user.replan", "question": "a fast" })).await;
    assert_eq!(client.expect("plan.start").await["content"]["question"], "a fast");
    client.until(is_terminal).await;
    client.send(json!({ "event": "user.solve_tasks", "tasks": [{ "id": "x" }] })).await;
    assert_eq!(client.until(is_terminal).await.pop().unwrap()["event"], "agent.final_answer");
    server.stop().await;
}

#[tokio::test]
async fn an_ended_session_is_no_longer_the_connections_own() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    client.send(json!({ "event": "user.end_session" })).await;
    client.expect("agent.session_end").await;
    client.send(json!({ "event": "user.create_session" })).await;
    client.send(json!({ "event": "user.message", "content": "/echo the new one" })).await;
    assert_eq!(client.until(is_terminal).await.pop().unwrap()["content"], "the new one");
    server.stop().await;
}

#[tokio::test]
async fn an_ack_that_names_no_session_counts_for_the_one_whose_epoch_it_names() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let sessions = [client.create().await, client.create().await];
    let mut last = Vec::new();
    for session in &sessions {
        client.session.clone_from(session);
        last.push(client.ask("/echo hello").await.pop().unwrap()["event_id"].clone());
    }
    client.send(json!({ "event": "user.ack", "content": { "last_event_id": last[1] } })).await;
    // A bare number could be either's, so it is neither's.
    client.send(json!({ "event": "user.ack", "content": { "last_seq": 2 } })).await;
    // Frames are handled in order, so once this is answered both acks were.
    client.session.clone_from(&sessions[0]);
    client.ask("/echo and on").await;
    let unacked = async |session: &str| {
        let (_, body) = server.get(&format!("/api/admin/sessions/{session}")).await;
        serde_json::from_str::<Value>(&body).unwrap()["buffer"]["unacked_events"].clone()
    };
    assert_eq!((unacked(&sessions[0]).await, unacked(&sessions[1]).await), (json!(4), json!(0)));
    server.stop().await;
}
