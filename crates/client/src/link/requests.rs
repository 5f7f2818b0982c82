//! Requests of the application: one under way at a time, settled by the frame that answers it, sent again after a loss.

use std::time::Duration;

use bowline_protocol::{ErrorCode, RecoveryAction, Refusal};

use super::{ClientLink, ConnectionPhase, LinkEvent, Moment};
use crate::{ClientRequest, RequestId, ServerFrame};

/// How often a request is sent that the server cannot do for the moment.
const TRIES_MAX: u32 = 5;
/// The pause before it is sent again, unless the server names another.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct PendingRequest {
    id: RequestId,
    request: ClientRequest,
    /// It was sent at least once, so the server may have done it.
    was_sent: bool,
    tries: u32,
}

impl ClientLink {
    /// Asks something of the session. It goes out when the link is live and no other request is under way; the answer is
    /// [`LinkEvent::Done`] or [`LinkEvent::Failed`]. After a loss it is sent again, unless that could do it twice.
    pub fn request(&mut self, request: ClientRequest) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.requests.push_back(PendingRequest { id, request, was_sent: false, tries: 0 });
        if matches!(self.phase, ConnectionPhase::Idle) {
            self.fail_requests(&Refusal::new(ErrorCode::SessionReadOnly, "The client is not connected."));
        }
        self.send_next();
        id
    }

    /// Takes a request back that was not answered yet. The server may do it nevertheless.
    pub fn withdraw(&mut self, id: RequestId) {
        let first = self.requests.front().is_some_and(|first| first.id == id);
        self.requests.retain(|pending| pending.id != id);
        if first {
            self.requesting = false;
            self.send_next();
        }
    }

    pub(super) fn send_next(&mut self) {
        let (Some(first), Some(session)) = (self.requests.front_mut(), &self.session) else { return };
        if !matches!(self.phase, ConnectionPhase::Live) || self.requesting {
            return;
        }
        first.was_sent = true;
        first.tries += 1;
        let frame = first.request.frame(&session.id);
        self.requesting = true;
        self.send(frame);
    }

    /// Whether the frame answers the request under way. If so, that is reported, and the next one goes out.
    pub(super) fn settle(&mut self, frame: &ServerFrame) -> bool {
        let Some(done) = self.take_done(frame) else { return false };
        self.tell(done);
        self.send_next();
        true
    }

    /// The end of the request under way, if the frame answers it.
    pub(super) fn take_done(&mut self, frame: &ServerFrame) -> Option<LinkEvent> {
        // A request that was never sent cannot be answered: a frame that looks like it answers another client.
        let first = self.requests.front().filter(|first| first.was_sent)?;
        let outcome = first.request.outcome(frame)?;
        let request = first.id;
        self.finish_first();
        Some(LinkEvent::Done { request, outcome })
    }

    /// The server refused something that is no attachment.
    pub(super) fn refuse_request(&mut self, at: Moment, refusal: Refusal) {
        let observes = self.session.as_ref().is_some_and(|session| session.observe);
        let Some(first) = self.requests.front().filter(|_| self.requesting) else {
            return self.tell(LinkEvent::Refused(refusal));
        };
        let tries = first.tries;
        let later = refusal.code.action() == RecoveryAction::RetryLater && refusal.code != ErrorCode::AgentBusy;
        if refusal.code == ErrorCode::ServerDraining {
            // The server closes the connection next; the request is sent again after that.
            return self.tell(LinkEvent::Refused(refusal));
        }
        if later && tries < TRIES_MAX {
            let wait = refusal.retry_after_ms.map_or(RETRY_AFTER, Duration::from_millis);
            self.resend_at = Some(at.now + wait);
            return self.tell(LinkEvent::Refused(refusal));
        }
        if refusal.code.action() == RecoveryAction::Reconnect && !observes && tries < TRIES_MAX {
            let reason = refusal.message.clone();
            self.tell(LinkEvent::Refused(refusal));
            return self.lose(at, &reason);
        }
        self.fail_request(refusal);
        self.send_next();
    }

    pub(super) fn resend(&mut self) {
        self.resend_at = None;
        self.requesting = false;
        self.send_next();
    }

    /// Fails the request under way, if there is one.
    pub(super) fn fail_request(&mut self, refusal: Refusal) {
        if let Some(request) = self.requests.front().filter(|_| self.requesting).map(|first| first.id) {
            self.finish_first();
            self.tell(LinkEvent::Failed { request, refusal });
        }
    }

    pub(super) fn fail_requests(&mut self, refusal: &Refusal) {
        self.requesting = false;
        self.resend_at = None;
        for PendingRequest { id: request, .. } in std::mem::take(&mut self.requests) {
            self.tell(LinkEvent::Failed { request, refusal: refusal.clone() });
        }
    }

    /// The connection is gone. What can be sent again is; of the rest nothing more is known.
    pub(super) fn lose_requests(&mut self) {
        self.requesting = false;
        self.resend_at = None;
        let (lost, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition(|pending| pending.was_sent && !pending.request.is_idempotent());
        self.requests = kept.into();
        for PendingRequest { id: request, .. } in lost {
            let refusal = Refusal::new(ErrorCode::OutcomeUnknown, "The connection was lost before the answer came.");
            self.tell(LinkEvent::Failed { request, refusal });
        }
    }

    fn finish_first(&mut self) {
        self.requests.pop_front();
        self.requesting = false;
        self.resend_at = None;
    }
}
