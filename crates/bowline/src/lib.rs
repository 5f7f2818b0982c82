//! The hands of Bowline: doors, drivers, agents, settings, metrics and the command line around the machines.

pub mod auth;
pub mod cli;
pub mod config;
pub mod node;
