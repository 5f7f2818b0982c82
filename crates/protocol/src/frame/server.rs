//! What the server says besides logged events: control frames. They have no number and are never stored.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json as object};

use super::names;
use crate::chunk::Chunk;
use crate::error::Refusal;
use crate::id::{SessionId, TaskId};
use crate::json;
use crate::position::Epoch;

/// A control frame, before it is given its time and turned into text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    pub event: Cow<'static, str>,
    pub session: Option<SessionId>,
    pub content: Value,
    pub metadata: Value,
}

#[derive(Serialize)]
struct ControlEnvelope<'a> {
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a SessionId>,
    timestamp: &'a str,
    content: &'a Value,
    metadata: &'a Value,
}

impl Control {
    pub fn new(event: &'static str, session: Option<SessionId>, content: Value, metadata: Value) -> Control {
        Control { event: Cow::Borrowed(event), session, content, metadata }
    }

    /// `system.notice`: a sentence for people, facts for programs.
    pub fn notice(session: Option<SessionId>, sentence: impl Into<String>, facts: Value) -> Control {
        Control::new(names::NOTICE, session, Value::String(sentence.into()), facts)
    }

    /// A request that was refused. Those about a session are `agent.error`, the others `system.error`.
    pub fn refusal(session: Option<SessionId>, refusal: &Refusal) -> Control {
        let event = if session.is_some() { crate::event::names::ERROR } else { names::SYSTEM_ERROR };
        Control::new(event, session, Value::String(refusal.message.clone()), refusal_facts(refusal))
    }

    /// A frame that could not be read. Whatever session it names, it is the frame that is wrong.
    pub fn bad_frame(session: Option<SessionId>, refusal: &Refusal) -> Control {
        let content = Value::String(refusal.message.clone());
        Control::new(names::SYSTEM_ERROR, session, content, refusal_facts(refusal))
    }

    /// The long way back failed.
    pub fn recovery_failed(session: Option<SessionId>, refusal: &Refusal) -> Control {
        let mut facts = refusal_facts(refusal);
        facts["recovery_strategy"] = facts["recovery_action"].clone();
        Control::new(names::RECOVERY_FAILED, session, Value::String(refusal.message.clone()), facts)
    }

    pub fn heartbeat(
        session: Option<SessionId>,
        server_time: &str,
        last_seq: Option<u64>,
        uptime_seconds: u64,
    ) -> Control {
        let mut facts = Map::new();
        if let Some(seq) = last_seq {
            facts.insert("seq".into(), seq.into());
        }
        facts.insert("server_uptime_seconds".into(), uptime_seconds.into());
        Control::new(names::HEARTBEAT, session, object!({ "server_time": server_time }), Value::Object(facts))
    }

    pub fn encode(&self, timestamp: &str) -> Bytes {
        let wire = ControlEnvelope {
            event: &self.event,
            session_id: self.session.as_ref(),
            timestamp,
            content: &self.content,
            metadata: &self.metadata,
        };
        // Our own types have string keys and finite numbers only, so this cannot fail.
        serde_json::to_vec(&wire).unwrap_or_default().into()
    }
}

/// `task.chunk`: one chunk of a task that the connection watches. Its number is the task's, not the session's.
#[derive(Clone, Copy, Debug)]
pub struct TaskChunk<'a> {
    pub task: &'a TaskId,
    pub session: Option<&'a SessionId>,
    pub epoch: &'a Epoch,
    pub chunk: &'a Chunk,
}

impl TaskChunk<'_> {
    /// The chunk is already JSON, so the frame is written around it.
    pub fn encode(&self, timestamp: &str) -> Bytes {
        let mut out = head(names::TASK_CHUNK, self.task, self.session, timestamp, self.chunk.json.len());
        match self.chunk.at {
            // Letters, digits, `-` and `.` only, so there is nothing to escape.
            Some(place) => out.extend_from_slice(format!(",\"id\":\"{}-{place}\"", self.epoch).as_bytes()),
            None => out.extend_from_slice(b",\"id\":null"),
        }
        out.extend_from_slice(b",\"content\":");
        out.extend_from_slice(&self.chunk.json);
        out.push(b'}');
        out.into()
    }
}

/// `task.end`: nothing follows, and this is how the task stands.
#[derive(Clone, Copy, Debug)]
pub struct TaskEnd<'a> {
    pub task: &'a TaskId,
    pub session: Option<&'a SessionId>,
    pub status: &'a str,
}

impl TaskEnd<'_> {
    pub fn encode(&self, timestamp: &str) -> Bytes {
        let mut out = head(names::TASK_END, self.task, self.session, timestamp, 64);
        out.extend_from_slice(b",\"content\":{\"status\":");
        json::push_string(&mut out, self.status);
        out.extend_from_slice(b"}}");
        out.into()
    }
}

fn head(event: &str, task: &TaskId, session: Option<&SessionId>, timestamp: &str, room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(200 + room);
    out.extend_from_slice(b"{\"event\":");
    json::push_string(&mut out, event);
    if let Some(session) = session {
        out.extend_from_slice(b",\"session_id\":");
        json::push_string(&mut out, session.as_str());
    }
    out.extend_from_slice(b",\"task_id\":");
    json::push_string(&mut out, task.as_str());
    out.extend_from_slice(b",\"timestamp\":");
    json::push_string(&mut out, timestamp);
    out
}

/// What every error carries for programs.
pub fn refusal_facts(refusal: &Refusal) -> Value {
    let mut facts = object!({
        "error_code": refusal.code.as_str(),
        "recovery_action": refusal.code.action().as_str(),
    });
    if let Some(ms) = refusal.retry_after_ms {
        facts["retry_after_ms"] = ms.into();
    }
    if let Some(details) = &refusal.details {
        facts["details"] = details.clone();
    }
    facts
}
