//! How calls go out, wait and end: each gets one answer, and what may still become of it.

use std::time::{Duration, Instant};

use bowline_mutant::mutant;

use super::{BackendMachine, CallFailure, Generation, Output, QueuedCall, ResendPolicy};

/// A call whose wire broke rests this long before it is sent again.
pub(super) const REST: Duration = Duration::from_millis(250);

impl BackendMachine {
    pub(super) fn send(&mut self, generation: Generation, call: QueuedCall) {
        self.outputs.push_back(Output::Send { generation, call: call.id });
        self.calls.sent(generation, call);
    }

    pub(super) fn park(&mut self, now: Instant, call: QueuedCall) {
        if call.deadline <= now {
            self.fail(&call, CallFailure::Deadline);
        } else if let Err(call) = self.calls.park(call) {
            self.fail(&call, CallFailure::Busy);
        }
    }

    /// Now, or as soon as there is a connection again.
    pub(super) fn send_again(&mut self, now: Instant, mut call: QueuedCall) {
        call.be_patient(now + self.policy.patience);
        self.handle_call(now, call);
    }

    pub(super) fn settle_broken(&mut self, now: Instant, on: Generation, mut call: QueuedCall, reason: &str) {
        call.note_broken(reason);
        let may_repeat = call.resend == ResendPolicy::Always || mutant("resend-a-call-in-doubt");
        if !may_repeat || !call.spend_send() || call.deadline <= now {
            self.fail(&call, CallFailure::Unknown { reason: reason.to_owned() });
        } else if self.live() == Some(on) {
            // Whether its transport is lost with it shows in a moment. On one that is dying it would only break again.
            call.be_patient(now + self.policy.patience);
            self.calls.rest(call, now + REST);
        } else {
            self.send_again(now, call);
        }
    }

    pub(super) fn fail_queued(&mut self, now: Instant) {
        let outcome = self.unavailable(now);
        for call in self.calls.take_waiting() {
            self.fail(&call, outcome.clone());
        }
    }

    pub(super) fn unavailable(&self, now: Instant) -> CallFailure {
        CallFailure::Unavailable {
            status: self.status(),
            attempt: self.attempt(),
            next_retry: self.next_retry(now),
            last_error: self.last_error.clone(),
        }
    }

    /// A call ends. If it may have run once, it can no longer be reported as not executed.
    pub(super) fn fail(&mut self, call: &QueuedCall, outcome: CallFailure) {
        let outcome = match call.broken() {
            Some(reason) if mutant("call-the-unknown-not-executed") => {
                CallFailure::NotExecuted { reason: reason.to_owned() }
            }
            Some(reason) => CallFailure::Unknown { reason: reason.to_owned() },
            None => outcome,
        };
        self.outputs.push_back(Output::Fail { call: call.id, outcome });
    }
}
