//! The scenarios of `conformance/`, run against a live server.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support;
use crate::support::process::Process;
use crate::support::{Client, Incoming, Server};

pub fn scenarios(folder: &str) -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance").join(folder);
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        (path.file_name().unwrap().to_string_lossy().into_owned(), serde_json::from_str(&text).expect("JSON"))
    };
    let found: Vec<_> = std::fs::read_dir(folder).unwrap().map(read).collect();
    assert!(found.len() >= 5, "the scenarios are there");
    found
}

/// The next frame that is not a heartbeat.
async fn next(client: &mut Client) -> Value {
    loop {
        let frame = client.next().await;
        if frame["event"] != "system.heartbeat" {
            return frame;
        }
    }
}

#[tokio::test]
async fn every_link_scenario_holds_for_a_live_server() {
    for (name, scenario) in scenarios("links") {
        println!("{name}: {}", scenario["about"]);
        let mut config = support::config();
        config.buffer.events_max = scenario["keep"].as_u64().unwrap_or(100_000);
        let server = Server::with(config).await;
        let (mut writer, session) = server.session().await;
        let mut reader: Option<Client> = None;
        for step in scenario["steps"].as_array().unwrap() {
            link_step(&server, &mut writer, &mut reader, &session, step).await;
        }
        server.stop().await;
    }
}

async fn link_step(server: &Server, writer: &mut Client, reader: &mut Option<Client>, session: &str, step: &Value) {
    if let Some(count) = step["append"].as_u64() {
        for _ in 0..count / 2 {
            writer.ask("/echo x").await;
        }
        return;
    }
    if step["attach"].is_object() {
        let asked = &step["attach"];
        let mut content = json!({ "mode": "observe" });
        if asked["seq"].is_u64() {
            content["last_seq"] = asked["seq"].clone();
        }
        if asked["epoch"].is_string() {
            // `current` stands for whatever this log's epoch is.
            let (_, shown) = server.get(&format!("/api/admin/sessions/{session}")).await;
            let shown: Value = serde_json::from_str(&shown).unwrap();
            content["epoch"] =
                if asked["epoch"] == "current" { shown["epoch"].clone() } else { asked["epoch"].clone() };
        }
        let mut client = server.connect().await;
        client.reconnect(session, content).await;
        *reader = Some(client);
        return;
    }
    let client = reader.as_mut().expect("the reader is attached");
    if step["cut"] == true {
        *reader = None;
    } else if step["quiet"] == true {
        // Whatever else were owed would come before the answer to this.
        client.send(json!({ "event": "user.reconnect", "session_id": "sess_marker" })).await;
        assert_eq!(next(client).await["session_id"], "sess_marker");
    } else if let Some(range) = step["events"].as_array() {
        for n in range[0].as_u64().unwrap()..=range[1].as_u64().unwrap() {
            assert_eq!(next(client).await["seq"], n);
        }
    } else if step["verdict"].is_string() {
        let greeting = next(client).await;
        let told = &greeting["metadata"]["resume"];
        assert_eq!(told["verdict"], step["verdict"]);
        for (mine, theirs) in [("lost", "lost"), ("first", "first_retained_seq")] {
            assert!(step[mine].is_null() || step[mine] == told[theirs], "{step} {told}");
        }
    } else if step["replayed"].is_u64() {
        let notice = next(client).await;
        assert_eq!(notice["metadata"]["replayed"], step["replayed"], "{notice}");
        assert_eq!(notice["metadata"]["code"], step["code"]);
    } else {
        panic!("no such step: {step}");
    }
}

/// What was captured so far.
#[derive(Default)]
pub struct Names(HashMap<String, Value>);

impl Names {
    /// Whether `frame` has everything that `pattern` names. Captures on the way.
    pub fn matches(&mut self, pattern: &Value, frame: &Value) -> bool {
        match pattern {
            Value::String(name) if name == "$any" => !frame.is_null(),
            Value::String(name) if name.starts_with('$') => match self.0.get(name) {
                Some(known) => known == frame,
                None => !frame.is_null() && self.0.insert(name.clone(), frame.clone()).is_none(),
            },
            Value::Object(fields) => fields.iter().all(|(key, pattern)| self.matches(pattern, &frame[key])),
            other => other == frame,
        }
    }

    pub fn fill(&self, frame: &Value) -> Value {
        match frame {
            Value::String(name) => self.0.get(name).unwrap_or(frame).clone(),
            Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), self.fill(value))).collect(),
            other => other.clone(),
        }
    }
}

#[tokio::test]
async fn every_flow_holds_for_a_live_server() {
    for (name, scenario) in scenarios("flows") {
        println!("{name}: {}", scenario["about"]);
        let dir = TempDir::new().unwrap();
        // A key of the scenario's own, so that a server that has forgotten everything still knows its signature.
        let env = [("BOWLINE_STATE__KEYS", "[\"k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"]".to_owned())];
        let mut server = Process::start(&dir.path().join("data"), &env).await;
        let mut clients: HashMap<String, Client> = HashMap::new();
        let mut names = Names::default();
        for step in scenario["steps"].as_array().unwrap() {
            if step["restart"] == true {
                clients.clear();
                server = server.kill_and_restart().await;
                continue;
            }
            if step["wipe"] == true {
                clients.clear();
                server.kill().await;
                std::fs::remove_dir_all(dir.path().join("data")).unwrap();
                server = Process::start(&dir.path().join("data"), &env).await;
                continue;
            }
            let on = step["on"].as_str().expect("a step says on which connection").to_owned();
            if step["connect"] == true {
                let mut client = Client::dial(server.address, &[]).await.unwrap();
                client.expect("system.connected").await;
                clients.insert(on, client);
                continue;
            }
            if step["drop"] == true {
                clients.remove(&on);
                continue;
            }
            let client = clients.get_mut(&on).expect("the connection is open");
            if step["send"].is_object() {
                client.send(names.fill(&step["send"])).await;
            } else if step["expect"].is_object() {
                let frame = next(client).await;
                assert!(names.matches(&step["expect"], &frame), "{name}: expected {}, got {frame}", step["expect"]);
            } else if step["await"].is_object() {
                while !names.matches(&step["await"], &next(client).await) {}
            } else if step["closed"].is_u64() {
                let Incoming::Closed(code) = client.incoming().await else { panic!("{name}: it is still open") };
                assert_eq!(code.map(u64::from), step["closed"].as_u64());
            } else {
                panic!("no such step: {step}");
            }
        }
        server.kill().await;
    }
}
