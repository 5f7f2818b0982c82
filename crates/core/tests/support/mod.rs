//! What several tests of the projection share.
#![allow(dead_code, reason = "no test uses all of it")]

pub mod log;
pub mod noise;
pub mod parser;
pub mod readers;
pub mod story;
