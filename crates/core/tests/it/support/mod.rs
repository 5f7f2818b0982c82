//! What several tests of the projection share.

pub mod log;
pub mod noise;
pub mod parser;
pub mod readers;
pub mod story;
pub mod written;
