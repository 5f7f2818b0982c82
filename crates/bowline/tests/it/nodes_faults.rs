//! Nodes on one Redis that stalls, and nodes that freeze and wake, under clients that change node at every cut. After each
//! fault there is a quiet phase: then every session answers at every node, and every run has ended.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nodes_scene::{Scene, assert_each_run_ends_once, ready};
use crate::support::survivor::Survivor;
use crate::support::{Client, Dice, Incoming, get, is_terminal, post};

const LEASE: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a client waits on a connection that says nothing before it tries another node.
const IMPATIENCE: Duration = Duration::from_secs(2);
/// A loaded machine may need some; only a hang needs this long.
const QUIET: Duration = Duration::from_secs(40);
const SESSIONS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Redis does nothing for so long.
    Pause(Duration),
    /// One node does nothing for so long.
    Freeze(usize, Duration),
}

fn pause(ms: u64) -> Fault {
    Fault::Pause(Duration::from_millis(ms))
}

/// In leases.
fn freeze(node: usize, leases: f64) -> Fault {
    Fault::Freeze(node, LEASE.mul_f64(leases))
}

async fn scene(nodes: usize) -> Scene {
    let (lease, answer) = (format!("{}ms", LEASE.as_millis()), format!("{}ms", ANSWER_TIMEOUT.as_millis()));
    let mut more = vec![("BOWLINE_LEASE__TTL", lease.as_str())];
    if std::env::var("NODES_BINARY").is_err() {
        more.push(("BOWLINE_LEASE__ANSWER_TIMEOUT", answer.as_str()));
    }
    Scene::new(&[], nodes, &more).await
}

/// Where clients may go at the moment.
#[derive(Clone)]
struct Nodes(Arc<Mutex<Vec<SocketAddr>>>);

impl Nodes {
    fn of(scene: &Scene) -> Nodes {
        Nodes(Arc::new(Mutex::new(scene.nodes.iter().map(|node| node.address).collect())))
    }

    fn any(&self, dice: &mut Dice) -> SocketAddr {
        let nodes = self.0.lock().unwrap();
        nodes[dice.below(nodes.len() as u64) as usize]
    }
}

/// Clients at work, until they are stopped.
struct Crowd {
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<Survivor>>,
    canceller: tokio::task::JoinHandle<Duration>,
}

impl Crowd {
    fn start(survivors: Vec<Survivor>, nodes: &Nodes) -> Crowd {
        let stop = Arc::new(AtomicBool::new(false));
        let sessions = survivors.iter().map(|survivor| survivor.session.clone()).collect();
        let start = |survivor| tokio::spawn(restless(survivor, nodes.clone(), Dice::new(), stop.clone()));
        let clients = survivors.into_iter().map(start).collect();
        let canceller = tokio::spawn(canceller(sessions, nodes.clone(), Dice::new(), stop.clone()));
        Crowd { stop, clients, canceller }
    }

    /// Those who are left, and how long the slowest request took.
    async fn stop(self) -> (Vec<Survivor>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let mut survivors = Vec::new();
        for client in self.clients {
            survivors.push(client.await.unwrap());
        }
        (survivors, self.canceller.await.unwrap())
    }
}

async fn sessions(scene: &Scene) -> Vec<Survivor> {
    let mut survivors = Vec::new();
    for n in 0..SESSIONS {
        let mut client = Client::dial(scene.at(n % scene.nodes.len()), &[]).await.unwrap();
        survivors.push(Survivor::new(client.create().await));
    }
    survivors
}

async fn assert_all_is_there(scene: &Scene, survivors: &[Survivor]) {
    for survivor in survivors {
        survivor.assert_nothing_was_lost();
        let events = scene.read_back(0, &survivor.session).await;
        assert_each_run_ends_once(&events);
        let last = scene.nodes.len() - 1;
        assert_eq!(events, scene.read_back(last, &survivor.session).await, "all nodes show the same");
    }
}

/// Talks to its session until it is told to stop, and changes node after every run and at every cut.
async fn restless(mut survivor: Survivor, nodes: Nodes, mut dice: Dice, stop: Arc<AtomicBool>) -> Survivor {
    while !stop.load(Ordering::Relaxed) {
        let node = nodes.any(&mut dice);
        // Whoever waits on a node that is frozen leaves it, in the middle of whatever it did.
        let _ = tokio::time::timeout(IMPATIENCE, visit(&mut survivor, node, &mut dice)).await;
    }
    survivor
}

async fn visit(survivor: &mut Survivor, node: SocketAddr, dice: &mut Dice) -> Option<()> {
    let Some(mut client) = survivor.back(node).await else {
        tokio::time::sleep(Duration::from_millis(50)).await;
        return None;
    };
    survivor.follow(&mut client, ready).await?;
    client.say("/long 20 5").await;
    let enough = survivor.next + dice.below(60);
    survivor.follow(&mut client, |frame| is_terminal(frame) || frame["seq"].as_u64() >= Some(enough)).await.map(drop)
}

/// Asks over HTTP, at any node, for what another node has to do: each request is answered, whatever it is answered with.
async fn canceller(sessions: Vec<String>, nodes: Nodes, mut dice: Dice, stop: Arc<AtomicBool>) -> Duration {
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let node = nodes.any(&mut dice);
        let session = &sessions[dice.below(sessions.len() as u64) as usize];
        let asked = Instant::now();
        let (status, body) = post(&format!("http://{node}/api/chat/sessions/{session}/cancel"), &json!({})).await;
        assert!((200..600).contains(&status), "{status} {body}");
        longest = longest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    longest
}

async fn strike(scene: &Scene, fault: Fault) {
    match fault {
        Fault::Pause(long) => {
            scene.redis.cli(&["client", "pause", &long.as_millis().to_string(), "all"]);
            tokio::time::sleep(long).await;
        }
        Fault::Freeze(node, long) => {
            scene.nodes[node].freeze();
            tokio::time::sleep(long).await;
            scene.nodes[node].wake();
        }
    }
}

/// Waits until all nodes say that they are ready, and no run is under way.
async fn quiet(scene: &Scene, fault: &impl Debug) {
    let until = Instant::now() + QUIET;
    for node in 0..scene.nodes.len() {
        loop {
            let (status, body) = get(scene.at(node), "/readyz", &[]).await;
            let (_, listed) = get(scene.at(node), "/api/admin/sessions", &[]).await;
            let listed: Value = serde_json::from_str(&listed).unwrap_or_default();
            let idle = |session: &Value| session["state"] == "idle";
            let all_idle = listed["sessions"].as_array().is_some_and(|all| all.iter().all(idle));
            if status == 200 && all_idle {
                break;
            }
            assert!(Instant::now() < until, "after {fault:?}, node {node} finds no rest: {body} {listed}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Every session answers at every node. Gives how long the slowest took.
async fn all_answer(scene: &Scene, survivors: &mut [Survivor], fault: &impl Debug) -> Duration {
    let mut slowest = Duration::ZERO;
    for node in 0..scene.nodes.len() {
        for survivor in &mut *survivors {
            let asked = Instant::now();
            loop {
                // Each attempt asks anew: a cancel that its caller left in doubt may be done late, and ends the run that it finds.
                let name = format!("{}-{}", node, survivor.next);
                let message = json!({ "event": "user.message", "session_id": survivor.session, "message_id": name, "content": format!("/echo {name}") });
                let answer = |frame: &Value| is_terminal(frame) && frame["content"] == name.as_str();
                assert!(asked.elapsed() < QUIET, "after {fault:?}, {} is mute at node {node}", survivor.session);
                let answered = tokio::time::timeout(IMPATIENCE, async {
                    let mut client = survivor.back(scene.at(node)).await?;
                    let first = survivor.follow(&mut client, |frame| answer(frame) || ready(frame)).await?;
                    if answer(&first) {
                        return Some(());
                    }
                    client.send(message.clone()).await;
                    survivor.follow(&mut client, answer).await.map(drop)
                });
                if matches!(answered.await, Ok(Some(()))) {
                    break;
                }
            }
            slowest = slowest.max(asked.elapsed());
        }
    }
    slowest
}

async fn drill(nodes: usize, faults: &[Fault]) {
    let scene = scene(nodes).await;
    let mut survivors = sessions(&scene).await;
    for fault in faults {
        let crowd = Crowd::start(survivors, &Nodes::of(&scene));
        strike(&scene, *fault).await;
        // What was lost shows itself only when somebody wants it again.
        tokio::time::sleep(LEASE * 2).await;
        let (left, longest) = crowd.stop().await;
        survivors = left;
        quiet(&scene, fault).await;
        let slowest = all_answer(&scene, &mut survivors, fault).await;
        println!("{nodes} nodes, {fault:?}: then each answers within {slowest:?}; a request took up to {longest:?}");
    }
    // A message that a client left behind at a stalled node may have begun a run since.
    quiet(&scene, &"the last answer").await;
    assert_all_is_there(&scene, &survivors).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn two_nodes_live_on_after_every_pause_of_redis() {
    drill(2, &[pause(1000), pause(2500), pause(8000)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn two_nodes_live_on_after_every_freeze() {
    drill(2, &[freeze(0, 0.1), freeze(1, 0.8), freeze(0, 1.5), freeze(1, 4.0), freeze(0, 7.5), freeze(1, 12.0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn three_nodes_live_on_after_pauses_and_freezes() {
    drill(3, &[freeze(0, 1.0), pause(3000), freeze(1, 12.0), freeze(2, 2.0), pause(20_000)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_node_that_gives_no_sign_of_life_says_that_it_is_not_ready_and_why() {
    let scene = scene(2).await;
    scene.redis.cli(&["client", "pause", "5000", "all"]);
    let until = Instant::now() + QUIET;
    let mut told = None;
    while told.is_none() {
        assert!(Instant::now() < until, "it never says so");
        let (status, body) = get(scene.at(0), "/readyz", &[]).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        told = body["node"]["trouble"].as_str().map(|why| (status, why.to_owned()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, why) = told.unwrap();
    assert!(status == 503 && why.contains("heartbeat"), "{status} {why}");
    for node in [0, 1] {
        loop {
            let (status, body) = get(scene.at(node), "/readyz", &[]).await;
            if status == 200 {
                break;
            }
            assert!(Instant::now() < until, "node {node} does not recover: {body}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_request_to_a_node_that_does_not_answer_fails_within_the_limit() {
    // The lease is so long that nobody takes the frozen node for dead meanwhile.
    let more = [("BOWLINE_LEASE__TTL", "60s"), ("BOWLINE_LEASE__ANSWER_TIMEOUT", "2s")];
    let scene = Scene::new(&[], 2, &more).await;
    let mut here = Client::dial(scene.at(0), &[]).await.unwrap();
    let session = here.create().await;
    // A connection at the other node, with a link and with a run to follow.
    let mut survivor = Survivor::new(session.clone());
    let mut there = survivor.back(scene.at(1)).await.unwrap();
    survivor.follow(&mut there, ready).await.unwrap();
    scene.nodes[0].freeze();
    // HTTP: an answer that says what is known.
    let (status, body) = post(&format!("http://{}/api/chat/sessions/{session}/cancel", scene.at(1)), &json!({})).await;
    assert!(status == 503 && body.contains("in_doubt"), "{status} {body}");
    // A connection that asks is cut, since what it knows of the session may not be so any more.
    there.say("/echo anybody there?").await;
    while let Incoming::Frame(frame) = there.incoming().await {
        println!("{frame}");
    }
    // One that comes is refused, and may try again.
    let mut coming = survivor.back(scene.at(1)).await.unwrap();
    let refused = survivor.follow(&mut coming, |frame| frame["metadata"]["error_code"] == "STORE_UNAVAILABLE").await;
    assert!(refused.is_some(), "the way back is neither granted nor refused");
    scene.nodes[0].wake();
    let mut survivors = [survivor];
    all_answer(&scene, &mut survivors, &"a freeze that nobody was declared dead for").await;
}

/// `judges/upgrade/test.sh` builds the version before this one and runs this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_rolling_upgrade_under_load_is_noticed_by_no_client() {
    let Some(previous) = std::env::var_os("NODES_PREVIOUS").map(PathBuf::from) else {
        return println!("there is no other version here; judges/upgrade/test.sh builds one");
    };
    let more = [("BOWLINE_LEASE__TTL", "2s"), ("BOWLINE_DRAIN__TIMEOUT", "5s")];
    let mut scene = Scene::new(&[], 0, &[]).await;
    scene.add_binary(&previous, &more).await;
    scene.add_binary(&previous, &more).await;
    let mut survivors = sessions(&scene).await;
    for step in ["one of two is upgraded", "both are upgraded"] {
        let nodes = Nodes::of(&scene);
        let crowd = Crowd::start(survivors, &nodes);
        // The newer one comes, the older one goes, and no client is sent to a node that is leaving.
        scene.add(&more).await;
        *nodes.0.lock().unwrap() = scene.nodes[1..].iter().map(|node| node.address).collect();
        assert_eq!(scene.nodes.remove(0).terminate().await, Some(0));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (left, longest) = crowd.stop().await;
        survivors = left;
        quiet(&scene, &step).await;
        let slowest = all_answer(&scene, &mut survivors, &step).await;
        println!("{step}: each answers within {slowest:?}; a request took up to {longest:?}");
    }
    assert_all_is_there(&scene, &survivors).await;
}
