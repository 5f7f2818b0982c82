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
mod exposed;
mod faces;
mod headers;
mod hosted;
mod life;
#[path = "../../../store/tests/it/limit.rs"]
mod limit;
mod oldest;
mod outages;
mod outcomes;
mod programs;
mod questions;
mod removal;
mod restart;
mod safety;
mod seats;
mod seats_trouble;
mod stdio;
mod streams;
mod support;
mod survival;
mod tasked;
mod tasks;
mod tools;
mod unread;
