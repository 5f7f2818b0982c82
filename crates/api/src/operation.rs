//! A piece of work in the background: it has a task of its own, and outlives the run that started it.

use std::fmt;
use std::time::Duration;

use bowline_protocol::{SessionId, StepId, TaskId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{Emitter, Stopped, run};

/// What an agent works on in the background. What it emits goes into the log of the task.
pub struct Operation {
    /// The session that it belongs to.
    pub session: SessionId,
    /// The task that it is.
    pub task: TaskId,
    /// The call in the task's stream that it is the work of.
    pub call: StepId,
    /// What to do.
    pub tool: String,
    /// The arguments for it.
    pub args: Value,
    /// Fires when the operation is to stop.
    pub cancel: CancellationToken,
    /// How the operation reports progress.
    pub emit: Emitter,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({}, {})", self.task, self.tool)
    }
}

impl Operation {
    /// Sleeps; returns [`Stopped`] early if the operation is cancelled.
    pub async fn pause(&self, time: Duration) -> Result<(), Stopped> {
        run::pause(&self.cancel, time).await
    }
}
