//! What the terminal client makes of each frame: attaching, logged events in order and once, notices and refusals.

use std::time::Duration;

use bowline_protocol::event::names as events;
use bowline_protocol::frame::names;
use bowline_protocol::{ErrorCode, RecoveryAction};
use serde_json::Value;

use super::aside;
use super::frames::Heard;
use super::state::{Ask, Chat, Link, Place};
use super::words::{Effect, Moment, Show};

/// How far to look back for the question of a run that waits: it is the last thing that such a run said.
const LOOK_BACK_EVENTS: u64 = 8;

impl Chat {
    pub(super) fn handle_frame(&mut self, at: Moment, text: &str) {
        let Some(heard) = Heard::parse(text) else {
            return self.show(Show::Notice("a frame could not be read and was left out".into()));
        };
        if heard.seq.is_some() {
            return self.handle_event(at, &heard);
        }
        match heard.event.as_str() {
            names::CONNECTED => self.handle_connected(&heard),
            names::SESSION_CREATED => self.handle_attached(at, &heard),
            names::HEARTBEAT => self.handle_heartbeat(at, &heard),
            names::NOTICE => self.handle_notice(at, &heard),
            events::ERROR | names::SYSTEM_ERROR | names::RECOVERY_FAILED => self.handle_refusal(at, &heard),
            events::SESSION_END => self.fail(format!("the session has ended: {}", heard.text())),
            // Control frames that a terminal has no use for.
            _ => {}
        }
    }

    fn handle_connected(&mut self, heard: &Heard) {
        let ms = heard.content.get("heartbeat_interval_ms").and_then(Value::as_u64);
        let seconds = heard.content.get("heartbeat_interval_seconds").and_then(Value::as_f64);
        let interval = ms
            .map(Duration::from_millis)
            .or_else(|| seconds.filter(|s| (0.001..1e6).contains(s)).map(Duration::from_secs_f64));
        self.heartbeat = interval.filter(|interval| !interval.is_zero());
        if matches!(self.link, Link::Greeting) {
            self.attach(false);
        }
    }

    fn handle_attached(&mut self, at: Moment, heard: &Heard) {
        let created_id = heard.content.get("session_id").and_then(Value::as_str).map(ToOwned::to_owned);
        self.session = heard.session.clone().or(created_id).or(self.session.take());
        if let Some(token) = heard.fact("resume_token") {
            self.resume_token = Some(token.to_owned());
        }
        let last_seq = heard.figure("last_seq").unwrap_or(0);
        let epoch = heard.fact("epoch").map(ToOwned::to_owned);
        if heard.metadata["reconnected"] != true {
            self.place = Place { epoch, seq: last_seq, known: true };
            self.show(Show::Notice(format!("session {}", self.session.as_deref().unwrap_or("?"))));
            return self.go_live(at);
        }
        let resume = &heard.metadata["resume"];
        let from_seq = resume.get("from_seq").and_then(Value::as_u64);
        let state = heard.fact("session_state").unwrap_or("idle");
        let verdict = resume.get("verdict").and_then(Value::as_str).unwrap_or_default();
        // A new process does not know what a waiting run has asked; the question stands at the log's end.
        if !self.place.known && state == "waiting" && from_seq.is_none() && !self.looked_back {
            self.looked_back = true;
            self.place = Place { epoch, seq: last_seq.saturating_sub(LOOK_BACK_EVENTS), known: true };
            self.link = Link::Dialing;
            self.effects.extend([Effect::Hangup, Effect::Dial]);
            return;
        }
        let keeps_place = self.place.known && matches!(verdict, "caught_up" | "replay");
        let seq = if keeps_place { self.place.seq } else { from_seq.map_or(last_seq, |from| from.saturating_sub(1)) };
        if epoch != self.place.epoch {
            self.acked_seq = 0;
        }
        self.place = Place { epoch: epoch.or(self.place.epoch.take()), seq, known: true };
        self.running = state != "idle";
        if !self.running {
            self.asks.clear();
        }
        self.link = Link::Replaying;
    }

    fn go_live(&mut self, at: Moment) {
        let is_first = !std::mem::replace(&mut self.was_attached, true);
        self.link = Link::Live;
        self.backoff.reset();
        self.want_ack(at.now);
        if is_first && self.running && self.asks.is_empty() {
            self.show(Show::Notice("the agent is at work".into()));
        }
        self.send_in_flight();
        self.send_answer();
        self.show_readiness();
    }

    /// A logged event: the next one is taken, an old one is left out, and a hole is never passed over in silence.
    fn handle_event(&mut self, at: Moment, heard: &Heard) {
        let Some(seq) = heard.seq else { return };
        let other_epoch = matches!((&heard.epoch, &self.place.epoch), (Some(theirs), Some(ours)) if theirs != ours);
        if !other_epoch && seq <= self.place.seq {
            return;
        }
        if !other_epoch && self.place.known && seq > self.place.seq + 1 {
            let missing = seq - self.place.seq - 1;
            if !self.hole_met {
                self.hole_met = true;
                return self.lose(at, &format!("{missing} events did not arrive; asking for them again"));
            }
            self.show(Show::Notice(format!("{missing} events are missing")));
        }
        self.hole_met = false;
        self.place.seq = seq;
        self.place.known = true;
        if heard.epoch.is_some() {
            self.place.epoch.clone_from(&heard.epoch);
        }
        if other_epoch {
            self.acked_seq = 0;
        }
        self.want_ack(at.now);
        self.take_in(heard);
    }

    fn take_in(&mut self, heard: &Heard) {
        match heard.event.as_str() {
            events::USER_MESSAGE => self.take_in_message(heard),
            events::USER_RESPONSE => {
                self.asks.retain(|ask| heard.step_id.as_deref() != Some(&ask.step_id));
                self.show_readiness();
            }
            events::PARTIAL_ANSWER => {
                let delta = heard.text();
                self.running = true;
                self.streamed.push_str(&delta);
                self.show(Show::Delta(delta));
            }
            events::FINAL_ANSWER => {
                let whole = heard.text();
                // What was streamed is not repeated; if it was something else, the whole answer is shown.
                let rest = whole.strip_prefix(self.streamed.as_str()).unwrap_or(&whole).to_owned();
                self.show(Show::Answer { whole, rest });
                self.run_ended();
            }
            events::ERROR => {
                self.failed = true;
                self.show(Show::Error(heard.text()));
                self.run_ended();
            }
            events::CANCELLED => {
                self.show(Show::Notice(format!("cancelled: {}", heard.text())));
                self.run_ended();
            }
            events::USER_CONFIRM => {
                let step_id = heard.step_id.clone().unwrap_or_default();
                self.running = true;
                self.asks.push_back(Ask { step_id, question: heard.text(), answer: None });
                if self.asks.len() == 1 && matches!(self.link, Link::Live) {
                    self.show_readiness();
                }
            }
            events::SESSION_END => self.fail(format!("the session has ended: {}", heard.text())),
            _ => {
                if let Some(line) = aside::line(heard) {
                    self.show(Show::Aside(line));
                }
            }
        }
    }

    fn take_in_message(&mut self, heard: &Heard) {
        let ours = heard.fact("message_id");
        self.running = true;
        self.streamed.clear();
        if self.in_flight.as_ref().is_some_and(|message| Some(message.message_id.as_str()) == ours) {
            self.in_flight = None;
        } else {
            self.show(Show::Said(heard.text()));
        }
    }

    fn run_ended(&mut self) {
        (self.running, self.cancelling) = (false, false);
        self.streamed.clear();
        self.asks.clear();
        self.show_readiness();
    }

    /// Answered with an ack. A log that is ahead of us twice, while nothing came, has lost us.
    fn handle_heartbeat(&mut self, at: Moment, heard: &Heard) {
        self.answer_heartbeat();
        let behind = heard.figure("seq").is_some_and(|seq| self.place.known && seq > self.place.seq);
        if !behind || !matches!(self.link, Link::Live) {
            self.behind_at = None;
        } else if self.behind_at == Some(self.place.seq) {
            self.lose(at, "the server is ahead and sends nothing");
        } else {
            self.behind_at = Some(self.place.seq);
        }
    }

    fn handle_notice(&mut self, at: Moment, heard: &Heard) {
        let code = heard.fact("code");
        if code == Some(ErrorCode::ServerDraining.as_str()) {
            self.retry_after = Duration::from_millis(heard.figure("retry_after_ms").unwrap_or(0));
            return self.show(Show::Notice(heard.text()));
        }
        if code == Some(ErrorCode::SessionTakenOver.as_str()) {
            let session = self.session.as_deref().unwrap_or("ID");
            return self.fail(format!("another connection took the session over. To have it back: bowline chat --session {session} --take-over"));
        }
        if heard.fact("action") == Some("replay") {
            return self.handle_replayed(at, heard);
        }
        if code == Some(ErrorCode::ReplayGap.as_str()) {
            if let Some(first) = heard.figure("first_retained_seq") {
                self.place.seq = self.place.seq.max(first.saturating_sub(1));
            }
            let lost = heard.figure("lost").unwrap_or(0);
            return self.show(Show::Notice(format!("{lost} events are no longer kept and cannot be shown")));
        }
        self.show(Show::Notice(heard.text()));
    }

    /// Everything owed has come; from here on it is live.
    fn handle_replayed(&mut self, at: Moment, heard: &Heard) {
        let replayed = heard.figure("replayed").unwrap_or(0);
        let gap = heard.fact("code").map(|code| {
            let lost = heard
                .figure("lost")
                .map(|lost| format!("{lost} events are no longer kept"))
                .unwrap_or_else(|| heard.text());
            format!("; {lost} ({code})")
        });
        if self.was_attached || replayed > 0 || gap.is_some() {
            let back = if self.was_attached { "connection is back, " } else { "" };
            self.show(Show::Notice(format!("{back}replayed {replayed}{}", gap.unwrap_or_default())));
        }
        // A cursor beyond the log's end was told above; a new one starts where the log ends.
        if let (Some(to), true) = (heard.figure("to_seq"), heard.fact("code") == Some(ErrorCode::CursorAhead.as_str()))
        {
            self.place.seq = to;
        }
        self.go_live(at);
    }

    fn handle_refusal(&mut self, at: Moment, heard: &Heard) {
        let code =
            heard.fact("error_code").and_then(|told| ErrorCode::ALL.iter().copied().find(|code| code.as_str() == told));
        let sentence = heard.text();
        let attaching = matches!(self.link, Link::Attaching);
        self.retry_after = Duration::from_millis(heard.figure("retry_after_ms").unwrap_or(0));
        match code {
            Some(ErrorCode::SessionAlreadyActive) if self.options.interactive => {
                self.link = Link::Contested;
                self.show(Show::Notice("another connection holds this session".into()));
                self.show(Show::Question("Take it over? [y/n]".into()));
            }
            Some(ErrorCode::SessionAlreadyActive) => {
                self.fail("another connection holds this session; add --take-over to take it".into());
            }
            Some(ErrorCode::SessionNotFound | ErrorCode::SessionExpired | ErrorCode::SessionInactive) => {
                self.handle_gone(heard);
            }
            Some(ErrorCode::Unauthorized) => {
                self.fail(format!("{sentence} Give a valid token with --token or BOWLINE_TOKEN."));
            }
            // Somebody else's run is in the way; the message goes out when it ends.
            Some(ErrorCode::AgentBusy) => {
                if let Some(message) = self.in_flight.take() {
                    self.lines.push_front(message.text);
                    self.running = true;
                }
            }
            Some(ErrorCode::UnknownStep) => {
                self.asks.pop_front();
                self.show(Show::Notice(sentence));
            }
            Some(ErrorCode::CursorAhead) if !attaching => {}
            Some(code) if matches!(code.action(), RecoveryAction::RetryLater | RecoveryAction::Reconnect) => {
                self.show(Show::Notice(sentence.clone()));
                self.lose(at, &sentence);
            }
            _ if attaching => self.fail(sentence),
            _ => {
                self.failed = true;
                self.in_flight = None;
                self.show(Show::Error(sentence));
                self.show_readiness();
            }
        }
    }

    /// The session is no more. Who asked for it by name is told; who was in it goes on in a new one.
    fn handle_gone(&mut self, heard: &Heard) {
        let sentence = heard.text();
        let heir = heard.metadata.pointer("/details/superseded_by").and_then(Value::as_str);
        if let Some(heir) = heir {
            return self.fail(format!("{sentence} It goes on as: bowline chat --session {heir}"));
        }
        if !self.was_attached || !self.options.interactive {
            return self.fail(format!("{sentence} `bowline chat` starts a new one."));
        }
        self.start_anew(sentence.trim_end_matches('.'));
        self.attach(false);
    }
}
