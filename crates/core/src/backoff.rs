//! How long to wait before trying again: doubling up to a ceiling, with jitter so that a crowd does not return at once.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    /// The share of the delay that chance may add or take away.
    jitter: f64,
    /// The first attempt waits for no more than this; doubling begins with the second.
    at_once_within: Option<Duration>,
    attempt: u32,
}

impl Backoff {
    pub const fn new(first: Duration, max: Duration, jitter: f64) -> Backoff {
        Backoff { first, max, jitter, at_once_within: None, attempt: 0 }
    }

    /// The same with a first attempt that is immediate, but for a jitter that keeps a crowd from returning in one instant.
    #[must_use]
    pub const fn at_once_within(self, jitter_max: Duration) -> Backoff {
        Backoff { at_once_within: Some(jitter_max), ..self }
    }

    /// The delay before the next attempt. `chance` is uniform in 0..1; the caller draws it.
    pub fn next(&mut self, chance: f64) -> Duration {
        let chance = chance.clamp(0.0, 1.0);
        let attempt = self.attempt;
        self.attempt = self.attempt.saturating_add(1);
        let doublings = match self.at_once_within {
            Some(jitter_max) if attempt == 0 => return jitter_max.mul_f64(chance),
            Some(_) => attempt - 1,
            None => attempt,
        };
        let doubled = self.first.saturating_mul(1u32.checked_shl(doublings.min(31)).unwrap_or(u32::MAX));
        let factor = 1.0 + self.jitter * (2.0 * chance - 1.0);
        doubled.min(self.max).mul_f64(factor.max(0.0))
    }

    /// How many delays were handed out since the last success.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_the_ceiling_and_never_overflow() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), 0.2);
        let delays: Vec<f64> = (0..100).map(|_| backoff.next(0.5).as_secs_f64()).collect();
        assert_eq!(delays[..7], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]);
        assert!(delays[7..].iter().all(|delay| *delay == 60.0));
        backoff.reset();
        assert_eq!(backoff.next(0.0), Duration::from_millis(800));
    }

    #[test]
    fn a_first_attempt_at_once_delays_the_doubling_by_one() {
        let within = Duration::from_millis(250);
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), 0.2).at_once_within(within);
        for chance in [0.0, 0.5, 1.0] {
            backoff.reset();
            assert_eq!(backoff.next(chance), within.mul_f64(chance));
            let delays: Vec<f64> = (0..100).map(|_| backoff.next(0.5).as_secs_f64()).collect();
            assert_eq!(delays[..7], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]);
        }
    }
}
