//! The end-to-end tests: a server in this process or in one of its own, and clients that speak to it over sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print"
)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node")]

mod agent_http;
mod agent_openai;
mod background;
mod cli;
mod client_flows;
mod clock;
mod crash;
mod credentials;
mod deploy;
mod docs;
mod edges;
mod frames;
mod given_world;
mod hub;
mod jwks;
mod lifetimes;
#[path = "../../../store/tests/it/limit.rs"]
mod limit;
mod memory;
mod nodes;
mod nodes_faults;
mod nodes_hub;
mod nodes_leave;
mod nodes_scene;
mod openapi;
mod own_agent;
mod ownership;
mod page;
mod producers;
#[allow(dead_code, reason = "the tests of the store use all of it")]
#[path = "../../../store/tests/it/real_redis.rs"]
mod real_redis;
mod reconnect;
mod redis;
mod responses;
mod scenarios;
mod sessions;
mod state;
mod state_again;
mod state_cli;
mod state_kept;
mod state_node;
mod support;
mod tasks;
mod tidy;
mod tls;
mod trimmed;
mod types;
mod websocket;
