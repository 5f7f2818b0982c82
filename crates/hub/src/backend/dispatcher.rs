//! Where a backend's loop and its callers meet: the machine that decides, behind one lock that is never held across an await.
//!
//! A call of a connected backend is decided here and now, in its caller's task, which drives it ([`run`]): it waits for its turn, goes
//! out on the transport it is given, and says what came of it. Only what takes time is left to the loop.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_core::HealthCheck;
use bowline_core::backend::{
    BackendMachine, BackendNotice, BackendStatus, CallFailure, Generation, Output, QueuedCall, QueuedCallId,
    ResendPolicy, Ticket,
};
use bowline_core::health::HealthEvent;
use bowline_env::{clock, entropy};
use tokio::sync::{Notify, oneshot};

use crate::backend::Backend;
use crate::call::{BackendCall, CallEnd, CallEnding};
use crate::fields::Raw;
use crate::message;
use crate::upstream::Transport;

/// What a waiting call does next.
pub enum CallVerdict {
    /// It goes out on this transport. What comes after that comes by `next`.
    Go {
        generation: Generation,
        transport: Arc<Transport>,
        next: oneshot::Receiver<CallVerdict>,
    },
    Failed(CallFailure),
}

/// How a call ended on a transport, as far as the machine wants to know.
pub enum CallReport {
    /// `well` if the server answered as one does that is well.
    Answered {
        well: bool,
    },
    NotExecuted(String),
    Refused {
        why: String,
        retry_after: Option<Duration>,
    },
    Broken(String),
}

/// What only the loop can do.
pub enum SupervisorAction {
    Dial(Generation),
    Retire(Generation),
    Redialled { ticket: Ticket, success: bool },
    Tell(BackendNotice),
    TellHealth(HealthEvent),
}

pub struct Dispatcher {
    state: Mutex<DispatcherState>,
    /// Rings when a caller left an order, or when the loop sleeps too long.
    wakeup: Notify,
}

pub struct DispatcherState {
    pub machine: BackendMachine,
    pub health: HealthCheck,
    pub transports: HashMap<Generation, Arc<Transport>>,
    /// The calls that are not over, and how they learn what comes next.
    calls: HashMap<QueuedCallId, oneshot::Sender<CallVerdict>>,
    effects: VecDeque<SupervisorAction>,
    /// Until when the loop sleeps.
    due: Option<Instant>,
}

impl Dispatcher {
    pub fn new(machine: BackendMachine, health: HealthCheck) -> Dispatcher {
        let state = DispatcherState {
            machine,
            health,
            transports: HashMap::new(),
            calls: HashMap::new(),
            effects: VecDeque::new(),
            due: None,
        };
        Dispatcher { state: Mutex::new(state), wakeup: Notify::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, DispatcherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins. Where it may go out at once, its first turn is there already.
    pub fn begin(&self, call: QueuedCall) -> oneshot::Receiver<CallVerdict> {
        let (verdict, told) = oneshot::channel();
        self.feed(|state| {
            state.calls.insert(call.id, verdict);
            state.machine.handle_call(clock::now(), call);
        });
        told
    }

    /// A call ended on a transport. If it has no answer yet, its next verdict says what becomes of it.
    pub fn ended(&self, generation: Generation, id: QueuedCallId, report: &CallReport) {
        let now = clock::now();
        self.feed(|state| match report {
            CallReport::Answered { well } => {
                state.calls.remove(&id);
                state.machine.handle_answered(id);
                let pulse = if *well { state.health.handle_good(now, entropy::chance()) } else { None };
                state.effects.extend(pulse.map(SupervisorAction::TellHealth));
            }
            CallReport::NotExecuted(why) => {
                state.machine.handle_not_executed(now, generation, id, why, entropy::chance());
            }
            CallReport::Refused { why, retry_after } => state.machine.handle_refused(generation, id, why, *retry_after),
            CallReport::Broken(why) => state.machine.handle_broken(now, generation, id, why),
        });
    }

    /// The caller does not want it any more.
    pub fn cancelled(&self, id: QueuedCallId) {
        self.feed(|state| {
            state.calls.remove(&id);
            state.machine.handle_cancelled(id);
        });
    }

    /// The next thing that only the loop can do.
    pub fn effect(&self) -> Option<SupervisorAction> {
        let mut state = self.lock();
        state.settle();
        state.effects.pop_front()
    }

    /// When the loop has to look again although nothing rings.
    pub fn sleep(&self, other: Option<Instant>) -> Option<Instant> {
        let mut state = self.lock();
        state.due = [state.timeout(), other].into_iter().flatten().min();
        state.due
    }

    pub async fn woken(&self) {
        self.wakeup.notified().await;
    }

    /// The transport that calls go out on now.
    pub fn live(&self) -> Option<(Generation, Arc<Transport>)> {
        let state = self.lock();
        let live = state.machine.live()?;
        Some((live, state.transports.get(&live)?.clone()))
    }

    pub fn is_live(&self, generation: Generation) -> bool {
        self.lock().machine.live() == Some(generation)
    }

    fn feed(&self, act: impl FnOnce(&mut DispatcherState)) {
        let mut state = self.lock();
        act(&mut state);
        state.settle();
        let sooner = state.timeout().is_some_and(|timeout| state.due.is_none_or(|due| timeout < due));
        let wake = sooner || !state.effects.is_empty();
        drop(state);
        if wake {
            self.wakeup.notify_one();
        }
    }
}

impl DispatcherState {
    /// Tells calls what the machine decided about them, and puts the rest aside for the loop.
    fn settle(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send { generation, call } => self.send(generation, call),
                Output::Fail { call, outcome } => {
                    if let Some(verdict) = self.calls.remove(&call) {
                        let _ = verdict.send(CallVerdict::Failed(outcome));
                    }
                }
                Output::Dial(generation) => self.effects.push_back(SupervisorAction::Dial(generation)),
                Output::Retire(generation) => self.effects.push_back(SupervisorAction::Retire(generation)),
                Output::Redialled { ticket, success } => {
                    self.effects.push_back(SupervisorAction::Redialled { ticket, success });
                }
                Output::Tell(told) => self.effects.push_back(SupervisorAction::Tell(told)),
            }
        }
    }

    fn send(&mut self, generation: Generation, call: QueuedCallId) {
        let (Some(verdict), Some(transport)) = (self.calls.get_mut(&call), self.transports.get(&generation)) else {
            return;
        };
        let (later, next) = oneshot::channel();
        let go = CallVerdict::Go { generation, transport: transport.clone(), next };
        let _ = std::mem::replace(verdict, later).send(go);
    }

    fn timeout(&self) -> Option<Instant> {
        [self.machine.poll_timeout(), self.health.poll_timeout()].into_iter().flatten().min()
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dispatcher({:?})", self.lock().machine.calls())
    }
}

/// One request, with one ending. The machine decides when it goes out and whether it goes out again; the wire is waited
/// for here, so that a call needs no task of its own. Dropping the future takes the call back.
pub async fn run(backend: &Backend, call: &BackendCall, deadline: Instant, resend: ResendPolicy) -> CallEnd {
    let id = backend.counts.next_call();
    let mut open = DispatchedCall { dispatcher: &backend.dispatcher, id, over: false };
    let mut verdict = backend.dispatcher.begin(QueuedCall::new(id, deadline, resend)).await;
    let end = loop {
        let (generation, transport, mut next) = match verdict {
            Ok(CallVerdict::Go { generation, transport, next }) => (generation, transport, next),
            Ok(CallVerdict::Failed(outcome)) => break CallEnd::Failed(outcome),
            Err(_) => break CallEnd::Failed(removed()),
        };
        verdict = tokio::select! {
            // An answer that is here counts, whatever became of its transport meanwhile.
            biased;
            ending = transport.call(call) => {
                let (report, answered) = match ending {
                    CallEnding::Answered { answer, status } => {
                        if answer.is_ok() {
                            backend.renewals.note(call);
                        }
                        let broke = |error: &Raw| message::code_of(error) == message::INTERNAL_ERROR;
                        let well = !answer.as_ref().is_err_and(broke);
                        (CallReport::Answered { well }, Some(CallEnd::Answered { answer, status }))
                    }
                    CallEnding::NotExecuted(why) => (CallReport::NotExecuted(why), None),
                    CallEnding::Refused { why, retry_after } => (CallReport::Refused { why, retry_after }, None),
                    CallEnding::Broken(why) => (CallReport::Broken(why), None),
                };
                backend.dispatcher.ended(generation, id, &report);
                if let Some(end) = answered {
                    break end;
                }
                next.await
            }
            // The transport is lost, or the deadline has passed.
            told = &mut next => told,
        };
    };
    open.over = true;
    end
}

fn removed() -> CallFailure {
    let last_error = Some("the hub has let the server go".into());
    CallFailure::Unavailable { status: BackendStatus::Disconnected, attempt: 0, next_retry: None, last_error }
}

struct DispatchedCall<'a> {
    dispatcher: &'a Dispatcher,
    id: QueuedCallId,
    over: bool,
}

impl Drop for DispatchedCall<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.dispatcher.cancelled(self.id);
        }
    }
}
