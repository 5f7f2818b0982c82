//! Sessions and messages as their owner sees them over HTTP.

use bowline_api::{Message, Role};
use bowline_env::clock;
use bowline_protocol::{LogId, Refusal, Seq, SessionId, TaskId};
use serde_json::{Value, json};

use crate::logs::Logs;
use crate::refusals;
use crate::session::SessionRecord;
use crate::session::background::{Background, Running};
use crate::session::record::keys;
use crate::stream::cursor;

/// What lists show of a session.
pub async fn summary(logs: &Logs, log: &LogId, record: &SessionRecord) -> Result<Value, Refusal> {
    let background = Background::look(logs, log, record).await?;
    Ok(facts(log, record, &background))
}

fn facts(log: &LogId, record: &SessionRecord, background: &Background) -> Value {
    json!({
        "id": record.current.clone().unwrap_or_else(|| SessionId::from(log)),
        "created_at": clock::rfc3339(record.created_ms),
        "updated_at": clock::rfc3339(record.touched_ms),
        "title": record.title,
        "status": background.state(record),
        "agent": record.agent,
    })
}

/// Everything: the history, and what is at work now.
pub async fn whole(logs: &Logs, log: &LogId, record: &SessionRecord) -> Result<Value, Refusal> {
    let items = logs.store.items(log, keys::MESSAGES).await.map_err(|error| refusals::of_store(&error))?;
    let messages = items.iter().filter_map(|(key, bytes)| Some((key, serde_json::from_slice(bytes).ok()?)));
    let (names, mut messages): (Vec<&String>, Vec<Message>) = messages.unzip();
    let background = Background::look(logs, log, record).await?;
    background.reveal(logs, log, &mut messages).await?;
    let mut shown = facts(log, record, &background);
    shown["messages"] = names.into_iter().zip(messages).map(|(key, message)| ui_message(log, key, message)).collect();
    let streams = active_streams(logs, log, record, background).await?;
    shown["active_stream"] = streams.last().cloned().unwrap_or_default();
    shown["active_streams"] = streams.into();
    Ok(shown)
}

/// The turn and the operations that are under way, oldest first.
async fn active_streams(
    logs: &Logs,
    log: &LogId,
    record: &SessionRecord,
    background: Background,
) -> Result<Vec<Value>, Refusal> {
    let mut streams: Vec<(Seq, Value)> = Vec::new();
    if let Some(active) = record.turn.active() {
        let extent = logs.store.extent(log).await.map_err(|error| refusals::of_store(&error))?;
        let last_message_id = cursor(&extent, extent.last());
        let turn = json!({ "task_id": TaskId::of_turn(log, active.started), "last_message_id": last_message_id });
        streams.push((active.started, turn));
    }
    for Running { entry, last_message_id } in background.running {
        let operation = json!({
            "task_id": entry.task_id,
            "last_message_id": last_message_id,
            "operation_id": entry.operation_id,
            "tool_name": entry.tool_name,
        });
        streams.push((entry.started, operation));
    }
    // The session's log has an order for everything that began in it.
    streams.sort_by_key(|(started, _)| *started);
    Ok(streams.into_iter().map(|(_, stream)| stream).collect())
}

/// A message in the shape of the AI SDK. An answer has the name that its stream gave it.
fn ui_message(log: &LogId, key: &str, message: Message) -> Value {
    let Message { role, content, message_id, turn, parts, at_ms, interrupted, .. } = message;
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
