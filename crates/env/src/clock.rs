//! Three times: a node's steady [`Clock`] for lifetimes, the wall clock for dates, and [`now`] for timeouts.
//!
//! A node sets its `Clock` once, when it starts; from then on it follows the time since boot. So a jump of the wall clock
//! moves no lifetime, and time during which the machine sleeps counts.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

const DAY_MS: u64 = 86_400_000;

/// The steady clock of a node. The node makes one when it starts and gives copies of it to its parts.
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

/// The instant that timeouts count from. On a runtime whose time is paused it is that runtime's.
#[allow(clippy::disallowed_methods, reason = "this is the one place that asks for the time")]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// How long ago that was. `Instant::elapsed` asks the machine's clock, whatever the runtime's says.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// The wall clock in milliseconds since 1970, for what people read and for credentials. It may jump, so nothing that
/// lives or expires here may be dated by it.
#[allow(clippy::disallowed_methods, reason = "this is the one place that asks for the date")]
pub fn wall_ms() -> u64 {
    match SIMULATED.get() {
        Some(simulated) => simulated.wall_ms(),
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
    }
}

/// The wall clock in Unix seconds, for credentials.
pub fn unix_seconds() -> u64 {
    wall_ms() / 1000
}

/// The wall clock's time, for comparing it with dates that others wrote.
pub fn wall() -> Timestamp {
    at(wall_ms())
}

/// The wall clock's time as RFC 3339 in UTC, for frames.
pub fn timestamp() -> String {
    rfc3339(wall_ms())
}

/// A time kept in milliseconds, as RFC 3339 in UTC.
pub fn rfc3339(ms: u64) -> String {
    written(ms).unwrap_or_else(|| format!("{:.3}", at(ms)))
}

/// The same without a calendar's generality: every event and frame has a time. None for a year of more than four digits.
fn written(ms: u64) -> Option<String> {
    let (days, of_day) = (ms / DAY_MS, ms % DAY_MS);
    // Years are counted from March here, so that a leap day is the last of its year; eras have 400 of them.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    if year > 9999 {
        return None;
    }
    let mut out = *b"0000-00-00T00:00:00.000Z";
    let parts = [
        (0..4, year),
        (5..7, month),
        (8..10, day),
        (11..13, of_day / 3_600_000),
        (14..16, of_day / 60_000 % 60),
        (17..19, of_day / 1000 % 60),
        (20..23, of_day % 1000),
    ];
    for (place, mut number) in parts {
        for digit in out[place].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
    String::from_utf8(out.to_vec()).ok()
}

/// A time kept in milliseconds, as HTTP writes it.
pub fn http_date(ms: u64) -> String {
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    // Only years above 9999 cannot be written.
    printer.timestamp_to_rfc9110_string(&at(ms)).unwrap_or_default()
}

fn at(ms: u64) -> Timestamp {
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default()
}

/// The time since boot, which goes on while the machine sleeps.
fn since_boot() -> Duration {
    if let Some(simulated) = SIMULATED.get() {
        return simulated.elapsed();
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u32)
}

thread_local! {
    static SIMULATED: Cell<Option<Simulated>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Simulated {
    from: Instant,
    wall_ms: u64,
}

impl Simulated {
    fn elapsed(self) -> Duration {
        since(self.from)
    }

    fn wall_ms(self) -> u64 {
        self.wall_ms.saturating_add(self.elapsed().as_millis() as u64)
    }
}

/// While it lives, this thread's time since boot is the time that its runtime has spent, and its wall clock shows what
/// the simulation says.
pub struct SimulatedClock(Cell<Simulated>, PhantomData<*const ()>);

/// Gives this thread a simulated time. The wall clock begins at `wall_ms` and goes on with the runtime's time.
pub fn simulate(wall_ms: u64) -> SimulatedClock {
    let simulated = Simulated { from: now(), wall_ms };
    SIMULATED.set(Some(simulated));
    SimulatedClock(Cell::new(simulated), PhantomData)
}

impl SimulatedClock {
    /// Sets the wall clock, as an operator or a time server would; the time since boot does not move.
    pub fn set_wall(&self, wall_ms: u64) {
        let simulated = self.0.get();
        let wall_ms = wall_ms.saturating_sub(simulated.elapsed().as_millis() as u64);
        self.0.set(Simulated { wall_ms, ..simulated });
        self.enter();
    }

    /// This thread's time is this one from now on: for a simulation of several machines, of which each has its own.
    pub fn enter(&self) {
        SIMULATED.set(Some(self.0.get()));
    }
}

impl fmt::Debug for SimulatedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedClock")
    }
}

impl Drop for SimulatedClock {
    fn drop(&mut self) {
        SIMULATED.set(None);
    }
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

    #[test]
    fn every_day_is_written_as_the_calendar_writes_it() {
        let end = 253_402_207_200_000; // the calendar's library knows no later time
        for ms in (0..end).step_by(86_400_000 - 3_723_004).chain([end - 1, u64::MAX]) {
            assert_eq!(rfc3339(ms), format!("{:.3}", at(ms)), "{ms}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_simulated_time_moves_only_with_the_runtime() {
        let simulated = simulate(1_000_000);
        let (clock, start) = (Clock::start(), now());
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!((clock.now_ms(), wall_ms()), (1_090_000, 1_090_000));
        assert_eq!((now() - start, since(start)), (Duration::from_secs(90), Duration::from_secs(90)));
        // The wall clock jumps a day ahead, and no lifetime notices.
        simulated.set_wall(87_490_000);
        assert_eq!((clock.now_ms(), wall_ms()), (1_090_000, 87_490_000));
        drop(simulated);
        assert!(wall_ms() > 1_700_000_000_000, "the machine's own date is back");
    }
}
