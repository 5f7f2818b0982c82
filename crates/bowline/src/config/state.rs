//! The settings of signed state: what clients take with them, and for how long it is good.

use std::time::Duration;

use bowline_core::seal::{Key, OpenLimits};
use bowline_core::shorten::StateLimits;

use super::{HOUR, Limits};

#[derive(Clone, Debug)]
pub struct StateConfig {
    pub ttl: Duration,
    /// Clients get a token that only this server can read.
    pub encrypt: bool,
    /// A state, or an older one of the same session, can be restored only once.
    pub single_use: bool,
    pub messages_max: usize,
    pub bytes_max: usize,
    /// Newest first. When empty, the server makes one and keeps it.
    pub keys: Vec<Key>,
    /// Names of keys whose values are scrubbed, besides the well-known ones.
    pub scrub: Vec<String>,
    /// The least time between two checkpoints while a run goes on.
    pub checkpoint_interval: Duration,
    /// What an agent may keep of its own.
    pub agent_state_bytes_max: usize,
    /// Tools that a state names.
    pub tools_max: usize,
}

/// How far the clocks of those who seal and open may be apart.
const FUTURE_SECONDS: u64 = 60;

impl StateConfig {
    /// What an export may hold.
    pub fn limits(&self) -> StateLimits {
        StateLimits { messages_max: self.messages_max, bytes_max: self.bytes_max }
    }

    /// What is looked at when a state comes back.
    pub fn open_limits(&self, limits: &Limits) -> OpenLimits {
        OpenLimits {
            bytes_max: self.bytes_max,
            depth_max: limits.json_depth_max,
            ttl_seconds: self.ttl.as_secs(),
            future_seconds: FUTURE_SECONDS,
        }
    }
}

impl Default for StateConfig {
    fn default() -> StateConfig {
        StateConfig {
            ttl: 7 * 24 * HOUR,
            encrypt: false,
            single_use: false,
            messages_max: 100,
            bytes_max: 100_000,
            keys: Vec::new(),
            scrub: Vec::new(),
            checkpoint_interval: Duration::from_secs(30),
            agent_state_bytes_max: 16_384,
            tools_max: 64,
        }
    }
}
