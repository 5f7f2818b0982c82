//! A server on Redis: its own end, and that of Redis, at any moment. What was seen stays, or is told to be gone.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::real_redis::Redis;
use crate::support::api::{Api, kinds, text};
use crate::support::process::Process;
use crate::support::survivor::Survivor;
use crate::support::{Client, Dice, Incoming, get, is_terminal};

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

struct Scene {
    redis: Redis,
    server: Process,
    _dir: TempDir,
}

impl Scene {
    async fn new(redis: &[&str]) -> Scene {
        let (redis, dir) = (Redis::start(redis), TempDir::new().unwrap());
        let env = [
            ("BOWLINE_STORE__URL", redis.url()),
            ("BOWLINE_STORE__TIMEOUT", "1500ms".to_owned()),
            ("BOWLINE_LOG__LEVEL", "error".to_owned()),
        ];
        let server = Process::start(&dir.path().join("data"), &env).await;
        Scene { redis, server, _dir: dir }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_server_that_is_killed_goes_on_where_redis_stands() {
    let Scene { redis: _redis, mut server, _dir } = Scene::new(&[]).await;
    let mut dice = Dice::new();
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    drop(client);
    for _ in 0..8 {
        let mut client = survivor.back(server.address).await.unwrap();
        let ready = |frame: &Value| frame["metadata"]["action"] == "replay";
        survivor.follow(&mut client, ready).await.unwrap();
        client.say("/long 300 1").await;
        let seen = survivor.next + 2 + dice.below(200);
        survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(seen)).await;
        server = server.kill_and_restart().await;
        let end = survivor.insist(server.address, is_terminal).await;
        assert_eq!(end["metadata"]["error_code"], "AGENT_LOST", "{end}");
    }
    survivor.assert_nothing_was_lost();
    let mut client = survivor.back(server.address).await.unwrap();
    survivor.follow(&mut client, |frame| frame["metadata"]["action"] == "replay").await.unwrap();
    client.say("/echo still here").await;
    let answer = survivor.follow(&mut client, is_terminal).await.unwrap();
    assert_eq!(answer["content"], "still here");
    assert_eq!(server.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_redis_that_is_killed_and_comes_back_is_hardly_noticed() {
    let Scene { mut redis, server, _dir } = Scene::new(ALWAYS).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 400 5").await;
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(50)).await;
    redis.kill();
    redis.start_again();
    // The wire may have broken or not; the run may have lost its footing or not. No event is lost, repeated or moved.
    let end = match survivor.follow(&mut client, is_terminal).await {
        Some(end) => end,
        None => survivor.insist(server.address, is_terminal).await,
    };
    println!("{} events, {}", survivor.next - 1, end["event"]);
    survivor.assert_nothing_was_lost();
    drop(client);
    let mut client = survivor.back(server.address).await.unwrap();
    survivor.follow(&mut client, |frame| frame["metadata"]["action"] == "replay").await.unwrap();
    client.say("/echo again").await;
    assert_eq!(survivor.follow(&mut client, is_terminal).await.unwrap()["content"], "again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_redis_that_hangs_leaves_no_session_behind() {
    let Scene { redis, server, _dir } = Scene::new(&[]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let mut survivor = Survivor::new(client.create().await);
    client.say("/long 2000 2").await;
    survivor.follow(&mut client, |frame| frame["seq"].as_u64() >= Some(50)).await;
    // Longer than the server waits, so that the commit under way is in doubt.
    redis.cli(&["client", "pause", "5000", "all"]);
    let end = survivor.insist(server.address, is_terminal).await;
    // If no commit was under way at that moment, none is in doubt, and the run goes on as soon as it can.
    let lost = end["metadata"]["error_code"] == "AGENT_LOST";
    assert!(lost || end["content"].as_str().is_some_and(|text| text.ends_with(" tok2000")), "{}", end["event"]);
    survivor.assert_nothing_was_lost();
    let mut client = survivor.back(server.address).await.unwrap();
    survivor.follow(&mut client, |frame| frame["metadata"]["action"] == "replay").await.unwrap();
    client.say("/echo again").await;
    assert_eq!(survivor.follow(&mut client, is_terminal).await.unwrap()["content"], "again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_redis_that_may_have_lost_something_tells_a_new_epoch() {
    let Scene { mut redis, server, _dir } = Scene::new(&["--appendonly", "yes", "--appendfsync", "everysec"]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    let session = client.create().await;
    let frames = client.ask("/echo one").await;
    let cursor = frames.last().unwrap()["event_id"].clone();
    redis.kill();
    redis.start_again();
    drop(client);
    // The next one writes, and so finds out.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < until, "it was not told");
        let mut client = Client::dial(server.address, &[]).await.unwrap();
        let content = json!({ "last_event_id": cursor, "take_over": true });
        let frame = json!({ "event": "user.reconnect", "session_id": session, "content": content });
        futures_util::SinkExt::send(&mut client.socket, frame.to_string().into()).await.unwrap();
        let mut survivor = Survivor { next: u64::MAX, ..Survivor::new(session.clone()) };
        let greeted = survivor.follow(&mut client, |frame| frame["event"] == "agent.session_created").await;
        if greeted.is_some() && survivor.verdicts == ["other_epoch"] {
            break;
        }
        client.session = session.clone();
        client.say("/echo two").await;
        while let Incoming::Frame(frame) = client.incoming().await {
            if is_terminal(&frame) || frame["metadata"]["error_code"].is_string() {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn readers_of_a_task_get_all_of_it_after_a_restart_of_redis() {
    let Scene { mut redis, server, _dir } = Scene::new(&["--appendonly", "yes", "--appendfsync", "everysec"]).await;
    let api = Api::new(server.address);
    let (_, made) = api.post("/api/chat/tasks", &json!({ "tool_name": "painter" })).await;
    let task = format!("/api/chat/tasks/{}", made["task_id"].as_str().unwrap());
    let delta = |n: usize| json!({ "type": "text-delta", "id": "t", "delta": format!("{n} ") });
    let words: String = (0..21).map(|n| format!("{n} ")).collect();
    let chunks: Vec<Value> =
        std::iter::once(json!({ "type": "text-start", "id": "t" })).chain((0..20).map(delta)).collect();
    let (status, answer) = api.post(&format!("{task}/messages"), &json!(chunks)).await;
    assert_eq!(status, 200, "{answer}");
    let old = answer["last_message_id"].as_str().unwrap().to_owned();
    redis.kill();
    redis.start_again();
    // The first append that reaches the new life of Redis; it may take until the server is connected again.
    let until = Instant::now() + Duration::from_secs(60);
    let producer = api.with("producer-id", "p").with("producer-seq", "0");
    let appended = loop {
        assert!(Instant::now() < until, "the task takes nothing any more");
        let (status, answer) = producer.post(&format!("{task}/messages"), &json!([delta(20)])).await;
        match status {
            200 => break answer["last_message_id"].as_str().unwrap().to_owned(),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let epoch = |cursor: &str| cursor.split('-').next().unwrap().to_owned();
    assert_ne!(epoch(&old), epoch(&appended), "Redis may have lost something");
    assert_eq!(api.post(&format!("{task}/complete"), &json!({})).await.0, 200);
    let whole = api.stream(&format!("{task}/stream?fold=0")).await.all().await;
    assert_eq!((text(&whole), kinds(&whole)[0].as_str()), (words.clone(), "start"));
    assert_eq!(kinds(&whole)[whole.len() - 2..], ["finish", "[DONE]"]);
    let told = api.stream(&format!("{task}/stream?fold=0&last_message_id={old}")).await.all().await;
    assert_eq!(told[0].chunk()["data"], json!({ "lost": 0, "first_retained": 1 }));
    assert_eq!(text(&told), words);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_flushed_redis_is_told_and_a_dead_one_makes_the_server_unready() {
    let Scene { mut redis, server, _dir } = Scene::new(&[]).await;
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    client.create().await;
    client.ask("/echo one").await;
    redis.cli(&["flushall"]);
    client.say("/echo two").await;
    let (code, _) = client.refusal().await;
    assert_eq!(code, "SESSION_NOT_FOUND");
    client.create().await;
    client.ask("/echo three").await;
    redis.kill();
    client.say("/echo four").await;
    let until = Instant::now() + Duration::from_secs(60);
    while get(server.address, "/readyz", &[]).await.0 != 503 {
        assert!(Instant::now() < until, "it is still ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    redis.start_again();
    while get(server.address, "/readyz", &[]).await.0 != 200 {
        assert!(Instant::now() < until, "it is not ready again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    client.create().await;
    assert_eq!(client.ask("/echo five").await.last().unwrap()["content"], "five");
}
