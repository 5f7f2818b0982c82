//! The tests of the stores, in memory, on disk and on Redis.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print"
)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node")]

mod common;
mod contract;
mod crash_states;
mod disk_damage;
mod disk_faults;
mod disk_kill;
mod disk_model;
mod disk_space;
mod limit;
mod model;
mod real_redis;
mod redis_cached;
mod redis_contract;
mod redis_faults;
mod redis_model;
mod redis_nodes;
