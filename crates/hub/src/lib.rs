//! The MCP hub: one endpoint in front of many MCP servers, which never lies about them and never gives up on them.
//!
//! JSON is carried through as it is: only what must be looked at is parsed, and unknown fields survive.

pub mod agent;
pub mod backend;
pub mod catalogue;
mod clock;
pub mod counts;
mod desk;
mod drive;
pub mod era;
pub mod fields;
pub mod file;
mod forced_reconnects;
pub mod front;
mod guard;
pub mod hub;
mod lines;
pub mod link;
mod memory;
pub mod message;
mod mirrored;
pub mod neighbours;
pub mod outcome;
mod parked;
pub mod pending;
mod requester;
mod seal;
mod secrets;
mod servers;
pub mod session;
pub mod sessions;
pub mod skim;
pub mod spec;
pub mod sse;
pub mod standing;
mod task_names;
mod tasks;
mod tools;
mod users;

pub use backend::{Backend, BackendEvent};
pub use era::Era;
pub use fields::{Fields, Raw};
pub use front::carried::serve as serve_neighbour;
pub use hub::{AddError, Expose, Hub, Observer, Options, Prefix, RemoveError};
pub use requester::{Requester, Role};
pub use session::Route;
pub use spec::{ServerSpec, Target};
