//! What comes in over an open socket: logged events, each once and in order, and control frames, which have no number.

use std::time::Duration;

use bowline_protocol::event::names as events;
use bowline_protocol::frame::names;
use bowline_protocol::{ErrorCode, RecoveryAction, Refusal};
use serde_json::Value;

use super::{ACK_EVERY, AttachMode, ClientLink, ConnectionPhase, GapCause, LinkEvent, Moment, StopCause};
use crate::{ServerFrame, frame};

impl ClientLink {
    /// A text frame came.
    pub fn handle_frame(&mut self, at: Moment, text: &str) {
        if !self.is_open() {
            return;
        }
        self.heard_at = Some(at.now);
        let Some(frame) = ServerFrame::parse(text) else { return self.tell(LinkEvent::Unreadable) };
        if frame.seq.is_some() {
            return self.handle_event(at, frame);
        }
        if let Some(refusal) = frame.refusal() {
            return self.handle_refusal(at, &frame, refusal);
        }
        match frame.event.as_str() {
            names::CONNECTED => self.handle_connected(at, &frame),
            names::SESSION_CREATED | names::STATE_RESTORED => self.handle_attached(at, &frame),
            names::STATE_EXPORTED => self.handle_exported(&frame),
            names::HEARTBEAT => self.handle_heartbeat(at, &frame),
            names::NOTICE => self.handle_notice(at, frame),
            names::TASK_CHUNK | names::TASK_END => self.handle_task(frame),
            events::SESSION_END => {
                self.settle(&frame);
                self.end(end_cause(&frame));
            }
            _ => self.tell(LinkEvent::Notice(frame)),
        }
    }

    /// A logged event: the next one is delivered, an older one is dropped, and a hole is never passed over in silence.
    fn handle_event(&mut self, at: Moment, frame: ServerFrame) {
        let (Some(seq), true) = (frame.seq, self.is_attached()) else { return };
        self.stats.events += 1;
        let next = self.seq() + 1;
        if seq < next {
            self.stats.repeated += 1;
            return;
        }
        if seq > next {
            self.stats.missing += seq - next;
            if !std::mem::replace(&mut self.hole_seen, true) {
                let missing = seq - next;
                return self.lose(at, &format!("{missing} events did not arrive; asking for them again"));
            }
            self.tell(LinkEvent::Gap { from_seq: next, to_seq: seq - 1, cause: GapCause::NotSent });
        }
        self.hole_seen = false;
        let epoch = self.cursor.take().and_then(|cursor| cursor.epoch);
        self.set_cursor(epoch, seq);
        self.ack_at.get_or_insert(at.now + ACK_EVERY);
        let done = self.take_done(&frame);
        let end = (frame.event == events::SESSION_END).then(|| end_cause(&frame));
        self.tell(LinkEvent::Logged(frame));
        done.into_iter().for_each(|done| self.tell(done));
        match end {
            Some(cause) => self.end(cause),
            None => self.send_next(),
        }
    }

    fn handle_refusal(&mut self, at: Moment, frame: &ServerFrame, refusal: Refusal) {
        let task = refusal.details.as_ref().and_then(|details| details["task_id"].as_str());
        if let Some(task) = task.map(ToOwned::to_owned)
            && self.watches(&task)
        {
            return self.refuse_watch(at, &task, refusal);
        }
        // What was requested before the link attached anew is answered first, and these codes refuse no attachment.
        let of_request = self.requesting
            && (refusal.code.action() == RecoveryAction::FixRequest || refusal.code == ErrorCode::AgentBusy);
        match self.phase {
            ConnectionPhase::Attaching(way) if !of_request => {
                let about = frame.session_id.as_deref();
                if about.is_none() || !matches!(way, AttachMode::Reconnect { .. }) || about == self.session() {
                    self.handle_attach_refused(at, way, refusal);
                }
            }
            _ => match refusal.code {
                ErrorCode::Unauthorized => self.end(StopCause::Refused(refusal)),
                // The server finds an ack ahead of what it sent: we disagree about the position.
                ErrorCode::CursorAhead if self.is_attached() => self.attach(AttachMode::Reconnect { take_over: false }),
                _ => self.refuse_request(at, refusal),
            },
        }
    }

    fn handle_exported(&mut self, frame: &ServerFrame) {
        let Some(state) = frame.metadata.get("signed_state").cloned() else { return };
        self.signed_state = Some(state.clone());
        if !self.settle(frame) {
            self.tell(LinkEvent::Checkpoint(state));
        }
    }

    /// Answered with an ack, which is a sign of life. A log that is ahead of us twice while nothing came has lost us.
    fn handle_heartbeat(&mut self, at: Moment, frame: &ServerFrame) {
        if self.session.is_some() {
            self.send_ack();
        } else {
            self.send(frame::pong());
        }
        let behind = frame.number("seq").is_some_and(|seq| seq > self.seq());
        if !behind || !self.is_live() || self.session.is_none() {
            self.behind_at = None;
        } else if self.behind_at == Some(self.seq()) {
            self.lose(at, "the server is ahead and sends nothing");
        } else {
            self.behind_at = Some(self.seq());
        }
    }

    fn handle_notice(&mut self, at: Moment, frame: ServerFrame) {
        let code = frame.word("code");
        if frame.word("action") == Some("replay") {
            return self.handle_replayed(at, &frame);
        }
        if code == Some(ErrorCode::SessionTakenOver.as_str()) {
            return self.end(StopCause::TakenOver { reason: "another connection took the session over".into() });
        }
        if code == Some(ErrorCode::ReplayGap.as_str()) {
            return self.handle_skipped(&frame);
        }
        if code == Some(ErrorCode::ServerDraining.as_str()) {
            self.retry_after = Duration::from_millis(frame.number("retry_after_ms").unwrap_or(0));
        }
        self.settle(&frame);
        self.tell(LinkEvent::Notice(frame));
    }

    /// The server let events go before this link had read them.
    fn handle_skipped(&mut self, frame: &ServerFrame) {
        let from_seq = self.seq() + 1;
        let Some(to_seq) = frame.number("first_retained_seq").map(|first| first.saturating_sub(1)) else { return };
        if to_seq < from_seq {
            return;
        }
        let epoch = self.cursor.take().and_then(|cursor| cursor.epoch);
        self.set_cursor(epoch, to_seq);
        self.tell(LinkEvent::Gap { from_seq, to_seq, cause: GapCause::NotRetained });
    }

    fn handle_task(&mut self, frame: ServerFrame) {
        let Some(task_id) = frame.task_id.clone().filter(|task| self.watches(task)) else { return };
        if frame.event == names::TASK_END {
            self.forget_watch(&task_id);
            let status = frame.content.get("status").and_then(Value::as_str).unwrap_or_default().to_owned();
            return self.tell(LinkEvent::TaskEnded { task_id, status });
        }
        self.advance_watch(&task_id, frame.id.clone());
        self.tell(LinkEvent::TaskChunk { task_id, id: frame.id, chunk: frame.content });
    }
}

/// What `agent.session_end` says, logged or not.
fn end_cause(frame: &ServerFrame) -> StopCause {
    let superseded_by = frame.word("superseded_by").map(ToOwned::to_owned);
    StopCause::SessionEnded { message: frame.text().to_owned(), superseded_by }
}
