//! What several tests of the projection share.
#![allow(dead_code, reason = "no test uses all of it")]

pub mod log;
