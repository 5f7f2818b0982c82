//! What a run works on.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a run works on. The server stores it beside the log, so that it is still known after a crash.
#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Input {
    /// A message to answer.
    Message {
        /// Its text.
        text: String,
    },
    /// A plan to make anew.
    Replan {
        /// What to plan for; `None` for the question of the last plan.
        question: Option<String>,
    },
    /// Tasks that a client wrote itself.
    SolveTasks {
        /// A list of tasks: objects with `id`, `title` and `description`, or titles.
        tasks: Value,
    },
    /// A task of the last plan to solve again.
    RestartTask {
        /// Which one.
        task_id: String,
    },
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
