//! The life of a session's runs: one at a time, each ended exactly once, also when it waits or its process dies.

use bowline_mutant::mutant;
use bowline_protocol::{RunId, Seq, StepId};
use serde::{Deserialize, Serialize};

/// What a session is doing. This is part of its durable record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Turn {
    #[default]
    Idle,
    Active(Active),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Active {
    pub run: RunId,
    /// The event that started it.
    pub started: Seq,
    pub started_ms: u64,
    /// Confirmations that the run waits for. While there is one, the run needs no process.
    pub pending: Vec<StepId>,
}

/// What may be done with a new message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageAdmission {
    Start,
    Queue { position: usize },
    Busy,
}

/// What becomes of a run whose process died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterCrash {
    Nothing,
    /// It waits for a person; the answer will re-enter the agent.
    KeepWaiting,
    /// It was cut; its agent may continue it, else it is ended as lost.
    Cut(Active),
}

impl Turn {
    pub fn admit(&self, queued: usize, queue_max: usize) -> MessageAdmission {
        match self {
            Turn::Idle if queued == 0 => MessageAdmission::Start,
            Turn::Active(active) if mutant("start-over-a-waiting-run") && !active.pending.is_empty() => {
                MessageAdmission::Start
            }
            _ if queued < queue_max => MessageAdmission::Queue { position: queued + 1 },
            _ => MessageAdmission::Busy,
        }
    }

    pub fn start(&mut self, run: RunId, started: Seq, started_ms: u64) {
        debug_assert_eq!(*self, Turn::Idle, "a run was started while another was active");
        *self = Turn::Active(Active { run, started, started_ms, pending: Vec::new() });
    }

    pub fn active(&self) -> Option<&Active> {
        match self {
            Turn::Idle => None,
            Turn::Active(active) => Some(active),
        }
    }

    /// The run asks a person something. False if it is not the active run: its question is void.
    pub fn ask(&mut self, run: &RunId, step: StepId) -> bool {
        match self {
            Turn::Active(active) if active.run == *run && !active.pending.contains(&step) => {
                active.pending.push(step);
                true
            }
            _ => false,
        }
    }

    /// A person answers. False if the run does not wait for that step (any more): an answer counts once.
    pub fn answer(&mut self, step: &StepId) -> bool {
        let Turn::Active(active) = self else { return false };
        let is_pending = active.pending.contains(step);
        if !mutant("leave-an-answered-question-open") {
            active.pending.retain(|pending| pending != step);
        }
        is_pending
    }

    /// The one way out of a run. False if it is not the active run, so a second ending changes nothing.
    pub fn end(&mut self, run: &RunId) -> bool {
        let ends = self.active().is_some_and(|active| active.run == *run);
        if ends && !mutant("leave-an-ended-run-active") {
            *self = Turn::Idle;
        }
        ends
    }

    pub fn after_crash(&self) -> AfterCrash {
        match self {
            Turn::Idle => AfterCrash::Nothing,
            Turn::Active(active) if !active.pending.is_empty() => AfterCrash::KeepWaiting,
            Turn::Active(active) => AfterCrash::Cut(active.clone()),
        }
    }

    /// The word for it on the wire.
    pub fn state(&self) -> &'static str {
        match self {
            Turn::Idle => "idle",
            Turn::Active(active) if active.pending.is_empty() => "running",
            Turn::Active(_) => "waiting",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u128) -> RunId {
        RunId::from_random(n)
    }

    fn step(name: &str) -> StepId {
        StepId::parse(name).unwrap()
    }

    fn started() -> Turn {
        let mut turn = Turn::default();
        turn.start(run(1), Seq::ZERO.next(), 0);
        turn
    }

    #[test]
    fn a_run_ends_once_and_only_by_its_own_name() {
        let mut turn = started();
        assert!(!turn.end(&run(2)));
        assert!(turn.end(&run(1)));
        assert!(!turn.end(&run(1)));
        assert_eq!(turn.state(), "idle");
    }

    #[test]
    fn a_confirmation_is_answered_once_and_survives_a_crash() {
        let mut turn = started();
        assert!(turn.ask(&run(1), step("s")));
        assert!(!turn.ask(&run(1), step("s")));
        assert!(!turn.ask(&run(9), step("t")));
        assert_eq!((turn.state(), turn.after_crash()), ("waiting", AfterCrash::KeepWaiting));
        let mut turn: Turn = serde_json::from_str(&serde_json::to_string(&turn).unwrap()).unwrap();
        assert!(!turn.answer(&step("x")));
        assert!(turn.answer(&step("s")));
        assert!(!turn.answer(&step("s")));
        assert!(matches!(turn.after_crash(), AfterCrash::Cut(_)));
    }

    #[test]
    fn a_busy_session_queues_up_to_its_limit_and_then_says_so() {
        let turn = started();
        assert_eq!(Turn::Idle.admit(0, 0), MessageAdmission::Start);
        assert_eq!(turn.admit(0, 0), MessageAdmission::Busy);
        assert_eq!(turn.admit(0, 2), MessageAdmission::Queue { position: 1 });
        assert_eq!(turn.admit(2, 2), MessageAdmission::Busy);
    }
}
