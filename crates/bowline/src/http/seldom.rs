//! Something that goes wrong over and over is told now and then.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Seldom {
    every: Duration,
    told: Option<Instant>,
}

impl Seldom {
    pub fn every(every: Duration) -> Seldom {
        Seldom { every, told: None }
    }

    /// Whether it is time to tell of it again. Then it counts as told.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.told.is_none_or(|told| now.saturating_duration_since(told) >= self.every);
        if due {
            self.told = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use bowline_env::clock;

    #[test]
    fn what_happens_twenty_times_in_a_second_is_told_once_in_it() {
        let (start, mut seldom) = (clock::now(), Seldom::every(Duration::from_secs(1)));
        let told = (0..100).filter(|n| seldom.is_due(start + Duration::from_millis(50 * n)));
        assert_eq!(told.collect::<Vec<u64>>(), [0, 20, 40, 60, 80]);
    }
}
