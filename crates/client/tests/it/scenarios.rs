//! The link scenarios of `conformance/`: the client's machine against the server's.

use std::fs;
use std::path::Path;
use std::time::Instant;

use bowline_client::{
    AttachTarget, ClientLink, GapCause, LinkConfig, LinkEvent, LinkOutput, Moment, ResetCause, SessionTarget,
};
use bowline_core::link::{Link as ServerLink, Output as ServerOutput};
use bowline_core::resume::Resume;
use bowline_protocol::{Cursor, Epoch, Extent, Recorded, Seq, SessionId};
use serde_json::{Value, json};

const SESSION: &str = "sess_1";

fn seq(n: u64) -> Seq {
    Seq::new(n).unwrap()
}

/// A log of nothing but numbers, the server's end of a link to it, and the client's.
struct World {
    first: u64,
    next: u64,
    keep: u64,
    server: Option<ServerLink>,
    client: Option<ClientLink>,
    now: Instant,
    /// What the client has reported and the scenario has not looked at yet.
    delivered: Vec<u64>,
    reported: Vec<LinkEvent>,
}

impl World {
    fn extent(&self) -> Extent {
        Extent {
            epoch: Epoch::parse("current").unwrap(),
            epoch_first: seq(1),
            first: seq(self.first),
            next: seq(self.next),
        }
    }

    fn frame(&mut self, frame: &Value) {
        let client = self.client.as_mut().expect("the reader is attached");
        client.handle_frame(Moment { now: self.now, jitter: 0.5 }, &frame.to_string());
    }

    /// What the client wants done; what it reports is kept.
    fn drain(&mut self) -> Vec<LinkOutput> {
        let mut outputs = Vec::new();
        while let Some(output) = self.client.as_mut().and_then(ClientLink::poll_output) {
            match output {
                LinkOutput::Event(LinkEvent::Logged(frame)) => self.delivered.push(frame.seq.unwrap()),
                LinkOutput::Event(event) => self.reported.push(event),
                other => outputs.push(other),
            }
        }
        outputs
    }

    fn pump(&mut self) {
        let (first, next) = (self.first, self.next);
        let Some(server) = &mut self.server else { return };
        let mut frames = Vec::new();
        loop {
            match server.poll_output() {
                Some(ServerOutput::Events(events)) => frames.extend(events.iter().map(|event| {
                    json!({ "event": "agent.mood", "session_id": SESSION, "seq": event.seq, "event_id": format!("current-{}", event.seq) })
                })),
                Some(ServerOutput::Control(control)) => frames.push(
                    json!({ "event": "system.notice", "session_id": SESSION, "content": "", "metadata": control.metadata }),
                ),
                Some(ServerOutput::Replayed { .. } | ServerOutput::Skipped { .. }) => {}
                None => {
                    let (from, events_max) = server.poll_read();
                    let numbers = (from.get()..next).take(events_max);
                    let events = numbers.map(|n| Recorded { seq: seq(n), bytes: Vec::new().into() }).collect();
                    match from.get() {
                        from if from < first => server.handle_gap(seq(first)),
                        from if from < next => server.handle_events(events),
                        _ => break,
                    }
                }
            }
        }
        frames.iter().for_each(|frame| self.frame(frame));
        let wanted = self.drain();
        assert!(wanted.is_empty(), "the client is content with what it gets: {wanted:?}");
    }

    fn attach(&mut self, asked: &Value) {
        let cursor = asked["seq"]
            .as_u64()
            .map(|n| Cursor { epoch: asked["epoch"].as_str().and_then(Epoch::parse), seq: seq(n) });
        let mut client = ClientLink::new(LinkConfig::new("reader"));
        client.start(AttachTarget::Session(SessionTarget {
            id: SESSION.into(),
            cursor: cursor.clone(),
            observe: true,
            ..SessionTarget::default()
        }));
        self.client = Some(client);
        assert_eq!(self.drain(), [LinkOutput::Dial]);
        self.client.as_mut().unwrap().handle_opened(Moment { now: self.now, jitter: 0.5 });
        self.frame(&json!({ "event": "system.connected", "content": { "heartbeat_interval_ms": 30_000 } }));
        let wanted = self.drain();
        let [LinkOutput::Send(request)] = &wanted[..] else { panic!("it asks for the session: {wanted:?}") };
        let request: Value = serde_json::from_str(request).unwrap();
        assert_eq!((&request["event"], &request["content"]["mode"]), (&json!("user.reconnect"), &json!("observe")));

        let extent = self.extent();
        let verdict = match &cursor {
            None => Resume::from_the_start(&extent),
            Some(cursor) => Resume::decide(&extent, cursor),
        };
        let metadata = json!({ "reconnected": true, "epoch": "current", "last_seq": self.next - 1, "session_state": "idle", "resume": verdict.facts(&extent) });
        self.frame(&json!({ "event": "agent.session_created", "session_id": SESSION, "metadata": metadata }));
        self.server = Some(ServerLink::resume(SessionId::from_random(1), &extent, verdict));
        self.pump();
    }

    fn find<T>(&self, find: impl Fn(&LinkEvent) -> Option<T>) -> Option<T> {
        self.reported.iter().find_map(find)
    }

    fn step(&mut self, step: &Value) {
        if let Some(count) = step["append"].as_u64() {
            self.next += count;
            self.first = self.first.max(self.next.saturating_sub(self.keep));
            self.pump();
        } else if step["attach"].is_object() {
            self.attach(&step["attach"]);
        } else if step["cut"] == true {
            (self.server, self.client) = (None, None);
            self.delivered.clear();
            self.reported.clear();
        } else if step["quiet"] == true {
            assert_eq!(self.delivered, Vec::<u64>::new());
        } else if let Some(range) = step["events"].as_array() {
            for n in range[0].as_u64().unwrap()..=range[1].as_u64().unwrap() {
                assert_eq!(self.delivered.remove(0), n);
            }
        } else if step["verdict"].is_string() {
            let told = self.find(|event| match event {
                LinkEvent::Attached(attached) => Some(attached.verdict.clone()),
                _ => None,
            });
            assert_eq!(told.as_deref(), step["verdict"].as_str());
            let gap = self.find(|event| match event {
                LinkEvent::Gap { from_seq, to_seq, cause: GapCause::NotRetained } => Some((*from_seq, *to_seq)),
                _ => None,
            });
            if let Some(lost) = step["lost"].as_u64() {
                let (from_seq, to_seq) = gap.expect("the gap is reported");
                assert_eq!((to_seq + 1 - from_seq, to_seq + 1), (lost, step["first"].as_u64().unwrap_or(to_seq + 1)));
            }
        } else if step["replayed"].is_u64() {
            let count = self.find(|event| match event {
                LinkEvent::Replayed { count, .. } => Some(*count),
                _ => None,
            });
            assert_eq!(count, step["replayed"].as_u64());
            let code = self.find(|event| match event {
                LinkEvent::Gap { .. } => Some("REPLAY_GAP"),
                LinkEvent::Reset(ResetCause::OtherEpoch) => Some("EPOCH_MISMATCH"),
                LinkEvent::Reset(ResetCause::AheadOfLog) => Some("CURSOR_AHEAD"),
                _ => None,
            });
            assert_eq!(code, step["code"].as_str());
        } else {
            panic!("no such step: {step}");
        }
    }
}

#[test]
fn every_link_scenario_holds_for_the_client() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/links");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let scenario: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        println!("{}: {}", path.display(), scenario["about"]);
        let mut world = World {
            first: 1,
            next: 1,
            keep: scenario["keep"].as_u64().unwrap_or(u64::MAX),
            server: None,
            client: None,
            now: bowline_env::clock::now(),
            delivered: Vec::new(),
            reported: Vec::new(),
        };
        for step in scenario["steps"].as_array().unwrap() {
            world.step(step);
        }
        count += 1;
    }
    assert!(count >= 5, "the scenarios are there");
}
