//! The time and chance of the hub's drivers.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

pub fn rfc3339(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default();
    format!("{time:.3}")
}

/// Uniform in 0..1, for jitter. Without randomness the middle will do.
pub fn chance() -> f64 {
    getrandom::u32().map_or(0.5, |bits| f64::from(bits) / f64::from(u32::MAX))
}

/// 128 random bits. If the operating system has none to give, nothing secure can go on, so the process ends.
#[allow(clippy::expect_used)]
pub fn random_bits() -> u128 {
    let half = || u128::from(getrandom::u64().expect("the operating system's random source works"));
    half() << 64 | half()
}
