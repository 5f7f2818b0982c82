//! Signed state on the wire: what a client is given to keep of a session, and the object that seals it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::{Epoch, MessageId, Seq, SessionId, StepId};

/// The version that is written. A state of another one is refused, once its signature is known to be ours.
pub const VERSION: &str = "1.0";

/// Everything that a session needs to go on where nothing is left of it.
///
/// Fields that are not known here are ignored, and those that may be missing have a default: an export may leave memory,
/// plan or work out.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub session_id: SessionId,
    pub epoch: Epoch,
    pub last_seq: Seq,
    #[serde(default)]
    pub current_step: u64,
    #[serde(default)]
    pub stage: Option<String>,
    /// What the agent itself keeps, as it wrote it.
    #[serde(default)]
    pub agent_state: Value,
    /// RFC 3339, as in frames.
    pub created_at: String,
    pub last_active_at: String,
    #[serde(default)]
    pub plan_context: Value,
    #[serde(default)]
    pub current_task: Value,
    #[serde(default)]
    pub completed_tasks: Vec<Value>,
    /// Oldest first. A client may read it offline.
    #[serde(default)]
    pub memory_snapshot: Vec<MemoryMessage>,
    /// Configuration of tools, never their run-time state.
    #[serde(default)]
    pub tool_states: Map<String, Value>,
    #[serde(default)]
    pub pending_confirmations: Vec<PendingConfirmation>,
    pub metadata: StateMetadata,
}

/// One message of the conversation. `role` and `content` are for everyone; the rest is for the server that restores.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryMessage {
    pub role: String,
    pub content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// A secret in `content` was replaced by a mark, which a restore takes out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
}

/// A question that is not answered yet, with what its agent wants back when it is.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingConfirmation {
    pub step_id: StepId,
    #[serde(default)]
    pub question: Value,
    #[serde(default)]
    pub metadata: Map<String, Value>,
    #[serde(default)]
    pub state: Value,
    #[serde(default)]
    pub asked_ms: u64,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct StateMetadata {
    pub agent_name: String,
    /// `config` of the session, as its creator wrote it, without its secrets.
    #[serde(default)]
    pub agent_config: Map<String, Value>,
    /// `idle`, `running` or `waiting` when it was exported.
    pub session_state: String,
    /// What this session and all that were restored from it have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<SessionId>,
    /// The id that the session had before it was restored last: whatever was exported under that one is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<SessionId>,
    /// Where secrets were replaced by a mark, as JSON Pointers into the state; messages say so themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<String>,
}

/// The object form. Nothing may be added to it: a field that is not signed could be mistaken for one that is.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedState {
    /// A [`State`], once the signature was checked.
    pub state: Value,
    /// Unix seconds.
    #[serde(deserialize_with = "whole")]
    pub timestamp: u64,
    pub version: String,
    pub key_id: String,
    /// SHA-256 of the canonical state, in lower-case hex: tells damage, proves nothing.
    pub checksum: String,
    /// HMAC-SHA256, in lower-case hex.
    pub signature: String,
}

/// A whole number, also as some languages write it: `1.0`, `1e0`. Its value is what is signed.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = serde_json::Number::deserialize(deserializer)?;
    let exact = |float: &f64| (0.0..2f64.powi(53)).contains(float) && float.fract() == 0.0;
    let whole = number.as_u64().or_else(|| number.as_f64().filter(exact).map(|float| float as u64));
    whole.ok_or_else(|| serde::de::Error::custom("must be a whole number from 0"))
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (messages, questions) = (self.memory_snapshot.len(), self.pending_confirmations.len());
        write!(f, "State({}, {messages} messages, {questions} questions)", self.session_id)
    }
}

impl fmt::Debug for MemoryMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryMessage({} bytes)", self.content.len())
    }
}

impl fmt::Debug for PendingConfirmation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingConfirmation({})", self.step_id)
    }
}

impl fmt::Debug for StateMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateMetadata({}, {} settings)", self.agent_name, self.agent_config.len())
    }
}

impl fmt::Debug for SignedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignedState(by {} at {})", self.key_id, self.timestamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn least() -> Value {
        json!({
            "session_id": "sess_1", "epoch": "e1", "last_seq": 7,
            "created_at": "2026-01-01T00:00:00Z", "last_active_at": "2026-01-02T00:00:00Z",
            "metadata": { "agent_name": "demo", "session_state": "idle" },
        })
    }

    #[test]
    fn what_an_export_may_leave_out_may_be_missing() {
        let state: State = serde_json::from_value(least()).unwrap();
        assert!(state.memory_snapshot.is_empty() && state.plan_context.is_null());
        for field in ["session_id", "epoch", "last_seq", "created_at", "last_active_at", "metadata"] {
            let mut without = least();
            without.as_object_mut().unwrap().remove(field);
            assert!(serde_json::from_value::<State>(without).is_err(), "{field}");
        }
    }

    #[test]
    fn every_field_of_the_contract_is_written() {
        let state: State = serde_json::from_value(least()).unwrap();
        let written = serde_json::to_value(&state).unwrap();
        for field in [
            "session_id",
            "epoch",
            "last_seq",
            "current_step",
            "stage",
            "agent_state",
            "created_at",
            "last_active_at",
            "plan_context",
            "current_task",
            "completed_tasks",
            "memory_snapshot",
            "tool_states",
            "pending_confirmations",
            "metadata",
        ] {
            assert!(written.get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn a_debug_line_shows_nothing_that_people_wrote() {
        let mut state: State = serde_json::from_value(least()).unwrap();
        let message = json!({ "role": "user", "content": "my diary" });
        state.memory_snapshot.push(serde_json::from_value(message).unwrap());
        let shown = format!("{state:?} {:?} {:?}", state.memory_snapshot, state.metadata);
        assert!(!shown.contains("diary"), "{shown}");
    }

    #[test]
    fn an_envelope_with_a_field_that_is_not_signed_is_no_envelope() {
        let mut envelope =
            json!({ "state": {}, "timestamp": 1, "version": "1.0", "key_id": "k", "checksum": "", "signature": "" });
        assert!(serde_json::from_value::<SignedState>(envelope.clone()).is_ok());
        envelope["admin"] = json!(true);
        assert!(serde_json::from_value::<SignedState>(envelope).is_err());
    }
}
