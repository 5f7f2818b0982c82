//! The server: endpoints, drivers, agents, settings, metrics and the command line around the machines of `bowline-core`.
//!
//! # What happens where
//!
//! | module | does |
//! |---|---|
//! | [`http`] | the endpoints, one file each; `http/openapi` describes them |
//! | [`connection`] | one WebSocket connection: its requests, its attachments, what waits to be sent |
//! | [`session`] | sessions: the record, the actor that alone changes it, attach, restore, runs |
//! | [`task`] | background operations and what producers push, each with a log of its own |
//! | [`stream`], [`live_streams`] | readers of a turn or task, and what those that have caught up share |
//! | [`logs`] | commits and reads, measured; which node writes a log |
//! | [`cluster`] | other nodes on the same store |
//! | [`agent`], `agent_host` | the built-in agents, and the server as an agent sees it |
//! | [`hub`] | the MCP hub inside this server |
//! | [`drive`] | the loops that wait for several things at once |
//!
//! # What surrounds it
//!
//! | module | does |
//! |---|---|
//! | [`config`] | settings: the table with names and defaults is `config/table` |
//! | [`auth`], `origin`, [`tls`] | credentials, origins and hosts of web pages, certificates |
//! | [`secret`], [`keys`], `live_keyring` | resume tokens; the keys that sign states, and the keyring that is in use |
//! | [`metrics`], `resume_metrics` | everything that is counted; reconnects among it |
//! | [`node`], [`lifecycle`], `readiness`, `maintenance`, [`tombstones`], `format` | start, recovery, sweeps, drain and stop; what is kept of what has ended; the version of what is stored |
//! | `alias`, `decode`, `refusals`, `reply`, `woken` | names that clients choose; reading records back; refusals with one wording; the way back for an answer; asking a stream only when it has woken |
//! | [`cli`] | the command line |
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node"))]

pub mod agent;
mod agent_host;
mod alias;
pub mod auth;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod connection;
mod decode;
pub mod drive;
mod format;
pub mod http;
pub mod hub;
pub mod keys;
pub mod lifecycle;
mod live_keyring;
pub mod live_streams;
pub mod logs;
mod maintenance;
pub mod metrics;
pub mod node;
mod origin;
mod readiness;
mod refusals;
mod reply;
mod resume_metrics;
mod schema;
pub mod secret;
pub mod session;
pub mod stream;
pub mod task;
pub mod tls;
pub mod tombstones;
mod woken;
