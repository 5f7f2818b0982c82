//! The C library's randomness, made to follow from a seed.
//!
//! The standard library draws the keys of its hash maps, and tokio the order in which an unbiased `select!` looks at its
//! branches, from this one function. With this definition in the program, both repeat. Nothing here may ever protect
//! a secret, and so no other crate may depend on this one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dice::Dice;

static STATE: AtomicU64 = AtomicU64::new(1);

/// What the program draws from now on follows from this.
pub fn seed(seed: u64) {
    STATE.store(seed, Ordering::Relaxed);
}

/// Stands in for the function of the same name in libc.
///
/// # Safety
///
/// `buffer` must be valid for writes of `len` bytes, as for the original.
#[allow(unsafe_code, reason = "a symbol of the C library can be replaced in no other way")]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, len: usize, _flags: u32) -> isize {
    let mut dice = Dice::new(STATE.fetch_add(1, Ordering::Relaxed));
    for at in 0..len {
        // SAFETY: the caller vouches for `len` bytes from `buffer` on.
        unsafe { buffer.add(at).write(dice.draw() as u8) };
    }
    len as isize
}
