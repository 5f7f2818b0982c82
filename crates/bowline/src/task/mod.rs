//! Tasks with a log of their own: background operations of a session, and what outside producers push.
//!
//! A chat turn is a task too, but lives in its session's log; see [`crate::stream`] for how both are read.

mod activation;
pub mod actor;
mod append;
pub mod command;
mod digest;
mod ending;
mod output;
mod position;
pub mod record;
pub mod registry;
pub mod status;
mod stream_state;
pub mod work;

use bowline_protocol::{OperationId, TaskId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use command::{TaskClose, TaskCommand, TaskRequest};
pub use output::own_call;
pub use record::TaskRecord;
pub use registry::Tasks;

/// An operation that was accepted: its work goes on in the background.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AcceptedOperation {
    pub task_id: TaskId,
    pub operation_id: OperationId,
    pub tool_name: Option<String>,
}

impl AcceptedOperation {
    /// A new task. Unless the caller chose a name for its operation, that follows from the task's.
    pub fn new(bits: u128, operation_id: Option<OperationId>, tool_name: Option<String>) -> AcceptedOperation {
        let operation_id = operation_id.unwrap_or_else(|| OperationId::from_random(bits));
        AcceptedOperation { task_id: TaskId::from_random(bits), operation_id, tool_name }
    }

    /// The content of `agent.operation_started`, and what the one who asked is answered.
    pub fn content(&self) -> OperationStarted {
        let name = self.tool_name.as_deref().unwrap_or("The operation");
        OperationStarted {
            message: format!("{name} is at work in the background."),
            operation_id: self.operation_id.clone(),
            task_id: self.task_id.clone(),
            tool_name: self.tool_name.clone(),
            kind: OperationStartedKind::OperationStarted,
        }
    }
}

/// An operation is at work.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OperationStarted {
    /// A sentence for people.
    message: String,
    #[schemars(with = "String")]
    operation_id: OperationId,
    #[schemars(with = "String")]
    task_id: TaskId,
    tool_name: Option<String>,
    #[serde(rename = "type")]
    kind: OperationStartedKind,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum OperationStartedKind {
    OperationStarted,
}
