//! The wall clock's time as people and credentials need it. Lifetimes count on the steady [`Clock`] of the store.

use bowline_store::clock::wall_ms;
use jiff::Timestamp;

pub use bowline_store::Clock;

/// The wall clock's time as RFC 3339 in UTC, for frames.
pub fn timestamp() -> String {
    rfc3339(wall_ms())
}

/// The wall clock in Unix seconds, for credentials.
pub fn unix_seconds() -> u64 {
    wall_ms() / 1000
}

/// The same in milliseconds.
pub fn unix_ms() -> u64 {
    wall_ms()
}

/// A time kept in milliseconds, as RFC 3339 in UTC.
pub fn rfc3339(ms: u64) -> String {
    format!("{:.3}", at(ms))
}

/// A time kept in milliseconds, as HTTP writes it.
pub fn http_date(ms: u64) -> String {
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    // Only years above 9999 cannot be written.
    printer.timestamp_to_rfc9110_string(&at(ms)).unwrap_or_default()
}

/// The wall clock's time, for dates that others wrote.
pub fn wall() -> Timestamp {
    at(wall_ms())
}

fn at(ms: u64) -> Timestamp {
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default()
}
