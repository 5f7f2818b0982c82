//! What a node says of itself in its record: that it is alive, and what operators want to see of it from elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Grows with every heartbeat.
    pub beat: u64,
    /// It said goodbye.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// The version of the server.
    pub version: String,
    /// Which incarnation of the node it is. Zero from a node that knows none.
    #[serde(default)]
    pub incarnation: u64,
    /// The newest version of messages that it reads.
    #[serde(default)]
    pub wire: u32,
    pub address: String,
    pub started_ms: u64,
    /// Its MCP backends, as it sees them.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub backends: Value,
}
