//! The terminal client's machine, told stories: breaks, replays, gaps, questions, takeovers.

// Frames are literals here; a `&` before each would only be noise.
#![allow(clippy::needless_pass_by_value)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::state::{ACK_EVERY, Chat, Effect, Input, Leave, Moment, Options, Show};

/// A machine with a clock that only the test moves.
struct Story {
    chat: Chat,
    now: Instant,
}

impl Story {
    fn new(options: Options) -> Story {
        let now = Instant::now();
        let mut story = Story { chat: Chat::new(options, now), now };
        assert_eq!(story.tell(Input::Start), [Effect::Dial]);
        story
    }

    fn at_a_terminal() -> Story {
        Story::new(Options { client_id: "me".into(), interactive: true, ..Options::default() })
    }

    fn in_a_pipe() -> Story {
        Story::new(Options { client_id: "me".into(), ..Options::default() })
    }

    fn tell(&mut self, input: Input) -> Vec<Effect> {
        self.chat.handle(Moment { now: self.now, chance: 0.5 }, input)
    }

    fn frame(&mut self, frame: Value) -> Vec<Effect> {
        self.tell(Input::Frame(frame.to_string()))
    }

    fn line(&mut self, text: &str) -> Vec<Effect> {
        self.tell(Input::Line(text.into()))
    }

    /// Logged event number `seq`.
    fn event(&mut self, seq: u64, name: &str, content: Value) -> Vec<Effect> {
        self.event_with(seq, name, content, json!({}))
    }

    fn event_with(&mut self, seq: u64, name: &str, content: Value, metadata: Value) -> Vec<Effect> {
        self.frame(json!({ "event": name, "session_id": "sess_1", "seq": seq, "event_id": format!("e-{seq}"), "step_id": "step_1",
            "content": content, "metadata": metadata }))
    }

    /// Opens the socket and says hello; returns what the machine asks for.
    fn greet(&mut self) -> Value {
        assert!(self.tell(Input::Opened).is_empty());
        let effects = self.frame(json!({ "event": "system.connected", "content": { "heartbeat_interval_ms": 1000 } }));
        sent(&effects).pop().expect("the client asks for a session")
    }

    /// Up to a fresh, live session.
    fn created(mut self) -> Story {
        assert_eq!(self.greet()["event"], "user.create_session");
        self.frame(
            json!({ "event": "agent.session_created", "session_id": "sess_1", "content": { "session_id": "sess_1" },
            "metadata": { "epoch": "e", "last_seq": 0, "resume_token": "r1" } }),
        );
        self
    }

    fn refuse(&mut self, code: &str) -> Vec<Effect> {
        self.frame(json!({ "event": "agent.error", "session_id": "sess_1", "content": "No.", "metadata": { "error_code": code } }))
    }

    fn reconnected(&mut self, state: &str, resume: Value, last_seq: u64) -> Vec<Effect> {
        self.frame(json!({ "event": "agent.session_created", "session_id": "sess_1", "content": "Session reconnected successfully",
            "metadata": { "reconnected": true, "epoch": "e", "last_seq": last_seq, "session_state": state, "resume": resume } }))
    }

    fn replayed(&mut self, count: u64) -> Vec<Effect> {
        self.frame(json!({ "event": "system.notice", "session_id": "sess_1", "content": "…",
            "metadata": { "action": "replay", "replayed": count } }))
    }

    fn drop_connection(&mut self) -> Vec<Effect> {
        self.tell(Input::Closed { code: None, reason: String::new() })
    }

    /// Lets the time come that the machine waits for.
    fn wait(&mut self) -> Vec<Effect> {
        self.now = self.chat.poll_timeout().expect("something is waited for");
        self.tell(Input::Timeout)
    }

    /// Waits out the backoff and opens the socket again.
    fn redial(&mut self) -> Value {
        for _ in 0..1000 {
            if self.wait().contains(&Effect::Dial) {
                return self.greet();
            }
        }
        panic!("the client gave up");
    }
}

fn sent(effects: &[Effect]) -> Vec<Value> {
    let frames = effects.iter().filter_map(|effect| match effect {
        Effect::Send(text) => serde_json::from_str(text).ok(),
        _ => None,
    });
    frames.collect()
}

fn shown(effects: &[Effect]) -> Vec<Show> {
    let shows = effects.iter().filter_map(|effect| match effect {
        Effect::Show(show) => Some(show.clone()),
        _ => None,
    });
    shows.collect()
}

fn left(effects: &[Effect]) -> Option<Leave> {
    effects.iter().find_map(|effect| match effect {
        Effect::Leave(leave) => Some(leave.clone()),
        _ => None,
    })
}

fn failure(effects: &[Effect]) -> String {
    match left(effects) {
        Some(Leave::Failed(why)) => why,
        other => panic!("expected to leave with an error, not {other:?}"),
    }
}

#[test]
fn a_message_is_streamed_and_its_answer_not_repeated() {
    let mut story = Story::at_a_terminal().created();
    let message = sent(&story.line("hi")).pop().unwrap();
    assert_eq!((&message["event"], &message["content"]), (&json!("user.message"), &json!("hi")));
    assert!(
        shown(&story.event_with(1, "user.message", json!("hi"), json!({ "message_id": message["message_id"] })))
            .is_empty()
    );
    assert_eq!(shown(&story.event(2, "agent.partial_answer", json!("he"))), [Show::Delta("he".into())]);
    assert_eq!(shown(&story.event(3, "agent.partial_answer", json!("llo"))), [Show::Delta("llo".into())]);
    let answer = Show::Answer { whole: "hello".into(), rest: String::new() };
    assert_eq!(shown(&story.event(4, "agent.final_answer", json!("hello"))), [answer, Show::Prompt]);
}

#[test]
fn a_break_in_the_middle_continues_exactly_where_it_was() {
    let mut story = Story::at_a_terminal().created();
    story.line("hi");
    story.event_with(1, "user.message", json!("hi"), json!({ "message_id": "me-1" }));
    story.event(2, "agent.partial_answer", json!("a"));
    let effects = story.drop_connection();
    assert!(effects.contains(&Effect::Hangup));
    assert_eq!(shown(&effects)[1], Show::Connection("reconnecting (attempt 1, next try in 1.0 s)".into()));

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
    let fail = |story: &mut Story| story.tell(Input::DialFailed { reason: "refused".into(), fatal: false });
    assert_eq!(shown(&fail(&mut story))[0], Show::Lost("refused".into()));
    for pause in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
        let begun = story.now;
        let mut redraws = 0;
        while !story.wait().contains(&Effect::Dial) {
            redraws += 1;
        }
        assert_eq!(story.now - begun, Duration::from_secs(pause));
        assert!(redraws as u64 >= pause * 9);
        assert!(!shown(&fail(&mut story)).iter().any(|show| matches!(show, Show::Lost(_))), "told once");
    }
    let why = failure(&story.tell(Input::DialFailed { reason: "401".into(), fatal: true }));
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
    assert!(story.chat.poll_timeout().unwrap() - story.now >= Duration::from_secs(1), "nothing new, no ack");
}

#[test]
fn two_silent_heartbeats_are_a_lost_connection() {
    let mut story = Story::at_a_terminal().created();
    story.wait();
    let heard = story.now;
    story.tell(Input::Alive);
    let effects = story.wait();
    assert_eq!(story.now - heard, Duration::from_secs(2));
    assert!(effects.contains(&Effect::Hangup));
    assert_eq!(shown(&effects)[0], Show::Lost("the server has gone silent".into()));
}

#[test]
fn a_log_that_runs_ahead_while_nothing_comes_is_asked_again() {
    let mut story = Story::at_a_terminal().created();
    let beat = json!({ "event": "system.heartbeat", "metadata": { "seq": 3 } });
    assert!(!story.frame(beat.clone()).contains(&Effect::Hangup), "the events may be on their way");
    story.event(1, "agent.thinking", json!("…"));
    assert!(!story.frame(beat.clone()).contains(&Effect::Hangup), "they are");
    assert!(story.frame(beat).contains(&Effect::Hangup));
}

#[test]
fn a_hole_is_asked_for_once_and_then_told() {
    let mut story = Story::at_a_terminal().created();
    story.event(1, "agent.thinking", json!("one"));
    assert!(story.event(4, "agent.thinking", json!("four")).contains(&Effect::Hangup));
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
fn a_question_is_asked_answered_and_answered_again_after_a_break() {
    let mut story = Story::at_a_terminal().created();
    let asked = Show::Question("Delete it? [y/n]".into());
    assert_eq!(shown(&story.event(1, "agent.user_confirm", json!("Delete it?"))), std::slice::from_ref(&asked));
    assert_eq!(shown(&story.line("maybe")), [asked]);
    let answer = sent(&story.line("y")).pop().unwrap();
    assert_eq!((&answer["step_id"], &answer["content"]["confirmed"]), (&json!("step_1"), &json!(true)));
    story.drop_connection();
    story.redial();
    story.reconnected("waiting", json!({ "verdict": "caught_up" }), 1);
    assert_eq!(sent(&story.replayed(0)), [answer]);
    story.event(2, "user.response", json!({ "confirmed": true }));
    story.drop_connection();
    story.redial();
    story.reconnected("running", json!({ "verdict": "caught_up" }), 2);
    assert!(sent(&story.replayed(0)).is_empty());
}

#[test]
fn a_new_process_finds_the_question_of_a_waiting_run() {
    let mut story = Story::new(Options {
        session: Some("sess_1".into()),
        client_id: "me".into(),
        interactive: true,
        ..Options::default()
    });
    assert_eq!(story.greet()["content"].get("last_event_id"), None);
    let effects = story.reconnected("waiting", json!({ "verdict": "caught_up" }), 30);
    assert_eq!(effects, [Effect::Hangup, Effect::Dial]);
    assert_eq!(story.greet()["content"]["last_event_id"], "e-22");
    story.reconnected("waiting", json!({ "verdict": "replay", "from_seq": 23, "to_seq": 30 }), 30);
    for seq in 23..30 {
        story.event(seq, "agent.thinking", json!("…"));
    }
    story.event(30, "agent.user_confirm", json!("Sure?"));
    assert!(shown(&story.replayed(8)).contains(&Show::Question("Sure? [y/n]".into())));
}

#[test]
fn ctrl_c_cancels_a_run_and_the_second_one_leaves() {
    let mut story = Story::at_a_terminal().created();
    story.line("hi");
    story.event_with(1, "user.message", json!("hi"), json!({ "message_id": "me-1" }));
    assert_eq!(sent(&story.tell(Input::Interrupt))[0]["event"], "user.cancel");
    let effects = story.tell(Input::Interrupt);
    assert_eq!(left(&effects), Some(Leave::Done));
    assert_eq!(sent(&effects)[0]["event"], "user.ack", "what was shown is acknowledged before leaving");
    let mut idle = Story::at_a_terminal().created();
    assert_eq!(left(&idle.tell(Input::Interrupt)), Some(Leave::Done));
    assert_eq!(left(&Story::at_a_terminal().created().line("/quit")), Some(Leave::Done));
}

#[test]
fn a_session_held_elsewhere_is_offered_to_be_taken_over() {
    let here = |interactive| Options {
        session: Some("sess_1".into()),
        client_id: "me".into(),
        interactive,
        ..Options::default()
    };
    let mut story = Story::new(here(true));
    story.greet();
    let effects = story.refuse("SESSION_ALREADY_ACTIVE");
    assert_eq!(shown(&effects)[1], Show::Question("Take it over? [y/n]".into()));
    assert_eq!(sent(&story.line("y"))[0]["content"]["take_over"], true);
    let mut script = Story::new(here(false));
    script.greet();
    assert!(failure(&script.refuse("SESSION_ALREADY_ACTIVE")).contains("--take-over"));
}

#[test]
fn close_codes_are_heeded() {
    let closed =
        |code: u16| Story::at_a_terminal().created().tell(Input::Closed { code: Some(code), reason: "because".into() });
    assert!(failure(&closed(4201)).contains("--session sess_1 --take-over"));
    assert!(failure(&closed(4203)).contains("--token"));
    assert!(failure(&closed(4250)).contains("stay away"));
    for code in [1000, 1006, 1012, 4000, 4001] {
        assert!(closed(code).contains(&Effect::Hangup), "{code}");
    }
    let mut story = Story::at_a_terminal().created();
    story.tell(Input::Closed { code: Some(4100), reason: "because".into() });
    assert_eq!(story.redial()["event"], "user.create_session");
}

#[test]
fn a_frame_that_the_server_cannot_take_is_not_sent_for_ever() {
    let mut story = Story::at_a_terminal().created();
    story.line("much too long");
    let effects = story.tell(Input::Closed { code: Some(1009), reason: "too big".into() });
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
    story.tell(Input::Closed { code: Some(1012), reason: "restart".into() });
    while !story.wait().contains(&Effect::Dial) {}
    assert_eq!(story.now - begun, Duration::from_secs(5));
}

#[test]
fn a_script_gets_its_answers_one_by_one_and_leaves_after_the_last() {
    let mut story = Story::in_a_pipe();
    assert!(story.line("one").is_empty());
    story.line("two");
    assert_eq!(left(&story.tell(Input::NoMoreLines)), None);
    story = story.created();
    story.event_with(1, "user.message", json!("one"), json!({ "message_id": "me-1" }));
    let effects = story.event(2, "agent.final_answer", json!("1"));
    assert_eq!(sent(&effects)[0]["content"], "two", "the second goes out when the first is answered");
    story.event_with(3, "user.message", json!("two"), json!({ "message_id": "me-2" }));
    assert_eq!(left(&story.event(4, "agent.final_answer", json!("2"))), Some(Leave::Done));
}

#[test]
fn a_script_that_got_an_error_says_so_in_its_exit_code() {
    let mut story = Story::in_a_pipe();
    story.line("/fail");
    story.tell(Input::NoMoreLines);
    story = story.created();
    story.event_with(1, "user.message", json!("/fail"), json!({ "message_id": "me-1" }));
    assert_eq!(left(&story.event(2, "agent.error", json!("it failed"))), Some(Leave::AfterErrors));
}

#[test]
fn a_script_answers_questions_with_its_next_line_and_declines_otherwise() {
    for (lines, confirmed, rest) in [(vec!["y", "next"], true, 1), (vec!["next"], false, 1), (vec![], false, 0)] {
        let mut story = Story::in_a_pipe();
        story.line("/confirm it");
        lines.iter().for_each(|line| drop(story.line(line)));
        story.tell(Input::NoMoreLines);
        story = story.created();
        story.event_with(1, "user.message", json!("/confirm it"), json!({ "message_id": "me-1" }));
        let answer = sent(&story.event(2, "agent.user_confirm", json!("it?"))).pop().unwrap();
        assert_eq!(answer["content"]["confirmed"], confirmed);
        story.event(3, "user.response", json!({ "confirmed": confirmed }));
        let effects = story.event(4, "agent.final_answer", json!("done"));
        assert_eq!(sent(&effects).iter().filter(|frame| frame["event"] == "user.message").count(), rest);
    }
}

#[test]
fn a_message_that_met_another_run_waits_for_it() {
    let mut story = Story::at_a_terminal().created();
    story.line("mine");
    assert!(sent(&story.refuse("AGENT_BUSY")).is_empty());
    assert_eq!(shown(&story.event(1, "user.message", json!("theirs"))), [Show::Said("theirs".into())]);
    let effects = story.event(2, "agent.final_answer", json!("done"));
    assert_eq!(sent(&effects)[0]["content"], "mine");
}
