//! What a node takes from the machine it runs on: time and randomness, each asked for in one place; and the one choice of
//! cryptography for TLS.
//!
//! All other crates take these from here, and `clippy.toml` refuses the ways around it. So a whole node can be run with a
//! time and a randomness of the caller's choice: [`clock::simulate`] and [`entropy::seed`] replace them for one thread,
//! and a node on a single-threaded runtime never leaves that thread.

pub mod clock;
pub mod entropy;
pub mod tls;

pub use clock::Clock;
