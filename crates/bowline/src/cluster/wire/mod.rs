//! How a message travels between nodes: an envelope with a version, which every version can read, around a message, which
//! only those can read that know its version. The types here are the format: nothing else in the server is written by name.
//!
//! Version 0 is what nodes wrote before there were versions: a sender, a number and a message. Version 1 adds the
//! incarnations. All that version 0 knows is still written, so a node that knows nothing else can read it.

#![allow(missing_debug_implementations, reason = "they hold what people wrote, and are only written and read")]

mod functions;
mod message;
mod resume;
mod session;
mod task;

use bowline_core::node_exchange::MessageStamp;
use bowline_protocol::{Draft, Recorded};
use bowline_store::Holder;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use message::{NodeAnswer, NodeMessage, NodeStreamMessage, RemoteSender, TaskAsk};
pub use session::{SessionAsk, SessionMail};

/// The version that this node writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The name of the events of an inbox. It is stored, as `parcel` is, so both stay what they were.
const MESSAGE_EVENT: &str = "node.letter";

#[derive(Serialize)]
struct OutgoingEnvelope<'a> {
    version: u32,
    from: &'a str,
    incarnation: u64,
    to_incarnation: u64,
    since: u64,
    number: u64,
    read: u64,
    #[serde(rename = "parcel")]
    message: &'a NodeMessage,
}

#[derive(Deserialize)]
struct Incoming {
    #[serde(default)]
    version: u32,
    from: String,
    #[serde(default)]
    incarnation: u64,
    #[serde(default)]
    to_incarnation: u64,
    #[serde(default)]
    since: u64,
    number: u64,
    #[serde(default)]
    read: u64,
    #[serde(rename = "parcel")]
    message: Box<RawValue>,
}

/// What was read from an inbox.
#[derive(Debug)]
pub struct Envelope {
    pub from: Holder,
    pub stamp: MessageStamp,
    /// What it says, or why that cannot be read.
    pub message: Result<NodeMessage, String>,
}

pub fn write(from: &Holder, stamp: &MessageStamp, message: &NodeMessage) -> Draft {
    let &MessageStamp { incarnation, to_incarnation, since, number, read } = stamp;
    let from = from.as_str();
    Draft::new(
        MESSAGE_EVENT,
        &OutgoingEnvelope { version: VERSION, from, incarnation, to_incarnation, since, number, read, message },
    )
}

/// The envelope in an event of an inbox. None for what is none at all.
pub fn read(event: &Recorded) -> Option<Envelope> {
    let view = event.view().filter(|view| view.event == MESSAGE_EVENT)?;
    parse(view.content.get()).or_else(|| {
        tracing::error!("a message in this node's inbox is none that a node writes");
        None
    })
}

fn parse(text: &str) -> Option<Envelope> {
    let Incoming { version, from, incarnation, to_incarnation, since, number, read, message: raw } =
        serde_json::from_str(text).ok()?;
    let stamp = MessageStamp { incarnation, to_incarnation, since, number, read };
    let message = match version {
        0..=VERSION => serde_json::from_str(raw.get()).map_err(|error| format!("it cannot be read: {error}")),
        newer => Err(format!("it is of version {newer}, and this node reads up to {VERSION}: upgrade this node")),
    };
    Some(Envelope { from: Holder::parse(&from)?, stamp, message })
}

#[cfg(test)]
mod tests;
