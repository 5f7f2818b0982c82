//! What a link does with requests, watches, states and refusals; lost connections are in the stories of `bowline chat`.

// Frames are literals here; a `&` before each would only be noise.
#![allow(clippy::needless_pass_by_value)]

use std::time::Instant;

use serde_json::{Value, json};

use super::*;
use crate::{ClientRequest, RequestOutcome};

struct World {
    link: ClientLink,
    now: Instant,
}

impl World {
    fn new(config: LinkConfig, target: AttachTarget) -> World {
        let mut world = World { link: ClientLink::new(config), now: bowline_env::clock::now() };
        world.link.start(target);
        assert_eq!(world.link.poll_output(), Some(LinkOutput::Dial));
        world.greet();
        world
    }

    /// A live link to a new session.
    fn live(config: LinkConfig) -> World {
        let mut world = World::new(config, AttachTarget::New);
        world.sent();
        let metadata = json!({ "epoch": "e", "last_seq": 0, "resume_token": "r1" });
        world.frame(&json!({ "event": "agent.session_created", "session_id": "sess_1", "metadata": metadata }));
        world.events();
        world
    }

    fn at(&self) -> Moment {
        Moment { now: self.now, jitter: 0.5 }
    }

    fn frame(&mut self, frame: &Value) {
        self.link.handle_frame(self.at(), &frame.to_string());
    }

    fn greet(&mut self) {
        self.link.handle_opened(self.at());
        self.frame(&json!({ "event": "system.connected", "content": { "heartbeat_interval_ms": 1000 } }));
    }

    fn event(&mut self, seq: u64, name: &str, metadata: Value) {
        self.frame(&json!({ "event": name, "session_id": "sess_1", "seq": seq, "content": "x", "metadata": metadata }));
    }

    fn notice(&mut self, metadata: Value) {
        self.frame(&json!({ "event": "system.notice", "session_id": "sess_1", "content": "x", "metadata": metadata }));
    }

    fn refuse(&mut self, metadata: Value) {
        self.frame(&json!({ "event": "agent.error", "session_id": "sess_1", "content": "No.", "metadata": metadata }));
    }

    fn returned(&mut self, verdict: &str, last_seq: u64) {
        let metadata =
            json!({ "reconnected": true, "epoch": "e", "last_seq": last_seq, "resume": { "verdict": verdict } });
        self.frame(&json!({ "event": "agent.session_created", "session_id": "sess_1", "metadata": metadata }));
        self.notice(json!({ "action": "replay", "replayed": 0 }));
    }

    fn lose(&mut self) {
        self.link.handle_closed(self.at(), None, "");
        self.now = self.link.poll_timeout().unwrap();
        self.link.handle_timeout(self.at());
        self.greet();
    }

    fn drain(&mut self) -> (Vec<Value>, Vec<LinkEvent>) {
        let (mut sent, mut events) = (Vec::new(), Vec::new());
        while let Some(output) = self.link.poll_output() {
            match output {
                LinkOutput::Send(text) => sent.push(serde_json::from_str(&text).unwrap()),
                LinkOutput::Event(event) => events.push(event),
                LinkOutput::Dial | LinkOutput::HangUp => {}
            }
        }
        (sent, events)
    }

    fn sent(&mut self) -> Vec<Value> {
        self.drain().0
    }

    fn events(&mut self) -> Vec<LinkEvent> {
        self.drain().1
    }
}

fn message(id: &str) -> ClientRequest {
    ClientRequest::Message { message_id: id.into(), content: "hi".into() }
}

#[test]
fn requests_go_out_one_after_the_other_and_each_has_its_answer() {
    let mut world = World::live(LinkConfig::new("c"));
    let first = world.link.request(message("m1"));
    let second = world.link.request(ClientRequest::Cancel { reason: None });
    assert_eq!(world.sent().len(), 1, "the second waits for the answer to the first");
    world.event(1, "user.message", json!({ "message_id": "another" }));
    assert!(world.sent().is_empty(), "another client's message answers nothing");
    world.event(2, "user.message", json!({ "message_id": "m1" }));
    let (sent, events) = world.drain();
    let outcome = RequestOutcome::Message { seq: Some(2), duplicate: false };
    assert!(events.contains(&LinkEvent::Done { request: first, outcome }), "{events:?}");
    assert_eq!(sent[0]["event"], "user.cancel");
    world.notice(json!({ "action": "cancel", "ok": false }));
    let done = LinkEvent::Done { request: second, outcome: RequestOutcome::Cancel { cancelled: false } };
    assert_eq!(world.events()[0], done);
}

#[test]
fn a_request_that_may_be_done_already_is_sent_again_only_if_that_does_it_once() {
    let mut world = World::live(LinkConfig::new("c"));
    world.link.request(message("m1"));
    let sent = world.sent();
    world.lose();
    world.sent();
    world.returned("caught_up", 0);
    assert_eq!(world.sent(), sent);
    world.event(1, "user.message", json!({ "message_id": "m1" }));
    let plan = world.link.request(ClientRequest::Plan { action: "replan", fields: serde_json::Map::new() });
    world.drain();
    world.lose();
    let events = world.events();
    let failed = events.iter().any(|event| {
        matches!(event, LinkEvent::Failed { request, refusal } if *request == plan && refusal.code == ErrorCode::OutcomeUnknown)
    });
    assert!(failed, "{events:?}");
    world.returned("caught_up", 1);
    assert!(world.sent().is_empty());
}

#[test]
fn a_request_that_the_server_cannot_do_yet_is_sent_again_when_it_says_so() {
    let mut world = World::live(LinkConfig::new("c"));
    let request = world.link.request(message("m1"));
    world.sent();
    let later = json!({ "error_code": "STORE_UNAVAILABLE", "retry_after_ms": 700 });
    for _ in 1..5 {
        world.refuse(later.clone());
        assert!(world.sent().is_empty());
        world.now += Duration::from_millis(700);
        world.link.handle_timeout(world.at());
        let resent = world.sent();
        assert!(resent.iter().any(|frame| frame["message_id"] == "m1"), "{resent:?}");
        world.link.handle_alive(world.at());
    }
    world.refuse(later);
    assert!(matches!(&world.events()[..], [LinkEvent::Failed { request: failed, .. }] if *failed == request));
}

#[test]
fn a_watch_goes_on_after_its_last_chunk() {
    let mut world = World::new(LinkConfig::new("c"), AttachTarget::Tasks);
    world.link.watch("task_1", None, None);
    assert_eq!(world.sent()[0]["content"]["last_message_id"], "0");
    let chunk = json!({ "event": "task.chunk", "task_id": "task_1", "id": "e-3", "content": { "type": "start" } });
    world.frame(&chunk);
    let chunk =
        LinkEvent::TaskChunk { task_id: "task_1".into(), id: Some("e-3".into()), chunk: json!({ "type": "start" }) };
    assert_eq!(world.events(), [chunk]);
    world.lose();
    assert_eq!(world.sent()[0]["content"]["last_message_id"], "e-3");
    world.frame(&json!({ "event": "task.end", "task_id": "task_1", "content": { "status": "completed" } }));
    let ended = LinkEvent::TaskEnded { task_id: "task_1".into(), status: "completed".into() };
    assert_eq!(world.events(), [ended]);
    world.lose();
    assert!(world.sent().is_empty(), "what is over is not asked for again");
}

#[test]
fn a_session_that_the_server_has_lost_is_restored_from_the_newest_state() {
    let mut world = World::live(LinkConfig::new("c"));
    world.event(1, "agent.mood", json!({}));
    let exported =
        json!({ "event": "agent.state_exported", "session_id": "sess_1", "metadata": { "signed_state": { "v": 1 } } });
    world.frame(&exported);
    assert!(world.events().contains(&LinkEvent::Checkpoint(json!({ "v": 1 }))));
    world.lose();
    world.sent();
    world.refuse(json!({ "error_code": "SESSION_NOT_FOUND" }));
    let sent = world.sent();
    assert_eq!(
        (&sent[0]["event"], &sent[0]["signed_state"]),
        (&json!("user.reconnect_with_state"), &json!({ "v": 1 }))
    );
    assert_eq!(sent[0]["content"]["last_seq"], 1, "the epoch was the lost session's");
    let metadata = json!({ "epoch": "f", "last_seq": 1, "original_session_id": "sess_1", "source": "snapshot", "resume": { "verdict": "caught_up" } });
    world.frame(&json!({ "event": "agent.state_restored", "session_id": "sess_2", "metadata": metadata }));
    world.frame(&json!({ "event": "system.notice", "session_id": "sess_2", "content": "", "metadata": { "action": "replay", "replayed": 0 } }));
    assert!(world.link.is_live());
    assert_eq!(
        (world.link.session(), world.link.cursor().map(ToString::to_string).as_deref()),
        (Some("sess_2"), Some("f-1"))
    );
}

#[test]
fn a_session_that_is_held_is_taken_over_only_on_demand() {
    let target = || AttachTarget::Session(SessionTarget { id: "sess_1".into(), ..SessionTarget::default() });
    let mut world = World::new(LinkConfig::new("c"), target());
    world.refuse(json!({ "error_code": "SESSION_ALREADY_ACTIVE" }));
    assert_eq!(world.events(), [LinkEvent::Held]);
    world.link.take_over();
    assert_eq!(world.sent()[0]["content"]["take_over"], true);
    let mut world = World::new(LinkConfig { when_held: WhenHeld::TakeOver, ..LinkConfig::new("c") }, target());
    world.sent();
    world.refuse(json!({ "error_code": "SESSION_ALREADY_ACTIVE" }));
    assert_eq!(world.sent()[0]["content"]["take_over"], true);
    world.returned("caught_up", 0);
    world.events();
    world.notice(json!({ "code": "SESSION_TAKEN_OVER" }));
    assert_eq!(
        world.events(),
        [LinkEvent::Stopped(StopCause::TakenOver { reason: "another connection took the session over".into() })]
    );
    assert_eq!(world.link.poll_timeout(), None);
}

#[test]
fn attempts_have_a_bound_if_one_is_set() {
    let mut world = World::live(LinkConfig { attempts_max: Some(2), ..LinkConfig::new("c") });
    world.link.handle_closed(world.at(), None, "");
    for _ in 0..2 {
        world.now = world.link.poll_timeout().unwrap();
        world.link.handle_timeout(world.at());
        world.events();
        world.link.handle_dial_failed(world.at(), "refused", false);
    }
    let stopped = LinkEvent::Stopped(StopCause::GaveUp { reason: "refused".into() });
    assert_eq!(world.events(), [stopped]);
}
