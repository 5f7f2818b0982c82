//! The hands of Bowline: doors, drivers, agents, settings, metrics and the command line around the machines.

pub mod agent;
mod alias;
pub mod auth;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod connection;
mod decode;
pub mod dice;
pub mod drive;
mod format;
pub mod http;
pub mod hub;
pub mod keys;
pub mod metrics;
pub mod node;
mod reply;
mod returning;
mod ring;
pub mod session;
pub mod stream;
pub mod task;
pub mod tls;
pub mod tombstones;
mod upkeep;
