//! What a node takes from the machine it runs on: time, randomness, files and the network, each asked for in one place;
//! and the HTTP client and the TLS that go over that network.
//!
//! All other crates take these from here, and `clippy.toml` refuses the ways around it. So a whole node can be run in a
//! world of the caller's choice: [`clock::simulate`] and [`entropy::seed`] replace time and randomness for one thread,
//! which a node on a single-threaded runtime never leaves; [`timer`] waits for a deadline that moves; [`Env`] brings [`files`] and a network ([`net`]). [`http`] makes requests
//! over such a network, and [`tls`] chooses the cryptography once for the process.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node"))]

pub mod clock;
pub mod entropy;
pub mod files;
pub mod http;
pub mod net;
pub mod timer;
pub mod tls;

use std::sync::Arc;

pub use clock::Clock;
pub use files::Files;
pub use net::Network;

/// The files and the network of a node. By default they are the operating system's.
#[derive(Clone, Debug)]
pub struct Env {
    pub files: Arc<dyn Files>,
    pub network: Arc<dyn Network>,
}

impl Default for Env {
    fn default() -> Env {
        Env { files: Arc::new(files::OsFiles), network: Arc::new(net::OsNetwork) }
    }
}
