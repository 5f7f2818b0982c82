//! The one clock of a server: lifetimes count on it, and everything in a store is dated by it.
//!
//! It is set once, when a node starts, and then follows the time since boot. So a jump of the wall clock moves no
//! lifetime, and time during which the machine sleeps counts. Only this file asks the operating system for the date.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Store, StoreError};

/// A node makes one when it starts and gives copies of it to its parts.
#[derive(Clone, Copy)]
pub struct Clock {
    started: Duration,
    started_ms: u64,
}

impl Clock {
    /// Set by the wall clock.
    pub fn start() -> Clock {
        Clock::start_at(wall_ms())
    }

    /// Set by the time that all processes on this store share, or by the wall clock if one has it to itself.
    pub async fn of(store: &dyn Store) -> Result<Clock, StoreError> {
        Ok(store.shared_time().await?.map_or_else(Clock::start, Clock::start_at))
    }

    pub fn start_at(now_ms: u64) -> Clock {
        Clock { started: since_boot(), started_ms: now_ms }
    }

    /// Milliseconds since 1970, as of the start, plus what has passed since.
    pub fn now_ms(&self) -> u64 {
        self.started_ms.saturating_add(self.uptime().as_millis() as u64)
    }

    pub fn started_ms(&self) -> u64 {
        self.started_ms
    }

    pub fn uptime(&self) -> Duration {
        since_boot().saturating_sub(self.started)
    }
}

/// Two clocks of one configuration are alike: when each was started is nothing that a person compares.
impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The time since boot, which goes on while the machine sleeps.
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u32)
}

/// The wall clock in milliseconds since 1970, for what people read and for credentials. It may jump, so nothing that
/// lives or expires here may be dated by it.
#[allow(clippy::disallowed_methods, reason = "this is the one place that asks for the date")]
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_from_where_it_was_set_and_never_back() {
        let clock = Clock::start_at(5_000_000);
        let (first, second) = (clock.now_ms(), clock.now_ms());
        assert!((5_000_000..5_060_000).contains(&first), "{first}");
        assert!(second >= first);
        assert_eq!(Clock::start_at(u64::MAX).now_ms(), u64::MAX, "a time that cannot be does not overflow");
    }
}
