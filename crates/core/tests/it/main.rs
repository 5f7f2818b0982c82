//! The tests of the machines and projections from outside, many of them over random histories.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print"
)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node")]

mod attribution_any_order;
mod backend_any_order;
mod cut_anywhere;
mod cut_projection;
mod dialect;
mod import;
mod kept;
mod live;
mod process_pool_any_order;
mod projection;
mod real_parsers;
mod responses;
mod scenarios;
mod seal;
mod support;
mod trimmed;
mod upstream_session_any_order;
mod watch;
