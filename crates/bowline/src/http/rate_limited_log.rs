//! Limits how often something that goes wrong over and over is logged.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct RateLimitedLog {
    every: Duration,
    logged: Option<Instant>,
}

impl RateLimitedLog {
    pub fn every(every: Duration) -> RateLimitedLog {
        RateLimitedLog { every, logged: None }
    }

    /// Whether it is time to log it again. Then it counts as logged.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= self.every);
        if due {
            self.logged = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use bowline_env::clock;

    #[test]
    fn what_happens_twenty_times_in_a_second_is_logged_once_in_it() {
        let (start, mut log) = (clock::now(), RateLimitedLog::every(Duration::from_secs(1)));
        let logged = (0..100).filter(|n| log.is_due(start + Duration::from_millis(50 * n)));
        assert_eq!(logged.collect::<Vec<u64>>(), [0, 20, 40, 60, 80]);
    }
}
