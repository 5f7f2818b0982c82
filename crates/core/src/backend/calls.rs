//! The calls of one backend: which wait for a connection, which were sent on which, and what may become of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::{BackendStatus, Generation, QueuedCallId};

/// A call that was never executed is sent this often at most. A backend that takes connections and refuses every call
/// would otherwise be asked in a circle.
const SENDS_MAX: u32 = 3;

/// What may be done with a call whose wire broke after it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResendPolicy {
    /// It may have run, so it is never sent again.
    IfNotExecuted,
    /// The tool says that running it twice does no harm, and the operator allows it.
    Always,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedCall {
    pub id: QueuedCallId,
    pub deadline: Instant,
    pub resend: ResendPolicy,
    sends: u32,
    /// It was sent before and may be sent again: until then it outlasts dials that fail.
    patient_until: Option<Instant>,
    /// Its wire broke after it was sent: it may have run.
    broken: Option<String>,
}

impl QueuedCall {
    pub fn new(id: QueuedCallId, deadline: Instant, resend: ResendPolicy) -> QueuedCall {
        QueuedCall { id, deadline, resend, sends: 1, patient_until: None, broken: None }
    }

    /// Whether it may be sent once more.
    pub fn spend_send(&mut self) -> bool {
        self.sends += 1;
        self.sends <= SENDS_MAX
    }

    /// It outlasts dials that fail until then. What was said first counts, so that no call waits for ever.
    pub fn be_patient(&mut self, until: Instant) {
        self.patient_until.get_or_insert(until);
    }

    pub fn note_broken(&mut self, reason: &str) {
        self.broken.get_or_insert_with(|| reason.to_owned());
    }

    /// How its wire first broke, if it may have run.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn due(&self) -> Instant {
        self.patient_until.map_or(self.deadline, |until| until.min(self.deadline))
    }
}

/// How a call ended without an answer. Each call has exactly one ending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// Never sent: the backend is away.
    Unavailable { status: BackendStatus, attempt: u32, next_retry: Option<Duration>, last_error: Option<String> },
    /// Sent, and the wire broke: it may or may not have run.
    Unknown { reason: String },
    /// Sent, and refused before it could run, each time: the backend could not be reached.
    NotExecuted { reason: String },
    /// Sent, and refused by the backend itself, which did not run it. `retry_after` is when it may be asked again, if it said so.
    Refused { reason: String, retry_after: Option<Duration> },
    /// Never sent: too many calls wait already.
    Busy,
    /// Never sent: its time was over first.
    Deadline,
}

#[derive(Debug)]
pub struct BackendCalls {
    queued: VecDeque<QueuedCall>,
    queued_max: usize,
    sent: BTreeMap<QueuedCallId, (Generation, QueuedCall)>,
    /// Those that are sent again, but not yet.
    resting: Vec<(Instant, QueuedCall)>,
}

impl BackendCalls {
    pub fn new(queued_max: usize) -> BackendCalls {
        BackendCalls { queued: VecDeque::new(), queued_max, sent: BTreeMap::new(), resting: Vec::new() }
    }

    pub fn counts(&self) -> (usize, usize) {
        (self.queued.len() + self.resting.len(), self.sent.len())
    }

    /// Gives the call back if there is no room.
    pub fn park(&mut self, call: QueuedCall) -> Result<(), QueuedCall> {
        if self.queued.len() >= self.queued_max {
            return Err(call);
        }
        self.queued.push_back(call);
        Ok(())
    }

    pub fn rest(&mut self, call: QueuedCall, until: Instant) {
        self.resting.push((until, call));
    }

    pub fn take_rested(&mut self, now: Instant) -> Vec<QueuedCall> {
        let (rested, resting) = std::mem::take(&mut self.resting).into_iter().partition(|(until, _)| *until <= now);
        self.resting = resting;
        let rested: Vec<(Instant, QueuedCall)> = rested;
        rested.into_iter().map(|(_, call)| call).collect()
    }

    /// All that wait for a connection.
    pub fn take_queued(&mut self) -> VecDeque<QueuedCall> {
        std::mem::take(&mut self.queued)
    }

    /// All that wait for anything.
    pub fn take_waiting(&mut self) -> VecDeque<QueuedCall> {
        let mut waiting = self.take_queued();
        waiting.extend(self.resting.drain(..).map(|(_, call)| call));
        waiting
    }

    /// After a dial that failed: those that do not wait for the next one.
    pub fn take_impatient(&mut self) -> VecDeque<QueuedCall> {
        self.take_queued_if(|call| call.patient_until.is_none())
    }

    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    pub fn take_overdue(&mut self, now: Instant) -> VecDeque<QueuedCall> {
        self.take_queued_if(|call| call.due() <= now)
    }

    fn take_queued_if(&mut self, taken: impl Fn(&QueuedCall) -> bool) -> VecDeque<QueuedCall> {
        let (taken, waiting) = std::mem::take(&mut self.queued).into_iter().partition(taken);
        self.queued = waiting;
        taken
    }

    pub fn next_due(&self) -> Option<Instant> {
        let queued = self.queued.iter().map(QueuedCall::due);
        queued.chain(self.resting.iter().map(|(until, _)| *until)).min()
    }

    pub fn sent(&mut self, generation: Generation, call: QueuedCall) {
        self.sent.insert(call.id, (generation, call));
    }

    pub fn take_sent(&mut self, call: QueuedCallId, generation: Generation) -> Option<QueuedCall> {
        let ours = self.sent.get(&call).is_some_and(|(on, _)| *on == generation);
        if ours { self.sent.remove(&call).map(|(_, call)| call) } else { None }
    }

    pub fn take_all_sent(&mut self, generation: Generation) -> Vec<QueuedCall> {
        let (gone, kept) = std::mem::take(&mut self.sent).into_iter().partition(|(_, (on, _))| *on == generation);
        self.sent = kept;
        let gone: BTreeMap<QueuedCallId, (Generation, QueuedCall)> = gone;
        gone.into_values().map(|(_, call)| call).collect()
    }

    pub fn forget(&mut self, call: QueuedCallId) {
        self.sent.remove(&call);
        self.queued.retain(|queued| queued.id != call);
        self.resting.retain(|(_, resting)| resting.id != call);
    }

    pub fn uses(&self, generation: Generation) -> bool {
        self.sent.values().any(|(on, _)| *on == generation)
    }
}
