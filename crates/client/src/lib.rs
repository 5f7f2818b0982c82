//! The Rust client of Bowline.
//!
//! A [`Client`] talks to one session over a WebSocket and survives lost connections: it comes back by itself, gets exactly
//! the events that it missed, and sends again what the server may not have got. Each event comes once and in order; what
//! cannot come is reported before any later event ([`LinkEvent::Gap`], [`LinkEvent::Reset`]).
//!
//! ```no_run
//! use bowline_client::{Address, AttachTarget, Client, LinkConfig, LinkEvent};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let address = Address::parse("ws://127.0.0.1:8080/ws")?;
//! let mut client = Client::new(address, None, LinkConfig::new("my-program"));
//! client.start(AttachTarget::New);
//! client.message("m-1", "/long 20 50");
//! while let Some(event) = client.next().await {
//!     match event {
//!         LinkEvent::Logged(event) if event.event == "agent.partial_answer" => print!("{}", event.text()),
//!         LinkEvent::Logged(event) if event.event == "agent.final_answer" => break,
//!         LinkEvent::Lost { reason, attempt, .. } => eprintln!("{reason}; attempt {attempt}"),
//!         LinkEvent::Failed { refusal, .. } => return Err(refusal.into()),
//!         LinkEvent::Stopped(cause) => return Err(format!("{cause:?}").into()),
//!         _ => {}
//!     }
//! }
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # To come back in another process
//!
//! Keep [`ClientLink::session`], [`ClientLink::cursor`] and [`ClientLink::resume_token`], and start with [`AttachTarget::Session`]. With the same
//! [`LinkConfig::client_id`] the server knows that it is the same client, and does not make it wait for its old
//! connection. To come back to a server that has lost the session, keep a signed state
//! ([`ClientRequest::RequestState`], or [`LinkEvent::Checkpoint`] with `config: {"checkpoints": true}`) and start with
//! [`AttachTarget::State`].
//!
//! # What is where
//!
//! | to | use |
//! |---|---|
//! | send a message, reply to a question, cancel | [`Client::message`], [`Client::respond`], [`Client::cancel`]; the answers are [`LinkEvent::Done`] and [`LinkEvent::Failed`] |
//! | read a session that another client holds | [`SessionTarget::observe`] |
//! | take it over | [`LinkEvent::Held`], then [`ClientLink::take_over`] |
//! | watch a turn or a task as chunks | [`Client::watch`] |
//! | call HTTP endpoints | [`HttpClient`] |
//! | follow a log over the admin API | [`EventFollower`] |
//! | use another runtime, or none | [`ClientLink`], which has no I/O |
//!
//! [`ClientLink`] decides and [`Client`] waits: the link is a machine without socket, clock or randomness, and everything that
//! `conformance/` demands of a client is tested against it alone.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node"))]
#![warn(missing_docs)]

mod address;
mod client;
mod follow;
mod frame;
mod http_client;
mod link;
mod request;
mod socket;

pub use address::{Address, AddressError, DEFAULT_HTTP, DEFAULT_WS, segment};
pub use client::{Client, Tap};
pub use follow::{EventFollower, FollowEvent};
pub use frame::ServerFrame;
pub use http_client::{EventStream, HttpClient, HttpError, StreamEvent};
pub use link::{
    ACK_EVERY, AttachTarget, AttachedSession, BACKOFF, ClientLink, GapCause, LinkConfig, LinkEvent, LinkOutput,
    LinkStats, Moment, ResetCause, SessionTarget, StopCause, WhenGone, WhenHeld,
};
pub use request::{ClientRequest, RequestId, RequestOutcome};
