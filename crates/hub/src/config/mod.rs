//! How servers are configured: what is written of one, which of that is secret, and the file that names them.

pub mod file;
pub mod key;
pub mod options;
pub(crate) mod secrets;
pub mod spec;
