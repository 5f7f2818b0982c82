//! The life of one backend: when to dial, what becomes of each call, and which notices are sent. It never touches a socket.
//!
//! Every transport has a [`Generation`]. What an old one says late is about that one only and cannot hurt its successor.

mod calls;
mod dying;
mod endings;
mod interface;
mod outage;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use calls::{CallFailure, QueuedCall, ResendPolicy};
pub use interface::{BackendNotice, BackendStatus, DialError, Generation, Output, Policy, QueuedCallId, Ticket};

use crate::backoff::Backoff;
use calls::BackendCalls;
use dying::Dying;
use outage::Outage;

#[derive(Debug)]
enum State {
    /// On purpose. `removed` is for good.
    Disconnected {
        removed: bool,
    },
    Error,
    /// The first dial is under way.
    Connecting {
        dial: Generation,
    },
    Connected {
        live: Generation,
        since: Instant,
        /// A dial that is to take over from the live one.
        replacing: Option<Generation>,
    },
    Reconnecting(Outage),
}

/// An old transport on which calls may still finish.
#[derive(Debug)]
struct Retiring {
    generation: Generation,
    until: Instant,
}

#[derive(Debug)]
pub struct BackendMachine {
    policy: Policy,
    state: State,
    newest: Generation,
    backoff: Backoff,
    retiring: Vec<Retiring>,
    dying: Dying,
    calls: BackendCalls,
    tickets: Vec<Ticket>,
    last_error: Option<String>,
    was_connected: bool,
    outputs: VecDeque<Output>,
}

impl BackendMachine {
    /// A backend that is not dialled yet; [`start`](BackendMachine::start) does that.
    pub fn new(policy: Policy) -> BackendMachine {
        BackendMachine {
            policy,
            state: State::Disconnected { removed: false },
            newest: Generation(0),
            backoff: Backoff::new(policy.retry_first, policy.retry_max, policy.retry_jitter),
            retiring: Vec::new(),
            dying: Dying::default(),
            calls: BackendCalls::new(policy.queued_max),
            tickets: Vec::new(),
            last_error: None,
            was_connected: false,
            outputs: VecDeque::new(),
        }
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub fn status(&self) -> BackendStatus {
        match &self.state {
            State::Disconnected { .. } => BackendStatus::Disconnected,
            State::Error => BackendStatus::Error,
            State::Connecting { .. } => BackendStatus::Connecting,
            State::Connected { .. } => BackendStatus::Connected,
            State::Reconnecting(_) => BackendStatus::Reconnecting,
        }
    }

    pub fn live(&self) -> Option<Generation> {
        match &self.state {
            State::Connected { live, .. } => Some(*live),
            _ => None,
        }
    }

    /// How many delays were handed out since the last success; exact, also when it is not announced.
    pub fn attempt(&self) -> u32 {
        self.backoff.attempt()
    }

    /// When the next attempt is due, if one is waited for.
    pub fn next_retry(&self, now: Instant) -> Option<Duration> {
        match &self.state {
            State::Reconnecting(away) => away.next_retry(now),
            _ => None,
        }
    }

    /// Whether attempts are still few enough for each to be announced.
    pub fn tells_each_attempt(&self) -> bool {
        self.backoff.attempt() <= outage::ANNOUNCED_ATTEMPTS
    }

    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Calls that wait, and calls that were sent.
    pub fn calls(&self) -> (usize, usize) {
        self.calls.counts()
    }

    /// Dials for the first time, or again after [`disable`](BackendMachine::disable).
    pub fn start(&mut self) {
        if let State::Disconnected { removed: false } | State::Error = self.state {
            let dial = self.dial();
            self.state = State::Connecting { dial };
        }
    }

    pub fn handle_call(&mut self, now: Instant, call: QueuedCall) {
        match &mut self.state {
            State::Connected { live, .. } => {
                let generation = *live;
                self.send(generation, call);
            }
            State::Connecting { .. } => self.park(now, call),
            State::Reconnecting(_) => {
                self.dial_now(now);
                self.park(now, call);
            }
            State::Disconnected { .. } | State::Error => {
                let outcome = self.unavailable(now);
                self.fail(&call, outcome);
            }
        }
    }

    /// The caller does not want it any more.
    pub fn handle_cancelled(&mut self, call: QueuedCallId) {
        self.calls.forget(call);
        self.retire_idle();
    }

    /// The call has its answer.
    pub fn handle_answered(&mut self, call: QueuedCallId) {
        self.calls.forget(call);
        self.retire_idle();
    }

    /// The backend never saw the call: it refused the connection. So it may be sent again, and this transport is lost.
    pub fn handle_not_executed(
        &mut self,
        now: Instant,
        generation: Generation,
        call: QueuedCallId,
        reason: &str,
        chance: f64,
    ) {
        let returned = self.calls.take_sent(call, generation);
        self.handle_lost(now, generation, reason, chance);
        let Some(mut call) = returned else { return };
        if !call.spend_send() {
            self.fail(&call, CallFailure::NotExecuted { reason: reason.to_owned() });
        } else {
            self.send_again(now, call);
        }
        self.retire_idle();
    }

    /// The backend said itself that it does not run the call. Nothing is wrong with the transport, and the call is not sent again.
    pub fn handle_refused(
        &mut self,
        generation: Generation,
        call: QueuedCallId,
        reason: &str,
        retry_after: Option<Duration>,
    ) {
        let Some(call) = self.calls.take_sent(call, generation) else { return };
        self.fail(&call, CallFailure::Refused { reason: reason.to_owned(), retry_after });
        self.retire_idle();
    }

    /// The wire broke after the call was sent: whether it ran is unknown.
    pub fn handle_broken(&mut self, now: Instant, generation: Generation, call: QueuedCallId, reason: &str) {
        let Some(call) = self.calls.take_sent(call, generation) else { return };
        self.settle_broken(now, generation, call, reason);
        self.retire_idle();
    }

    /// A transport is gone. Only the live one matters; an old one takes its own calls with it, and one that is only being
    /// dialled has failed. Each call on it may know better than we do what became of it, and has a moment to say so.
    pub fn handle_lost(&mut self, now: Instant, generation: Generation, reason: &str, chance: f64) {
        let before = self.retiring.len();
        self.retiring.retain(|old| old.generation != generation);
        if self.retiring.len() < before {
            self.outputs.push_back(Output::Retire(generation));
        }
        if self.calls.uses(generation) {
            self.dying.enter(now, generation, reason);
        }
        if self.dialling() == Some(generation) {
            let error = DialError::Passing { reason: reason.to_owned(), retry_after: None };
            self.dial_failed(now, error, chance);
            return self.answer_tickets();
        }
        if let State::Connected { live, since, replacing } = self.state
            && live == generation
        {
            self.outputs.push_back(Output::Retire(generation));
            self.last_error = Some(reason.to_owned());
            self.tell(BackendNotice::Disconnected { intentional: false });
            let mut away = Outage::since(now);
            match replacing {
                // The dial that was to replace it is the attempt.
                Some(dial) => away.begin_dial(dial),
                // A backend that dies as soon as it is connected is still dialled once in this time at most.
                None => {
                    let rest = (since + self.policy.retry_first).saturating_duration_since(now);
                    self.wait(now, &mut away, Some(rest), chance);
                }
            }
            self.state = State::Reconnecting(away);
        }
    }

    pub fn handle_dialled(&mut self, now: Instant, generation: Generation, result: Result<(), DialError>, chance: f64) {
        if self.dialling() != Some(generation) {
            // This dial is not awaited any more.
            if result.is_ok() && self.live() != Some(generation) {
                self.outputs.push_back(Output::Retire(generation));
            }
            return;
        }
        match result {
            Ok(()) => self.connected(now, generation),
            Err(error) => self.dial_failed(now, error, chance),
        }
        self.answer_tickets();
    }

    /// A caller wants a new connection now, whatever the state.
    pub fn handle_reconnect(&mut self, now: Instant, ticket: Ticket) {
        if let State::Disconnected { removed: true } = self.state {
            self.outputs.push_back(Output::Redialled { ticket, success: false });
            return;
        }
        self.tickets.push(ticket);
        self.backoff.reset();
        match self.state {
            State::Connecting { .. } | State::Connected { replacing: Some(_), .. } => {}
            State::Connected { live, since, replacing: None } => {
                let dial = self.dial();
                self.state = State::Connected { live, since, replacing: Some(dial) };
            }
            State::Reconnecting(_) => {
                self.dial_now(now);
                if let State::Reconnecting(away) = &mut self.state {
                    away.forget_plan();
                }
            }
            State::Disconnected { .. } | State::Error => self.start(),
        }
    }

    /// The machine slept, or the network came back: waiting on makes no sense.
    pub fn handle_woke(&mut self, now: Instant) {
        if let State::Reconnecting(_) = self.state {
            self.dial_now(now);
        }
    }

    /// Stops everything on purpose, until [`start`](BackendMachine::start).
    pub fn disable(&mut self, now: Instant) {
        self.stop(now, false);
    }

    pub fn remove(&mut self, now: Instant) {
        if matches!(self.state, State::Disconnected { removed: true }) {
            return;
        }
        self.stop(now, true);
        self.tell(BackendNotice::Removed);
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let state = match &self.state {
            State::Reconnecting(away) => away.due(),
            _ => None,
        };
        let retiring = self.retiring.iter().map(|old| old.until).min();
        [state, retiring, self.dying.next_due(), self.calls.next_due()].into_iter().flatten().min()
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if let State::Reconnecting(away) = &self.state
            && away.due().is_some_and(|due| due <= now)
        {
            self.dial_now(now);
        }
        for call in self.calls.take_overdue(now) {
            let outcome = if call.deadline <= now { CallFailure::Deadline } else { self.unavailable(now) };
            self.fail(&call, outcome);
        }
        for call in self.calls.take_rested(now) {
            self.handle_call(now, call);
        }
        for (generation, reason) in self.dying.take_dead(now) {
            for call in self.calls.take_all_sent(generation) {
                self.settle_broken(now, generation, call, &reason);
            }
        }
        let over = |old: &Retiring| old.until <= now;
        let done: Vec<Generation> = self.retiring.iter().filter(|old| over(old)).map(|old| old.generation).collect();
        self.retiring.retain(|old| !over(old));
        for generation in done {
            self.outputs.push_back(Output::Retire(generation));
            for call in self.calls.take_all_sent(generation) {
                self.settle_broken(now, generation, call, "the old connection was closed after a forced reconnect");
            }
        }
    }

    fn dialling(&self) -> Option<Generation> {
        match &self.state {
            State::Connecting { dial } => Some(*dial),
            State::Connected { replacing, .. } => *replacing,
            State::Reconnecting(away) => away.dialling(),
            State::Disconnected { .. } | State::Error => None,
        }
    }

    fn dial(&mut self) -> Generation {
        self.newest = Generation(self.newest.0 + 1);
        self.outputs.push_back(Output::Dial(self.newest));
        self.newest
    }

    /// One dial at a time, shared by everyone who waits.
    fn dial_now(&mut self, now: Instant) {
        if let State::Reconnecting(away) = &self.state
            && away.dialling().is_none()
        {
            let dial = self.dial();
            if let State::Reconnecting(away) = &mut self.state {
                away.dial_early(now, dial);
            }
        }
    }

    fn connected(&mut self, now: Instant, generation: Generation) {
        let before =
            std::mem::replace(&mut self.state, State::Connected { live: generation, since: now, replacing: None });
        match before {
            State::Reconnecting(away) if self.was_connected => {
                let (attempts_taken, down) = away.taken(now);
                self.tell(BackendNotice::Reconnected { attempts_taken, down });
            }
            State::Connected { live, .. } => {
                self.tell(BackendNotice::Disconnected { intentional: true });
                self.tell(BackendNotice::Reconnected { attempts_taken: 1, down: Duration::ZERO });
                self.retiring.push(Retiring { generation: live, until: now + self.policy.grace });
            }
            _ => self.tell(BackendNotice::Connected),
        }
        self.was_connected = true;
        self.last_error = None;
        self.backoff.reset();
        for call in self.calls.take_queued() {
            self.send(generation, call);
        }
        self.retire_idle();
    }

    fn dial_failed(&mut self, now: Instant, error: DialError, chance: f64) {
        let (reason, retry_after) = match error {
            DialError::Passing { reason, retry_after } => {
                (reason, retry_after.map(|wait| wait.min(self.policy.retry_after_max)))
            }
            DialError::Fatal { reason } => {
                self.last_error = Some(reason);
                if let State::Connected { replacing, .. } = &mut self.state {
                    *replacing = None;
                    return;
                }
                self.state = State::Error;
                return self.fail_queued(now);
            }
        };
        self.last_error = Some(reason);
        match std::mem::replace(&mut self.state, State::Error) {
            // The old connection still works; the one that was to replace it does not.
            State::Connected { live, since, .. } => {
                self.state = State::Connected { live, since, replacing: None };
                return;
            }
            State::Reconnecting(mut away) => {
                self.wait(now, &mut away, retry_after, chance);
                self.state = State::Reconnecting(away);
            }
            State::Connecting { .. } | State::Disconnected { .. } | State::Error => {
                let mut away = Outage::since(now);
                self.wait(now, &mut away, retry_after, chance);
                self.state = State::Reconnecting(away);
            }
        }
        let outcome = self.unavailable(now);
        for call in self.calls.take_impatient() {
            self.fail(&call, outcome.clone());
        }
        if let State::Reconnecting(away) = &mut self.state
            && self.calls.has_queued()
            && retry_after.is_none()
        {
            away.hurry(now + self.policy.retry_waited_for);
        }
    }

    /// Plans the next attempt, not before `at_least`. A dial that a call brought forward does not push the planned one back.
    fn wait(&mut self, now: Instant, away: &mut Outage, at_least: Option<Duration>, chance: f64) {
        if away.keep_plan(now, at_least) {
            return;
        }
        let delay = self.backoff.next(chance).max(at_least.unwrap_or_default());
        let attempt = self.backoff.attempt();
        if away.plan(now, delay, attempt) {
            self.tell(BackendNotice::Reconnecting { attempt, next_retry: delay });
        }
    }

    fn stop(&mut self, now: Instant, removed: bool) {
        if let State::Disconnected { removed: was } = &mut self.state {
            *was |= removed;
            return;
        }
        let before = std::mem::replace(&mut self.state, State::Disconnected { removed });
        let reason = if removed { "the hub has let the server go" } else { "the server was disconnected on purpose" };
        for (generation, why) in self.dying.take_all() {
            for call in self.calls.take_all_sent(generation) {
                self.fail(&call, CallFailure::Unknown { reason: why.clone() });
            }
        }
        let mut gone: Vec<Generation> = self.retiring.drain(..).map(|old| old.generation).collect();
        if let State::Connected { live, .. } = before {
            gone.push(live);
        }
        for generation in gone {
            self.outputs.push_back(Output::Retire(generation));
            for call in self.calls.take_all_sent(generation) {
                self.fail(&call, CallFailure::Unknown { reason: reason.to_owned() });
            }
        }
        // Whatever it was before, it is disconnected now, and on purpose.
        self.tell(BackendNotice::Disconnected { intentional: true });
        self.last_error = None;
        self.backoff.reset();
        self.fail_queued(now);
        self.answer_tickets();
    }

    fn answer_tickets(&mut self) {
        let success = matches!(self.state, State::Connected { .. }) && self.last_error.is_none();
        for ticket in std::mem::take(&mut self.tickets) {
            self.outputs.push_back(Output::Redialled { ticket, success });
        }
    }

    fn retire_idle(&mut self) {
        let calls = &self.calls;
        let (idle, busy) =
            std::mem::take(&mut self.retiring).into_iter().partition(|old: &Retiring| !calls.uses(old.generation));
        self.retiring = busy;
        let idle: Vec<Retiring> = idle;
        self.outputs.extend(idle.into_iter().map(|old| Output::Retire(old.generation)));
    }

    fn tell(&mut self, notice: BackendNotice) {
        self.outputs.push_back(Output::Tell(notice));
    }
}

#[cfg(test)]
#[path = "backend_table.rs"]
mod table;
#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
