//! When to say "I am here", and when to conclude that the other side is not.

use std::time::{Duration, Instant};

/// A connection that was not heard of for this many intervals is lost.
const MISSES_MAX: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    interval: Duration,
    next_beat: Instant,
    last_heard: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    Beat,
    Lost,
}

impl Heartbeat {
    pub fn new(now: Instant, interval: Duration) -> Heartbeat {
        Heartbeat { interval, next_beat: now + interval, last_heard: now }
    }

    /// Anything came in: a frame, a ping, a pong.
    pub fn handle_heard(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// When to call [`handle_timeout`](Heartbeat::handle_timeout) next.
    pub fn poll_timeout(&self) -> Instant {
        self.next_beat.min(self.lost_at())
    }

    pub fn handle_timeout(&mut self, now: Instant) -> Option<Pulse> {
        if now >= self.lost_at() {
            return Some(Pulse::Lost);
        }
        if now < self.next_beat {
            return None;
        }
        // After a long sleep there is one beat, not one for each that was missed.
        while self.next_beat <= now {
            self.next_beat += self.interval;
        }
        Some(Pulse::Beat)
    }

    fn lost_at(&self) -> Instant {
        self.last_heard + self.interval * MISSES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn now() -> Instant {
        // Any instant will do as an origin; the machine never asks for the time itself.
        #[allow(clippy::disallowed_methods)]
        Instant::now()
    }

    #[test]
    fn silence_for_two_intervals_is_loss_and_any_sign_of_life_is_not() {
        let t0 = now();
        let mut heart = Heartbeat::new(t0, 30 * S);
        assert_eq!(heart.handle_timeout(t0 + 29 * S), None);
        assert_eq!(heart.handle_timeout(t0 + 30 * S), Some(Pulse::Beat));
        heart.handle_heard(t0 + 31 * S);
        assert_eq!(heart.handle_timeout(t0 + 60 * S), Some(Pulse::Beat));
        assert_eq!(heart.handle_timeout(t0 + 90 * S), Some(Pulse::Beat));
        assert_eq!(heart.handle_timeout(t0 + 91 * S), Some(Pulse::Lost));
    }
}
