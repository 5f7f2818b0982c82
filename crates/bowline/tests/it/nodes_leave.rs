//! What becomes of the sessions of one of several nodes when it stops, dies, or Redis stalls under it; seen from the others.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nodes_scene::{Scene, assert_each_run_ends_once, ready};
use crate::support;
use crate::support::survivor::Survivor;
use crate::support::{Client, Incoming, get, is_terminal, post};

/// Long enough that whatever waits for a lease to pass is told apart from what does not.
const LONG_LEASE: (&str, &str) = ("BOWLINE_LEASE__TTL", "20s");
/// Well below that lease, and well above what a loaded machine needs.
const A_MOMENT: Duration = Duration::from_secs(8);

async fn node_facts(scene: &Scene, node: usize) -> Value {
    serde_json::from_str(&get(scene.at(node), "/api/admin/node", &[]).await.1).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_node_that_took_over_runs_still_lets_its_own_finish() {
    let mut scene = Scene::new(&[], 2, &[("BOWLINE_LEASE__TTL", "2s")]).await;
    let mut lost = Vec::new();
    for _ in 0..2 {
        let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
        let mut survivor = Survivor::new(client.create().await);
        client.say("/long 100000 5").await;
        survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(10)).await;
        lost.push(survivor);
    }
    scene.nodes.remove(0).kill().await;
    for survivor in &mut lost {
        let end = survivor.insist(scene.at(0), is_terminal).await;
        assert_eq!(end["metadata"]["error_code"], "AGENT_LOST", "{end}");
    }
    let facts = node_facts(&scene, 0).await;
    assert_eq!((&facts["sessions"]["running"], &facts["runs_active"]), (&json!(0), &json!(0)), "{facts}");

    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 300 5").await;
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(10)).await;
    assert_eq!(node_facts(&scene, 0).await["sessions"]["running"], 1);
    let stopping = tokio::spawn(scene.nodes.remove(0).terminate());
    let end = survivor.follow(&mut client, is_terminal).await.expect("its run finishes before it leaves");
    assert_eq!(end["event"], "agent.final_answer", "{end}");
    assert_eq!(stopping.await.unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_message_right_behind_a_reconnect_is_not_lost_with_the_sessions_node() {
    let mut scene = Scene::new(&[], 1, &[LONG_LEASE]).await;
    for message_id in [Some("again"), None] {
        scene.add(&[LONG_LEASE]).await;
        let mut client = Client::dial(scene.at(1), &[]).await.unwrap();
        let session = client.create().await;
        client.ask("/echo before").await;
        scene.nodes.remove(1).kill().await;
        let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
        let content = json!({ "last_seq": 0, "take_over": true });
        client.send(json!({ "event": "user.reconnect", "session_id": session, "content": content })).await;
        let mut message = json!({ "event": "user.message", "session_id": session, "content": "/echo behind" });
        if let Some(id) = message_id {
            message["message_id"] = id.into();
        }
        client.send(message).await;
        let until = Instant::now() + A_MOMENT;
        let answered = loop {
            assert!(Instant::now() < until, "it was not told in time");
            match client.incoming().await {
                Incoming::Frame(frame) if is_terminal(&frame) && frame["content"] == "behind" => break true,
                Incoming::Frame(_) => {}
                Incoming::Closed(code) => {
                    assert_eq!(code, Some(4001));
                    break false;
                }
            }
        };
        // What has no id might run twice if it were sent again for the client, so the client is asked to.
        assert_eq!(answered, message_id.is_some());
        assert_each_run_ends_once(&scene.read_back(0, &session).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_request_to_a_killed_node_fails_in_a_moment() {
    for ask in ["user.message", "user.cancel"] {
        let mut scene = Scene::new(&[], 2, &[LONG_LEASE]).await;
        let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
        let mut survivor = Survivor::new(client.create().await);
        let mut there = survivor.back(scene.at(1)).await.unwrap();
        survivor.follow(&mut there, ready).await.unwrap();
        scene.nodes.remove(0).kill().await;
        let asked = Instant::now();
        there.send(json!({ "event": ask, "session_id": survivor.session, "content": "/echo one" })).await;
        assert_eq!(there.closed().await, Some(4001));
        assert!(asked.elapsed() < A_MOMENT, "{ask}: {:?}", asked.elapsed());
        let mut there = survivor.back(scene.at(0)).await.unwrap();
        survivor.follow(&mut there, ready).await.unwrap();
        there.say("/echo two").await;
        assert_eq!(survivor.follow(&mut there, is_terminal).await.unwrap()["content"], "two");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn what_has_no_run_is_served_elsewhere_as_soon_as_its_node_drains() {
    let mut scene = Scene::new(&[], 2, &[LONG_LEASE, ("BOWLINE_DRAIN__TIMEOUT", "25s")]).await;
    // A run that keeps the node from leaving.
    let mut busy = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut run = Survivor::new(busy.create().await);
    busy.say("/long 100000 5").await;
    run.follow(&mut busy, |frame| frame["seq"].as_u64() >= Some(10)).await;
    // One session is held from the other node, one where it lives, one by nobody, and one waits for a person.
    let mut remote = Survivor::new(Client::dial(scene.at(0), &[]).await.unwrap().create().await);
    let mut there = remote.back(scene.at(1)).await.unwrap();
    remote.follow(&mut there, ready).await.unwrap();
    let mut here = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut local = Survivor::new(here.create().await);
    let mut asked = Client::dial(scene.at(0), &[]).await.unwrap();
    let mut waiting = Survivor::new(asked.create().await);
    asked.say("/confirm a tea").await;
    let step = waiting.follow(&mut asked, |frame| frame["event"] == "agent.user_confirm").await.unwrap();
    let unheld = Client::dial(scene.at(0), &[]).await.unwrap().create().await;
    let stream = |node: usize| format!("http://{}/api/chat/sessions/{unheld}/stream", scene.at(node));
    // The other node remembers where it was.
    let (status, body) = post(&stream(1), &json!({ "message": "/echo before" })).await;
    assert_eq!(status, 200, "{body}");

    let at_the_other = stream(1);
    let stopping = tokio::spawn(scene.nodes.remove(0).terminate());
    busy.until(|frame| frame["metadata"]["code"] == "SERVER_DRAINING").await;
    let told = Instant::now();
    for (survivor, client) in [(&mut remote, &mut there), (&mut local, &mut here), (&mut waiting, &mut asked)] {
        let code = client.closed().await;
        assert!(code == Some(4001) || code == Some(1012), "{code:?}");
        let mut client = survivor.back(scene.at(0)).await.unwrap();
        survivor.follow(&mut client, ready).await.expect("it may come back at once");
        if survivor.session == step["session_id"].as_str().unwrap() {
            let content = json!({ "confirmed": true });
            client.send(json!({ "event": "user.response", "session_id": survivor.session, "step_id": step["step_id"], "content": content })).await;
            let end = survivor.follow(&mut client, is_terminal).await.unwrap();
            assert_eq!(end["content"], "confirmed: a tea", "{end}");
        }
        client.say("/echo moved").await;
        let end = survivor.follow(&mut client, is_terminal).await.unwrap();
        assert_eq!(end["content"], "moved", "{end}");
        survivor.assert_nothing_was_lost();
    }
    let (status, body) = post(&at_the_other, &json!({ "message": "/echo after" })).await;
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("after"), "{body}");
    assert!(told.elapsed() < A_MOMENT, "{:?}", told.elapsed());
    assert!(!stopping.is_finished(), "its run goes on meanwhile");

    // The run is still where it was, and can be stopped from here; then there is nothing left to wait for.
    let mut client = run.back(scene.at(0)).await.unwrap();
    run.follow(&mut client, ready).await.unwrap();
    client.send(json!({ "event": "user.cancel", "session_id": run.session, "content": {} })).await;
    let end = match run.follow(&mut client, is_terminal).await {
        Some(end) => end,
        None => run.insist(scene.at(0), is_terminal).await,
    };
    assert_eq!(end["event"], "agent.cancelled", "{end}");
    assert_eq!(stopping.await.unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn messages_that_wait_on_a_node_that_drains_run_elsewhere_without_a_request() {
    let mut scene = Scene::new(&[], 2, &[LONG_LEASE, ("BOWLINE_SESSION__WHEN_BUSY", "queue")]).await;
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let session = client.create().await;
    client.say("/long 300 5").await;
    client.until(|frame| frame["seq"].as_u64() >= Some(10)).await;
    client.say("/echo queued").await;
    client.until(|frame| frame["metadata"]["action"] == "queued").await;
    drop(client);
    assert_eq!(scene.nodes.remove(0).terminate().await, Some(0));
    let until = Instant::now() + A_MOMENT;
    loop {
        // Looking at a session wakes nothing.
        let (_, body) = get(scene.at(0), &format!("/api/chat/sessions/{session}"), &[]).await;
        if body.matches("queued").count() > 1 {
            break;
        }
        assert!(Instant::now() < until, "nobody took it up: {body}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_each_run_ends_once(&scene.read_back(0, &session).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn nodes_that_could_not_see_each_other_declare_none_dead() {
    let scene = Scene::new(&[], 2, &[]).await;
    let mut client = Client::dial(scene.at(0), &[]).await.unwrap();
    let session = client.create().await;
    client.ask("/echo before").await;
    // Most of the lease, and many times what a command may take.
    scene.redis.cli(&["client", "pause", "9000", "all"]);
    for (node, status) in [(0, 503), (0, 200), (1, 200)] {
        let until = Instant::now() + support::PATIENCE;
        while get(scene.at(node), "/readyz", &[]).await.0 != status {
            assert!(Instant::now() < until, "node {node} never answers {status}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let stream = format!("http://{}/api/chat/sessions/{session}/stream", scene.at(1));
    let (status, body) = post(&stream, &json!({ "message": "/echo after" })).await;
    assert_eq!(status, 200, "{body}");
    for node in [0, 1] {
        let metrics = get(scene.at(node), "/metrics", &[]).await.1;
        let lost = metrics.lines().find(|line| line.starts_with("bowline_nodes_lost_total")).unwrap();
        assert!(lost.ends_with(" 0"), "{lost}");
    }
}
