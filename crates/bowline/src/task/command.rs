//! What may be asked of a task's actor.

use bowline_api::AgentError;
use bowline_core::dialect;
use bowline_protocol::{ErrorCode, ProducerId, Refusal, Seq};
use serde_json::Value;
use serde_json::value::RawValue;

use super::record::TaskRecord;
use crate::reply::Responder;

/// What is asked of a task.
#[derive(Debug)]
pub struct TaskCommand {
    pub ask: TaskRequest,
    /// How many nodes it came through.
    pub hops: u8,
}

#[derive(Debug)]
pub enum TaskRequest {
    Append(Append),
    End {
        ending: TaskClose,
        reply: Responder<Result<Box<EndedTask>, Refusal>>,
    },
    /// Its session may not have heard of its end yet; or its producer may be gone.
    Look,
    /// The store has lost what it had answered: does the last commit of this task still stand?
    Verify,
}

impl TaskCommand {
    pub fn new(ask: TaskRequest) -> TaskCommand {
        TaskCommand { ask, hops: 0 }
    }

    /// Answers the one who waits for an answer.
    pub fn refuse(self, refusal: &Refusal) {
        match self.ask {
            TaskRequest::Append(append) => append.reply.send(Err(refusal.clone())),
            TaskRequest::End { reply, .. } => reply.send(Err(refusal.clone())),
            TaskRequest::Look | TaskRequest::Verify => {}
        }
    }
}

/// Chunks of a producer, to be made durable.
pub struct Append {
    /// Which append of which producer this is; none if it does not say, and then a repetition is not noticed.
    pub place: Option<(ProducerId, u64)>,
    pub chunks: Vec<Box<RawValue>>,
    pub reply: Responder<Result<Appended, Refusal>>,
}

impl std::fmt::Debug for Append {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Append({} chunks)", self.chunks.len())
    }
}

/// The chunks are durable, now or since the first time they were sent.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The cursor after them.
    pub last_message_id: String,
}

/// How a task is to end.
#[derive(Clone)]
pub enum TaskClose {
    Completed { result: Option<Value>, finish: Option<Box<RawValue>> },
    Failed { code: ErrorCode, message: String, finish: Option<Box<RawValue>> },
    Cancelled { by: String, reason: Option<String>, finish: Option<Box<RawValue>> },
}

impl TaskClose {
    pub fn failed(code: ErrorCode, message: impl Into<String>) -> TaskClose {
        TaskClose::Failed { code, message: message.into(), finish: None }
    }

    pub fn cancelled(by: impl Into<String>, reason: Option<String>) -> TaskClose {
        TaskClose::Cancelled { by: by.into(), reason, finish: None }
    }
}

/// A producer's own last word, which its readers get as it wrote it.
impl From<dialect::UpstreamEnd> for TaskClose {
    fn from(end: dialect::UpstreamEnd) -> TaskClose {
        let finish = Some(end.chunk);
        match end.ending {
            dialect::UpstreamEnding::Finished => TaskClose::Completed { result: None, finish },
            dialect::UpstreamEnding::Cancelled => {
                TaskClose::Cancelled { by: "producer".into(), reason: end.text, finish }
            }
            dialect::UpstreamEnding::Failed => TaskClose::Failed {
                code: ErrorCode::AgentFailed,
                message: end.text.unwrap_or_else(|| "The producer says that it failed.".into()),
                finish,
            },
        }
    }
}

impl From<AgentError> for TaskClose {
    fn from(error: AgentError) -> TaskClose {
        if error.cancelled {
            return TaskClose::cancelled("agent", Some(error.message));
        }
        TaskClose::failed(error.code, error.message)
    }
}

impl std::fmt::Debug for TaskClose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TaskClose::Completed { .. } => "Completed",
            TaskClose::Failed { .. } => "Failed",
            TaskClose::Cancelled { .. } => "Cancelled",
        })
    }
}

/// How the task stands after it was asked to end.
#[derive(Debug)]
pub struct EndedTask {
    /// Whether it is this request that ended it.
    pub by_this: bool,
    pub record: TaskRecord,
    pub last: Seq,
    pub last_message_id: String,
}
