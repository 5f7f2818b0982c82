//! Randomness from the operating system: ids, epochs, secrets, jitter.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::marker::PhantomData;

/// 64 random bits. If the operating system has none to give, nothing secure can go on, so the process ends.
#[allow(clippy::expect_used, clippy::disallowed_methods, reason = "this is the one place that asks for randomness")]
pub fn u64() -> u64 {
    seeded().unwrap_or_else(|| getrandom::u64().expect("the operating system's random source works"))
}

pub fn u128() -> u128 {
    u128::from(u64()) << 64 | u128::from(u64())
}

/// A secret of 256 bits, as text.
pub fn secret() -> String {
    format!("{:032x}{:032x}", u128(), u128())
}

/// Random bytes, for keys and nonces.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    for piece in bytes.chunks_mut(8) {
        piece.copy_from_slice(&u64().to_le_bytes()[..piece.len()]);
    }
    bytes
}

/// Uniform in 0..1, for jitter. Some callers ask with every request, so it costs no system call: the keys of the standard
/// library's hashers are random once and differ each time.
pub fn chance() -> f64 {
    let bits = seeded().unwrap_or_else(|| RandomState::new().build_hasher().finish());
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

thread_local! {
    static SEEDED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The next number of this thread's seed, if it has one (SplitMix64, by Steele, Lea and Flood).
fn seeded() -> Option<u64> {
    let state = SEEDED.get()?.wrapping_add(0x9E37_79B9_7F4A_7C15);
    SEEDED.set(Some(state));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    Some(mixed ^ (mixed >> 31))
}

/// While it lives, all randomness of this thread follows from its seed: for simulations, never for secrets.
#[derive(Debug)]
pub struct Seeded(PhantomData<*const ()>);

pub fn seed(seed: u64) -> Seeded {
    SEEDED.set(Some(seed));
    Seeded(PhantomData)
}

impl Drop for Seeded {
    fn drop(&mut self) {
        SEEDED.set(None);
    }
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

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_no_seed_gives_others() {
        let draw = || (u128(), bytes::<13>(), chance().to_bits(), secret());
        let seeded = |number| {
            let _seed = seed(number);
            draw()
        };
        assert_eq!(seeded(7), seeded(7));
        assert_ne!(seeded(7), seeded(8));
        assert_ne!(draw(), draw());
    }
}
