//! Transports that are gone while calls were on them: for a moment each call may still say itself how it ended.

use std::time::{Duration, Instant};

use super::Generation;

/// How long a call may take to notice that its transport is gone. One that was refused says so at once, and then it may be
/// sent again; one that says nothing may have run.
pub(super) const LAST_WORD: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Dying(Vec<(Generation, Instant, String)>);

impl Dying {
    pub fn enter(&mut self, now: Instant, generation: Generation, reason: &str) {
        if self.0.iter().all(|(dying, ..)| *dying != generation) {
            self.0.push((generation, now + LAST_WORD, reason.to_owned()));
        }
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.0.iter().map(|(_, until, _)| *until).min()
    }

    /// Those whose moment is over, with why they were lost.
    pub fn take_dead(&mut self, now: Instant) -> Vec<(Generation, String)> {
        let (dead, dying) = std::mem::take(&mut self.0).into_iter().partition(|(_, until, _)| *until <= now);
        self.0 = dying;
        let dead: Vec<(Generation, Instant, String)> = dead;
        dead.into_iter().map(|(generation, _, reason)| (generation, reason)).collect()
    }

    pub fn take_all(&mut self) -> Vec<(Generation, String)> {
        self.0.drain(..).map(|(generation, _, reason)| (generation, reason)).collect()
    }
}
