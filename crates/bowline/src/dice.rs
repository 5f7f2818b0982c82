//! Randomness from the operating system: ids, epochs, jitter.

/// 64 random bits. If the operating system has none to give, nothing secure can go on, so the process ends.
#[allow(clippy::expect_used)]
pub fn u64() -> u64 {
    getrandom::u64().expect("the operating system's random source works")
}

pub fn u128() -> u128 {
    u128::from(u64()) << 64 | u128::from(u64())
}

/// Uniform in 0..1.
pub fn chance() -> f64 {
    (u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A secret of 256 bits, as text.
pub fn secret() -> String {
    format!("{:032x}{:032x}", u128(), u128())
}

/// Random bytes, for keys and nonces.
#[allow(clippy::expect_used)]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system's random source works");
    bytes
}
