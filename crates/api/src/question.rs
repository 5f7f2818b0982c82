//! Questions that a run asks a person, and their replies.

use std::fmt;

use bowline_protocol::StepId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::Stopped;

/// A question for a person.
#[derive(Clone)]
pub struct Confirm {
    /// What the person reads.
    pub question: String,
    /// What it is about: `tool`, `plan` or `custom`.
    pub scope: &'static str,
    /// The tool that would be called.
    pub tool_name: Option<String>,
    /// The arguments that it would be called with.
    pub tool_args: Option<Value>,
    /// The plan that would be followed, in a sentence.
    pub plan_summary: Option<String>,
    /// The tasks of that plan, which the person may edit.
    pub tasks: Option<Value>,
    /// For how long the question makes sense. A hint for clients; the server waits until the session ends.
    pub timeout_seconds: Option<u64>,
    /// What the agent needs to go on if this process is gone when the reply comes.
    pub state: Value,
}

impl Confirm {
    /// A question about anything, and the state to go on from.
    pub fn custom(question: impl Into<String>, state: Value) -> Confirm {
        Confirm {
            question: question.into(),
            scope: "custom",
            tool_name: None,
            tool_args: None,
            plan_summary: None,
            tasks: None,
            timeout_seconds: None,
            state,
        }
    }
}

impl fmt::Debug for Confirm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Confirm({}, {} bytes)", self.scope, self.question.len())
    }
}

/// A question that waits for its reply, as the server stores it beside the log.
#[derive(Clone, Serialize, Deserialize)]
pub struct OpenQuestion {
    /// The step that pairs the question with its reply.
    pub step_id: StepId,
    /// The question as it was logged.
    #[serde(default)]
    pub question: Value,
    /// The metadata of that event.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// What the agent put into [`Confirm::state`].
    pub state: Value,
    /// When it was asked, in Unix milliseconds.
    pub asked_ms: u64,
}

impl fmt::Debug for OpenQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenQuestion({})", self.step_id)
    }
}

/// A person's reply to a question.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether the person agreed.
    pub confirmed: bool,
    /// The tasks as the person edited them.
    pub tasks: Option<Value>,
    /// Why, in the person's words.
    pub reason: Option<String>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply(confirmed: {})", self.confirmed)
    }
}

/// A question that was asked and is not replied to yet.
#[derive(Debug)]
pub struct PendingReply {
    /// The step of the question.
    pub step: StepId,
    pub(crate) reply: oneshot::Receiver<Reply>,
}

impl PendingReply {
    /// Waits for the person. Connections may come and go meanwhile.
    pub async fn reply(self) -> Result<Reply, Stopped> {
        self.reply.await.map_err(|_gone| Stopped)
    }
}
