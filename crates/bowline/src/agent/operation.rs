//! A piece of work in the background: it has a task of its own, and goes on when the run that began it has ended.

use bowline_protocol::{SessionId, StepId, TaskId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Emitter, Stopped};

/// What an agent is given to work on in the background. What it emits goes to the log of the task.
pub struct Operation {
    pub session: SessionId,
    pub task: TaskId,
    /// The call in the task's stream that it is the work of.
    pub call: StepId,
    pub tool: String,
    pub args: Value,
    pub cancel: CancellationToken,
    pub emit: Emitter,
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operation({}, {})", self.task, self.tool)
    }
}

impl Operation {
    /// Waits, but not longer than the operation lives.
    pub async fn pause(&self, time: std::time::Duration) -> Result<(), Stopped> {
        super::pause(&self.cancel, time).await
    }
}
