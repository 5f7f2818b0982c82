//! What the terminal client makes of what its link reports: the events of the log, losses, notices and refusals.

use std::time::Instant;

use bowline_client::{
    AttachedSession, ClientLink, GapCause, LinkEvent, RequestId, RequestOutcome, ServerFrame, StopCause,
};
use bowline_protocol::event::names as events;
use bowline_protocol::frame::names;
use bowline_protocol::{CloseCode, Cursor, ErrorCode, RecoveryAction, Refusal, Seq};

use super::aside;
use super::interface::Show;
use super::state::{Chat, ConnectionStage, PendingQuestion};

/// How far to look back for the question of a run that waits: it is the last thing that such a run logged.
const LOOK_BACK_EVENTS: u64 = 8;

impl Chat {
    pub(super) fn handle_event(&mut self, link: &mut ClientLink, now: Instant, event: LinkEvent) {
        match event {
            LinkEvent::Attached(attached) => self.handle_attached(link, &attached),
            LinkEvent::Logged(frame) => self.handle_logged(link, &frame),
            LinkEvent::Replayed { count, notice } => self.handle_replayed(count, &notice),
            LinkEvent::Live => self.handle_live(),
            LinkEvent::Gap { from_seq, to_seq, cause } => {
                let missing = to_seq + 1 - from_seq;
                match cause {
                    GapCause::NotSent => self.show(Show::Notice(format!("{missing} events are missing"))),
                    // After a return the replay notice says it.
                    GapCause::NotRetained if self.stage == ConnectionStage::Live => {
                        let notice = format!("{missing} events are no longer kept and cannot be shown");
                        self.show(Show::Notice(notice));
                    }
                    GapCause::NotRetained => {}
                }
            }
            LinkEvent::Lost { reason, attempt, .. } => {
                self.stage = ConnectionStage::Away;
                self.attempt = attempt;
                if attempt == 1 {
                    self.show(Show::Lost(reason));
                }
                self.show_countdown(link, now);
            }
            LinkEvent::Held => self.handle_held(),
            LinkEvent::Done { request, outcome } => self.handle_done(link, request, &outcome),
            LinkEvent::Failed { request, refusal } => self.handle_failed(request, refusal),
            LinkEvent::Replaced(refusal) => self.handle_replaced(link, &refusal),
            LinkEvent::Refused(refusal) => match refusal.code.action() {
                RecoveryAction::RetryLater | RecoveryAction::Reconnect => self.show(Show::Notice(refusal.message)),
                _ => self.show_failure(refusal.message),
            },
            LinkEvent::Notice(frame) if frame.event == names::NOTICE => {
                self.show(Show::Notice(frame.text().to_owned()));
            }
            LinkEvent::Unreadable => self.show(Show::Notice("a frame could not be read and was left out".into())),
            LinkEvent::Stopped(cause) => self.handle_stopped(link, cause),
            // A terminal has no use for these.
            LinkEvent::Reset(_)
            | LinkEvent::Notice(_)
            | LinkEvent::Checkpoint(_)
            | LinkEvent::TaskChunk { .. }
            | LinkEvent::TaskEnded { .. }
            | LinkEvent::TaskFailed { .. } => {}
        }
    }

    fn handle_attached(&mut self, link: &mut ClientLink, attached: &AttachedSession) {
        let known = std::mem::replace(&mut self.placed, true);
        if attached.created {
            return self.show(Show::Notice(format!("session {}", attached.session)));
        }
        // A new process does not know what a waiting run has asked; the question stands at the log's end.
        if !known && attached.state == "waiting" && !attached.replays {
            let epoch = link.cursor().and_then(|cursor| cursor.epoch.clone());
            let seq = Seq::new(attached.last_seq.saturating_sub(LOOK_BACK_EVENTS)).unwrap_or(Seq::ZERO);
            return link.restart_from(Cursor { epoch, seq });
        }
        self.stage = ConnectionStage::Replaying;
        self.running = attached.state != "idle";
        if !self.running {
            self.drop_questions(link);
        }
    }

    fn handle_live(&mut self) {
        self.stage = ConnectionStage::Live;
        let is_first = !std::mem::replace(&mut self.was_live, true);
        if is_first && self.running && self.questions.is_empty() {
            self.show(Show::Notice("the agent is at work".into()));
        }
        self.show_readiness();
    }

    fn handle_replayed(&mut self, replayed: u64, notice: &ServerFrame) {
        let gap = notice.word("code").map(|code| {
            let lost = notice.number("lost").map(|lost| format!("{lost} events are no longer kept"));
            format!("; {} ({code})", lost.unwrap_or_else(|| notice.text().to_owned()))
        });
        if self.was_live || replayed > 0 || gap.is_some() {
            let back = if self.was_live { "connection is back, " } else { "" };
            self.show(Show::Notice(format!("{back}replayed {replayed}{}", gap.unwrap_or_default())));
        }
    }

    fn handle_held(&mut self) {
        if !self.options.interactive {
            return self.fail("another connection holds this session; add --take-over to take it".into());
        }
        self.stage = ConnectionStage::Held;
        self.show(Show::Notice("another connection holds this session".into()));
        self.show(Show::Question("Take it over? [y/n]".into()));
    }

    fn handle_logged(&mut self, link: &mut ClientLink, event: &ServerFrame) {
        match event.event.as_str() {
            events::USER_MESSAGE => self.handle_message(event),
            events::USER_RESPONSE => {
                self.questions.retain(|question| event.step_id.as_ref() != Some(&question.step_id));
                self.show_readiness();
            }
            events::PARTIAL_ANSWER => {
                self.running = true;
                self.streamed.push_str(event.text());
                self.show(Show::Delta(event.text().to_owned()));
            }
            events::FINAL_ANSWER => {
                let whole = event.text().to_owned();
                // What was streamed is not repeated; if it was something else, the whole answer is shown.
                let rest = whole.strip_prefix(self.streamed.as_str()).unwrap_or(&whole).to_owned();
                self.show(Show::Answer { whole, rest });
                self.run_ended(link);
            }
            events::ERROR => {
                self.failed = true;
                self.show(Show::Error(event.text().to_owned()));
                self.run_ended(link);
            }
            events::CANCELLED => {
                self.show(Show::Notice(format!("cancelled: {}", event.text())));
                self.run_ended(link);
            }
            events::USER_CONFIRM => {
                let step_id = event.step_id.clone().unwrap_or_default();
                self.running = true;
                self.questions.push_back(PendingQuestion { step_id, text: event.text().to_owned(), answer: None });
                if self.questions.len() == 1 && self.stage == ConnectionStage::Live {
                    self.show_readiness();
                }
            }
            // The link stops, and says so itself.
            events::SESSION_END => {}
            _ => {
                if let Some(line) = aside::line(event) {
                    self.show(Show::Aside(line));
                }
            }
        }
    }

    fn handle_message(&mut self, event: &ServerFrame) {
        self.running = true;
        self.streamed.clear();
        let id = event.word("message_id");
        if self.in_flight.as_ref().is_some_and(|message| Some(message.message_id.as_str()) == id) {
            self.in_flight = None;
        } else {
            self.show(Show::Said(event.text().to_owned()));
        }
    }

    fn run_ended(&mut self, link: &mut ClientLink) {
        (self.running, self.cancelling) = (false, false);
        self.streamed.clear();
        self.drop_questions(link);
        self.show_readiness();
    }

    fn handle_done(&mut self, link: &ClientLink, request: RequestId, outcome: &RequestOutcome) {
        let seen = link.cursor().map_or(0, |cursor| cursor.seq.get());
        // It was accepted before, and its event was shown then.
        let shown = matches!(outcome, RequestOutcome::Message { seq: Some(seq), .. } if *seq <= seen);
        if shown && self.in_flight.as_ref().is_some_and(|message| message.request == request) {
            self.in_flight = None;
        }
    }

    fn handle_failed(&mut self, request: RequestId, refusal: Refusal) {
        if let Some(message) = self.in_flight.take_if(|message| message.request == request) {
            match refusal.code {
                // Another client's run is in the way; the message goes out when it ends.
                ErrorCode::AgentBusy => {
                    self.running = true;
                    return self.lines.push_front(message.text);
                }
                // It goes to the session that takes this one's place.
                ErrorCode::SessionNotFound | ErrorCode::SessionExpired | ErrorCode::SessionInactive => {
                    return self.lines.push_front(message.text);
                }
                _ => return self.show_failure(refusal.message),
            }
        }
        match refusal.code {
            ErrorCode::UnknownStep => {
                self.questions.retain(|question| question.answer != Some(request));
                self.show(Show::Notice(refusal.message));
            }
            ErrorCode::SessionNotFound | ErrorCode::SessionExpired | ErrorCode::SessionInactive => {}
            _ => self.show_failure(refusal.message),
        }
    }

    fn show_failure(&mut self, sentence: String) {
        self.failed = true;
        self.show(Show::Error(sentence));
        self.show_readiness();
    }

    /// The session is gone, and the link creates another. What was typed and not accepted goes there.
    fn handle_replaced(&mut self, link: &mut ClientLink, refusal: &Refusal) {
        self.stage = ConnectionStage::Away;
        self.show(Show::Notice(format!("{}; starting a new session", refusal.message.trim_end_matches('.'))));
        (self.running, self.cancelling) = (false, false);
        self.streamed.clear();
        self.drop_questions(link);
    }

    fn handle_stopped(&mut self, link: &ClientLink, cause: StopCause) {
        let session = link.session().unwrap_or("ID");
        let why = match cause {
            StopCause::Closed => return,
            StopCause::Refused(refusal) => match refusal.code {
                ErrorCode::SessionNotFound | ErrorCode::SessionExpired | ErrorCode::SessionInactive => {
                    let successor = refusal.details.as_ref().and_then(|details| details["superseded_by"].as_str());
                    match successor {
                        Some(id) => format!("{} It goes on as: bowline chat --session {id}", refusal.message),
                        None => format!("{} `bowline chat` starts a new one.", refusal.message),
                    }
                }
                ErrorCode::Unauthorized => {
                    format!("{} Give a valid token with --token or BOWLINE_TOKEN.", refusal.message)
                }
                _ => refusal.message,
            },
            StopCause::ClosedByServer { code, reason } if code == CloseCode::Unauthorized.code() => {
                format!("{reason}. Give a valid token with --token or BOWLINE_TOKEN.")
            }
            StopCause::ClosedByServer { reason, .. } => format!("the server asked us to stay away: {reason}"),
            StopCause::TakenOver { reason } => {
                format!("{reason}. To have it back: bowline chat --session {session} --take-over")
            }
            StopCause::SessionEnded { message, .. } => format!("the session has ended: {message}"),
            StopCause::Unreachable(reason) | StopCause::GaveUp { reason } => reason,
        };
        self.fail(why);
    }
}
