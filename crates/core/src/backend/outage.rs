//! An outage: since when, how often it was tried, when it will be tried again, and how much of that is announced.

use std::time::{Duration, Instant};

use super::Generation;

/// The first attempts of an outage are each announced…
pub const ANNOUNCED_ATTEMPTS: u32 = 8;
/// …then one in this time, so that a server that is dead for good is not noise.
const ANNOUNCED_EVERY: Duration = Duration::from_secs(30 * 60);

#[derive(Debug)]
pub struct Outage {
    since: Instant,
    /// Dials that were begun in this outage.
    dials: u32,
    plan: RetryPlan,
    announced_at: Option<Instant>,
}

#[derive(Debug)]
enum RetryPlan {
    /// `early` is an attempt before the planned one, for calls that wait.
    Wait {
        due: Instant,
        early: Option<Instant>,
    },
    Dial {
        generation: Generation,
        kept: Option<Instant>,
    },
}

impl Outage {
    pub fn since(now: Instant) -> Outage {
        Outage { since: now, dials: 0, plan: RetryPlan::Wait { due: now, early: None }, announced_at: None }
    }

    pub fn dialling(&self) -> Option<Generation> {
        match self.plan {
            RetryPlan::Dial { generation, .. } => Some(generation),
            RetryPlan::Wait { .. } => None,
        }
    }

    pub fn due(&self) -> Option<Instant> {
        match self.plan {
            RetryPlan::Wait { due, early } => Some(early.unwrap_or(due)),
            RetryPlan::Dial { .. } => None,
        }
    }

    /// A call waits: there is an attempt at this time, and the planned one stays.
    pub fn hurry(&mut self, at: Instant) {
        if let RetryPlan::Wait { due, early } = &mut self.plan {
            *early = Some(at).filter(|at| at < due);
        }
    }

    /// Zero while an attempt is under way.
    pub fn next_retry(&self, now: Instant) -> Option<Duration> {
        Some(self.due().map_or(Duration::ZERO, |due| due.saturating_duration_since(now)))
    }

    /// This dial was begun before the outage and is its first attempt.
    pub fn begin_dial(&mut self, generation: Generation) {
        self.dials += 1;
        self.plan = RetryPlan::Dial { generation, kept: None };
    }

    /// Dials now; if that is before its time, the planned time is kept for the attempt after it.
    pub fn dial_early(&mut self, now: Instant, generation: Generation) {
        self.dials += 1;
        let kept = match self.plan {
            RetryPlan::Wait { due, .. } => Some(due).filter(|due| *due > now),
            RetryPlan::Dial { .. } => None,
        };
        self.plan = RetryPlan::Dial { generation, kept };
    }

    /// A caller asked for a reconnect: the delays begin again after the dial that is under way.
    pub fn forget_plan(&mut self) {
        if let RetryPlan::Dial { kept, .. } = &mut self.plan {
            *kept = None;
        }
    }

    /// After a failed dial: whether the attempt that was planned before it still stands.
    pub fn keep_plan(&mut self, now: Instant, retry_after: Option<Duration>) -> bool {
        let RetryPlan::Dial { kept: Some(due), .. } = self.plan else { return false };
        let stands = due > now && retry_after.is_none_or(|wait| now + wait <= due);
        if stands {
            self.plan = RetryPlan::Wait { due, early: None };
        }
        stands
    }

    /// Plans the next attempt and says whether it is to be announced.
    pub fn plan(&mut self, now: Instant, delay: Duration, attempt: u32) -> bool {
        self.plan = RetryPlan::Wait { due: now + delay, early: None };
        let quiet_for_long =
            self.announced_at.is_none_or(|announced| now.saturating_duration_since(announced) >= ANNOUNCED_EVERY);
        let announced = attempt <= ANNOUNCED_ATTEMPTS || quiet_for_long;
        if announced {
            self.announced_at = Some(now);
        }
        announced
    }

    /// How many attempts the outage took, and how long it lasted.
    pub fn taken(&self, now: Instant) -> (u32, Duration) {
        (self.dials, now.saturating_duration_since(self.since))
    }
}
