//! Stories of lost connections: breaks, replays, holes, gaps, close codes.

use std::time::Duration;

use bowline_client::ACK_EVERY;
use serde_json::json;

use super::interface::{Options, Show};
use super::story::{Story, StoryEffect, StoryInput, failure, sent, shown};

#[test]
fn a_break_in_the_middle_continues_exactly_where_it_was() {
    let mut story = Story::at_a_terminal().created();
    story.line("hi");
    story.event_with(1, "user.message", json!("hi"), json!({ "message_id": "me-1" }));
    story.event(2, "agent.partial_answer", json!("a"));
    let effects = story.drop_connection();
    assert!(effects.contains(&StoryEffect::Hangup));
    assert_eq!(shown(&effects)[1], Show::Connection("reconnecting (attempt 1, next try in 0.1 s)".into()));

    let attach = story.redial();
    assert_eq!((&attach["event"], &attach["session_id"]), (&json!("user.reconnect"), &json!("sess_1")));
    assert_eq!(attach["content"], json!({ "last_event_id": "e-2", "client_id": "me", "resume_token": "r1" }));
    story.reconnected("running", json!({ "verdict": "replay", "from_seq": 3, "to_seq": 4 }), 4);
    // A server that repeats itself does not make us repeat ourselves.
    assert!(shown(&story.event(2, "agent.partial_answer", json!("a"))).is_empty());
    assert_eq!(shown(&story.event(3, "agent.partial_answer", json!("b"))), [Show::Delta("b".into())]);
    story.event(4, "agent.partial_answer", json!("c"));
    let effects = story.replayed(2);
    assert_eq!(shown(&effects), [Show::Notice("connection is back, replayed 2".into())]);
    assert!(sent(&effects).is_empty(), "the message is in the log, so it is not sent again");
    let shows = shown(&story.event(5, "agent.final_answer", json!("abc")));
    assert_eq!(shows[0], Show::Answer { whole: "abc".into(), rest: String::new() });
}

#[test]
fn a_message_that_may_be_lost_is_sent_again_under_the_same_id() {
    let mut story = Story::at_a_terminal().created();
    let first = sent(&story.line("hi")).pop().unwrap();
    story.drop_connection();
    story.redial();
    story.reconnected("idle", json!({ "verdict": "caught_up" }), 0);
    assert_eq!(sent(&story.replayed(0)), [first]);
}

#[test]
fn tries_go_on_for_ever_with_growing_pauses_that_are_counted_down() {
    let mut story = Story::at_a_terminal();
    let fail = |story: &mut Story| story.tell(StoryInput::DialFailed { reason: "refused".into(), fatal: false });
    assert_eq!(shown(&fail(&mut story))[0], Show::Lost("refused".into()));
    let begun = story.now;
    while !story.wait().contains(&StoryEffect::Dial) {}
    assert_eq!(story.now - begun, Duration::from_millis(125), "the first attempt is immediate but for its jitter");
    fail(&mut story);
    for pause in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
        let begun = story.now;
        let mut redraws = 0;
        while !story.wait().contains(&StoryEffect::Dial) {
            redraws += 1;
        }
        assert_eq!(story.now - begun, Duration::from_secs(pause));
        assert!(redraws as u64 >= pause * 9);
        assert!(!shown(&fail(&mut story)).iter().any(|show| matches!(show, Show::Lost(_))), "told once");
    }
    let why = failure(&story.tell(StoryInput::DialFailed { reason: "401".into(), fatal: true }));
    assert_eq!(why, "401");
}

#[test]
fn acks_are_gathered_and_name_the_newest_event() {
    let mut story = Story::at_a_terminal().created();
    for seq in 1..=50 {
        assert!(sent(&story.event(seq, "agent.thinking", json!("…"))).is_empty());
    }
    let due = story.now;
    let acks = sent(&story.wait());
    assert_eq!(story.now - due, ACK_EVERY);
    assert_eq!(acks[0]["content"]["last_event_id"], "e-50");
    assert_eq!(
        sent(&story.frame(json!({ "event": "system.heartbeat", "metadata": { "seq": 50 } }))).len(),
        1,
        "a sign of life"
    );
    assert!(story.poll_timeout().unwrap() - story.now >= Duration::from_secs(1), "nothing new, no ack");
}

#[test]
fn two_silent_heartbeats_are_a_lost_connection() {
    let mut story = Story::at_a_terminal().created();
    story.wait();
    let heard = story.now;
    story.tell(StoryInput::Alive);
    let effects = story.wait();
    assert_eq!(story.now - heard, Duration::from_secs(2));
    assert!(effects.contains(&StoryEffect::Hangup));
    assert_eq!(shown(&effects)[0], Show::Lost("the server has gone silent".into()));
}

#[test]
fn a_log_that_runs_ahead_while_nothing_comes_is_asked_again() {
    let mut story = Story::at_a_terminal().created();
    let beat = json!({ "event": "system.heartbeat", "metadata": { "seq": 3 } });
    assert!(!story.frame(beat.clone()).contains(&StoryEffect::Hangup), "the events may be on their way");
    story.event(1, "agent.thinking", json!("…"));
    assert!(!story.frame(beat.clone()).contains(&StoryEffect::Hangup), "they are");
    assert!(story.frame(beat).contains(&StoryEffect::Hangup));
}

#[test]
fn a_hole_is_asked_for_once_and_then_told() {
    let mut story = Story::at_a_terminal().created();
    story.event(1, "agent.thinking", json!("one"));
    assert!(story.event(4, "agent.thinking", json!("four")).contains(&StoryEffect::Hangup));
    assert_eq!(story.redial()["content"]["last_event_id"], "e-1");
    story.reconnected("running", json!({ "verdict": "replay", "from_seq": 2 }), 4);
    let shows = shown(&story.event(4, "agent.thinking", json!("four")));
    assert_eq!(shows, [Show::Notice("2 events are missing".into()), Show::Aside("four".into())]);
}

#[test]
fn a_gap_that_the_server_tells_is_shown_and_no_hole() {
    let mut story = Story::at_a_terminal().created();
    story.event(1, "agent.thinking", json!("one"));
    story.drop_connection();
    story.redial();
    story.reconnected(
        "running",
        json!({ "verdict": "gap", "from_seq": 10, "to_seq": 10, "first_retained_seq": 10, "lost": 8 }),
        10,
    );
    assert_eq!(shown(&story.event(10, "agent.thinking", json!("ten"))), [Show::Aside("ten".into())]);
    let notice = story.frame(json!({ "event": "system.notice", "content": "…",
        "metadata": { "action": "replay", "replayed": 1, "code": "REPLAY_GAP", "lost": 8 } }));
    assert_eq!(
        shown(&notice)[0],
        Show::Notice("connection is back, replayed 1; 8 events are no longer kept (REPLAY_GAP)".into())
    );
    // The same while live, when this reader was trimmed past.
    story.frame(json!({ "event": "system.notice", "content": "…", "metadata": { "code": "REPLAY_GAP", "first_retained_seq": 20, "lost": 9 } }));
    assert_eq!(shown(&story.event(20, "agent.thinking", json!("twenty"))), [Show::Aside("twenty".into())]);
}

#[test]
fn another_epoch_starts_over_at_its_own_numbers() {
    let mut story = Story::at_a_terminal().created();
    for seq in 1..=9 {
        story.event(seq, "agent.thinking", json!("old"));
    }
    story.wait();
    story.drop_connection();
    story.redial();
    story.frame(json!({ "event": "agent.session_created", "session_id": "sess_1", "metadata": { "reconnected": true, "epoch": "new", "last_seq": 2,
        "session_state": "idle", "resume": { "verdict": "other_epoch", "from_seq": 1, "to_seq": 2, "first_retained_seq": 1 } } }));
    for seq in 1..=2 {
        let event =
            json!({ "event": "agent.thinking", "seq": seq, "event_id": format!("new-{seq}"), "content": "new" });
        assert_eq!(shown(&story.frame(event)), [Show::Aside("new".into())]);
    }
    story.frame(json!({ "event": "system.notice", "content": "x", "metadata": { "action": "replay", "replayed": 2, "code": "EPOCH_MISMATCH" } }));
    assert_eq!(sent(&story.wait())[0]["content"]["last_event_id"], "new-2");
}

#[test]
fn close_codes_are_heeded() {
    let closed = |code: u16| {
        Story::at_a_terminal().created().tell(StoryInput::Closed { code: Some(code), reason: "because".into() })
    };
    assert!(failure(&closed(4201)).contains("--session sess_1 --take-over"));
    assert!(failure(&closed(4203)).contains("--token"));
    assert!(failure(&closed(4250)).contains("stay away"));
    for code in [1000, 1006, 1012, 4000, 4001] {
        assert!(closed(code).contains(&StoryEffect::Hangup), "{code}");
    }
    let mut story = Story::at_a_terminal().created();
    story.tell(StoryInput::Closed { code: Some(4100), reason: "because".into() });
    assert_eq!(story.redial()["event"], "user.create_session");
}

#[test]
fn a_frame_that_the_server_cannot_take_is_not_sent_for_ever() {
    let mut story = Story::at_a_terminal().created();
    story.line("much too long");
    let effects = story.tell(StoryInput::Closed { code: Some(1009), reason: "too big".into() });
    assert!(matches!(&shown(&effects)[0], Show::Error(text) if text.contains("too big")));
    story.redial();
    story.reconnected("idle", json!({ "verdict": "caught_up" }), 0);
    assert!(sent(&story.replayed(0)).is_empty());
}

#[test]
fn a_session_that_is_gone_is_told_to_who_asked_for_it_and_replaced_for_who_was_in_it() {
    let mut story = Story::new(Options {
        session: Some("sess_1".into()),
        client_id: "me".into(),
        interactive: true,
        ..Options::default()
    });
    story.greet();
    assert!(failure(&story.refuse("SESSION_NOT_FOUND")).contains("`bowline chat` starts a new one"));

    let mut story = Story::at_a_terminal().created();
    story.line("hi");
    story.drop_connection();
    story.redial();
    assert_eq!(sent(&story.refuse("SESSION_EXPIRED"))[0]["event"], "user.create_session");
    let created = json!({ "event": "agent.session_created", "session_id": "sess_2", "content": {}, "metadata": { "epoch": "f", "last_seq": 0 } });
    let effects = story.frame(created);
    assert_eq!((&sent(&effects)[0]["session_id"], &sent(&effects)[0]["content"]), (&json!("sess_2"), &json!("hi")));
}

#[test]
fn a_draining_server_is_given_the_time_that_it_asks_for() {
    let mut story = Story::at_a_terminal().created();
    story.frame(json!({ "event": "system.notice", "content": "Restarting.", "metadata": { "code": "SERVER_DRAINING", "retry_after_ms": 5000 } }));
    let begun = story.now;
    story.tell(StoryInput::Closed { code: Some(1012), reason: "restart".into() });
    while !story.wait().contains(&StoryEffect::Dial) {}
    assert_eq!(story.now - begun, Duration::from_secs(5));
}
