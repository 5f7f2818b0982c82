//! Dates for people, and the chance of the hub's drivers. Lifetimes count on the node's `Clock`.

use std::hash::{BuildHasher, Hasher, RandomState};

pub use bowline_store::clock::wall_ms;
use jiff::Timestamp;

pub fn rfc3339(ms: u64) -> String {
    format!("{:.3}", at(ms))
}

/// The wall clock's time, for dates that others wrote.
pub fn wall() -> Timestamp {
    at(wall_ms())
}

fn at(ms: u64) -> Timestamp {
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default()
}

/// Uniform in 0..1, for jitter. Asked for with every call, so it costs no system call: the keys of the standard library's
/// hashers are random once and differ each time.
pub fn chance() -> f64 {
    let bits = (RandomState::new().build_hasher().finish() >> 32) as u32;
    f64::from(bits) / f64::from(u32::MAX)
}

/// 128 random bits. If the operating system has none to give, nothing secure can go on, so the process ends.
#[allow(clippy::expect_used)]
pub fn random_bits() -> u128 {
    let half = || u128::from(getrandom::u64().expect("the operating system's random source works"));
    half() << 64 | half()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_spread_evenly() {
        let mut tenths = [0_u32; 10];
        for _ in 0..10_000 {
            tenths[((chance() * 10.0) as usize).min(9)] += 1;
        }
        // Evenly would be 1000 each; the chance of 800 or 1200 is below one in a billion.
        assert!(tenths.iter().all(|count| (800..1200).contains(count)), "{tenths:?}");
    }
}
