//! Whether a connected backend answers: asked now and then, reported after three misses, and never a reason to reconnect.

use std::time::{Duration, Instant};

/// Failures in a row before it is announced. One or two are a hiccup.
const FAILURES_MAX: u32 = 3;
/// The share of the interval that chance may add or take away, so that many backends are not asked at once.
const JITTER: f64 = 0.1;

#[derive(Clone, Debug)]
pub struct HealthCheck {
    interval: Duration,
    timeout: Duration,
    phase: CheckPhase,
    failures: u32,
    last_error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckPhase {
    /// There is no connection to ask on.
    Paused,
    Waiting {
        due: Instant,
    },
    Asking {
        until: Instant,
    },
}

/// What to do, or what to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthEvent {
    /// Make a real round trip and say how it went.
    Ask,
    Degraded {
        failures: u32,
        last_error: String,
    },
    Restored,
}

impl HealthCheck {
    pub fn new(interval: Duration, timeout: Duration) -> HealthCheck {
        HealthCheck { interval, timeout, phase: CheckPhase::Paused, failures: 0, last_error: None }
    }

    pub fn is_degraded(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    /// `unknown` while there is nothing to ask.
    pub fn word(&self) -> &'static str {
        match self.phase {
            CheckPhase::Paused => "unknown",
            _ if self.is_degraded() => "degraded",
            _ => "healthy",
        }
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// A connection is there: what was counted on the last one is void.
    pub fn resume(&mut self, now: Instant, chance: f64) {
        self.failures = 0;
        self.last_error = None;
        self.wait(now, chance);
    }

    pub fn pause(&mut self) {
        self.phase = CheckPhase::Paused;
        self.failures = 0;
    }

    /// A check or any call went well.
    pub fn handle_good(&mut self, now: Instant, chance: f64) -> Option<HealthEvent> {
        let was_degraded = self.is_degraded();
        if self.phase == CheckPhase::Paused {
            return None;
        }
        self.failures = 0;
        self.last_error = None;
        if let CheckPhase::Asking { .. } = self.phase {
            self.wait(now, chance);
        }
        was_degraded.then_some(HealthEvent::Restored)
    }

    /// A check went wrong.
    pub fn handle_bad(&mut self, now: Instant, reason: &str, chance: f64) -> Option<HealthEvent> {
        let CheckPhase::Asking { .. } = self.phase else { return None };
        self.failures += 1;
        self.last_error = Some(reason.to_owned());
        self.wait(now, chance);
        (self.failures == FAILURES_MAX)
            .then(|| HealthEvent::Degraded { failures: self.failures, last_error: reason.to_owned() })
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            CheckPhase::Paused => None,
            CheckPhase::Waiting { due } => Some(due),
            CheckPhase::Asking { until } => Some(until),
        }
    }

    pub fn handle_timeout(&mut self, now: Instant, chance: f64) -> Option<HealthEvent> {
        match self.phase {
            CheckPhase::Waiting { due } if due <= now => {
                self.phase = CheckPhase::Asking { until: now + self.timeout };
                Some(HealthEvent::Ask)
            }
            CheckPhase::Asking { until } if until <= now => {
                self.handle_bad(now, "the check was not answered in time", chance)
            }
            _ => None,
        }
    }

    fn wait(&mut self, now: Instant, chance: f64) {
        let factor = 1.0 + JITTER * (2.0 * chance.clamp(0.0, 1.0) - 1.0);
        self.phase = CheckPhase::Waiting { due: now + self.interval.mul_f64(factor) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn now() -> Instant {
        #[allow(clippy::disallowed_methods)]
        Instant::now()
    }

    fn ask(health: &mut HealthCheck, t: &mut Instant) {
        *t = health.poll_timeout().unwrap();
        assert_eq!(health.handle_timeout(*t, 0.5), Some(HealthEvent::Ask));
    }

    #[test]
    fn three_failures_in_a_row_are_told_once_and_one_success_restores() {
        let mut t = now();
        let mut health = HealthCheck::new(120 * S, 60 * S);
        health.resume(t, 0.5);
        for _ in 0..2 {
            ask(&mut health, &mut t);
            assert_eq!(health.handle_bad(t, "no", 0.5), None);
        }
        ask(&mut health, &mut t);
        // Silence counts as a failure when the time is over.
        let event = health.handle_timeout(t + 60 * S, 0.5);
        let last_error = "the check was not answered in time".to_owned();
        assert_eq!(event, Some(HealthEvent::Degraded { failures: 3, last_error }));
        ask(&mut health, &mut t);
        assert_eq!(health.handle_bad(t, "no", 0.5), None);
        assert_eq!((health.word(), health.failures()), ("degraded", 4));
        // A good call is as good as a good check.
        assert_eq!(health.handle_good(t, 0.5), Some(HealthEvent::Restored));
        assert_eq!((health.word(), health.failures()), ("healthy", 0));
        assert_eq!(health.handle_good(t, 0.5), None);
    }

    #[test]
    fn checks_come_every_interval_give_or_take_a_tenth() {
        let t = now();
        for (chance, seconds) in [(0.0, 108), (0.5, 120), (1.0, 132)] {
            let mut health = HealthCheck::new(120 * S, 60 * S);
            health.resume(t, chance);
            assert_eq!(health.poll_timeout(), Some(t + seconds * S));
        }
    }

    #[test]
    fn while_there_is_no_connection_nothing_is_asked_and_nothing_counts() {
        let t = now();
        let mut health = HealthCheck::new(120 * S, 60 * S);
        assert_eq!((health.poll_timeout(), health.word()), (None, "unknown"));
        health.resume(t, 0.5);
        assert_eq!(health.handle_timeout(t + 120 * S, 0.5), Some(HealthEvent::Ask));
        health.pause();
        assert_eq!(health.handle_bad(t, "late", 0.5), None);
        assert_eq!(health.handle_good(t, 0.5), None);
        assert_eq!(health.handle_timeout(t + 500 * S, 0.5), None);
    }
}
