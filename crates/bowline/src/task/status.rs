//! How a task stands: a turn of a session, a background operation, or what a producer pushes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "TaskStatus")]
pub enum Status {
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl Status {
    pub const ALL: [Status; 4] = [Status::Running, Status::Completed, Status::Failed, Status::Cancelled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
        }
    }
}

/// Why a task failed.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TaskError")]
pub struct TurnError {
    pub code: String,
    pub message: String,
}

impl std::fmt::Debug for TurnError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TurnError({})", self.code)
    }
}
