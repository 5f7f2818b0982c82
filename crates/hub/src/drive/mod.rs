//! The only places of the hub that wait for several things at once.

pub mod backend;
pub mod call;
pub mod conversation;
pub mod surviving;
pub mod task;
pub mod upstream;
