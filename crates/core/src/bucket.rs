//! A token bucket: so many per second, with room for a burst.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A burst of four seconds' worth: a page that reconnects sends a handful of frames at once and means no harm.
    pub fn new(now: Instant, per_second: u32) -> Bucket {
        let burst = f64::from(per_second) * 4.0;
        Bucket { per_second: f64::from(per_second), burst, tokens: burst, at: now }
    }

    /// For what is rare: so many at once, and one more after each `every`.
    pub fn rare(now: Instant, burst: u32, every: Duration) -> Bucket {
        Bucket { per_second: every.as_secs_f64().recip(), burst: f64::from(burst), tokens: f64::from(burst), at: now }
    }

    /// Takes one, or says how long until there is one.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / self.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_a_flood_is_told_when_to_come_back() {
        #[allow(clippy::disallowed_methods)]
        let t0 = Instant::now();
        let mut bucket = Bucket::new(t0, 10);
        assert!((0..40).all(|_| bucket.take(t0).is_ok()));
        assert_eq!(bucket.take(t0), Err(Duration::from_millis(100)));
        assert!(bucket.take(t0 + Duration::from_millis(100)).is_ok());
        assert!(bucket.take(t0 + Duration::from_millis(100)).is_err());
    }

    #[test]
    fn what_is_rare_comes_back_one_by_one() {
        #[allow(clippy::disallowed_methods)]
        let t0 = Instant::now();
        let mut bucket = Bucket::rare(t0, 2, Duration::from_secs(10));
        assert!(bucket.take(t0).is_ok() && bucket.take(t0).is_ok());
        assert!(bucket.take(t0 + Duration::from_secs(9)).is_err());
        assert!(bucket.take(t0 + Duration::from_secs(11)).is_ok());
        assert!(bucket.take(t0 + Duration::from_secs(11)).is_err());
    }
}
