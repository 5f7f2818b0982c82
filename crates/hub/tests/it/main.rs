//! The hub's tests: a hub in this process, MCP servers in others, and clients that speak HTTP to it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print"
)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node")]

mod apart;
mod batches;
mod chain;
mod clients;
mod endings;
mod endpoints;
mod exposed;
mod headers;
mod hosted;
mod life;
#[path = "../../../store/tests/it/limit.rs"]
mod limit;
mod oldest;
mod outages;
mod outcomes;
mod process_pool;
mod process_pool_outages;
mod programs;
mod questions;
mod removal;
mod restart;
mod safety;
mod stdio;
mod streams;
mod support;
mod survival;
mod tasked;
mod tasks;
mod tools;
mod unread;
