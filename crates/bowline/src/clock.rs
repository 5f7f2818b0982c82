//! The time, in two kinds: a steady one for lifetimes, which a jump of the wall clock cannot move, and the wall's own
//! for people.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    started_ms: u64,
}

impl Clock {
    pub fn start() -> Clock {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Instant::now(), started_ms: since_1970.as_millis() as u64 }
    }

    /// Milliseconds since 1970, as the wall clock stood at the start plus what has passed since.
    pub fn now_ms(&self) -> u64 {
        self.started_ms + self.started.elapsed().as_millis() as u64
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The wall clock's time as RFC 3339 in UTC, for frames.
pub fn timestamp() -> String {
    format!("{:.3}", Timestamp::now())
}

/// The wall clock in Unix seconds, for credentials.
pub fn unix_seconds() -> u64 {
    Timestamp::now().as_second().max(0) as u64
}

/// A time kept in milliseconds, as RFC 3339 in UTC.
pub fn rfc3339(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default();
    format!("{time:.3}")
}
