//! Agents: what does the work. A run gets the conversation, a cancel signal and an emitter; how it ends is its result.

pub mod demo;
mod emitter;
pub mod http;
pub mod openai;
mod operation;
mod plan;
pub mod roster;
mod spoken;
mod tools;
mod trouble;
mod upstream;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_protocol::frame::PlanCommand;
use bowline_protocol::{ErrorCode, LoggedEvent, Principal, RunId, Seq, SessionId, StepId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use emitter::{Confirm, Delta, Emission, Emitter, Pending, Stopped};
pub use operation::Operation;
pub(crate) use spoken::ANSWER_LIMIT;
pub use tools::{NoTools, ToolCall, ToolOutcome, ToolSpec, Tools};

/// Something that can answer.
///
/// What an implementor owes:
/// - It emits through [`Run::emit`] and ends by returning. It never emits an ending itself, so there is exactly one.
/// - It stops soon after [`Run::cancel`] fires, or after an emission says [`Stopped`]. If it does not, it is dropped.
/// - It keeps what it needs after a question in [`Confirm::state`]: if the process dies while a person thinks,
///   [`answered`](Agent::answered) is all that is left of the run.
#[async_trait]
pub trait Agent: Send + Sync + 'static {
    /// Works on one input until it is answered.
    async fn run(&self, run: Run) -> Ending;

    /// A question was answered after the process that asked it had ended: go on from what was kept.
    async fn answered(&self, run: Run, asked: Asked, reply: Reply) -> Ending;

    /// The background operations that it offers to whoever asks for them.
    fn operations(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Does one piece of work in the background: one it offers, or one that it began itself in a run.
    async fn operate(&self, operation: Operation) -> Result<Value, AgentError> {
        Err(AgentError::failed(format!("This agent cannot do `{}` in the background.", operation.tool)))
    }

    /// Whether it plans, so that plan commands make sense.
    fn plans(&self) -> bool {
        false
    }

    /// Whether a run that was cut by a crash can go on: it is then run again, with what it had logged in [`Run::logged`].
    fn continues(&self) -> bool {
        false
    }
}

/// How a run ended. Cancelling is not an ending of the agent's: whoever cancels writes that.
pub type Ending = Result<Answer, AgentError>;

/// One execution of an agent.
#[derive(Debug)]
pub struct Run {
    pub session: SessionId,
    pub id: RunId,
    /// Whose session it is.
    pub owner: Principal,
    pub input: Input,
    /// The message that is to be answered, as it is kept: also what it holds besides text. None for plan commands.
    pub message: Option<Message>,
    /// The conversation before the input, oldest first.
    pub conversation: Vec<Message>,
    /// The last plan of this session, as the agent kept it.
    pub plan: Option<Value>,
    /// What the agent last kept with [`Emitter::save_state`].
    pub state: Option<Value>,
    /// `config` of the session, as its creator wrote it.
    pub config: Map<String, Value>,
    /// What this run had logged before a crash; empty on the first try.
    pub logged: Vec<LoggedEvent>,
    pub cancel: CancellationToken,
    pub emit: Emitter,
    /// What the client asks of a running plan.
    pub commands: mpsc::Receiver<PlanCommand>,
    /// What it may call.
    pub tools: Arc<dyn Tools>,
}

/// What a run is to work on. Kept beside the log, so that it is still known after a crash.
#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Input {
    Message { text: String },
    Replan { question: Option<String> },
    SolveTasks { tasks: Value },
    RestartTask { task_id: String },
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Message { text } => write!(f, "Message({} bytes)", text.len()),
            Input::Replan { .. } => f.write_str("Replan"),
            Input::SolveTasks { .. } => f.write_str("SolveTasks"),
            Input::RestartTask { .. } => f.write_str("RestartTask"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
}

/// One message of the conversation, kept beside the log until the session ends.
#[derive(Clone, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: String,
    pub at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Set when the answer was cut short: by a cancel, a failure or a crash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// The event that began its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Seq>,
    /// What it consists of, if that is more than its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Value>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({:?}, {} bytes)", self.role, self.content.len())
    }
}

/// A question that a run has put to a person, as it is kept beside the log.
#[derive(Clone, Serialize, Deserialize)]
pub struct Asked {
    pub step_id: StepId,
    #[serde(default)]
    pub question: Value,
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// What the agent wanted to know again when it is answered.
    pub state: Value,
    pub asked_ms: u64,
}

/// A person's answer to a question.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    pub confirmed: bool,
    /// The plan as the person edited it.
    pub tasks: Option<Value>,
    pub reason: Option<String>,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asked({})", self.step_id)
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply(confirmed: {})", self.confirmed)
    }
}

/// The whole answer of a run that succeeded.
#[derive(Clone, Default)]
pub struct Answer {
    pub text: String,
    pub usage: Option<Value>,
    pub model: Option<String>,
    /// What the agent adds to the metadata of its answer.
    pub metadata: Map<String, Value>,
    pub finish: Option<LastWord>,
}

/// How an upstream itself has said that it ended, kept word for word for those who speak its protocol.
#[derive(Clone)]
pub struct LastWord(pub Box<RawValue>);

impl fmt::Debug for LastWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LastWord({} bytes)", self.0.get().len())
    }
}

impl Answer {
    pub fn text(text: impl Into<String>) -> Answer {
        Answer { text: text.into(), ..Answer::default() }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({} bytes)", self.text.len())
    }
}

/// Why a run failed, for the log.
#[derive(Clone, Debug)]
pub struct AgentError {
    pub code: ErrorCode,
    pub message: String,
    pub stage: Option<String>,
    /// The agent itself wants the run to count as cancelled (its plan was cancelled, say).
    pub cancelled: bool,
    pub finish: Option<LastWord>,
}

impl AgentError {
    pub fn failed(message: impl Into<String>) -> AgentError {
        AgentError {
            code: ErrorCode::AgentFailed,
            message: message.into(),
            stage: None,
            cancelled: false,
            finish: None,
        }
    }

    /// Whatever does the agent's work could not be reached, or broke off.
    pub fn unreachable(message: impl Into<String>) -> AgentError {
        AgentError { code: ErrorCode::AgentUnreachable, ..AgentError::failed(message) }
    }

    pub fn cancelled(message: impl Into<String>) -> AgentError {
        AgentError { cancelled: true, ..AgentError::failed(message) }
    }
}

impl From<Stopped> for AgentError {
    fn from(_: Stopped) -> AgentError {
        AgentError::cancelled("stopped")
    }
}

impl Run {
    /// Waits, but not longer than the run lives.
    pub async fn pause(&self, time: std::time::Duration) -> Result<(), Stopped> {
        pause(&self.cancel, time).await
    }
}

async fn pause(cancel: &CancellationToken, time: std::time::Duration) -> Result<(), Stopped> {
    if time.is_zero() {
        return if cancel.is_cancelled() { Err(Stopped) } else { Ok(()) };
    }
    match tokio::time::timeout(time, cancel.cancelled()).await {
        Ok(()) => Err(Stopped),
        Err(_elapsed) => Ok(()),
    }
}
