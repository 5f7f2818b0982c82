//! How a link comes to its session, and what the server's verdict on its cursor means for it.

use std::time::Duration;

use bowline_protocol::frame::names;
use bowline_protocol::{Epoch, RecoveryAction, Refusal};
use serde_json::Value;

use super::{
    ACK_EVERY, AttachMode, AttachedSession, ClientLink, ConnectionPhase, GapCause, LinkEvent, LinkSession, Moment,
    ResetCause, StopCause, WhenGone, WhenHeld,
};
use crate::ServerFrame;
use crate::frame::{self, AttachFields};

impl ClientLink {
    /// The server's first frame.
    pub(super) fn handle_connected(&mut self, at: Moment, frame: &ServerFrame) {
        let interval = frame.content.get("heartbeat_interval_ms").and_then(Value::as_u64).filter(|ms| *ms > 0);
        self.heartbeat = interval.map(Duration::from_millis);
        if !matches!(self.phase, ConnectionPhase::Greeting) {
            return;
        }
        match self.way {
            AttachMode::Tasks => self.go_live(at),
            way => self.attach(way),
        }
    }

    /// Asks for the session over the open socket.
    pub(super) fn attach(&mut self, way: AttachMode) {
        let fields = |resume_token, take_over, observe| AttachFields {
            client_id: &self.config.client_id,
            cursor: self.cursor.as_ref(),
            resume_token,
            take_over,
            observe,
        };
        let (way, frame) = match (way, &self.session, &self.signed_state) {
            (AttachMode::Reconnect { take_over }, Some(session), _) => {
                let token = session.resume_token.as_deref();
                (way, frame::reconnect(&session.id, &fields(token, take_over, session.observe)))
            }
            (AttachMode::State, _, Some(state)) => {
                (way, frame::reconnect_with_state(state, &fields(None, false, false)))
            }
            _ => (AttachMode::Create, frame::create(&self.config.client_id, &self.config.create)),
        };
        self.phase = ConnectionPhase::Attaching(way);
        self.behind_at = None;
        self.send(frame);
    }

    /// `agent.session_created` or `agent.state_restored`: the answer to [`attach`](ClientLink::attach).
    pub(super) fn handle_attached(&mut self, at: Moment, frame: &ServerFrame) {
        let ConnectionPhase::Attaching(way) = self.phase else { return };
        let original = frame.word("original_session_id").map(ToOwned::to_owned);
        let named = frame.content.get("session_id").and_then(Value::as_str);
        let Some(id) = frame.session_id.as_deref().or(named).or(self.session()).map(ToOwned::to_owned) else { return };
        let before = self.session.take();
        let resume_token = frame.word("resume_token").map(ToOwned::to_owned);
        self.session = Some(LinkSession {
            id: id.clone(),
            resume_token: resume_token.or_else(|| before.as_ref()?.resume_token.clone()),
            observe: before.is_some_and(|session| session.observe),
        });
        let epoch = frame.word("epoch").and_then(Epoch::parse);
        let last_seq = frame.number("last_seq").unwrap_or(0);
        let state = frame.word("session_state").unwrap_or("idle").to_owned();
        let resume = &frame.metadata["resume"];
        let verdict = resume["verdict"].as_str().unwrap_or("caught_up").to_owned();
        let replays = resume["from_seq"].is_u64();
        let created = frame.event == names::SESSION_CREATED && frame.metadata["reconnected"] != true;
        let attached =
            AttachedSession { session: id, created, state, verdict, last_seq, replays, restored_from: original };
        if created {
            self.acked_seq = 0;
            self.set_cursor(epoch, last_seq);
            self.tell(LinkEvent::Attached(attached));
            return self.go_live(at);
        }
        if way == AttachMode::State {
            self.signed_state = None;
            let known = self.cursor.as_ref().and_then(|cursor| cursor.epoch.as_ref());
            if frame.word("source") == Some("live") && known.is_some() && known != epoch.as_ref() {
                // The log goes on in another epoch, and only the whole cursor can tell what that means.
                return self.attach(AttachMode::Reconnect { take_over: false });
            }
        }
        self.phase = ConnectionPhase::Replaying { to_seq: last_seq };
        self.tell(LinkEvent::Attached(attached));
        self.place(epoch, last_seq, resume);
    }

    /// Where reading starts by this verdict. Reports what is missing.
    fn place(&mut self, epoch: Option<Epoch>, last_seq: u64, resume: &Value) {
        let number = |key: &str| resume[key].as_u64();
        let before = self.cursor.as_ref().map(|cursor| cursor.seq.get());
        if self.cursor.as_ref().is_none_or(|cursor| cursor.epoch != epoch) {
            self.acked_seq = 0;
        }
        let first = number("first_retained_seq").or_else(|| number("from_seq")).unwrap_or(last_seq + 1);
        let seq = match resume["verdict"].as_str() {
            Some("gap") => {
                // By our own count: the answer to an older cursor does not take back what was delivered since.
                let from_seq = before.map_or_else(|| first.saturating_sub(number("lost").unwrap_or(0)), |seq| seq + 1);
                if from_seq < first {
                    self.tell(LinkEvent::Gap { from_seq, to_seq: first - 1, cause: GapCause::NotRetained });
                }
                first.max(from_seq) - 1
            }
            Some("other_epoch") => {
                self.tell(LinkEvent::Reset(ResetCause::OtherEpoch));
                first.saturating_sub(1)
            }
            Some("ahead_of_log") => {
                self.tell(LinkEvent::Reset(ResetCause::AheadOfLog));
                last_seq
            }
            _ => before.unwrap_or_else(|| number("from_seq").map_or(last_seq, |from| from.saturating_sub(1))),
        };
        self.set_cursor(epoch, seq);
    }

    /// The replay notice: all that was owed has come.
    pub(super) fn handle_replayed(&mut self, at: Moment, frame: &ServerFrame) {
        let ConnectionPhase::Replaying { to_seq } = self.phase else { return };
        let to_seq = frame.number("to_seq").unwrap_or(to_seq).min(to_seq);
        if self.seq() < to_seq && !self.hole_seen {
            self.hole_seen = true;
            let missing = to_seq - self.seq();
            self.stats.missing += missing;
            return self.lose(at, &format!("{missing} events did not arrive; asking for them again"));
        }
        let count = frame.number("replayed").unwrap_or(0);
        self.tell(LinkEvent::Replayed { count, notice: frame.clone() });
        self.go_live(at);
    }

    pub(super) fn go_live(&mut self, at: Moment) {
        self.phase = ConnectionPhase::Live;
        // A take-over or a chosen state is meant for one attempt; from here on the way back is the short one.
        if self.way != AttachMode::Tasks {
            self.way = AttachMode::Reconnect { take_over: false };
            self.ack_at.get_or_insert(at.now + ACK_EVERY);
        }
        self.was_live = true;
        self.backoff.reset();
        self.tell(LinkEvent::Live);
        self.send_next();
        self.send_watches();
    }

    /// The server refused to attach us.
    pub(super) fn handle_attach_refused(&mut self, at: Moment, way: AttachMode, refusal: Refusal) {
        match refusal.code.action() {
            RecoveryAction::TakeOver => match (self.config.when_held, way) {
                (WhenHeld::TakeOver, AttachMode::Reconnect { take_over: false }) => {
                    self.attach(AttachMode::Reconnect { take_over: true });
                }
                _ => {
                    self.phase = ConnectionPhase::Held;
                    self.tell(LinkEvent::Held);
                }
            },
            RecoveryAction::CreateNewSession | RecoveryAction::ExportStateAgain => {
                let superseded = refusal.details.as_ref().is_some_and(|details| details["superseded_by"].is_string());
                let restorable =
                    matches!(way, AttachMode::Reconnect { .. }) && self.signed_state.is_some() && !superseded;
                if restorable {
                    // The epoch is the lost session's; one that is rebuilt counts on from the bare number.
                    if let Some(cursor) = &mut self.cursor {
                        cursor.epoch = None;
                    }
                    self.attach(AttachMode::State);
                } else if superseded {
                    self.end(StopCause::Refused(refusal));
                } else if self.start_anew(refusal) {
                    self.attach(AttachMode::Create);
                }
            }
            RecoveryAction::RetryLater | RecoveryAction::Reconnect => {
                self.retry_after = Duration::from_millis(refusal.retry_after_ms.unwrap_or(0));
                let reason = refusal.message.clone();
                self.tell(LinkEvent::Refused(refusal));
                self.lose(at, &reason);
            }
            _ => self.end(StopCause::Refused(refusal)),
        }
    }

    /// The session is gone. Returns whether a new one is to be created; otherwise the link has stopped.
    pub(super) fn start_anew(&mut self, refusal: Refusal) -> bool {
        if self.config.when_gone == WhenGone::Stop || !self.was_live {
            self.end(StopCause::Refused(refusal));
            return false;
        }
        // What the lost session may have taken is not run again in another one, unless the application says so.
        self.fail_requests(&refusal);
        self.forget_session();
        self.tell(LinkEvent::Replaced(refusal));
        true
    }
}
