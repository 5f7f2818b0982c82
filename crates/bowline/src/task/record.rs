//! What is kept of a task beside its log.

use bowline_core::resume_token::ResumeToken;
use bowline_protocol::{OperationId, Principal, SessionId, StepId};
use bowline_store::{LogKind, Record};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Ownership;
use crate::secret::Presented;
use crate::task::AcceptedOperation;
use crate::task::status::{Status, TurnError};

/// The record's own version; an older server refuses a newer one.
pub const VERSION: u32 = 1;

#[derive(Clone, Serialize, Deserialize)]
pub struct TaskRecord {
    pub version: u32,
    /// The session that it works for, under the name of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    pub operation_id: OperationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// What its call is called in its stream; none means the name of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<StepId>,
    pub worker: Worker,
    pub status: Status,
    pub created_ms: u64,
    pub touched_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// What proves a task without a session to be its maker's, where a name does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_token: Option<ResumeToken>,
    /// Its session still has to be notified that it has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untold: bool,
    /// Its stream was let go; what is left is a tombstone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// Who does the work.
#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Worker {
    /// An agent of this server, in its process: when that dies, so does the work.
    Agent { name: String, args: Value },
    /// A program outside, which comes and goes as it likes.
    Producer,
}

impl TaskRecord {
    /// A task that has just begun. `session` is the name of its session's log.
    pub fn new(begun: &AcceptedOperation, worker: Worker, session: Option<SessionId>, now_ms: u64) -> TaskRecord {
        TaskRecord {
            version: VERSION,
            session,
            operation_id: begun.operation_id.clone(),
            tool_name: begun.tool_name.clone(),
            call: None,
            worker,
            status: Status::Running,
            created_ms: now_ms,
            touched_ms: now_ms,
            finished_ms: None,
            result: None,
            error: None,
            resume_token: None,
            untold: false,
            released: false,
        }
    }

    /// What is left when its stream is let go: enough to tell its owner that it was there.
    pub fn tombstone(self, now_ms: u64) -> TaskRecord {
        let worker = match self.worker {
            Worker::Agent { name, .. } => Worker::Agent { name, args: Value::Null },
            Worker::Producer => Worker::Producer,
        };
        TaskRecord { released: true, touched_ms: now_ms, worker, result: None, error: None, ..self }
    }

    pub fn encode(&self) -> Bytes {
        // String keys and finite numbers only, so this cannot fail.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    pub fn decode(bytes: &[u8]) -> Result<TaskRecord, String> {
        let record: TaskRecord = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.version > VERSION {
            return Err(format!(
                "it was written by a newer version of this server (record version {})",
                record.version
            ));
        }
        Ok(record)
    }

    pub fn stored(&self, owner: &Principal) -> Record {
        Record { kind: LogKind::Task, owner: owner.clone(), touched_ms: self.touched_ms, body: self.encode() }
    }

    /// Whether the caller has shown that the task is its own, beyond being its owner by name. One that belongs to a session
    /// is proven with that.
    pub fn is_proven(&self, ownership: Ownership, token: Option<&Presented>) -> bool {
        if ownership != Ownership::Token || self.session.is_some() {
            return true;
        }
        self.resume_token.as_ref().zip(token).is_some_and(|(known, shown)| known.is_good(&shown.0))
    }

    pub fn is_running(&self) -> bool {
        self.status == Status::Running
    }
}

impl std::fmt::Debug for TaskRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TaskRecord({}, {})", self.operation_id, self.status.as_str())
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Worker::Agent { name, .. } => write!(f, "Agent({name})"),
            Worker::Producer => f.write_str("Producer"),
        }
    }
}

/// Keys of the items beside a task's log.
pub mod keys {
    use bowline_protocol::ProducerId;

    /// What was open in its stream at each event, for readers who begin in the middle.
    pub const INDEX: &str = "trace";

    /// Where its stream stood at some event, for a writer that comes back.
    pub const CHECKPOINT: &str = "checkpoint";

    /// How far a producer has come.
    pub fn producer(id: &ProducerId) -> String {
        format!("p/{id}")
    }

    /// A block of a producer's appends.
    pub fn block(id: &ProducerId, number: u64) -> String {
        format!("b/{number:012}/{id}")
    }
}
