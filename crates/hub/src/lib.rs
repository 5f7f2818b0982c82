//! The MCP hub: one endpoint in front of many MCP servers, which never lies about them and never gives up on them.
//!
//! JSON is carried through as it is: only what must be looked at is parsed, and unknown fields survive.
//!
//! # A tool call, file by file
//!
//! ```text
//! a client
//!    │  POST /mcp                                    or a line on stdin
//!    ▼
//! downstream/streamable_http                         downstream/stdio
//!    │  with a session, or without?
//!    ├─ downstream/session_http      with a session: the answer is in its log (session/), and outlives the wire
//!    └─ downstream/stateless_http    without one: closing the response cancels; questions travel in results (downstream/stateless)
//!    ▼
//! downstream/one_server, downstream/all_servers      one server as it is, or all as one; tools/ are the hub's own
//!    ▼
//! relay/routing                                      whose tool is it, and what is it called there?
//!    ▼
//! relay/call                                         counts it, makes it, repeats it if the server asks for input
//!    ▼
//! backend/call ── backend/dispatcher                 core::backend decides: send, wait for a reconnect, send again, give up
//!    ▼
//! upstream/streamable_http  upstream/http_sse  upstream/process_pool → upstream/stdio
//!    │  was it sent? is the session still known? streamable_http/doubt, outgoing
//!    ▼
//! the server
//! ```
//!
//! What a server says meanwhile comes back over the call's `InboundSink` ([`call`]): `core::attribution` decides whose it is. Questions (elicitation,
//! sampling) wait in `session/elicitation`, or in `call/suspended` for clients without sessions. A call that takes long goes on in
//! `relay/task`. Modules import each other one way, down the picture; between `relay` and [`backend`] stand [`hub`] (all servers and
//! clients, and who may see what), [`session`], `tasks` and `registry`. All share the types in [`call`], [`config`] and [`message`].
//!
//! The codecs in [`revision`] know the revisions of the protocol; they are used where messages enter (`downstream`) and leave (`upstream`). Between
//! the two a request has one form ([`call::BackendCall`]), and what decides is how the two sides exchange messages ([`Exchange`]).
//!
//! Around these: [`agent`] is what agents inside the server call, [`catalogue`] the lists of a server as they were last seen, `lifecycle` the
//! start and the end of the hub, [`peers`] the other nodes, `requester` who asks, `seal` what clients bring back. [`fields`], [`sse`],
//! `lines` and `scan` read JSON, Server-Sent Events and lines of limited length.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node"))]

pub mod agent;
pub mod backend;
pub mod call;
pub mod catalogue;
pub mod config;
pub mod downstream;
pub mod fields;
pub mod hub;
mod lifecycle;
mod lines;
pub mod message;
pub mod peers;
mod registry;
mod relay;
mod requester;
pub mod revision;
mod scan;
mod seal;
pub mod session;
pub mod sse;
mod tasks;
mod tools;
pub mod upstream;

pub use backend::observer::Observer;
pub use backend::{Backend, BackendEvent};
pub use call::{Exchange, outcome};
pub use config::file;
pub use config::options::{Expose, Options, Prefix};
pub use config::spec::{Reach, ServerSpec, Target, check_address};
pub use downstream::peers::serve as serve_neighbour;
pub use fields::{Fields, Raw};
pub use hub::file_watch;
pub use hub::{AddError, Hub, RemoveError};
pub use requester::{Requester, RequesterRole};
pub use session::Route;
pub use upstream::address_guard::client as guarded_client;
