//! What goes on in the background of a session, and how it ended: known for as long as the session lives.

use std::collections::BTreeMap;

use bowline_api::{Message, Role};
use bowline_core::dialect::AnnouncedOperation;
use bowline_protocol::{Cursor, LogId, Refusal, SessionId, TaskId};
use bowline_store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::SessionRecord;
use super::actor::{PendingChange, SessionActor};
use super::operations::{self, OperationEntry};
use super::record::{SessionState, keys};
use crate::logs::Logs;
use crate::refusals;
use crate::task::TaskRecord;
use crate::task::status::{Status, TurnError};

/// How an operation ended. It is kept beside the session's log, because the task's own stream goes earlier.
#[derive(Clone, Serialize, Deserialize)]
pub struct OperationEnd {
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// What it ended with was let go of, to make room for newer results.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub let_go: bool,
}

impl OperationEnd {
    /// As the content of `agent.operation_completed` says it.
    pub(super) fn from_content(content: &Value) -> OperationEnd {
        let status = Status::deserialize(&content["status"]).unwrap_or(Status::Failed);
        let error = TurnError::deserialize(&content["error"]).ok();
        OperationEnd { status, result: content.get("result").cloned(), error, let_go: false }
    }

    fn of(record: &TaskRecord) -> OperationEnd {
        let TaskRecord { status, result, error, .. } = record.clone();
        OperationEnd { status, result, error, let_go: false }
    }

    fn bare(status: Status) -> OperationEnd {
        OperationEnd { status, result: None, error: None, let_go: true }
    }

    fn bytes(&self) -> u64 {
        serde_json::to_vec(self).map_or(0, |json| json.len() as u64)
    }

    /// Writes the end into the part of a message that said that the work goes on.
    fn show_in(&self, part: AnnouncedOperation<'_>) {
        if self.status == Status::Completed {
            let output = if self.let_go { let_go(part.started()) } else { self.result.clone().unwrap_or_default() };
            part.complete(output);
            return;
        }
        let said = self.error.as_ref().map(|error| error.message.clone());
        let text = said.unwrap_or_else(|| format!("The operation was {}.", self.status.as_str()));
        part.fail(text);
    }
}

/// What stands in place of a result that is not kept any more.
fn let_go(begun: &Value) -> Value {
    json!({
        "type": "operation_completed",
        "tool_name": begun["tool_name"],
        "operation_id": begun["operation_id"],
        "task_id": begun["task_id"],
        "message": "It has ended. Its result is not kept any more (limits.operation_results_bytes_max).",
    })
}

impl std::fmt::Debug for OperationEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OperationEnd({})", self.status.as_str())
    }
}

/// An operation that is under way.
#[derive(Debug)]
pub struct RunningOperation {
    pub entry: OperationEntry,
    pub last_message_id: String,
}

/// What goes on in the background of a session now.
#[derive(Debug, Default)]
pub struct Background {
    /// Oldest first.
    pub running: Vec<RunningOperation>,
    /// Operations of whose end the session has not heard yet. Their tasks know first.
    unheard: BTreeMap<TaskId, OperationEnd>,
}

impl Background {
    pub async fn look(logs: &Logs, log: &LogId, record: &SessionRecord) -> Result<Background, Refusal> {
        let mut background = Background::default();
        if record.operations == 0 || record.operations_running == Some(0) {
            return Ok(background);
        }
        let refuse = |error: StoreError| refusals::of_store(&error);
        let entries = operations::entries(logs, log).await?;
        for (_, entry) in entries.into_iter().filter(|(_, entry)| entry.status == Status::Running) {
            let task = LogId::from(&entry.task_id);
            let stored = logs.store.record(&task).await.map_err(refuse)?;
            let Some(record) = stored.and_then(|stored| TaskRecord::decode(&stored.body).ok()) else { continue };
            if !record.is_running() {
                background.unheard.insert(entry.task_id.clone(), OperationEnd::of(&record));
                continue;
            }
            let extent = logs.store.extent(&task).await.map_err(refuse)?;
            let last_message_id = Cursor { epoch: Some(extent.epoch.clone()), seq: extent.last() }.to_string();
            background.running.push(RunningOperation { entry, last_message_id });
        }
        Ok(background)
    }

    /// How the session stands, its background included.
    pub fn state(&self, record: &SessionRecord) -> SessionState {
        match record.state() {
            SessionState::Idle if !self.running.is_empty() => SessionState::Running,
            state => state,
        }
    }

    /// Shows how operations ended in the parts of messages that said that they go on.
    pub async fn reveal(&self, logs: &Logs, log: &LogId, messages: &mut [Message]) -> Result<(), Refusal> {
        let answers = messages.iter_mut().filter(|message| message.role == Role::Assistant);
        let parts = answers.filter_map(|message| message.parts.as_mut()?.as_array_mut()).flatten();
        let announced: Vec<AnnouncedOperation<'_>> = parts.filter_map(AnnouncedOperation::of).collect();
        if announced.is_empty() {
            return Ok(());
        }
        let items = logs.store.items(log, keys::RESULTS).await.map_err(|error| refusals::of_store(&error))?;
        let kept: BTreeMap<&str, &[u8]> =
            items.iter().filter_map(|(key, bytes)| Some((key.strip_prefix(keys::RESULTS)?, bytes.as_ref()))).collect();
        for part in announced {
            let Some(task) = part.task() else { continue };
            let unheard = TaskId::parse(task).and_then(|task| self.unheard.get(&task).cloned());
            let end = unheard.or_else(|| serde_json::from_slice(kept.get(task)?).ok());
            if let Some(end) = end {
                end.show_in(part);
            }
        }
        Ok(())
    }
}

/// How a task's operation ended, as its session knows it; none if that does not live any more, or has forgotten it.
pub async fn end_of(logs: &Logs, session: &SessionId, task: &TaskId) -> Result<Option<OperationEnd>, StoreError> {
    let item = logs.store.item(&LogId::from(session), &keys::result(task)).await?;
    Ok(item.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

impl SessionActor {
    /// Keeps how an operation ended. Older results make room for it.
    pub(super) fn keep_end(
        &self,
        change: &mut PendingChange,
        entries: &[(String, OperationEntry)],
        at: usize,
        end: OperationEnd,
    ) {
        let Some((key, entry)) = entries.get(at) else { return };
        let limits = &self.shared.config.limits;
        let bytes_max = limits.operation_results_bytes_max as u64;
        let (end, bytes) = match end.bytes() {
            bytes if bytes > bytes_max => (OperationEnd::bare(end.status), 0),
            bytes => (end, bytes),
        };
        let mut total = bytes + entries.iter().map(|(_, entry)| entry.result_bytes).sum::<u64>();
        if end.let_go || total > bytes_max {
            self.shared.metrics.limits_hit.inc("limits.operation_results_bytes_max");
        }
        for (key, older) in entries.iter().filter(|(_, entry)| entry.result_bytes > 0) {
            if total <= bytes_max {
                break;
            }
            total -= older.result_bytes;
            change.put(keys::result(&older.task_id), &OperationEnd::bare(older.status));
            change.put(key.clone(), &older.ended(older.status, 0));
        }
        change.put(keys::result(&entry.task_id), &end);
        change.put(key.clone(), &entry.ended(end.status, bytes));
    }
}
