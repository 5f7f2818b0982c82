//! Whatever happens to a backend, in whatever order: each call has one ending, and nothing that may have run is sent twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bowline_core::backend::{
    BackendMachine, BackendNotice, BackendStatus, CallFailure, DialError, Generation, Output, Policy, QueuedCall,
    QueuedCallId, ResendPolicy,
};
use proptest::prelude::*;

/// What chance does. Numbers pick among what there is.
#[derive(Clone, Debug)]
enum Act {
    Call,
    Answer(usize),
    NotExecuted(usize),
    Refused(usize),
    Broken(usize),
    Cancel(usize),
    Lost(usize),
    DialEnds(usize, bool),
    DialFatal(usize),
    Reconnect,
    Woke,
    Disable,
    Start,
    Remove,
    Pass(u64),
    Timeout,
}

fn act() -> impl Strategy<Value = Act> {
    let pick = 0usize..8;
    prop_oneof![
        6 => Just(Act::Call),
        4 => pick.clone().prop_map(Act::Answer),
        2 => pick.clone().prop_map(Act::NotExecuted),
        2 => pick.clone().prop_map(Act::Refused),
        2 => pick.clone().prop_map(Act::Broken),
        1 => pick.clone().prop_map(Act::Cancel),
        3 => pick.clone().prop_map(Act::Lost),
        6 => (pick.clone(), any::<bool>()).prop_map(|(at, ok)| Act::DialEnds(at, ok)),
        1 => pick.prop_map(Act::DialFatal),
        2 => Just(Act::Reconnect),
        1 => Just(Act::Woke),
        1 => Just(Act::Disable),
        2 => Just(Act::Start),
        1 => Just(Act::Remove),
        3 => (0u64..200_000).prop_map(Act::Pass),
        4 => Just(Act::Timeout),
    ]
}

/// The world as it really is, beside what the machine believes.
struct World {
    backend: BackendMachine,
    t: Instant,
    next_call: QueuedCallId,
    next_ticket: u64,
    open: BTreeSet<QueuedCallId>,
    /// Calls that are on a wire, and on which.
    on_wire: BTreeMap<QueuedCallId, Generation>,
    /// Sent and not known to be refused: it may have run.
    may_have_run: BTreeSet<QueuedCallId>,
    dialling: Vec<Generation>,
    living: BTreeSet<Generation>,
    ever: Vec<Generation>,
    tickets: BTreeSet<u64>,
    told_connected: bool,
    removed: bool,
}

impl World {
    fn new() -> World {
        #[allow(clippy::disallowed_methods)]
        let t = Instant::now();
        World {
            backend: BackendMachine::new(Policy { queued_max: 4, ..Policy::default() }),
            t,
            next_call: 0,
            next_ticket: 0,
            open: BTreeSet::new(),
            on_wire: BTreeMap::new(),
            may_have_run: BTreeSet::new(),
            dialling: Vec::new(),
            living: BTreeSet::new(),
            ever: Vec::new(),
            tickets: BTreeSet::new(),
            told_connected: false,
            removed: false,
        }
    }

    fn apply(&mut self, act: &Act) {
        let (t, dice) = (self.t, 0.5);
        let wired = |world: &World, at: usize| world.on_wire.iter().nth(at).map(|(call, on)| (*call, *on));
        match act {
            Act::Call => {
                self.next_call += 1;
                self.open.insert(self.next_call);
                let deadline = t + Duration::from_secs(30);
                self.backend.handle_call(t, QueuedCall::new(self.next_call, deadline, ResendPolicy::IfNotExecuted));
            }
            Act::Answer(at) => {
                if let Some((call, _)) = wired(self, *at) {
                    self.on_wire.remove(&call);
                    self.end(call);
                    self.backend.handle_answered(call);
                }
            }
            Act::NotExecuted(at) => {
                if let Some((call, on)) = wired(self, *at) {
                    self.on_wire.remove(&call);
                    self.may_have_run.remove(&call);
                    self.backend.handle_not_executed(t, on, call, "refused", dice);
                }
            }
            Act::Refused(at) => {
                if let Some((call, on)) = wired(self, *at) {
                    self.on_wire.remove(&call);
                    self.backend.handle_refused(on, call, "HTTP 429", None);
                    let refused = CallFailure::Refused { reason: "HTTP 429".into(), retry_after: None };
                    let last = self.backend.poll_output();
                    assert_eq!(last, Some(Output::Fail { call, outcome: refused }), "a refused call ends at once");
                    self.end(call);
                }
            }
            Act::Broken(at) => {
                if let Some((call, on)) = wired(self, *at) {
                    self.on_wire.remove(&call);
                    self.backend.handle_broken(t, on, call, "cut");
                }
            }
            Act::Cancel(at) => {
                if let Some(call) = self.open.iter().nth(*at).copied() {
                    self.on_wire.remove(&call);
                    self.open.remove(&call);
                    self.backend.handle_cancelled(call);
                }
            }
            Act::Lost(at) => {
                // Any generation that ever was may still say something, however late.
                if let Some(generation) = self.ever.get(*at).copied() {
                    // Its calls may still say themselves how they ended, also after they were given up.
                    self.living.remove(&generation);
                    self.backend.handle_lost(t, generation, "eof", dice);
                }
            }
            Act::DialEnds(at, ok) => {
                if *at < self.dialling.len() {
                    let generation = self.dialling.remove(*at);
                    if *ok {
                        self.living.insert(generation);
                    }
                    let failed = DialError::Passing { reason: "refused".into(), retry_after: None };
                    self.backend.handle_dialled(t, generation, if *ok { Ok(()) } else { Err(failed) }, dice);
                }
            }
            Act::DialFatal(at) => {
                if *at < self.dialling.len() {
                    let generation = self.dialling.remove(*at);
                    let fatal = DialError::Fatal { reason: "bad".into() };
                    self.backend.handle_dialled(t, generation, Err(fatal), dice);
                }
            }
            Act::Reconnect => {
                self.next_ticket += 1;
                self.tickets.insert(self.next_ticket);
                self.backend.handle_reconnect(t, self.next_ticket);
            }
            Act::Woke => self.backend.handle_woke(t),
            Act::Disable => self.backend.disable(t),
            Act::Start => self.backend.start(),
            Act::Remove => self.backend.remove(t),
            Act::Pass(ms) => self.t += Duration::from_millis(*ms),
            Act::Timeout => {
                if let Some(due) = self.backend.poll_timeout() {
                    self.t = self.t.max(due);
                    self.backend.handle_timeout(self.t);
                }
            }
        }
        self.drain();
        self.check();
    }

    fn end(&mut self, call: QueuedCallId) {
        assert!(self.open.remove(&call), "call {call} ended twice");
    }

    fn drain(&mut self) {
        while let Some(output) = self.backend.poll_output() {
            match output {
                Output::Dial(generation) => {
                    assert!(self.ever.last().is_none_or(|last| *last < generation), "generations grow");
                    self.ever.push(generation);
                    self.dialling.push(generation);
                }
                Output::Send { generation, call } => {
                    assert!(self.open.contains(&call), "call {call} is over and was sent");
                    assert!(self.living.contains(&generation), "call {call} was sent on a dead wire");
                    assert!(self.may_have_run.insert(call), "call {call} may have run and was sent again");
                    self.on_wire.insert(call, generation);
                }
                Output::Fail { call, .. } => {
                    self.on_wire.remove(&call);
                    self.end(call);
                }
                Output::Retire(generation) => drop(self.living.remove(&generation)),
                Output::Redialled { ticket, .. } => assert!(self.tickets.remove(&ticket), "answered twice"),
                Output::Tell(told) => self.told(&told),
            }
        }
    }

    fn told(&mut self, told: &BackendNotice) {
        assert!(!self.removed, "{told:?} was told after the removal");
        match told {
            BackendNotice::Connected | BackendNotice::Reconnected { .. } => {
                assert!(!self.told_connected, "connected was told twice");
                self.told_connected = true;
            }
            BackendNotice::Disconnected { intentional: true } => self.told_connected = false,
            BackendNotice::Disconnected { intentional: false } => {
                assert!(self.told_connected, "disconnected was told twice");
                self.told_connected = false;
            }
            BackendNotice::Reconnecting { .. } => {}
            BackendNotice::Removed => self.removed = true,
        }
    }

    fn check(&self) {
        let connected = self.backend.status() == BackendStatus::Connected;
        assert_eq!(connected, self.told_connected, "what was told is what is");
        // One dial at a time that anybody waits for: the others are leftovers of a stop.
        let (queued, sent) = self.backend.calls();
        assert_eq!(queued + sent, self.open.len(), "each open call is somewhere");
        if self.backend.status() == BackendStatus::Reconnecting {
            let waits = self.backend.poll_timeout().is_some() || !self.dialling.is_empty();
            assert!(waits, "a backend that is away is either dialled or will be");
        }
    }

    /// The faults stop: every dial works and every call is answered.
    fn settle(&mut self) {
        for _ in 0..1000 {
            if let Some(generation) = self.dialling.pop() {
                self.dialling.push(generation);
                self.apply(&Act::DialEnds(self.dialling.len() - 1, true));
            } else if !self.on_wire.is_empty() {
                self.apply(&Act::Answer(0));
            } else if !self.open.is_empty() || self.backend.status() == BackendStatus::Reconnecting {
                self.apply(&Act::Timeout);
            } else {
                break;
            }
        }
        assert!(self.open.is_empty(), "calls {:?} never ended", self.open);
        assert!(self.tickets.is_empty(), "reconnects {:?} were never answered", self.tickets);
        let status = self.backend.status();
        assert!(
            matches!(status, BackendStatus::Connected | BackendStatus::Disconnected | BackendStatus::Error),
            "{status:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn each_call_has_one_ending_and_nothing_that_may_have_run_is_sent_twice(
        acts in proptest::collection::vec(act(), 1..80)
    ) {
        let mut world = World::new();
        world.apply(&Act::Start);
        for act in &acts {
            world.apply(act);
        }
        world.settle();
    }

    #[test]
    fn background_dials_start_over_after_each_success_and_are_never_closer_than_a_second(
        dials in proptest::collection::vec((any::<bool>(), 0u64..20_000, 0.0f64..=1.0), 1..60)
    ) {
        let second = Duration::from_secs(1);
        let mut backend = BackendMachine::new(Policy::default());
        #[allow(clippy::disallowed_methods)]
        let mut t = Instant::now();
        let (mut generation, mut delays) = (Generation(1), 0u32);
        backend.start();
        for (works, lasts_ms, dice) in dials {
            let dialled = t;
            if works {
                backend.handle_dialled(t, generation, Ok(()), dice);
                t += Duration::from_millis(lasts_ms);
                backend.handle_lost(t, generation, "eof", dice);
                delays = 1;
            } else {
                let failed = DialError::Passing { reason: "refused".into(), retry_after: None };
                backend.handle_dialled(t, generation, Err(failed), dice);
                delays += 1;
            }
            prop_assert_eq!(backend.attempt(), delays);
            let planned = second.saturating_mul(1 << (delays - 1).min(10)).min(Duration::from_secs(180));
            let delay = backend.next_retry(t).unwrap();
            prop_assert!(delay >= planned.mul_f64(0.9) && delay <= planned.mul_f64(1.1), "{delays}: {delay:?}");
            t = backend.poll_timeout().unwrap();
            prop_assert!(!works || t - dialled >= second, "after {:?}", t - dialled);
            backend.handle_timeout(t);
            while let Some(output) = backend.poll_output() {
                if let Output::Dial(next) = output {
                    generation = next;
                }
            }
        }
    }
}
