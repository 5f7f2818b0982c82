//! Stories of people and scripts: answers, questions, Ctrl-C, takeovers, pipes.

use serde_json::json;

use super::interface::{Leave, Options, Show};
use super::story::{Story, StoryEffect, StoryInput, failure, left, sent, shown};

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
    assert_eq!(effects, [StoryEffect::Hangup, StoryEffect::Dial]);
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
    assert_eq!(sent(&story.tell(StoryInput::Interrupt))[0]["event"], "user.cancel");
    let effects = story.tell(StoryInput::Interrupt);
    assert_eq!(left(&effects), Some(Leave::Done));
    assert_eq!(sent(&effects)[0]["event"], "user.ack", "what was shown is acknowledged before leaving");
    let mut idle = Story::at_a_terminal().created();
    assert_eq!(left(&idle.tell(StoryInput::Interrupt)), Some(Leave::Done));
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
fn a_script_gets_its_answers_one_by_one_and_leaves_after_the_last() {
    let mut story = Story::in_a_pipe();
    assert!(story.line("one").is_empty());
    story.line("two");
    assert_eq!(left(&story.tell(StoryInput::NoMoreLines)), None);
    story = story.created();
    story.event_with(1, "user.message", json!("one"), json!({ "message_id": "me-1" }));
    let effects = story.event(2, "agent.final_answer", json!("1"));
    assert_eq!(sent(&effects)[0]["content"], "two", "the second goes out when the first is answered");
    story.event_with(3, "user.message", json!("two"), json!({ "message_id": "me-2" }));
    assert_eq!(left(&story.event(4, "agent.final_answer", json!("2"))), Some(Leave::Done));
}

#[test]
fn a_script_does_not_leave_before_the_replay_has_brought_its_answer() {
    let mut story = Story::in_a_pipe();
    story.line("one");
    story.tell(StoryInput::NoMoreLines);
    story = story.created();
    story.event_with(1, "user.message", json!("one"), json!({ "message_id": "me-1" }));
    assert_eq!(left(&story.drop_connection()), None);
    story.redial();
    assert_eq!(left(&story.reconnected("idle", json!({ "verdict": "replay", "from_seq": 2, "to_seq": 2 }), 2)), None);
    assert_eq!(left(&story.event(2, "agent.final_answer", json!("1"))), None);
    assert_eq!(left(&story.replayed(1)), Some(Leave::Done));
}

#[test]
fn a_script_that_got_an_error_says_so_in_its_exit_code() {
    let mut story = Story::in_a_pipe();
    story.line("/fail");
    story.tell(StoryInput::NoMoreLines);
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
        story.tell(StoryInput::NoMoreLines);
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
