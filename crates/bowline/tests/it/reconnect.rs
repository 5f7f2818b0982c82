//! The way back: verdicts, take-over, observers, acks, heartbeats, retention and drain, over real sockets.

use std::time::Duration;

use bowline::config::Ownership;
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, Incoming, Server, is_terminal, seqs};

async fn taken_over(client: &mut Client) {
    client.until(|frame| frame["metadata"]["code"] == "SESSION_TAKEN_OVER").await;
}

#[tokio::test]
async fn the_five_verdicts_are_told_apart() {
    let mut config = support::config();
    config.buffer.events_max = 10;
    let server = Server::with(config).await;
    let (mut client, session) = server.session().await;
    client.ask("/long 18 0").await;
    drop(client);
    let cases = [
        (json!({ "last_seq": 20 }), "caught_up", vec![], Value::Null),
        (json!({ "last_seq": 17 }), "replay", vec![18, 19, 20], Value::Null),
        (json!({ "last_seq": 3 }), "gap", (11..=20).collect(), json!("REPLAY_GAP")),
        (json!({ "last_event_id": "other-17" }), "other_epoch", (11..=20).collect(), json!("EPOCH_MISMATCH")),
        (json!({ "last_seq": 17, "epoch": "other" }), "other_epoch", (11..=20).collect(), json!("EPOCH_MISMATCH")),
        (json!({ "last_seq": 99 }), "ahead_of_log", vec![], json!("CURSOR_AHEAD")),
    ];
    for (content, verdict, owed, code) in cases {
        let mut client = server.connect().await;
        client.reconnect(&session, content.clone()).await;
        let greeting = client.expect("agent.session_created").await;
        let facts = &greeting["metadata"];
        assert_eq!(facts["resume"]["verdict"], verdict, "{content}");
        assert_eq!((facts["last_seq"].as_u64(), facts["session_state"].as_str()), (Some(20), Some("idle")));
        let frames = client.until(|frame| frame["metadata"]["action"] == "replay").await;
        assert_eq!(seqs(&frames), owed, "{content}");
        let notice = frames.last().unwrap();
        assert_eq!(notice["metadata"]["replayed"], owed.len());
        assert_eq!(notice["metadata"]["code"], code, "{content}");
        if verdict == "gap" {
            assert_eq!(facts["resume"]["first_retained_seq"], 11);
            assert_eq!(facts["resume"]["lost"], 7);
            assert_eq!(notice["metadata"]["recovery_action"], "request_state");
        }
        // Live again, whatever the verdict was: only later events follow.
        let epoch = facts["epoch"].as_str().unwrap();
        assert!(frames.iter().filter(|f| f["seq"].is_u64()).all(|f| f["event_id"] == format!("{epoch}-{}", f["seq"])));
    }
    server.stop().await;
}

#[tokio::test]
async fn without_a_cursor_the_holder_goes_on_after_its_last_ack_and_an_observer_starts_at_the_first_event() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.ask("/long 8 0").await;
    client.send(json!({ "event": "user.ack", "content": { "last_seq": 6, "received_count": 6 } })).await;
    client.send(json!({ "event": "user.ack", "content": 4 })).await;
    client.send(json!({ "event": "user.ack", "content": { "last_seq": 11 } })).await;
    assert_eq!(client.refusal().await, ("CURSOR_AHEAD".into(), "reconnect".into()));
    drop(client);
    let mut client = server.connect().await;
    let (_, replayed) = client.resume(&session, Value::Null).await;
    assert_eq!(seqs(&replayed), [7, 8, 9, 10]);
    let mut observer = server.connect().await;
    let (greeting, replayed) = observer.resume(&session, json!({ "mode": "observe" })).await;
    assert_eq!(seqs(&replayed), (1..=10).collect::<Vec<_>>());
    assert_eq!(greeting["metadata"]["resume"]["verdict"], "replay");
    server.stop().await;
}

#[tokio::test]
async fn an_observer_sees_everything_and_may_write_nothing() {
    let server = Server::start().await;
    let (mut holder, session) = server.session().await;
    let mut observer = server.connect().await;
    observer.resume(&session, json!({ "mode": "observe" })).await;
    let seen_by_holder = holder.ask("/long 20 0").await;
    let seen_by_observer = observer.until(is_terminal).await;
    assert_eq!(seqs(&seen_by_holder), seqs(&seen_by_observer));
    observer.say("me too").await;
    assert_eq!(observer.refusal().await, ("SESSION_READ_ONLY".into(), "reconnect".into()));
    // Its acks count for itself only.
    observer.send(json!({ "event": "user.ack", "content": { "last_seq": 20 } })).await;
    observer.say("still not").await;
    assert_eq!(observer.refusal().await.0, "SESSION_READ_ONLY");
    drop(holder);
    let mut holder = server.connect().await;
    let (_, replayed) = holder.resume(&session, Value::Null).await;
    assert_eq!(replayed.len(), 22);
    server.stop().await;
}

#[tokio::test]
async fn a_live_holder_keeps_the_session_until_it_is_taken_over_by_name() {
    let server = Server::start().await;
    let (mut holder, session) = server.session().await;
    // The holder must be reading, or it could not answer the probe.
    let holding = tokio::spawn(async move {
        taken_over(&mut holder).await;
        holder
    });
    let mut second = server.connect().await;
    second.reconnect(&session, json!({ "last_seq": 0 })).await;
    assert_eq!(second.refusal().await, ("SESSION_ALREADY_ACTIVE".into(), "take_over".into()));
    let (greeting, _) = second.resume(&session, json!({ "last_seq": 0, "take_over": true })).await;
    assert_eq!(greeting["metadata"]["reconnected"], true);
    let mut holder = holding.await.unwrap();
    holder.say("am I still there?").await;
    assert_eq!(holder.refusal().await.0, "SESSION_READ_ONLY");
    holder.send(json!({ "event": "user.ack", "session_id": session, "content": { "last_seq": 1 } })).await;
    assert_eq!(second.ask("/echo mine").await.last().unwrap()["content"], "mine");
    server.stop().await;
}

#[tokio::test]
async fn a_holder_that_does_not_answer_the_probe_loses_the_session() {
    let server = Server::start().await;
    // A client that does not poll its socket answers no ping.
    let (_silent, session) = server.session().await;
    let mut second = server.connect().await;
    let (_, replayed) = second.resume(&session, Value::Null).await;
    assert!(replayed.is_empty());
    assert_eq!(second.ask("/echo mine").await.last().unwrap()["content"], "mine");
    server.stop().await;
}

#[tokio::test]
async fn the_same_client_id_wins_at_once() {
    let server = Server::start().await;
    let mut first = server.connect().await;
    first.send(json!({ "event": "user.create_session", "content": { "client_id": "tab-1" } })).await;
    let session = first.expect("agent.session_created").await["session_id"].as_str().unwrap().to_owned();
    let mut second = server.connect().await;
    second.resume(&session, json!({ "client_id": "tab-1" })).await;
    taken_over(&mut first).await;
    server.stop().await;
}

#[tokio::test]
async fn two_hundred_races_for_one_session_leave_one_holder() {
    let server = Server::start().await;
    let (_client, session) = server.session().await;
    let mut tasks = Vec::new();
    for n in 0..20 {
        let (address, session) = (server.address, session.clone());
        tasks.push(tokio::spawn(async move {
            let mut client = Client::dial(address, &[]).await.unwrap();
            for _ in 0..10 {
                client.reconnect(&session, json!({ "take_over": true, "client_id": format!("c{n}") })).await;
                // It may lose the session again before it was told everything.
                let settled =
                    |f: &Value| f["metadata"]["action"] == "replay" || f["metadata"]["code"] == "SESSION_TAKEN_OVER";
                client.until(settled).await;
            }
            client
        }));
    }
    let mut clients = Vec::new();
    for task in tasks {
        clients.push(task.await.unwrap());
    }
    for client in &mut clients {
        client.session = session.clone();
        client
            .send(
                json!({ "event": "user.message", "session_id": session, "content": "/echo who?", "message_id": "who" }),
            )
            .await;
    }
    let mut accepted = 0;
    for client in &mut clients {
        let frames = client
            .until(|f| {
                is_terminal(f)
                    || f["metadata"]["error_code"].is_string()
                    || f["metadata"]["action"] == "duplicate_message"
            })
            .await;
        let last = frames.last().unwrap();
        if is_terminal(last) {
            accepted += 1;
        } else {
            assert_eq!(last["metadata"]["error_code"], "SESSION_READ_ONLY");
        }
    }
    assert_eq!(accepted, 1);
    server.stop().await;
}

#[tokio::test]
async fn unknown_and_malformed_sessions_are_answered_alike() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    for session in ["sess_00000000000000000000000000000000", "x", "../../etc/passwd"] {
        client.reconnect(session, Value::Null).await;
        assert_eq!(client.refusal().await, ("SESSION_NOT_FOUND".into(), "create_new_session".into()));
        client.say("hello").await;
        assert_eq!(client.refusal().await.0, "SESSION_NOT_FOUND");
    }
    client.send(json!({ "event": "user.reconnect" })).await;
    assert_eq!(client.refusal().await.0, "INVALID_PAYLOAD");
    server.stop().await;
}

#[tokio::test]
async fn the_long_way_back_without_state_words_its_failures_its_own_way() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.ask("/long 3 0").await;
    drop(client);
    let mut client = server.connect().await;
    client
        .send(json!({ "event": "user.reconnect_with_state", "session_id": "sess_no", "content": { "last_seq": 1 } }))
        .await;
    let failed = client.expect("error.recovery_failed").await;
    assert_eq!(failed["metadata"]["error_code"], "SESSION_NOT_FOUND");
    assert_eq!(failed["metadata"]["recovery_action"], failed["metadata"]["recovery_strategy"]);
    client
        .send(json!({ "event": "user.reconnect_with_state", "session_id": session, "content": { "last_seq": 3 } }))
        .await;
    client.expect("agent.session_created").await;
    let frames = client.until(|frame| frame["metadata"]["action"] == "replay").await;
    assert_eq!(seqs(&frames), [4, 5]);
    server.stop().await;
}

#[tokio::test]
async fn a_resume_token_proves_ownership_and_rotates() {
    let mut config = support::config();
    config.session.ownership = Ownership::Token;
    let server = Server::with(config).await;
    let mut client = server.connect().await;
    client.send(json!({ "event": "user.create_session" })).await;
    let created = client.expect("agent.session_created").await;
    let session = created["session_id"].as_str().unwrap().to_owned();
    let first = created["metadata"]["resume_token"].as_str().unwrap().to_owned();
    drop(client);
    let mut thief = server.connect().await;
    for content in [Value::Null, json!({ "resume_token": "guess" }), json!({ "mode": "observe" })] {
        thief.reconnect(&session, content).await;
        assert_eq!(thief.refusal().await.0, "SESSION_NOT_FOUND");
    }
    thief.say("let me in").await;
    assert_eq!(thief.refusal().await.0, "SESSION_NOT_FOUND");
    let resume = async |token: &str| {
        let mut client = server.connect().await;
        client.reconnect(&session, json!({ "resume_token": token, "take_over": true })).await;
        let frame =
            client.until(|f| f["event"] == "agent.session_created" || f["metadata"]["error_code"].is_string()).await;
        frame.last().unwrap()["metadata"]["resume_token"].as_str().map(str::to_owned)
    };
    // The answer with the new token may be lost: the old one is good until the new one is used.
    let _lost = resume(&first).await.expect("the first token is good");
    let second = resume(&first).await.expect("and again");
    let third = resume(&second).await.expect("the second is good");
    assert_eq!(resume(&first).await, None, "the first is spent once its successor was used");
    assert!(resume(&third).await.is_some());
    server.stop().await;
}

#[tokio::test]
async fn heartbeats_tell_the_last_seq_and_silence_is_loss() {
    let mut config = support::config();
    config.heartbeat.interval = Duration::from_millis(200);
    let server = Server::with(config).await;
    let mut bare = server.connect().await;
    assert_eq!(bare.hello["content"]["heartbeat_interval_ms"], 200);
    let beat = bare.expect("system.heartbeat").await;
    assert!(beat.get("session_id").is_none() && beat.get("seq").is_none());
    let (mut client, session) = server.session().await;
    client.ask("/long 3 0").await;
    let beat = client.expect("system.heartbeat").await;
    assert_eq!(beat["session_id"], session.as_str());
    assert_eq!(beat["metadata"]["seq"], 5);
    assert!(beat["content"]["server_time"].is_string());
    // A client that reads answers pings by itself and stays; one that does nothing is lost.
    let (silent, lost_session) = server.session().await;
    for _ in 0..10 {
        client.expect("system.heartbeat").await;
    }
    assert_eq!(server.metrics.heartbeat_losses.get(), 2, "`silent` and `bare`, which nobody polled meanwhile");
    let mut back = server.connect().await;
    let (_, owed) = back.resume(&lost_session, Value::Null).await;
    assert!(owed.is_empty());
    drop(silent);
    server.stop().await;
}

#[tokio::test]
async fn a_quiet_session_expires_and_its_owner_is_told() {
    let mut config = support::config();
    config.session.ttl = Duration::from_millis(400);
    let server = Server::with(config).await;
    let (mut client, session) = server.session().await;
    let (mut holder, held) = server.session().await;
    client.ask("/echo x").await;
    drop(client);
    loop {
        // It expires by itself, some time after its lifetime.
        let (_, shown) = server.get(&format!("/api/admin/sessions/{session}")).await;
        if shown.contains("\"life\":\"expired\"") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut client = server.connect().await;
    client.reconnect(&session, json!({ "last_seq": 0 })).await;
    assert_eq!(client.refusal().await, ("SESSION_EXPIRED".into(), "create_new_session".into()));
    // A held session does not expire, however long it is quiet.
    assert_eq!(holder.ask("/echo still here").await.last().unwrap()["content"], "still here");
    assert_eq!(holder.session, held);
    server.stop().await;
}

#[tokio::test]
async fn a_live_reader_that_is_trimmed_past_is_told_before_its_next_event() {
    let mut config = support::config();
    config.buffer.events_max = 50;
    config.limits.send_window_bytes = 4096;
    let server = Server::with(config).await;
    let (mut client, session) = server.session().await;
    let mut observer = server.connect().await;
    observer.resume(&session, json!({ "mode": "observe" })).await;
    // The observer does not read while far more than its socket holds goes by.
    client.say("/long 60000 0").await;
    client.until(is_terminal).await;
    let (mut next, mut gaps) = (1, 0);
    loop {
        let frame = observer.next().await;
        if frame["metadata"]["code"] == "REPLAY_GAP" {
            gaps += 1;
            assert_eq!(frame["metadata"]["from_seq"], next);
            next = frame["metadata"]["first_retained_seq"].as_u64().unwrap();
        }
        if let Some(seq) = frame["seq"].as_u64() {
            assert_eq!(seq, next);
            next += 1;
        }
        if is_terminal(&frame) {
            break;
        }
    }
    assert!(gaps > 0);
    assert_eq!(next, 60_003);
    server.stop().await;
}

#[tokio::test]
async fn a_drain_tells_clients_lets_runs_finish_and_closes_1012() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    client.say("/long 100 3").await;
    client.expect("agent.partial_answer").await;
    let stopping = tokio::spawn(server.stop());
    let notice = client.until(|frame| frame["metadata"]["code"] == "SERVER_DRAINING").await.pop().unwrap();
    assert!(notice["metadata"]["retry_after_ms"].as_u64().unwrap() > 0);
    client.send(json!({ "event": "user.create_session" })).await;
    assert_eq!(client.refusal().await, ("SERVER_DRAINING".into(), "retry_later".into()));
    let frames = client.until(is_terminal).await;
    assert_eq!(frames.last().unwrap()["event"], "agent.final_answer");
    assert_eq!(client.closed().await, Some(1012));
    stopping.await.unwrap();
}

#[tokio::test]
async fn work_goes_on_while_no_client_is_attached() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.say("/long 300 1").await;
    client.expect("agent.partial_answer").await;
    drop(client);
    let mut observer = server.connect().await;
    observer.reconnect(&session, json!({ "mode": "observe" })).await;
    let frames = observer.until(is_terminal).await;
    assert_eq!(seqs(&frames), (1..=302).collect::<Vec<_>>());
    server.stop().await;
}

#[tokio::test]
async fn a_reader_that_stops_reading_slows_no_other_and_gets_everything_later() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    let mut slow = server.connect().await;
    slow.resume(&session, json!({ "mode": "observe" })).await;
    let frames = client.ask("/long 50000 0").await;
    assert!(seqs(&frames) == (1..=50_002).collect::<Vec<_>>());
    let mut seen = Vec::new();
    loop {
        match slow.incoming().await {
            Incoming::Frame(frame) => {
                seen.extend(frame["seq"].as_u64());
                if is_terminal(&frame) {
                    break;
                }
            }
            Incoming::Closed(code) => panic!("closed with {code:?}"),
        }
    }
    assert!(seen == (1..=50_002).collect::<Vec<_>>());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_is_lost_like_any_other() {
    let mut config = support::config();
    // Long enough for the client that reads to answer in time, also on a busy machine.
    config.heartbeat.interval = Duration::from_secs(1);
    let server = Server::with(config).await;
    let (mut client, session) = server.session().await;
    client.ask("/long 100000 0").await;
    let mut deaf = server.connect().await;
    // Far more is owed to it than its socket holds, and it takes nothing.
    deaf.reconnect(&session, json!({ "mode": "observe" })).await;
    let lost = &server.metrics.heartbeat_losses;
    let waited = async {
        while lost.get() == 0 {
            client.expect("system.heartbeat").await;
        }
    };
    tokio::time::timeout(support::PATIENCE, waited).await.expect("its silence is noticed though its socket is full");
    drop(deaf);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_wake_a_sleeping_session_at_once_leave_it_writable() {
    let server = Server::start().await;
    for _ in 0..2 {
        let (mut client, session) = server.session().await;
        client.ask("/echo x").await;
        drop(client);
        let id = bowline_protocol::SessionId::parse(&session).unwrap();
        while server.sessions.presence(&id).is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut tabs = Vec::new();
        for _ in 0..16 {
            tabs.push(server.connect().await);
        }
        let wake = |mut tab: Client| {
            let session = session.clone();
            tokio::spawn(async move {
                tab.resume(&session, json!({ "mode": "observe" })).await;
                tab
            })
        };
        let waking: Vec<_> = tabs.into_iter().map(wake).collect();
        let mut tabs = Vec::new();
        for tab in waking {
            tabs.push(tab.await.unwrap());
        }
        let mut tab = server.connect().await;
        tab.resume(&session, json!({ "last_seq": 2 })).await;
        assert_eq!(tab.ask("/echo y").await.last().unwrap()["content"], "y");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_drain_does_not_wait_for_a_person() {
    let mut config = support::config();
    // Longer than the test may take.
    config.drain.timeout = Duration::from_secs(600);
    let server = Server::with(config).await;
    let (mut client, _) = server.session().await;
    client.say("/confirm x").await;
    client.expect("agent.user_confirm").await;
    server.stop().await;
}

#[tokio::test]
async fn an_ended_session_has_no_holder() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.send(json!({ "event": "user.end_session" })).await;
    client.expect("agent.session_end").await;
    let id = bowline_protocol::SessionId::parse(&session).unwrap();
    while server.sessions.presence(&id).is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.metrics.sessions_held.get(), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_holder_may_come_back_on_the_same_connection_and_go_on_without_naming_its_session() {
    let server = Server::start().await;
    let (mut client, session) = server.session().await;
    client.ask("/echo a").await;
    client.send(json!({ "event": "user.reconnect", "content": { "last_seq": 1 } })).await;
    client.send(json!({ "event": "user.message", "content": "/echo z" })).await;
    let frames = client.until(|frame| frame["seq"] == 4).await;
    assert_eq!(seqs(&frames), [2, 3, 4]);
    // A holder that only wants to watch gives up its hold.
    client.resume(&session, json!({ "mode": "observe", "last_seq": 4 })).await;
    client.say("/echo no").await;
    assert_eq!(client.refusal().await.0, "SESSION_READ_ONLY");
    server.stop().await;
}

#[tokio::test]
async fn a_draining_server_takes_no_new_connections_but_says_so() {
    let server = Server::start().await;
    let (mut client, _) = server.session().await;
    client.say("/long 1000 2").await;
    client.expect("agent.partial_answer").await;
    server.lifecycle.draining.cancel();
    assert!(Client::dial(server.address, &[]).await.err().unwrap().to_string().contains("503"));
    let (status, ready) = server.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(ready.contains("\"draining\":true"));
    client.send(json!({ "event": "user.cancel" })).await;
    client.until(is_terminal).await;
    server.stop().await;
}

#[tokio::test]
async fn a_slow_reader_of_an_ended_session_is_told_what_it_missed_and_that_it_is_over() {
    let mut config = support::config();
    config.limits.send_window_bytes = 4096;
    let server = Server::with(config).await;
    let (mut client, session) = server.session().await;
    let mut slow = server.connect().await;
    slow.resume(&session, json!({ "mode": "observe" })).await;
    client.ask("/long 60000 0").await;
    client.send(json!({ "event": "user.end_session" })).await;
    client.expect("agent.session_end").await;
    let released = async {
        loop {
            let (_, shown) = server.get(&format!("/api/admin/sessions/{session}")).await;
            if shown.contains("\"first_retained_seq\":60004") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(support::PATIENCE, released).await.expect("its buffers are released all the same");
    let frames = slow.until(|frame| frame["event"] == "agent.session_end").await;
    let gap = frames.iter().find(|frame| frame["metadata"]["code"] == "REPLAY_GAP").expect("the gap is told");
    assert_eq!(gap["metadata"]["from_seq"].as_u64(), seqs(&frames).last().map(|seq| seq + 1));
    assert_eq!(gap["metadata"]["to_seq"], 60_003);
    server.stop().await;
}

#[tokio::test]
async fn every_connection_gets_1012_when_the_server_leaves() {
    let server = Server::start().await;
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(server.connect().await);
    }
    let leaving = tokio::spawn(server.stop());
    for mut client in clients {
        assert_eq!(client.closed().await, Some(1012));
    }
    leaving.await.unwrap();
}
