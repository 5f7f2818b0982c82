//! The time, in two kinds: a steady one for lifetimes, which a jump of the wall clock cannot move, and the wall's own
//! for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Duration,
    started_ms: u64,
}

impl Clock {
    pub fn start() -> Clock {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: since_boot(), started_ms: since_1970.as_millis() as u64 }
    }

    /// Milliseconds since 1970, as the wall clock stood at the start plus what has passed since.
    pub fn now_ms(&self) -> u64 {
        self.started_ms + self.uptime().as_millis() as u64
    }

    pub fn started_ms(&self) -> u64 {
        self.started_ms
    }

    pub fn uptime(&self) -> Duration {
        since_boot().saturating_sub(self.started)
    }
}

/// Time since boot, which goes on while the machine sleeps: a session's lifetime does too.
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u32)
}

/// The wall clock's time as RFC 3339 in UTC, for frames.
pub fn timestamp() -> String {
    format!("{:.3}", Timestamp::now())
}

/// The wall clock in Unix seconds, for credentials.
pub fn unix_seconds() -> u64 {
    Timestamp::now().as_second().max(0) as u64
}

/// The same in milliseconds.
pub fn unix_ms() -> u64 {
    Timestamp::now().as_millisecond().max(0) as u64
}

/// A time kept in milliseconds, as RFC 3339 in UTC.
pub fn rfc3339(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default();
    format!("{time:.3}")
}
