//! The MCP hub: one endpoint in front of many MCP servers, which never lies about them and never gives up on them.
//!
//! JSON is carried through as it is: only what must be looked at is parsed, and unknown fields survive.

pub mod agent;
pub mod backend;
pub mod catalogue;
mod clock;
pub mod counts;
mod drive;
pub mod era;
pub mod fields;
pub mod file;
pub mod front;
mod guard;
pub mod hub;
pub mod link;
pub mod message;
mod mirrored;
pub mod neighbours;
pub mod outcome;
mod parked;
pub mod pending;
mod servers;
pub mod session;
pub mod sessions;
pub mod spec;
pub mod sse;
mod tasks;
mod tools;

pub use backend::{Backend, BackendEvent};
pub use era::Era;
pub use fields::{Fields, Raw};
pub use front::carried::serve as serve_neighbour;
pub use hub::{Expose, Hub, Observer, Options, Prefix};
pub use session::Route;
pub use spec::{ServerSpec, Target};
