//! The rules of Bowline, as machines without I/O: no async, no clock, no randomness, no sockets, no logging.
//!
//! A machine is given what happened (`handle_*`) and says what to do (`poll_*`, or a returned value); a driver waits. Time and
//! randomness are arguments.
//!
//! # Sessions and their clients
//!
//! | module | decides |
//! |---|---|
//! | [`resume`] | what a client that reconnects with a cursor is owed: the same five verdicts for a session, a turn and a task |
//! | [`link`] | what one attached client is sent next: replay, then a notice, then live events |
//! | [`hold`] | which connection may write to a session |
//! | [`turn`] | the life of a session's runs, one at a time, each ended once |
//! | [`resume_token`] | which resume tokens are good |
//! | [`heartbeat`] | when a connection is lost to silence |
//! | [`watch`], [`dialect`] | which outputs one reader of a turn or task gets, in the form of the AI SDK or of the Responses API |
//! | [`seal`], [`used_states`], [`shorten`], [`scrub`], [`canonical`] | signed states: how they are sealed and opened, used once, shortened, cleared of secrets, and written as one canonical text |
//!
//! # MCP servers
//!
//! | module | decides |
//! |---|---|
//! | [`backend`] | when a server is dialled, and what becomes of each call: sent, kept for a reconnect, sent again, or ended as unknown |
//! | [`attribution`] | which call or client a server's message is for, where several share a connection |
//! | [`upstream_session`] | when a session over HTTP is made and given up, when a call is sent, sent later or again, and whether it may have run |
//! | [`process_pool`] | which client has which process of a program that may run several times |
//! | [`health`], [`listing`] | when a server is pinged, and when its lists are fetched again |
//!
//! # Nodes, and what all use
//!
//! | module | decides |
//! |---|---|
//! | [`peers`] | which other nodes are alive |
//! | [`node_exchange`] | which messages between nodes are new, repeated, lost, or for an earlier incarnation |
//! | [`backoff`], [`bucket`] | how long to wait before the next attempt; how much is allowed per second |

pub mod attribution;
pub mod backend;
pub mod backoff;
pub mod bucket;
pub mod canonical;
pub mod dialect;
pub mod health;
pub mod heartbeat;
pub mod hold;
pub mod link;
pub mod listing;
pub mod node_exchange;
pub mod peers;
pub mod process_pool;
pub mod resume;
pub mod resume_token;
pub mod scrub;
pub mod seal;
pub mod shorten;
pub mod turn;
pub mod upstream_session;
pub mod used_states;
pub mod watch;

pub use backend::BackendMachine;
pub use backoff::Backoff;
pub use bucket::Bucket;
pub use health::HealthCheck;
pub use heartbeat::Heartbeat;
pub use hold::Hold;
pub use link::Link;
pub use listing::Listing;
pub use node_exchange::NodeExchange;
pub use peers::Peers;
pub use resume::Resume;
pub use scrub::Scrubber;
pub use seal::{Keyring, SealKey, SealRefusal};
pub use turn::Turn;
