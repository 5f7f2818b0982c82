//! The person's or the script's side of the terminal client: lines, answers, Ctrl-C, and when to leave.

use super::frames;
use super::state::{Chat, InFlight, Link};
use super::words::{Effect, Leave, Moment, Show};

impl Chat {
    pub(super) fn handle_line(&mut self, at: Moment, line: String) {
        let word = line.trim();
        if word.is_empty() && self.options.interactive {
            return self.show_readiness();
        }
        if word == "/quit" {
            return self.leave();
        }
        if matches!(self.link, Link::Contested) {
            return match yes_or_no(word) {
                Some(true) => self.attach(true),
                Some(false) => self.leave(),
                None => self.show(Show::Question("Take it over? [y/n]".into())),
            };
        }
        let asked = self.options.interactive && self.asks.front().is_some_and(|ask| ask.answer.is_none());
        match (asked, yes_or_no(word)) {
            (true, Some(answer)) => self.answer(answer),
            (true, None) => self.show_readiness(),
            (false, _) => {
                if let Link::Waiting { until, .. } = &self.link
                    && self.options.interactive
                {
                    let left = until.saturating_duration_since(at.now);
                    self.show(Show::Notice("kept; it will be sent when the connection is back".into()));
                    self.show_countdown(left);
                }
                self.lines.push_back(line);
            }
        }
    }

    pub(super) fn handle_interrupt(&mut self) {
        let can_cancel = self.running && !self.cancelling && matches!(self.link, Link::Live | Link::Replaying);
        match self.session.clone() {
            Some(session) if can_cancel => {
                self.cancelling = true;
                self.effects.push(Effect::Send(frames::cancel(&session)));
                self.show(Show::Notice("cancelling; Ctrl-C again leaves".into()));
            }
            _ => self.leave(),
        }
    }

    /// Does whatever the current state allows: answers, sends the next line, or leaves a script that is through.
    pub(super) fn advance(&mut self) {
        if !matches!(self.link, Link::Live) || self.effects.iter().any(|effect| matches!(effect, Effect::Leave(_))) {
            return self.leave_if_idle();
        }
        if !self.options.interactive {
            self.answer_from_script();
        }
        if !self.running
            && self.in_flight.is_none()
            && let Some(text) = self.lines.pop_front()
        {
            self.message_count += 1;
            let message_id = format!("{}-{}", self.options.client_id, self.message_count);
            self.in_flight = Some(InFlight { message_id, text });
            self.send_in_flight();
        }
        self.leave_if_idle();
    }

    /// A script's next line answers if it is a yes or a no; anything else, or no line at all, declines.
    fn answer_from_script(&mut self) {
        if self.asks.front().is_none_or(|ask| ask.answer.is_some()) {
            return;
        }
        match self.lines.front().map(|line| yes_or_no(line.trim())) {
            Some(Some(answer)) => {
                self.lines.pop_front();
                self.answer(answer);
            }
            Some(None) => self.answer(false),
            None if self.input_ended => self.answer(false),
            None => {}
        }
    }

    fn leave_if_idle(&mut self) {
        let busy = self.running || self.in_flight.is_some() || !self.lines.is_empty();
        // During a replay the server's "idle" is already true while the last answer is still on its way.
        let owed = matches!(self.link, Link::Replaying);
        let settled = !owed && (self.was_attached || self.options.session.is_none());
        if self.input_ended && !busy && settled {
            self.leave();
        }
    }

    fn answer(&mut self, confirmed: bool) {
        if let Some(ask) = self.asks.front_mut() {
            ask.answer = Some(confirmed);
            self.send_answer();
        }
    }

    /// Shows what the user may do now: answer a question, or type the next message.
    pub(super) fn show_readiness(&mut self) {
        match self.asks.front().filter(|ask| ask.answer.is_none()) {
            Some(ask) => {
                let question = format!("{} [y/n]", ask.question);
                self.show(Show::Question(question));
            }
            None if !self.running && matches!(self.link, Link::Live) => self.show(Show::Prompt),
            None => {}
        }
    }

    /// What was shown is acknowledged first, so that coming back does not show it again.
    pub(super) fn leave(&mut self) {
        if self.effects.iter().any(|effect| matches!(effect, Effect::Leave(_))) {
            return;
        }
        if matches!(self.link, Link::Live | Link::Replaying) {
            self.send_ack();
        }
        let leave = if self.failed && !self.options.interactive { Leave::AfterErrors } else { Leave::Done };
        self.effects.push(Effect::Leave(leave));
    }
}

fn yes_or_no(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(true),
        "n" | "no" => Some(false),
        _ => None,
    }
}
