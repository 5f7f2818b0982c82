//! A machine with a clock that only the test moves, and short words for what a server says.

// Frames are literals here; a `&` before each would only be noise.
#![allow(clippy::needless_pass_by_value)]

use std::time::Instant;

use bowline_client::{ClientLink, LinkOutput, Moment};
use bowline_env::clock;
use serde_json::{Value, json};

use super::interface::{self, ChatInput, Leave, Options, Show};
use super::state::Chat;
use super::{link_config, target};

/// What can happen to the client: to its socket, or at its terminal.
#[derive(Clone, Debug)]
pub enum StoryInput {
    Start,
    Opened,
    DialFailed { reason: String, fatal: bool },
    Frame(String),
    Alive,
    Closed { code: Option<u16>, reason: String },
    Line(String),
    NoMoreLines,
    Interrupt,
    Timeout,
}

/// What the client does: its link's outputs and the chat's, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoryEffect {
    Dial,
    Hangup,
    Send(String),
    Show(Show),
    Leave(Leave),
}

pub struct Story {
    link: ClientLink,
    chat: Chat,
    options: Options,
    pub now: Instant,
}

impl Story {
    pub fn new(options: Options) -> Story {
        let (link, chat) = (ClientLink::new(link_config(&options)), Chat::new(options.clone()));
        let mut story = Story { link, chat, options, now: clock::now() };
        assert_eq!(story.tell(StoryInput::Start), [StoryEffect::Dial]);
        story
    }

    pub fn at_a_terminal() -> Story {
        Story::new(Options { client_id: "me".into(), interactive: true, ..Options::default() })
    }

    pub fn in_a_pipe() -> Story {
        Story::new(Options { client_id: "me".into(), ..Options::default() })
    }

    pub fn tell(&mut self, input: StoryInput) -> Vec<StoryEffect> {
        let at = Moment { now: self.now, jitter: 0.5 };
        let mut effects = Vec::new();
        match input {
            StoryInput::Start => self.link.start(target(&self.options)),
            StoryInput::Opened => self.link.handle_opened(at),
            StoryInput::DialFailed { reason, fatal } => self.link.handle_dial_failed(at, &reason, fatal),
            StoryInput::Frame(text) => self.link.handle_frame(at, &text),
            StoryInput::Alive => self.link.handle_alive(at),
            StoryInput::Closed { code, reason } => self.link.handle_closed(at, code, &reason),
            StoryInput::Line(line) => self.chat(ChatInput::Line(line), &mut effects),
            StoryInput::NoMoreLines => self.chat(ChatInput::NoMoreLines, &mut effects),
            StoryInput::Interrupt => self.chat(ChatInput::Interrupt, &mut effects),
            StoryInput::Timeout => {
                self.link.handle_timeout(at);
                if self.chat.poll_timeout(&self.link).is_some_and(|due| due <= self.now) {
                    self.chat(ChatInput::Timeout, &mut effects);
                }
            }
        }
        while let Some(output) = self.link.poll_output() {
            match output {
                LinkOutput::Dial => effects.push(StoryEffect::Dial),
                LinkOutput::HangUp => effects.push(StoryEffect::Hangup),
                LinkOutput::Send(frame) => effects.push(StoryEffect::Send(frame)),
                LinkOutput::Event(event) => self.chat(ChatInput::Link(event), &mut effects),
            }
        }
        effects
    }

    fn chat(&mut self, input: ChatInput, effects: &mut Vec<StoryEffect>) {
        effects.extend(self.chat.handle(&mut self.link, self.now, input).into_iter().map(|effect| match effect {
            interface::ChatEffect::Show(show) => StoryEffect::Show(show),
            interface::ChatEffect::Leave(leave) => StoryEffect::Leave(leave),
        }));
    }

    /// When the client wants to be called again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.link.poll_timeout(), self.chat.poll_timeout(&self.link)].into_iter().flatten().min()
    }

    pub fn frame(&mut self, frame: Value) -> Vec<StoryEffect> {
        self.tell(StoryInput::Frame(frame.to_string()))
    }

    pub fn line(&mut self, text: &str) -> Vec<StoryEffect> {
        self.tell(StoryInput::Line(text.into()))
    }

    /// Logged event number `seq`.
    pub fn event(&mut self, seq: u64, name: &str, content: Value) -> Vec<StoryEffect> {
        self.event_with(seq, name, content, json!({}))
    }

    pub fn event_with(&mut self, seq: u64, name: &str, content: Value, metadata: Value) -> Vec<StoryEffect> {
        self.frame(json!({ "event": name, "session_id": "sess_1", "seq": seq, "event_id": format!("e-{seq}"), "step_id": "step_1",
            "content": content, "metadata": metadata }))
    }

    /// Opens the socket and says hello; returns what the machine asks for.
    pub fn greet(&mut self) -> Value {
        assert!(self.tell(StoryInput::Opened).is_empty());
        let effects = self.frame(json!({ "event": "system.connected", "content": { "heartbeat_interval_ms": 1000 } }));
        sent(&effects).pop().expect("the client asks for a session")
    }

    /// Up to a fresh, live session.
    pub fn created(mut self) -> Story {
        assert_eq!(self.greet()["event"], "user.create_session");
        self.frame(
            json!({ "event": "agent.session_created", "session_id": "sess_1", "content": { "session_id": "sess_1" },
            "metadata": { "epoch": "e", "last_seq": 0, "resume_token": "r1" } }),
        );
        self
    }

    pub fn refuse(&mut self, code: &str) -> Vec<StoryEffect> {
        self.frame(json!({ "event": "agent.error", "session_id": "sess_1", "content": "No.", "metadata": { "error_code": code } }))
    }

    pub fn reconnected(&mut self, state: &str, resume: Value, last_seq: u64) -> Vec<StoryEffect> {
        self.frame(json!({ "event": "agent.session_created", "session_id": "sess_1", "content": "Session reconnected successfully",
            "metadata": { "reconnected": true, "epoch": "e", "last_seq": last_seq, "session_state": state, "resume": resume } }))
    }

    pub fn replayed(&mut self, count: u64) -> Vec<StoryEffect> {
        self.frame(json!({ "event": "system.notice", "session_id": "sess_1", "content": "…",
            "metadata": { "action": "replay", "replayed": count } }))
    }

    pub fn drop_connection(&mut self) -> Vec<StoryEffect> {
        self.tell(StoryInput::Closed { code: None, reason: String::new() })
    }

    /// Lets the time come that the machine waits for.
    pub fn wait(&mut self) -> Vec<StoryEffect> {
        self.now = self.poll_timeout().expect("something is waited for");
        self.tell(StoryInput::Timeout)
    }

    /// Waits out the backoff and opens the socket again.
    pub fn redial(&mut self) -> Value {
        for _ in 0..1000 {
            if self.wait().contains(&StoryEffect::Dial) {
                return self.greet();
            }
        }
        panic!("the client gave up");
    }
}

pub fn sent(effects: &[StoryEffect]) -> Vec<Value> {
    let frames = effects.iter().filter_map(|effect| match effect {
        StoryEffect::Send(text) => serde_json::from_str(text).ok(),
        _ => None,
    });
    frames.collect()
}

pub fn shown(effects: &[StoryEffect]) -> Vec<Show> {
    let shows = effects.iter().filter_map(|effect| match effect {
        StoryEffect::Show(show) => Some(show.clone()),
        _ => None,
    });
    shows.collect()
}

pub fn left(effects: &[StoryEffect]) -> Option<Leave> {
    effects.iter().find_map(|effect| match effect {
        StoryEffect::Leave(leave) => Some(leave.clone()),
        _ => None,
    })
}

pub fn failure(effects: &[StoryEffect]) -> String {
    match left(effects) {
        Some(Leave::Failed(why)) => why,
        other => panic!("expected to leave with an error, not {other:?}"),
    }
}
