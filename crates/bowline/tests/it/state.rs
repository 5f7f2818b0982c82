//! Signed state: a client takes its session with it, and comes back to a server that may have forgotten everything.

use std::time::Duration;

use bowline::config::{AuthMode, Ownership, StaticToken};
use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;
use serde_json::{Value, json};

use crate::support::state::{config, export, restore, send_state, signed};
use crate::support::{Client, Server, is_terminal, seqs};

#[tokio::test]
async fn an_export_has_every_field_and_changes_nothing() {
    let server = Server::with(config()).await;
    let (mut client, session) = server.session().await;
    client.ask("/echo hello").await;
    client.ask("/plan a picnic").await;
    let exported = export(&mut client, Value::Null).await;
    let facts = &exported["metadata"];
    for field in ["state_size", "snapshot_time", "exported_at", "valid_until", "session_state"] {
        assert!(!facts[field].is_null(), "{field}");
    }
    assert_eq!((&facts["message_count"], &facts["current_step"]), (&json!(4), &json!(2)));
    assert_eq!((&facts["truncated"], &facts["expire_after_hours"]), (&json!(false), &json!(168.0)));
    assert_eq!(facts["session_id"], session.as_str());
    assert!(exported.get("seq").is_none(), "it is a control frame");
    let object = signed(&exported);
    assert!(facts["exported_at"].as_str() >= object["state"]["last_active_at"].as_str(), "{facts}");
    let keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["checksum", "key_id", "signature", "state", "timestamp", "version"]);
    let state = &object["state"];
    assert_eq!(state["memory_snapshot"][0]["role"], "user");
    assert_eq!(state["memory_snapshot"][1]["content"], "hello");
    assert_eq!(state["completed_tasks"].as_array().unwrap().len(), 3);
    assert_eq!(state["plan_context"]["question"], "a picnic");
    assert_eq!(state["metadata"]["agent_name"], "demo");
    let without = json!({ "include_memory": false, "include_plan": false, "include_work": false, "format": "token" });
    let token = signed(&export(&mut client, without).await);
    assert!(token.is_string());
    let last = client.ask("/echo after").await;
    assert_eq!(seqs(&last)[0], state["last_seq"].as_u64().unwrap() + 1, "exporting took no number");
    server.stop().await;
}

#[tokio::test]
async fn a_claim_that_waits_while_its_session_is_restored_is_answered_under_the_name_that_it_asked_for() {
    let server = Server::with(config()).await;
    let (mut client, session) = server.session().await;
    client.ask("/echo hello").await;
    let state = signed(&export(&mut client, Value::Null).await);
    // The holder reads nothing any more and so answers no probe: the claim waits.
    let mut waiting = server.connect().await;
    let claim = json!({ "event": "user.reconnect", "session_id": session, "content": { "client_id": "another" } });
    waiting.send(claim).await;
    let mut restoring = server.connect().await;
    restore(&mut restoring, &state, json!({ "take_over": true })).await;
    let refused = waiting.expect("agent.error").await;
    assert_eq!(refused["session_id"], session.as_str(), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn only_the_holder_of_a_live_session_may_export() {
    let server = Server::with(config()).await;
    let (mut client, session) = server.session().await;
    let mut other = server.connect().await;
    other.send(json!({ "event": "user.request_state", "session_id": session })).await;
    assert_eq!(other.refusal().await, ("SESSION_READ_ONLY".into(), "reconnect".into()));
    client.send(json!({ "event": "user.request_state", "content": { "format": "yaml" } })).await;
    assert_eq!(client.refusal().await.0, "INVALID_PAYLOAD");
    client.send(json!({ "event": "user.end_session" })).await;
    client.expect("agent.session_end").await;
    client.send(json!({ "event": "user.request_state", "session_id": session })).await;
    assert_eq!(client.refusal().await.0, "SESSION_INACTIVE");
    server.stop().await;
}

#[tokio::test]
async fn a_live_session_goes_on_under_a_new_id_and_nothing_is_rolled_back() {
    let server = Server::with(config()).await;
    let (mut client, old) = server.session().await;
    client.ask("/echo before").await;
    let state = signed(&export(&mut client, Value::Null).await);
    client.say("/long 300 2").await;
    client.until(|frame| frame["seq"] == 10).await;
    let mut watcher = server.connect().await;
    watcher.resume(&old, json!({ "mode": "observe", "last_seq": 10 })).await;
    drop(client);
    let mut client = server.connect().await;
    let (greeting, mut frames) = restore(&mut client, &state, json!({ "last_seq": 10 })).await;
    let facts = &greeting["metadata"];
    assert_eq!((&facts["source"], &facts["original_session_id"]), (&json!("live"), &json!(old)));
    assert_eq!(facts["new_session_id"], client.session.as_str());
    assert_ne!(client.session, old);
    if !frames.last().is_some_and(is_terminal) {
        frames.extend(client.until(is_terminal).await);
    }
    assert_eq!(seqs(&frames), (11..=304).collect::<Vec<_>>(), "the same log, the same running work");
    // Events keep the id they were logged under: the old one first, the new one from the restore on.
    let ids: Vec<&str> = frames.iter().filter_map(|frame| frame["session_id"].as_str()).collect();
    let switch = ids.iter().position(|id| *id == client.session).expect("it goes on under the new id");
    assert!(ids[..switch].iter().all(|id| *id == old) && ids[switch..].iter().all(|id| *id == client.session));
    let end = watcher.expect("agent.session_end").await;
    assert!(end.get("seq").is_none());
    assert_eq!(end["metadata"]["superseded_by"], client.session.as_str());
    let mut late = server.connect().await;
    late.reconnect(&old, Value::Null).await;
    let refused = late.until(|frame| frame["metadata"]["error_code"] == "SESSION_INACTIVE").await.pop().unwrap();
    assert_eq!(refused["metadata"]["details"]["superseded_by"], client.session.as_str());
    assert_eq!(client.ask("/recall").await.last().unwrap()["content"], "/echo before\n/long 300 2");
    // And again, from the new name; without a cursor reading starts after the snapshot.
    let newer = signed(&export(&mut client, Value::Null).await);
    let middle = client.session.clone();
    drop(client);
    let mut client = server.connect().await;
    let (greeting, frames) = restore(&mut client, &newer, Value::Null).await;
    assert_eq!((&greeting["metadata"]["resume"]["verdict"], frames.len()), (&json!("caught_up"), 0));
    late.reconnect(&middle, Value::Null).await;
    assert_eq!(late.refusal().await.0, "SESSION_INACTIVE");
    server.stop().await;
}

#[tokio::test]
async fn a_live_session_that_is_held_is_not_taken_by_a_state() {
    let server = Server::with(config()).await;
    let (mut holder, _) = server.session().await;
    let state = signed(&export(&mut holder, Value::Null).await);
    let holding = tokio::spawn(async move {
        holder.expect("agent.final_answer").await;
        holder
    });
    let mut other = server.connect().await;
    send_state(&mut other, &state, Value::Null).await;
    let failed = other.expect("error.recovery_failed").await;
    assert_eq!(failed["metadata"]["error_code"], "SESSION_ALREADY_ACTIVE");
    assert_eq!(failed["metadata"]["recovery_action"], "take_over");
    let (greeting, _) = restore(&mut other, &state, json!({ "take_over": true })).await;
    assert_eq!(greeting["metadata"]["source"], "live");
    holding.abort();
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_has_forgotten_everything_goes_on_in_context() {
    let server = Server::with(config()).await;
    let (mut client, old) = server.session().await;
    client.ask("/echo my name is Ada").await;
    client.ask("/plan a picnic").await;
    let exported = export(&mut client, Value::Null).await;
    let state = signed(&exported);
    let last = state["state"]["last_seq"].as_u64().unwrap();
    server.stop().await;

    let server = Server::with(config()).await;
    let cases = [(last, "caught_up"), (last - 1, "gap"), (last + 5, "ahead_of_log")];
    for (cursor, verdict) in cases {
        let mut client = server.connect().await;
        let (greeting, _) = restore(&mut client, &state, json!({ "last_seq": cursor })).await;
        let facts = &greeting["metadata"];
        assert_eq!((&facts["source"], &facts["resume"]["verdict"]), (&json!("snapshot"), &json!(verdict)));
        assert_eq!((&facts["message_count"], &facts["restored_step"]), (&json!(4), &json!(2)));
        assert_ne!(facts["epoch"], state["state"]["epoch"]);
        assert_ne!(client.session, old);
        let frames = client.ask("/recall").await;
        assert_eq!(seqs(&frames), [last + 1, last + 2], "numbering goes on after the snapshot's");
        assert_eq!(frames.last().unwrap()["content"], "/echo my name is Ada\n/plan a picnic");
        client.send(json!({ "event": "user.restart_task", "task_id": "task_2" })).await;
        assert_eq!(
            client.until(is_terminal).await.pop().unwrap()["event"],
            "agent.final_answer",
            "the plan is there too"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn an_open_question_is_restored_once() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.say("/confirm the launch").await;
    let step = client.expect("agent.user_confirm").await["step_id"].clone();
    let state = signed(&export(&mut client, Value::Null).await);
    server.stop().await;

    let server = Server::with(config()).await;
    let mut client = server.connect().await;
    let (greeting, _) = restore(&mut client, &state, Value::Null).await;
    assert_eq!(
        (&greeting["metadata"]["session_state"], &greeting["metadata"]["warnings"]),
        (&json!("waiting"), &json!([]))
    );
    let mut second = server.connect().await;
    let (greeting, _) = restore(&mut second, &state, Value::Null).await;
    assert_eq!(greeting["metadata"]["session_state"], "idle");
    assert_eq!(greeting["metadata"]["warnings"].as_array().unwrap().len(), 1);
    let answer = json!({ "event": "user.response", "step_id": step, "content": { "confirmed": true } });
    second.send(answer.clone()).await;
    assert_eq!(second.refusal().await.0, "UNKNOWN_STEP", "nothing is approved twice");
    client.send(answer).await;
    assert_eq!(client.until(is_terminal).await.pop().unwrap()["content"], "confirmed: the launch");
    server.stop().await;

    let mut strict = config();
    strict.state.single_use = true;
    let server = Server::with(strict).await;
    let mut client = server.connect().await;
    restore(&mut client, &state, Value::Null).await;
    let mut second = server.connect().await;
    send_state(&mut second, &state, Value::Null).await;
    assert_eq!(second.refusal().await, ("STATE_STALE".into(), "create_new_session".into()));
    server.stop().await;
}

#[tokio::test]
async fn a_run_that_was_active_in_the_state_is_ended_as_lost() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.say("/long 100000 20").await;
    client.until(|frame| frame["seq"] == 5).await;
    let state = signed(&export(&mut client, Value::Null).await);
    let last = state["state"]["last_seq"].as_u64().unwrap();
    client.send(json!({ "event": "user.cancel" })).await;
    client.until(is_terminal).await;
    server.stop().await;
    let server = Server::with(config()).await;
    for (cursor, verdict) in [(json!(last), "caught_up"), (json!(null), "caught_up"), (json!(last + 1), "ahead_of_log")]
    {
        let mut client = server.connect().await;
        let (greeting, replayed) = restore(&mut client, &state, json!({ "last_seq": cursor })).await;
        let facts = &greeting["metadata"];
        assert_eq!((&facts["resume"]["verdict"], &facts["last_seq"]), (&json!(verdict), &json!(last)), "{cursor}");
        assert!(replayed.is_empty(), "the state's own position is the end of what is owed");
        let lost = client.next().await;
        assert_eq!((&lost["seq"], &lost["metadata"]["error_code"]), (&json!(last + 1), &json!("AGENT_LOST")));
        assert_eq!(client.ask("/echo again").await.last().unwrap()["content"], "again");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_state_that_is_not_right_is_refused_with_its_own_code() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.ask("/echo x").await;
    let good = signed(&export(&mut client, Value::Null).await);
    let mut altered = good.clone();
    altered["state"]["memory_snapshot"][0]["content"] = "/echo something else".into();
    let mut other_key = good.clone();
    other_key["key_id"] = "k9".into();
    let verify = ("STATE_VERIFICATION_FAILED", "export_state_again");
    let cases = [
        (altered, verify),
        (other_key, verify),
        (json!("nonsense"), verify),
        (json!({ "state": 1 }), verify),
        (json!("x".repeat(600_000)), ("STATE_TOO_LARGE", "export_state_again")),
    ];
    for (state, (code, action)) in cases {
        send_state(&mut client, &state, Value::Null).await;
        assert_eq!(client.refusal().await, (code.into(), action.into()));
    }
    server.stop().await;

    let mut short = config();
    short.state.ttl = Duration::from_secs(0);
    let server = Server::with(short).await;
    let mut client = server.connect().await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    send_state(&mut client, &good, Value::Null).await;
    assert_eq!(client.refusal().await, ("STATE_EXPIRED".into(), "create_new_session".into()));
    server.stop().await;

    let mut renamed = config();
    let demo = renamed.agents.remove("demo").unwrap();
    renamed.agents.insert("other".into(), demo);
    renamed.default_agent = "other".into();
    let server = Server::with(renamed).await;
    let mut client = server.connect().await;
    send_state(&mut client, &good, Value::Null).await;
    assert_eq!(client.refusal().await, ("STATE_RESTORE_FAILED".into(), "create_new_session".into()));
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("bowline_state_refusals_total{reason=\"agent\"} 1"));
    server.stop().await;
}

#[tokio::test]
async fn a_state_is_its_owners_alone() {
    let mut config = config();
    let token = |name: &str| StaticToken {
        token: Secret::new(format!("{name}-secret")),
        principal: Principal::parse(name).unwrap(),
        admin: false,
    };
    config.auth.mode = AuthMode::Tokens(vec![token("alice"), token("bob")]);
    config.session.ownership = Ownership::Principal;
    let server = Server::with(config).await;
    let mut alice = Client::dial(server.address, &[("authorization", "Bearer alice-secret")]).await.unwrap();
    alice.create().await;
    let state = signed(&export(&mut alice, Value::Null).await);
    drop(alice);
    let mut bob = Client::dial(server.address, &[("authorization", "Bearer bob-secret")]).await.unwrap();
    send_state(&mut bob, &state, Value::Null).await;
    assert_eq!(bob.refusal().await.0, "STATE_VERIFICATION_FAILED");
    server.stop().await;
}

#[tokio::test]
async fn checkpoints_come_unasked_to_those_who_asked_for_them() {
    let mut config = config();
    config.state.checkpoint_interval = Duration::from_millis(200);
    config.state.encrypt = true;
    let server = Server::with(config.clone()).await;
    let mut client = server.connect().await;
    client.send(json!({ "event": "user.create_session", "content": { "config": { "checkpoints": true } } })).await;
    client.session = client.expect("agent.session_created").await["session_id"].as_str().unwrap().to_owned();
    client.say("/long 300 3").await;
    let during = client.expect("agent.state_exported").await;
    assert!(signed(&during).is_string() && during["metadata"]["session_state"].is_null(), "encrypted, so opaque");
    client.until(is_terminal).await;
    let after = client.expect("agent.state_exported").await;
    server.stop().await;
    // The server is gone for good, disk and all; another one with the same key takes up the session.
    let server = Server::with(config).await;
    let mut client = server.connect().await;
    restore(&mut client, &signed(&after), Value::Null).await;
    assert_eq!(client.ask("/recall").await.last().unwrap()["content"], "/long 300 3");
    let (mut plain, _) = server.session().await;
    plain.ask("/echo x").await;
    assert!(plain.ask("/echo y").await.iter().all(|frame| frame["event"] != "agent.state_exported"), "off by default");
    server.stop().await;
}

#[tokio::test]
async fn nothing_is_approved_twice_however_a_state_comes_back() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.say("/confirm pay").await;
    let step = client.expect("agent.user_confirm").await["step_id"].clone();
    let early = signed(&export(&mut client, Value::Null).await);
    drop(client);
    // Taken up live, answered under the new id, ended: the state still holds the question, but it is settled.
    let mut client = server.connect().await;
    restore(&mut client, &early, Value::Null).await;
    let late = signed(&export(&mut client, Value::Null).await);
    let answer = json!({ "event": "user.response", "step_id": step, "content": { "confirmed": true } });
    client.send(answer.clone()).await;
    client.until(is_terminal).await;
    client.send(json!({ "event": "user.end_session" })).await;
    client.expect("agent.session_end").await;
    for state in [&early, &late] {
        let mut again = server.connect().await;
        let (greeting, _) = restore(&mut again, state, Value::Null).await;
        assert_eq!(greeting["metadata"]["session_state"], "idle");
        assert_eq!(greeting["metadata"]["warnings"].as_array().unwrap().len(), 1);
        again.send(answer.clone()).await;
        assert_eq!(again.refusal().await.0, "UNKNOWN_STEP");
    }
    server.stop().await;
    // Two states of one session on a server that knows neither: the question goes with the first.
    let mut strict = config();
    let server = Server::with(strict.clone()).await;
    for (state, expected) in [(&late, "waiting"), (&early, "idle")] {
        let mut client = server.connect().await;
        let (greeting, _) = restore(&mut client, state, Value::Null).await;
        assert_eq!(greeting["metadata"]["session_state"], expected);
    }
    server.stop().await;
    strict.state.single_use = true;
    let server = Server::with(strict).await;
    let (mut client, _) = server.session().await;
    let state = signed(&export(&mut client, Value::Null).await);
    drop(client);
    let mut client = server.connect().await;
    restore(&mut client, &state, Value::Null).await;
    drop(client);
    let mut client = server.connect().await;
    send_state(&mut client, &state, Value::Null).await;
    assert_eq!(client.refusal().await.0, "STATE_STALE", "a live restore uses a state up too");
    server.stop().await;
}

#[tokio::test]
async fn a_state_exported_in_the_middle_of_a_plan_tells_how_far_it_has_come() {
    let mut config = config();
    let slow = bowline::config::AgentKind::Demo { seed: 1, speed: 4.0 };
    config.agents.insert("demo".into(), bowline::config::AgentConfig { kind: slow });
    let server = Server::with(config).await;
    let (mut client, _) = server.session().await;
    let told = |exported: &Value| {
        let facts = &exported["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or("none").to_owned();
        assert_eq!(facts["signed_state"]["state"]["stage"], facts["session_state"]["stage"]);
        let plan = &facts["session_state"]["plan_context"];
        [text(&facts["session_state"]["stage"]), text(&facts["current_operation"]), text(&plan["status"])]
    };
    assert_eq!(told(&export(&mut client, Value::Null).await), ["idle", "none", "none"]);
    client.say("/plan a boat").await;
    client.expect("plan.start").await;
    let planning = export(&mut client, Value::Null).await;
    assert_eq!(told(&planning), ["planning", "planning", "in_progress"]);
    assert_eq!(planning["metadata"]["session_state"]["plan_context"]["question"], "a boat");
    client.expect("solver.completed").await;
    client.until(|frame| frame["event"] == "solver.progress" || is_terminal(frame)).await;
    let solving = export(&mut client, Value::Null).await;
    assert_eq!(told(&solving), ["solving", "solving", "in_progress"]);
    assert!(!signed(&solving)["state"]["completed_tasks"].as_array().unwrap().is_empty());
    client.send(json!({ "event": "user.cancel" })).await;
    client.until(is_terminal).await;
    assert_eq!(told(&export(&mut client, Value::Null).await), ["idle", "none", "incomplete"]);
    client.ask("/plan a raft").await;
    assert_eq!(told(&export(&mut client, Value::Null).await), ["idle", "none", "completed"]);
    client.say("/confirm sailing").await;
    client.expect("agent.user_confirm").await;
    assert_eq!(told(&export(&mut client, Value::Null).await), ["waiting", "waiting", "completed"]);
    server.stop().await;
}

#[tokio::test]
async fn a_restore_that_is_refused_takes_nothing() {
    let server = Server::with(config()).await;
    let (mut client, _) = server.session().await;
    client.say("/confirm pay").await;
    client.expect("agent.user_confirm").await;
    let state = signed(&export(&mut client, Value::Null).await);
    server.stop().await;
    let mut small = config();
    small.limits.sessions_per_principal_max = 1;
    let server = Server::with(small).await;
    let (mut client, _) = server.session().await;
    send_state(&mut client, &state, Value::Null).await;
    assert_eq!(client.refusal().await.0, "TOO_MANY_SESSIONS");
    client.send(json!({ "event": "user.end_session" })).await;
    client.expect("agent.session_end").await;
    let (greeting, _) = restore(&mut client, &state, Value::Null).await;
    assert_eq!(greeting["metadata"]["session_state"], "waiting", "the question is still there to be answered");
    server.stop().await;
}

#[tokio::test]
async fn with_resume_tokens_a_stranger_cannot_tell_which_sessions_exist() {
    let mut config = config();
    config.session.ownership = Ownership::Token;
    let server = Server::with(config).await;
    let (mut owner, old) = server.session().await;
    let state = signed(&export(&mut owner, Value::Null).await);
    drop(owner);
    let mut owner = server.connect().await;
    // A signed state is proof enough; no resume token is needed beside it.
    restore(&mut owner, &state, Value::Null).await;
    let mut stranger = server.connect().await;
    for session in [old.as_str(), owner.session.as_str(), "sess_unknown"] {
        stranger.reconnect(session, Value::Null).await;
        stranger.say("anybody there?").await;
        for _ in 0..2 {
            assert_eq!(stranger.refusal().await.0, "SESSION_NOT_FOUND", "{session}");
        }
    }
    server.stop().await;
}
