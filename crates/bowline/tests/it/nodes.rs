//! Several nodes on one Redis, behind no balancer at all: the client goes wherever it likes, nodes die or freeze, Redis
//! comes and goes. Each story ends with a quiet phase, and everything is read back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nodes_scene::{Scene, assert_each_run_ends_once, ready};
use crate::support::api::{Api, kinds};
use crate::support::process::Process;
use crate::support::survivor::Survivor;
use crate::support::{Client, Dice, Incoming, get, is_terminal, post};

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_client_that_changes_its_node_at_every_cut_sees_each_event_once() {
    let scene = Scene::new(&[], 3, &[]).await;
    let mut dice = Dice::new();
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 900 2").await;
    // What was sent on a wire that is cut at once may not have arrived; from here on it has.
    client.expect("agent.partial_answer").await;
    drop(client);
    let mut cuts = 0;
    let answer = loop {
        let node = dice.below(3) as usize;
        let mut client = survivor.back(scene.at(node)).await.unwrap();
        let enough = survivor.next + 1 + dice.below(60);
        let seen =
            survivor.follow(&mut client, |frame| is_terminal(frame) || frame["seq"].as_u64() >= Some(enough)).await;
        cuts += 1;
        if let Some(frame) = seen.filter(is_terminal) {
            break frame;
        }
    };
    println!("{cuts} cuts");
    assert!(cuts > 5);
    let whole: String = (1..=900).map(|n| if n == 1 { "tok1".to_owned() } else { format!(" tok{n}") }).collect();
    assert_eq!(answer["content"], whole);
    survivor.assert_nothing_was_lost();
    for node in 0..3 {
        let events = scene.read_back(node, &survivor.session).await;
        assert_eq!(events.len() as u64, survivor.next - 1);
        assert_each_run_ends_once(&events);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn what_is_asked_of_the_wrong_node_reaches_the_right_one() {
    let scene = Scene::new(&[], 2, &[]).await;
    let mut here = Client::dial(scene.at(0), &[]).await.unwrap();
    let session = here.create().await;
    here.say("/confirm a tea").await;
    let asked = here.expect("agent.user_confirm").await;
    // Another node takes the session over while its run waits there.
    let mut survivor = Survivor::new(session.clone());
    let mut there = survivor.back(scene.at(1)).await.unwrap();
    survivor.follow(&mut there, ready).await.unwrap();
    let told = here.until(|frame| frame["metadata"]["action"] == "taken_over").await.pop().unwrap();
    assert_eq!(told["metadata"]["code"], "SESSION_TAKEN_OVER");
    here.say("/echo no more").await;
    assert_eq!(here.expect("agent.error").await["metadata"]["error_code"], "SESSION_READ_ONLY");

    // An answer, a message, a cancel, a plan command, an ack and a state, all from the wrong node.
    there.send(json!({ "event": "user.response", "session_id": session, "step_id": asked["step_id"], "content": { "confirmed": true } })).await;
    let answer = survivor.follow(&mut there, is_terminal).await.unwrap();
    assert_eq!(answer["content"], "confirmed: a tea");
    there
        .send(json!({ "event": "user.ack", "session_id": session, "content": { "last_seq": survivor.next - 1 } }))
        .await;
    there.say("/long 100000 5").await;
    survivor.follow(&mut there, |frame| frame["event"] == "agent.partial_answer").await.unwrap();
    there.send(json!({ "event": "user.cancel", "session_id": session, "content": {} })).await;
    let end = survivor.follow(&mut there, is_terminal).await.unwrap();
    assert_eq!(end["event"], "agent.cancelled", "{end}");
    there.send(json!({ "event": "user.request_state", "session_id": session, "content": {} })).await;
    let state = survivor.follow(&mut there, |frame| frame["event"] == "agent.state_exported").await.unwrap();
    assert!(!state["content"].is_null());
    let beyond = json!({ "event": "user.ack", "session_id": session, "content": { "last_seq": 999_999 } });
    there.send(beyond).await;
    let refused = survivor.follow(&mut there, |frame| frame["metadata"]["error_code"] == "CURSOR_AHEAD").await;
    assert!(refused.is_some());

    // The same over HTTP, on both nodes.
    for node in [0, 1] {
        let base = format!("http://{}/api/chat/sessions/{session}", scene.at(node));
        let (status, body) = post(&format!("{base}/stream"), &json!({ "message": "/echo over HTTP" })).await;
        assert_eq!(status, 200, "{body}");
        assert!(body.contains("over HTTP"), "{body}");
        let (status, body) = post(
            &format!("{base}/operations"),
            &json!({ "tool_name": "demo", "arguments": { "steps": 3, "delay_ms": 1 } }),
        )
        .await;
        assert_eq!(status, 202, "{body}");
        let begun: Value = serde_json::from_str(&body).unwrap();
        let task = begun["task_id"].as_str().unwrap();
        let (status, stream) = get(scene.at(1 - node), &format!("/api/chat/tasks/{task}/stream"), &[]).await;
        assert_eq!(status, 200);
        assert!(stream.contains("finish"), "{stream}");
    }
    let events = scene.read_back(0, &session).await;
    assert_each_run_ends_once(&events);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_producer_may_push_to_any_node() {
    let scene = Scene::new(&[], 2, &[]).await;
    let at = |node: usize| format!("http://{}/api/chat/tasks", scene.at(node));
    let (status, body) = post(&at(0), &json!({ "tool_name": "essay" })).await;
    assert_eq!(status, 201, "{body}");
    let task = serde_json::from_str::<Value>(&body).unwrap()["task_id"].as_str().unwrap().to_owned();
    let mut first = vec![json!({ "type": "text-start", "id": "a" })];
    for n in 0..20 {
        first.push(json!({ "type": "text-delta", "id": "a", "delta": format!("{n} ") }));
        let (status, body) =
            post(&format!("{}/{task}/messages", at(n % 2)), &Value::Array(std::mem::take(&mut first))).await;
        assert_eq!(status, 200, "{body}");
    }
    let (status, body) = post(&format!("{}/{task}/complete", at(1)), &json!({ "status": "completed" })).await;
    assert_eq!(status, 200, "{body}");
    for node in [0, 1] {
        let (_, stream) = get(scene.at(node), &format!("/api/chat/tasks/{task}/stream?fold=0"), &[]).await;
        for n in 0..20 {
            assert_eq!(stream.matches(&format!("\"{n} \"")).count(), 1, "{stream}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn the_result_of_background_work_is_known_on_every_node_also_when_its_own_is_gone() {
    let mut scene = Scene::new(&[], 2, &[("BOWLINE_STREAM__TTL", "500ms"), ("BOWLINE_LEASE__TTL", "2s")]).await;
    let (here, there) = (Api::new(scene.at(0)), Api::new(scene.at(1)));
    let session = here.session().await;
    let begun = async |message: &str| {
        let turn = here.start(&format!("{session}/stream"), &json!({ "message": message })).await.all().await;
        let started = turn.iter().find(|event| event.kind() == "tool-output-available").unwrap().chunk();
        format!("/api/chat/tasks/{}", started["output"]["task_id"].as_str().unwrap())
    };
    let (done, lost) = (begun("/op demo 2 1").await, begun("/op demo 100000 5").await);
    let (_, shown) = there.get(&session).await;
    let active = shown["active_stream"]["task_id"].as_str().unwrap();
    assert_eq!((&shown["status"], format!("/api/chat/tasks/{active}")), (&json!("running"), lost.clone()));
    let mut watching = there.stream(&format!("{lost}/stream")).await;
    watching.until("data-progress").await;
    scene.nodes.remove(0).kill().await;
    let rest = kinds(&watching.all().await);
    assert_eq!(rest[rest.len() - 4..], ["tool-output-error", "error", "finish", "[DONE]"]);
    let until = Instant::now() + Duration::from_secs(60);
    let shown = loop {
        assert!(Instant::now() < until, "the streams did not expire");
        let gone = async |task: &str| there.get(&format!("{task}/stream")).await.0 == 410;
        if gone(&done).await && gone(&lost).await {
            break there.get(&session).await.1;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(there.get(&done).await.1["result"], json!({ "tool": "demo", "steps": 2 }));
    assert_eq!(there.get(&lost).await.1["error"]["code"], "AGENT_LOST");
    let answers = shown["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant");
    let parts: Vec<&Value> = answers
        .map(|message| message["parts"].as_array().unwrap().iter().find(|part| part["type"] == "tool-demo").unwrap())
        .collect();
    assert_eq!(parts[0]["output"], json!({ "tool": "demo", "steps": 2 }), "{shown}");
    assert_eq!((&parts[1]["state"], &shown["status"]), (&json!("output-error"), &json!("idle")), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn the_runs_of_a_killed_node_end_on_another_and_its_clients_read_on() {
    let mut scene = Scene::new(&[], 2, &[]).await;
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 100000 5").await;
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(40)).await;
    for node in [0, 1] {
        let (_, body) = get(scene.at(node), &format!("/api/admin/sessions/{}", survivor.session), &[]).await;
        let shown: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&shown["held"], shown["node"].is_string()), (&json!(true), node == 1), "{shown}");
    }
    // Somebody else watches from the other node, and never leaves it.
    let mut watcher = Client::dial(scene.at(1), &[]).await.unwrap();
    let content = json!({ "last_seq": 0, "observe": true });
    watcher.send(json!({ "event": "user.reconnect", "session_id": survivor.session, "content": content })).await;
    watcher.until(|frame| frame["seq"].as_u64() >= Some(40)).await;
    scene.nodes.remove(0).kill().await;
    let end = survivor.insist(scene.at(0), is_terminal).await;
    assert_eq!(end["metadata"]["error_code"], "AGENT_LOST", "{end}");
    survivor.assert_nothing_was_lost();
    // The session is as good as before.
    let mut client = survivor.back(scene.at(0)).await.unwrap();
    survivor.follow(&mut client, ready).await.unwrap();
    client.say("/echo still here").await;
    assert_eq!(survivor.follow(&mut client, is_terminal).await.unwrap()["content"], "still here");
    let events = scene.read_back(0, &survivor.session).await;
    assert_each_run_ends_once(&events);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn runs_end_although_no_client_asks_for_them() {
    let mut scene = Scene::new(&[], 2, &[("BOWLINE_LEASE__TTL", "2s")]).await;
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let session = client.create().await;
    client.say("/long 100000 5").await;
    client.until(|frame| frame["seq"].as_u64() >= Some(10)).await;
    client.send(json!({ "event": "user.message", "session_id": session, "content": "/echo queued" })).await;
    scene.nodes.remove(0).kill().await;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, body) = get(scene.at(0), "/api/admin/sessions", &[]).await;
        let listed: Value = serde_json::from_str(&body).unwrap();
        if listed["sessions"][0]["state"] == "idle" {
            break;
        }
        assert!(Instant::now() < until, "the run never ended: {body}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_each_run_ends_once(&scene.read_back(0, &session).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_frozen_node_that_wakes_can_write_nothing() {
    let scene = Scene::new(&[], 2, &[]).await;
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    let session = survivor.session.clone();
    client.say("/long 100000 5").await;
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(40)).await;
    let frozen = Instant::now();
    signal(&scene.nodes[0], "-STOP");
    let end = survivor.insist(scene.at(1), is_terminal).await;
    assert_eq!(end["metadata"]["error_code"], "AGENT_LOST", "{end}");
    tokio::time::sleep(Duration::from_secs(20).saturating_sub(frozen.elapsed())).await;
    signal(&scene.nodes[0], "-CONT");
    // The zombie's client still has its socket: it can neither write nor ack, and is sent away or told.
    client.send(json!({ "event": "user.message", "session_id": session, "message_id": "zombie", "content": "/echo from the grave" })).await;
    loop {
        match client.incoming().await {
            Incoming::Closed(_) => break,
            Incoming::Frame(frame) if frame["metadata"]["error_code"].is_string() && frame["seq"].is_null() => break,
            Incoming::Frame(_) => {}
        }
    }
    // The node that woke may just have taken the session up again when it is told what it has missed; whoever is cut by
    // that returns, and asks again under the same id.
    let living = |frame: &Value| is_terminal(frame) && frame["content"] == "the living";
    let message = json!({ "event": "user.message", "session_id": session, "message_id": "living", "content": "/echo the living" });
    loop {
        let mut client = survivor.back(scene.at(1)).await.unwrap();
        match survivor.follow(&mut client, |frame| living(frame) || ready(frame)).await {
            Some(frame) if living(&frame) => break,
            Some(_) => client.send(message.clone()).await,
            None => continue,
        }
        if survivor.follow(&mut client, living).await.is_some() {
            break;
        }
    }
    survivor.assert_nothing_was_lost();
    // Both nodes show the same log, and the node that woke serves again.
    let (one, other) = (scene.read_back(0, &session).await, scene.read_back(1, &session).await);
    assert_eq!(one, other);
    assert_each_run_ends_once(&one);
}

fn signal(node: &Process, signal: &str) {
    let done = std::process::Command::new("kill").args([signal, &node.pid().to_string()]).status().unwrap();
    assert!(done.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn five_hundred_races_on_two_nodes_leave_one_holder_each() {
    // Whoever has lost its only session is let go at the next heartbeat.
    let scene = Scene::new(&[], 2, &[("BOWLINE_HEARTBEAT__INTERVAL", "10m")]).await;
    let mut first = Client::dial(scene.at(0), &[]).await.unwrap();
    let session = first.create().await;
    drop(first);
    let mut clients = Vec::new();
    for n in 0..4 {
        clients.push(Client::dial(scene.at(n % 2), &[]).await.unwrap());
    }
    for round in 0..125 {
        for client in &mut clients {
            let content = json!({ "take_over": true });
            client.send(json!({ "event": "user.reconnect", "session_id": session, "content": content })).await;
        }
        // Every claim is granted; some have lost it again before they have read anything.
        for client in &mut clients {
            client.expect("agent.session_created").await;
            client.until(|frame| ready(frame) || frame["metadata"]["action"] == "taken_over").await;
        }
        let marker = format!("marker-{round}");
        let mut writers = 0;
        for client in &mut clients {
            client.send(json!({ "event": "user.message", "session_id": session, "message_id": marker, "content": "/echo x" })).await;
            let answer = client
                .until(|frame| {
                    let mine = frame["event"] == "user.message" && frame["metadata"]["message_id"] == marker.as_str();
                    mine || frame["metadata"]["error_code"] == "SESSION_READ_ONLY"
                })
                .await;
            writers += usize::from(answer.last().unwrap()["event"] == "user.message");
        }
        assert_eq!(writers, 1, "round {round}: one holds it");
    }
    assert_each_run_ends_once(&scene.read_back(0, &session).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_redis_that_is_restarted_or_paused_heals_by_itself() {
    let mut scene = Scene::new(ALWAYS, 2, &[]).await;
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    drop(client);
    for round in 0..4 {
        let mut client = survivor.back(scene.at(round % 2)).await.unwrap();
        survivor.follow(&mut client, ready).await.unwrap();
        client.say("/long 300 5").await;
        let seen = survivor.next + 30;
        survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(seen)).await;
        if round < 2 {
            scene.redis.kill();
            scene.redis.start_again();
        } else {
            scene.redis.cli(&["client", "pause", "3000", "all"]);
        }
        if survivor.follow(&mut client, is_terminal).await.is_none() {
            survivor.insist(scene.at((round + 1) % 2), is_terminal).await;
        }
    }
    survivor.assert_nothing_was_lost();
    for node in [0, 1] {
        let until = Instant::now() + Duration::from_secs(30);
        while get(scene.at(node), "/readyz", &[]).await.0 != 200 {
            assert!(Instant::now() < until, "it is not ready again");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_each_run_ends_once(&scene.read_back(node, &survivor.session).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_flushed_redis_is_told_and_nodes_go_on_together() {
    let scene = Scene::new(&[], 2, &[("BOWLINE_LEASE__TTL", "2s")]).await;
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 100000 5").await;
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(40)).await;
    scene.redis.cli(&["flushall"]);
    // The session is gone. Whoever has it open is told or cut, and nobody gets a number twice.
    let mut told = survivor.follow(&mut client, |frame| frame["metadata"]["error_code"] == "SESSION_NOT_FOUND").await;
    let until = Instant::now() + Duration::from_secs(60);
    while told.is_none() {
        assert!(Instant::now() < until, "it was not told");
        let Some(mut client) = survivor.back(scene.at(1)).await else { continue };
        told = survivor.follow(&mut client, |frame| frame["metadata"]["error_code"] == "SESSION_NOT_FOUND").await;
    }
    // Both serve new sessions, also each other's.
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 200 2").await;
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(20)).await;
    let mut there = survivor.back(scene.at(1)).await.unwrap();
    let end = match survivor.follow(&mut there, is_terminal).await {
        Some(end) => end,
        None => survivor.insist(scene.at(1), is_terminal).await,
    };
    println!("{}", end["event"]);
    assert_each_run_ends_once(&scene.read_back(1, &survivor.session).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_node_that_is_asked_to_stop_hands_its_sessions_over() {
    let mut scene = Scene::new(&[], 2, &[]).await;
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 200 5").await;
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(40)).await;
    let mut there = survivor.back(scene.at(1)).await.unwrap();
    let stopping = tokio::spawn(scene.nodes.remove(0).terminate());
    // The run finishes where it is, and the client reads it from the other node.
    let end = match survivor.follow(&mut there, is_terminal).await {
        Some(end) => end,
        None => survivor.insist(scene.at(0), is_terminal).await,
    };
    assert_eq!(end["event"], "agent.final_answer", "{end}");
    assert_eq!(stopping.await.unwrap(), Some(0));
    let mut client = survivor.back(scene.at(0)).await.unwrap();
    survivor.follow(&mut client, ready).await.unwrap();
    client.say("/echo moved").await;
    assert_eq!(survivor.follow(&mut client, is_terminal).await.unwrap()["content"], "moved");
    survivor.assert_nothing_was_lost();
}
