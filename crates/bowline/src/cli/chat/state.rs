//! The terminal client as a machine: it takes what its link reports and what a person types, and says what to show.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bowline_client::{ClientLink, ClientRequest, RequestId};
use serde_json::json;

use super::interface::{ChatEffect, ChatInput, Leave, Options, Show};

/// How often the line that counts down to the next attempt is redrawn.
const COUNTDOWN_EVERY: Duration = Duration::from_millis(100);

/// The connection, as far as the link has reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionStage {
    /// Not attached.
    Away,
    /// Attached; the owed events are coming.
    Replaying,
    Live,
    /// Another connection holds the session; the person is asked whether to take it over.
    Held,
}

/// A message that was sent and is not in the log yet, as far as we know.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub request: RequestId,
    pub message_id: String,
    pub text: String,
}

/// A question of the agent.
#[derive(Clone, Debug)]
pub(super) struct PendingQuestion {
    pub step_id: String,
    pub text: String,
    /// The request with the person's answer, once there is one.
    pub answer: Option<RequestId>,
}

#[derive(Debug)]
pub struct Chat {
    pub(super) options: Options,
    pub(super) stage: ConnectionStage,
    /// Whether this process was ever live; the first refusal is the user's, later ones are news.
    pub(super) was_live: bool,
    /// Whether a position in the log is known, or was looked for.
    pub(super) placed: bool,
    pub(super) attempt: u32,
    redraw_at: Option<Instant>,
    pub(super) running: bool,
    pub(super) cancelling: bool,
    pub(super) streamed: String,
    pub(super) questions: VecDeque<PendingQuestion>,
    pub(super) lines: VecDeque<String>,
    pub(super) in_flight: Option<InFlight>,
    message_count: u64,
    pub(super) input_ended: bool,
    pub(super) failed: bool,
    pub(super) effects: Vec<ChatEffect>,
}

impl Chat {
    pub fn new(options: Options) -> Chat {
        Chat {
            options,
            stage: ConnectionStage::Away,
            was_live: false,
            placed: false,
            attempt: 0,
            redraw_at: None,
            running: false,
            cancelling: false,
            streamed: String::new(),
            questions: VecDeque::new(),
            lines: VecDeque::new(),
            in_flight: None,
            message_count: 0,
            input_ended: false,
            failed: false,
            effects: Vec::new(),
        }
    }

    /// When to call again with [`ChatInput::Timeout`], if nothing happens before.
    pub fn poll_timeout(&self, link: &ClientLink) -> Option<Instant> {
        link.retry_at().and(self.redraw_at)
    }

    /// Takes what happened. What it asks of the session goes to the link.
    pub fn handle(&mut self, link: &mut ClientLink, now: Instant, input: ChatInput) -> Vec<ChatEffect> {
        match input {
            ChatInput::Link(event) => self.handle_event(link, now, event),
            ChatInput::Line(line) => self.handle_line(link, now, line),
            ChatInput::NoMoreLines => {
                self.input_ended = true;
                if self.options.interactive {
                    self.leave(link);
                }
            }
            ChatInput::Interrupt => self.handle_interrupt(link),
            ChatInput::Timeout => self.show_countdown(link, now),
        }
        self.advance(link);
        std::mem::take(&mut self.effects)
    }

    /// Does whatever the current state allows: answers, sends the next line, or leaves a script that is through.
    fn advance(&mut self, link: &mut ClientLink) {
        if self.stage != ConnectionStage::Live || self.is_leaving() {
            return self.leave_if_idle(link);
        }
        if !self.options.interactive {
            self.answer_from_script(link);
        }
        if !self.running
            && self.in_flight.is_none()
            && let Some(text) = self.lines.pop_front()
        {
            self.message_count += 1;
            let message_id = format!("{}-{}", self.options.client_id, self.message_count);
            let content = text.clone().into();
            let request = link.request(ClientRequest::Message { message_id: message_id.clone(), content });
            self.in_flight = Some(InFlight { request, message_id, text });
        }
        self.leave_if_idle(link);
    }

    fn leave_if_idle(&mut self, link: &mut ClientLink) {
        let busy = self.running || self.in_flight.is_some() || !self.lines.is_empty();
        // During a replay the server's "idle" is already true while the last answer is still on its way.
        let owed = self.stage == ConnectionStage::Replaying;
        let settled = !owed && (self.was_live || self.options.session.is_none());
        if self.input_ended && !busy && settled {
            self.leave(link);
        }
    }

    pub(super) fn answer(&mut self, link: &mut ClientLink, confirmed: bool) {
        if let Some(question) = self.questions.front_mut() {
            let content = json!({ "confirmed": confirmed });
            question.answer =
                Some(link.request(ClientRequest::Response { step_id: question.step_id.clone(), content }));
        }
    }

    /// The questions are settled otherwise, so their answers are of no use any more.
    pub(super) fn drop_questions(&mut self, link: &mut ClientLink) {
        for question in self.questions.drain(..) {
            if let Some(request) = question.answer {
                link.withdraw(request);
            }
        }
    }

    /// Shows what the user may do now: answer a question, or type the next message.
    pub(super) fn show_readiness(&mut self) {
        match self.questions.front().filter(|question| question.answer.is_none()) {
            Some(question) => {
                let question = format!("{} [y/n]", question.text);
                self.show(Show::Question(question));
            }
            None if !self.running && self.stage == ConnectionStage::Live => self.show(Show::Prompt),
            None => {}
        }
    }

    /// Shows how long it is until the next attempt, if the connection is lost.
    pub(super) fn show_countdown(&mut self, link: &ClientLink, now: Instant) {
        let Some(until) = link.retry_at() else { return };
        self.redraw_at = Some(now + COUNTDOWN_EVERY);
        let (attempt, left) = (self.attempt, until.saturating_duration_since(now));
        let line = format!("reconnecting (attempt {attempt}, next try in {:.1} s)", left.as_secs_f64());
        self.show(Show::Connection(line));
    }

    /// What was shown is acknowledged first, so that coming back does not show it again.
    pub(super) fn leave(&mut self, link: &mut ClientLink) {
        if self.is_leaving() {
            return;
        }
        link.acknowledge();
        let leave = if self.failed && !self.options.interactive { Leave::AfterErrors } else { Leave::Done };
        self.effects.push(ChatEffect::Leave(leave));
    }

    fn is_leaving(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, ChatEffect::Leave(_)))
    }

    pub(super) fn show(&mut self, show: Show) {
        self.effects.push(ChatEffect::Show(show));
    }

    pub(super) fn fail(&mut self, why: String) {
        self.effects.push(ChatEffect::Leave(Leave::Failed(why)));
    }
}
