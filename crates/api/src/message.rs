//! Messages of a conversation.

use std::fmt;

use bowline_protocol::Seq;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Functions;

/// Who wrote a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person.
    User,
    /// The agent.
    Assistant,
}

/// One message of a conversation. The server keeps it beside the log until the session ends.
#[derive(Clone, Serialize, Deserialize)]
pub struct Message {
    /// Who wrote it.
    pub role: Role,
    /// Its text.
    pub content: String,
    /// When it was accepted, in Unix milliseconds.
    pub at_ms: u64,
    /// The id that its sender gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Set when the answer was cut short: by a cancel, a failure or a crash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// The event that began its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Seq>,
    /// What the agent is to keep to while it answers this message, beside what it is configured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// What its sender lets the agent call while it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub functions: Option<Functions>,
    /// What it consists of, if that is more than its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Value>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({:?}, {} bytes)", self.role, self.content.len())
    }
}
