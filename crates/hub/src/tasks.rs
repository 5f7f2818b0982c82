//! Long calls as tasks: they go on by themselves, and their results are kept for whoever comes back.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_protocol::Principal;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::fields::Raw;
use crate::message::Answer;

/// How long a finished task's result is kept.
pub const RESULT_TTL: Duration = Duration::from_secs(3600);
const TASKS_MAX: usize = 10_000;

pub struct Task {
    pub owner: Principal,
    pub server: String,
    pub tool: String,
    pub state: TaskState,
    pub created_ms: u64,
    pub cancel: CancellationToken,
    ended: Option<Instant>,
}

pub enum TaskState {
    Working,
    Completed(Raw),
    Failed(Raw),
    Cancelled,
}

impl TaskState {
    pub const fn word(&self) -> &'static str {
        match self {
            TaskState::Working => "working",
            TaskState::Completed(_) => "completed",
            TaskState::Failed(_) => "failed",
            TaskState::Cancelled => "cancelled",
        }
    }
}

#[derive(Default)]
pub struct Tasks(Mutex<HashMap<String, Task>>);

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Task>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new task; `None` if there are too many.
    pub fn create(&self, owner: &Principal, server: &str, tool: &str, cancel: CancellationToken) -> Option<String> {
        let mut tasks = self.lock();
        tasks.retain(|_, task| task.ended.is_none_or(|ended| ended.elapsed() < RESULT_TTL));
        if tasks.len() >= TASKS_MAX {
            return None;
        }
        let id = format!("task_{:032x}", clock::random_bits());
        let task = Task {
            owner: owner.clone(),
            server: server.to_owned(),
            tool: tool.to_owned(),
            state: TaskState::Working,
            created_ms: clock::now_ms(),
            cancel,
            ended: None,
        };
        tasks.insert(id.clone(), task);
        Some(id)
    }

    /// The call is over. Only the first ending counts; returns its word.
    pub fn finish(&self, id: &str, answer: Answer) -> Option<&'static str> {
        let failed = |raw: &Raw| crate::fields::Fields::of(Some(raw)).read("isError") == Some(true);
        let state = match answer {
            Ok(result) if !failed(&result) => TaskState::Completed(result),
            Ok(result) => TaskState::Failed(result),
            Err(error) => TaskState::Failed(error),
        };
        self.end(id, state)
    }

    fn end(&self, id: &str, state: TaskState) -> Option<&'static str> {
        let mut tasks = self.lock();
        let task = tasks.get_mut(id).filter(|task| matches!(task.state, TaskState::Working))?;
        task.state = state;
        task.ended = Some(Instant::now());
        Some(task.state.word())
    }

    /// False if it is not this principal's, or over already.
    pub fn cancel(&self, id: &str, owner: &Principal) -> bool {
        let token = self.lock().get(id).filter(|task| task.owner == *owner).map(|task| task.cancel.clone());
        let Some(token) = token else { return false };
        let ended = self.end(id, TaskState::Cancelled).is_some();
        token.cancel();
        ended
    }

    pub fn shown(&self, id: &str, owner: &Principal) -> Option<Value> {
        self.lock().get(id).filter(|task| task.owner == *owner).map(|task| shown(id, task))
    }

    pub fn list(&self, owner: &Principal) -> Vec<Value> {
        let tasks = self.lock();
        let mut mine: Vec<_> = tasks.iter().filter(|(_, task)| task.owner == *owner).collect();
        mine.sort_by_key(|(_, task)| task.created_ms);
        mine.into_iter().map(|(id, task)| shown(id, task)).collect()
    }

    pub fn working(&self, owner: &Principal) -> Vec<Value> {
        self.list(owner).into_iter().filter(|task| task["status"] == "working").collect()
    }

    /// The result or error of a task that is over; `Err` with its status if there is none.
    pub fn result(&self, id: &str, owner: &Principal) -> Option<Result<Raw, &'static str>> {
        let tasks = self.lock();
        let task = tasks.get(id).filter(|task| task.owner == *owner)?;
        Some(match &task.state {
            TaskState::Completed(result) | TaskState::Failed(result) => Ok(result.clone()),
            state => Err(state.word()),
        })
    }
}

fn shown(id: &str, task: &Task) -> Value {
    json!({
        "taskId": id,
        "server": task.server,
        "tool": task.tool,
        "status": task.state.word(),
        "createdAt": clock::rfc3339(task.created_ms),
    })
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({}, {})", self.tool, self.state.word())
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({})", self.lock().len())
    }
}
