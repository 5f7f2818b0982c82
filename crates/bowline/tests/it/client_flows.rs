//! The flows of `conformance/`, played by the Rust client against a live server.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bowline_client::{Address, AttachTarget, Client, ClientRequest, LinkConfig, SessionTarget};
use bowline_protocol::Cursor;
use serde_json::Value;
use tempfile::TempDir;

use crate::scenarios::{Names, scenarios};
use crate::support::PATIENCE;
use crate::support::process::Process;

/// Flows that are about frames which a sound client does not send.
const BARE_FRAMES: &[&str] = &["refusals.json"];

/// One connection of a flow: it is asked to do what a step sends, and judged by the frames that come back.
struct Player {
    name: String,
    address: SocketAddr,
    client: Option<Client>,
    received: Arc<Mutex<VecDeque<Value>>>,
    /// It was asked for something after its link had stopped: it refuses by itself, and no frame comes.
    refused_here: bool,
}

/// Two connections of one flow may write to the same session, where a message id that comes again is a retry.
fn fresh_message_id() -> String {
    static MESSAGES: AtomicU32 = AtomicU32::new(0);
    format!("m-{}", MESSAGES.fetch_add(1, Ordering::Relaxed))
}

impl Player {
    fn new(name: &str, address: SocketAddr) -> Player {
        let received = Arc::default();
        Player { name: name.to_owned(), address, client: None, received, refused_here: false }
    }

    fn make(&mut self, content: &Value) -> &mut Client {
        let client_id = content["client_id"].as_str().unwrap_or(&self.name);
        let mut config = LinkConfig::new(client_id);
        for key in ["app_version", "config"] {
            if !content[key].is_null() {
                config.create.insert(key.into(), content[key].clone());
            }
        }
        let mut client = Client::new(Address::parse(&self.address.to_string()).unwrap(), None, config);
        let received = self.received.clone();
        client.set_tap(Box::new(move |is_received, text| {
            let frame: Value = serde_json::from_str(text).unwrap();
            let passed_over = ["system.heartbeat", "system.connected"];
            if is_received && !passed_over.contains(&frame["event"].as_str().unwrap()) {
                received.lock().unwrap().push_back(frame);
            }
        }));
        self.client.insert(client)
    }

    fn client(&mut self, content: &Value) -> &mut Client {
        if self.client.is_none() {
            self.make(content);
        }
        self.client.as_mut().unwrap()
    }

    fn perform(&mut self, frame: &Value) {
        let content = &frame["content"];
        let request = match frame["event"].as_str().unwrap() {
            "user.create_session" => return self.make(content).start(AttachTarget::New),
            "user.reconnect" => {
                let named = content["last_event_id"].as_str().and_then(Cursor::parse);
                let cursor = named.or_else(|| Cursor::parse(&content["last_seq"].to_string()));
                let target = SessionTarget {
                    id: frame["session_id"].as_str().unwrap().to_owned(),
                    cursor,
                    resume_token: None,
                    take_over: content["take_over"] == true,
                    observe: content["mode"] == "observe",
                };
                return self.client(content).start(AttachTarget::Session(target));
            }
            "user.reconnect_with_state" => {
                let state =
                    [&frame["signed_state"], &content["signed_state"]].into_iter().find(|state| !state.is_null());
                let (signed_state, last_seq) = (state.unwrap().clone(), content["last_seq"].as_u64());
                return self.client(content).start(AttachTarget::State { signed_state, last_seq });
            }
            "user.watch_task" => {
                let client = self.client(content);
                client.start(AttachTarget::Tasks);
                return client.watch(frame["task_id"].as_str().unwrap(), None);
            }
            // Acks go out by themselves.
            "user.ack" => return,
            "user.message" => {
                let message_id = frame["message_id"].as_str().map_or_else(fresh_message_id, Into::into);
                ClientRequest::Message { message_id, content: content.clone() }
            }
            "user.response" => {
                ClientRequest::Response { step_id: frame["step_id"].as_str().unwrap().into(), content: content.clone() }
            }
            "user.request_state" => ClientRequest::RequestState { options: content.clone() },
            "user.end_session" => ClientRequest::End,
            other => panic!("the client has nothing for {other}"),
        };
        let client = self.client.as_mut().expect("it has begun");
        self.refused_here = client.link().poll_timeout().is_none() && client.session().is_some();
        client.request(request);
    }

    /// The next frame that the server sends to this client.
    async fn next(&mut self) -> Value {
        loop {
            if let Some(frame) = self.received.lock().unwrap().pop_front() {
                return frame;
            }
            let client = self.client.as_mut().expect("it has begun");
            let event = tokio::time::timeout(PATIENCE, client.next()).await.expect("something comes");
            assert!(event.is_some() || !self.received.lock().unwrap().is_empty(), "the client has stopped");
        }
    }
}

async fn play(name: &str, scenario: &Value) {
    let dir = TempDir::new().unwrap();
    let env = [("BOWLINE_STATE__KEYS", "[\"k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"]".to_owned())];
    let mut server = Process::start(&dir.path().join("data"), &env).await;
    let mut players: HashMap<String, Player> = HashMap::new();
    let mut names = Names::default();
    for step in scenario["steps"].as_array().unwrap() {
        if step["restart"] == true {
            players.clear();
            server = server.kill_and_restart().await;
            continue;
        }
        if step["wipe"] == true {
            players.clear();
            server.kill().await;
            std::fs::remove_dir_all(dir.path().join("data")).unwrap();
            server = Process::start(&dir.path().join("data"), &env).await;
            continue;
        }
        let on = step["on"].as_str().expect("a step says on which connection");
        if step["connect"] == true {
            players.insert(on.to_owned(), Player::new(on, server.address));
            continue;
        }
        if step["drop"] == true {
            // Dropped, the client cuts its connection.
            players.remove(on);
            continue;
        }
        let player = players.get_mut(on).expect("the connection is open");
        if step["send"].is_object() {
            player.perform(&names.fill(&step["send"]));
        } else if step["expect"].is_object() {
            if std::mem::take(&mut player.refused_here) {
                continue;
            }
            let frame = player.next().await;
            assert!(names.matches(&step["expect"], &frame), "{name}: expected {}, got {frame}", step["expect"]);
        } else if step["await"].is_object() {
            while !names.matches(&step["await"], &player.next().await) {}
        } else {
            panic!("no such step: {step}");
        }
    }
    server.kill().await;
}

#[tokio::test]
async fn every_flow_holds_for_the_rust_client() {
    for (name, scenario) in scenarios("flows") {
        if !BARE_FRAMES.contains(&name.as_str()) {
            println!("{name}: {}", scenario["about"]);
            Box::pin(play(&name, &scenario)).await;
        }
    }
}
