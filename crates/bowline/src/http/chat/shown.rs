//! Sessions and messages as their owner sees them over HTTP.

use bowline_protocol::{LogId, Refusal, SessionId, TaskId};
use serde_json::{Value, json};

use crate::agent::{Message, Role};
use crate::clock;
use crate::node::{self, Shared};
use crate::session::SessionRecord;
use crate::session::operations;
use crate::session::record::keys;
use crate::session::turns::Status;
use crate::stream::cursor;
use crate::task::TaskRecord;

/// What lists show of a session.
pub fn summary(log: &LogId, record: &SessionRecord) -> Value {
    json!({
        "id": record.current.clone().unwrap_or_else(|| SessionId::from(log)),
        "created_at": clock::rfc3339(record.created_ms),
        "updated_at": clock::rfc3339(record.touched_ms),
        "title": record.title,
        "status": record.state(),
        "agent": record.agent,
    })
}

/// Everything: the history, and what is at work now.
pub async fn whole(shared: &Shared, log: &LogId, record: &SessionRecord) -> Result<Value, Refusal> {
    let mut shown = summary(log, record);
    let items = shared.store.items(log, keys::MESSAGES).await.map_err(|error| node::store_refusal(&error))?;
    let messages = items.iter().filter_map(|(key, bytes)| {
        let message: Message = serde_json::from_slice(bytes).ok()?;
        Some(ui_message(log, key, message))
    });
    shown["messages"] = messages.collect();
    shown["active_stream"] = active_stream(shared, log, record).await?;
    Ok(shown)
}

/// The running turn; without one, the newest background operation that is still at work.
async fn active_stream(shared: &Shared, log: &LogId, record: &SessionRecord) -> Result<Value, Refusal> {
    let refuse = |error| node::store_refusal(&error);
    if let Some(active) = record.turn.active() {
        let extent = shared.store.extent(log).await.map_err(refuse)?;
        let last_message_id = cursor(&extent, extent.last());
        return Ok(json!({ "task_id": TaskId::of_turn(log, active.started), "last_message_id": last_message_id }));
    }
    if record.operations == 0 {
        return Ok(Value::Null);
    }
    let entries = operations::entries(shared, log).await?;
    for (_, entry) in entries.into_iter().rev().filter(|(_, entry)| entry.status == Status::Running) {
        let task = LogId::from(&entry.task_id);
        // The task knows first that it has ended; the session hears of it a moment later.
        let stored = shared.store.record(&task).await.map_err(refuse)?;
        let record = stored.and_then(|stored| TaskRecord::decode(&stored.body).ok());
        if !record.is_some_and(|record| record.is_running()) {
            continue;
        }
        let extent = shared.store.extent(&task).await.map_err(refuse)?;
        return Ok(json!({
            "task_id": entry.task_id,
            "last_message_id": cursor(&extent, extent.last()),
            "operation_id": entry.operation_id,
            "tool_name": entry.tool_name,
        }));
    }
    Ok(Value::Null)
}

/// A message in the shape of the AI SDK. An answer has the name that its stream gave it.
fn ui_message(log: &LogId, key: &str, message: Message) -> Value {
    let Message { role, content, message_id, turn, parts, at_ms, interrupted } = message;
    let answer = turn.filter(|_| role == Role::Assistant).map(|turn| TaskId::of_turn(log, turn).to_string());
    let id = answer.or(message_id).unwrap_or_else(|| format!("msg_{}", key.trim_start_matches(keys::MESSAGES)));
    let text = json!({ "type": "text", "text": content });
    let parts = match (parts, role) {
        (Some(parts), _) => parts,
        (None, Role::User) => json!([text]),
        (None, Role::Assistant) if content.is_empty() => json!([{ "type": "step-start" }]),
        (None, Role::Assistant) => {
            json!([{ "type": "step-start" }, { "type": "text", "text": content, "state": "done" }])
        }
    };
    let mut metadata = json!({ "created_at": clock::rfc3339(at_ms) });
    if interrupted {
        metadata["interrupted"] = true.into();
    }
    json!({ "id": id, "role": role, "parts": parts, "metadata": metadata })
}
