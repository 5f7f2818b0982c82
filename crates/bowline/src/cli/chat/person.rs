//! The person's or the script's side of the terminal client: lines, answers and Ctrl-C.

use std::time::Instant;

use bowline_client::{ClientLink, ClientRequest};

use super::interface::Show;
use super::state::{Chat, ConnectionStage};

impl Chat {
    pub(super) fn handle_line(&mut self, link: &mut ClientLink, now: Instant, line: String) {
        let word = line.trim();
        if word.is_empty() && self.options.interactive {
            return self.show_readiness();
        }
        if word == "/quit" {
            return self.leave(link);
        }
        if self.stage == ConnectionStage::Held {
            return match yes_or_no(word) {
                Some(true) => link.take_over(),
                Some(false) => self.leave(link),
                None => self.show(Show::Question("Take it over? [y/n]".into())),
            };
        }
        let asked = self.options.interactive && self.questions.front().is_some_and(|one| one.answer.is_none());
        match (asked, yes_or_no(word)) {
            (true, Some(answer)) => self.answer(link, answer),
            (true, None) => self.show_readiness(),
            (false, _) => {
                if link.retry_at().is_some() && self.options.interactive {
                    self.show(Show::Notice("kept; it will be sent when the connection is back".into()));
                    self.show_countdown(link, now);
                }
                self.lines.push_back(line);
            }
        }
    }

    pub(super) fn handle_interrupt(&mut self, link: &mut ClientLink) {
        let attached = matches!(self.stage, ConnectionStage::Live | ConnectionStage::Replaying);
        if self.running && !self.cancelling && attached {
            self.cancelling = true;
            link.request(ClientRequest::Cancel { reason: Some("Ctrl-C".into()) });
            self.show(Show::Notice("cancelling; Ctrl-C again leaves".into()));
        } else {
            self.leave(link);
        }
    }

    /// A script's next line answers if it is a yes or a no; anything else, or no line at all, declines.
    pub(super) fn answer_from_script(&mut self, link: &mut ClientLink) {
        if self.questions.front().is_none_or(|question| question.answer.is_some()) {
            return;
        }
        match self.lines.front().map(|line| yes_or_no(line.trim())) {
            Some(Some(answer)) => {
                self.lines.pop_front();
                self.answer(link, answer);
            }
            Some(None) => self.answer(link, false),
            None if self.input_ended => self.answer(link, false),
            None => {}
        }
    }
}

fn yes_or_no(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(true),
        "n" | "no" => Some(false),
        _ => None,
    }
}
