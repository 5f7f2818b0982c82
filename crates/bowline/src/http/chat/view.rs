//! Sessions and messages as their owner sees them over HTTP.

use bowline_api::{Message, Role};
use bowline_env::clock;
use bowline_protocol::{LogId, OperationId, Refusal, Seq, SessionId, TaskId};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::logs::Logs;
use crate::refusals;
use crate::schema;
use crate::session::SessionRecord;
use crate::session::background::{Background, RunningOperation};
use crate::session::record::{SessionState, keys};
use crate::stream::cursor;

/// A session in a list.
#[derive(Serialize, JsonSchema)]
pub struct SessionSummary {
    #[schemars(with = "String")]
    id: SessionId,
    #[schemars(schema_with = "schema::time")]
    created_at: String,
    #[schemars(schema_with = "schema::time")]
    updated_at: String,
    title: Option<String>,
    status: SessionState,
    agent: String,
}

/// A session: its history, and what is at work.
#[derive(Serialize, JsonSchema)]
pub struct Session {
    #[serde(flatten)]
    summary: SessionSummary,
    messages: Vec<UiMessage>,
    /// The one that began last.
    active_stream: Option<ActiveStream>,
    /// The turn and the operations that are under way, oldest first.
    active_streams: Vec<ActiveStream>,
}

/// A message in the shape of the AI SDK.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UIMessage")]
pub struct UiMessage {
    id: String,
    #[schemars(schema_with = "schema::role")]
    role: Role,
    #[schemars(schema_with = "schema::parts")]
    parts: Value,
    metadata: MessageMetadata,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct MessageMetadata {
    #[schemars(schema_with = "schema::time")]
    created_at: String,
    /// The answer broke off.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

/// Something under way: a turn, or an operation.
#[derive(Clone, Serialize, JsonSchema)]
pub struct ActiveStream {
    #[schemars(with = "String")]
    task_id: TaskId,
    #[schemars(schema_with = "schema::cursor")]
    last_message_id: String,
    /// Not of a turn.
    #[serde(flatten)]
    operation: Option<ActiveOperation>,
}

#[derive(Clone, Serialize, JsonSchema)]
struct ActiveOperation {
    #[schemars(with = "String")]
    operation_id: OperationId,
    tool_name: Option<String>,
}

/// What lists show of a session.
pub async fn summary(logs: &Logs, log: &LogId, record: &SessionRecord) -> Result<SessionSummary, Refusal> {
    let background = Background::look(logs, log, record).await?;
    Ok(facts(log, record, &background))
}

fn facts(log: &LogId, record: &SessionRecord, background: &Background) -> SessionSummary {
    SessionSummary {
        id: record.current.clone().unwrap_or_else(|| SessionId::from(log)),
        created_at: clock::rfc3339(record.created_ms),
        updated_at: clock::rfc3339(record.touched_ms),
        title: record.title.clone(),
        status: background.state(record),
        agent: record.agent.clone(),
    }
}

/// Everything: the history, and what is at work now.
pub async fn whole(logs: &Logs, log: &LogId, record: &SessionRecord) -> Result<Session, Refusal> {
    let items = logs.store.items(log, keys::MESSAGES).await.map_err(|error| refusals::of_store(&error))?;
    let messages = items.iter().filter_map(|(key, bytes)| Some((key, serde_json::from_slice(bytes).ok()?)));
    let (names, mut messages): (Vec<&String>, Vec<Message>) = messages.unzip();
    let background = Background::look(logs, log, record).await?;
    background.reveal(logs, log, &mut messages).await?;
    let summary = facts(log, record, &background);
    let messages = names.into_iter().zip(messages).map(|(key, message)| ui_message(log, key, message)).collect();
    let active_streams = active_streams(logs, log, record, background).await?;
    Ok(Session { summary, messages, active_stream: active_streams.last().cloned(), active_streams })
}

/// The turn and the operations that are under way, oldest first.
async fn active_streams(
    logs: &Logs,
    log: &LogId,
    record: &SessionRecord,
    background: Background,
) -> Result<Vec<ActiveStream>, Refusal> {
    let mut streams: Vec<(Seq, ActiveStream)> = Vec::new();
    if let Some(active) = record.turn.active() {
        let extent = logs.store.extent(log).await.map_err(|error| refusals::of_store(&error))?;
        let (task_id, last_message_id) = (TaskId::of_turn(log, active.started), cursor(&extent, extent.last()));
        streams.push((active.started, ActiveStream { task_id, last_message_id, operation: None }));
    }
    for RunningOperation { entry, last_message_id } in background.running {
        let operation = ActiveOperation { operation_id: entry.operation_id, tool_name: entry.tool_name };
        let stream = ActiveStream { task_id: entry.task_id, last_message_id, operation: Some(operation) };
        streams.push((entry.started, stream));
    }
    // The session's log has an order for everything that began in it.
    streams.sort_by_key(|(started, _)| *started);
    Ok(streams.into_iter().map(|(_, stream)| stream).collect())
}

/// An answer has the name that its stream gave it.
fn ui_message(log: &LogId, key: &str, message: Message) -> UiMessage {
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
    UiMessage { id, role, parts, metadata: MessageMetadata { created_at: clock::rfc3339(at_ms), interrupted } }
}
