//! How a task stands, on its way from the node that has it to the one that asked.

use bowline_core::resume_token::ResumeToken;
use bowline_protocol::{OperationId, SessionId, StepId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::task::TaskRecord;
use crate::task::record::Worker;
use crate::task::status::{Status, TurnError};

#[derive(Serialize, Deserialize)]
pub struct TaskFacts {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    operation_id: OperationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<StepId>,
    worker: WorkerKind,
    status: TaskStatus,
    created_ms: u64,
    touched_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finished_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
    /// Hashes, which mean the same wherever they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resume_token: Option<ResumeToken>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    untold: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    released: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum WorkerKind {
    Agent { name: String, args: Value },
    Producer,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TaskStatus {
    Running,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Serialize, Deserialize)]
struct Failure {
    code: String,
    message: String,
}

impl From<TaskRecord> for TaskFacts {
    fn from(record: TaskRecord) -> TaskFacts {
        TaskFacts {
            version: record.version,
            session: record.session,
            operation_id: record.operation_id,
            tool_name: record.tool_name,
            call: record.call,
            worker: match record.worker {
                Worker::Agent { name, args } => WorkerKind::Agent { name, args },
                Worker::Producer => WorkerKind::Producer,
            },
            status: match record.status {
                Status::Running => TaskStatus::Running,
                Status::Completed => TaskStatus::Completed,
                Status::Failed => TaskStatus::Failed,
                Status::Cancelled => TaskStatus::Cancelled,
            },
            created_ms: record.created_ms,
            touched_ms: record.touched_ms,
            finished_ms: record.finished_ms,
            result: record.result,
            error: record.error.map(|TurnError { code, message }| Failure { code, message }),
            resume_token: record.resume_token,
            untold: record.untold,
            released: record.released,
        }
    }
}

impl From<TaskFacts> for TaskRecord {
    fn from(facts: TaskFacts) -> TaskRecord {
        TaskRecord {
            version: facts.version,
            session: facts.session,
            operation_id: facts.operation_id,
            tool_name: facts.tool_name,
            call: facts.call,
            worker: match facts.worker {
                WorkerKind::Agent { name, args } => Worker::Agent { name, args },
                WorkerKind::Producer => Worker::Producer,
            },
            status: match facts.status {
                TaskStatus::Running => Status::Running,
                TaskStatus::Completed => Status::Completed,
                TaskStatus::Failed => Status::Failed,
                TaskStatus::Cancelled => Status::Cancelled,
            },
            created_ms: facts.created_ms,
            touched_ms: facts.touched_ms,
            finished_ms: facts.finished_ms,
            result: facts.result,
            error: facts.error.map(|Failure { code, message }| TurnError { code, message }),
            resume_token: facts.resume_token,
            untold: facts.untold,
            released: facts.released,
        }
    }
}
