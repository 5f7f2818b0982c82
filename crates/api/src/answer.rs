//! How a run ends.

use std::fmt;

use bowline_protocol::ErrorCode;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// How a run ended. A cancel by a client is not among it: the server writes that ending.
pub type RunResult = Result<Answer, AgentError>;

/// The whole answer of a run that succeeded.
#[derive(Clone, Default)]
pub struct Answer {
    /// The text: all pieces that were emitted, joined.
    pub text: String,
    /// What it cost, in the words of the model's provider.
    pub usage: Option<Value>,
    /// The model that wrote it.
    pub model: Option<String>,
    /// What the agent adds to the metadata of its answer.
    pub metadata: Map<String, Value>,
    /// The upstream's own last record, for readers that speak its protocol.
    pub finish: Option<UpstreamFinish>,
}

impl Answer {
    /// An answer that is text and nothing else.
    pub fn text(text: impl Into<String>) -> Answer {
        Answer { text: text.into(), ..Answer::default() }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({} bytes)", self.text.len())
    }
}

/// The record with which an upstream ended its stream, word for word.
#[derive(Clone)]
pub struct UpstreamFinish(pub Box<RawValue>);

impl fmt::Debug for UpstreamFinish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpstreamFinish({} bytes)", self.0.get().len())
    }
}

/// Why a run failed. Clients read the message.
#[derive(Clone, Debug)]
pub struct AgentError {
    /// The code that the log shows.
    pub code: ErrorCode,
    /// A sentence for people.
    pub message: String,
    /// What the agent was doing.
    pub stage: Option<String>,
    /// The run counts as cancelled instead of failed: because its plan was cancelled, for example.
    pub cancelled: bool,
    /// The upstream's own last record, for readers that speak its protocol.
    pub finish: Option<UpstreamFinish>,
}

impl AgentError {
    /// The agent could not do it.
    pub fn failed(message: impl Into<String>) -> AgentError {
        AgentError {
            code: ErrorCode::AgentFailed,
            message: message.into(),
            stage: None,
            cancelled: false,
            finish: None,
        }
    }

    /// A service that the agent needs could not be reached, or broke off.
    pub fn unreachable(message: impl Into<String>) -> AgentError {
        AgentError { code: ErrorCode::AgentUnreachable, ..AgentError::failed(message) }
    }

    /// The agent itself gave the run up.
    pub fn cancelled(message: impl Into<String>) -> AgentError {
        AgentError { cancelled: true, ..AgentError::failed(message) }
    }
}

/// The run was cancelled or is over: the server no longer takes what it emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl From<Stopped> for AgentError {
    fn from(_: Stopped) -> AgentError {
        AgentError::cancelled("stopped")
    }
}
