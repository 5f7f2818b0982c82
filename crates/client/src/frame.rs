//! Frames of the protocol: those that a client sends, and a view of those that it receives.

use std::fmt;

use bowline_protocol::frame::names;
use bowline_protocol::{Cursor, ErrorCode, Refusal, event};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A frame from the server. `PROTOCOL.md` says what each has in `content` and `metadata`.
#[derive(Clone, Deserialize, PartialEq)]
pub struct ServerFrame {
    /// Its name: `<namespace>.<name>`.
    pub event: String,
    /// The session that it is about; none if it is about the connection.
    #[serde(default)]
    pub session_id: Option<String>,
    /// Its number in the session's log. Only logged events have one.
    #[serde(default)]
    pub seq: Option<u64>,
    /// `<epoch>-<seq>`.
    #[serde(default)]
    pub event_id: Option<String>,
    /// Pairs a call with its result, and a question with its answer.
    #[serde(default)]
    pub step_id: Option<String>,
    /// The watched task that it is about.
    #[serde(default)]
    pub task_id: Option<String>,
    /// The position of a chunk in its task's stream.
    #[serde(default)]
    pub id: Option<String>,
    /// Text, or an object.
    #[serde(default)]
    pub content: Value,
    /// An object.
    #[serde(default)]
    pub metadata: Value,
}

impl ServerFrame {
    /// Reads a text frame; `None` if it is not one of the protocol.
    pub fn parse(text: &str) -> Option<ServerFrame> {
        serde_json::from_str(text).ok()
    }

    /// The content as text: itself, or its `text` or `message`.
    pub fn text(&self) -> &str {
        let inner = || ["text", "message"].iter().find_map(|key| self.content.get(*key)?.as_str());
        self.content.as_str().or_else(inner).unwrap_or_default()
    }

    /// A text in the metadata.
    pub fn word(&self, key: &str) -> Option<&str> {
        self.metadata.get(key)?.as_str()
    }

    /// A number in the metadata.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.metadata.get(key)?.as_u64()
    }

    /// The refusal that it is, if it is one.
    pub fn refusal(&self) -> Option<Refusal> {
        let name = self.event.as_str();
        let refuses = matches!(name, names::SYSTEM_ERROR | names::RECOVERY_FAILED)
            || name == event::names::ERROR && self.seq.is_none();
        if !refuses {
            return None;
        }
        let named = self.word("error_code").unwrap_or_default();
        // A code of a later version says no more than that it failed.
        let code = ErrorCode::ALL.iter().copied().find(|code| code.as_str() == named).unwrap_or(ErrorCode::Internal);
        Some(Refusal {
            code,
            message: self.text().to_owned(),
            retry_after_ms: self.number("retry_after_ms"),
            details: self.metadata.get("details").cloned(),
        })
    }
}

/// What people wrote is not shown.
impl fmt::Debug for ServerFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerFrame({}, {:?}, {:?})", self.event, self.session_id, self.seq)
    }
}

/// What a client says about itself when it attaches.
pub(crate) struct AttachFields<'a> {
    pub client_id: &'a str,
    pub cursor: Option<&'a Cursor>,
    pub resume_token: Option<&'a str>,
    pub take_over: bool,
    pub observe: bool,
}

impl AttachFields<'_> {
    fn content(&self) -> Value {
        let mut content = json!({ "client_id": self.client_id });
        match self.cursor {
            Some(cursor) if cursor.epoch.is_some() => content["last_event_id"] = cursor.to_string().into(),
            Some(cursor) => content["last_seq"] = cursor.seq.get().into(),
            None => {}
        }
        if let Some(token) = self.resume_token {
            content["resume_token"] = token.into();
        }
        if self.take_over {
            content["take_over"] = true.into();
        }
        if self.observe {
            content["mode"] = "observe".into();
        }
        content
    }
}

pub(crate) fn create(client_id: &str, options: &Map<String, Value>) -> String {
    let mut content = options.clone();
    content.insert("client_id".into(), client_id.into());
    json!({ "event": names::CREATE_SESSION, "content": content }).to_string()
}

pub(crate) fn reconnect(session: &str, fields: &AttachFields<'_>) -> String {
    json!({ "event": names::RECONNECT, "session_id": session, "content": fields.content() }).to_string()
}

pub(crate) fn reconnect_with_state(signed_state: &Value, fields: &AttachFields<'_>) -> String {
    let content = fields.content();
    json!({ "event": names::RECONNECT_WITH_STATE, "signed_state": signed_state, "content": content }).to_string()
}

pub(crate) fn ack(session: &str, cursor: &Cursor) -> String {
    let content = match cursor.epoch {
        Some(_) => json!({ "last_event_id": cursor.to_string() }),
        None => json!({ "last_seq": cursor.seq }),
    };
    json!({ "event": names::ACK, "session_id": session, "content": content }).to_string()
}

pub(crate) fn pong() -> String {
    json!({ "event": names::PONG }).to_string()
}

pub(crate) fn authenticate(token: &str) -> String {
    json!({ "event": names::AUTHENTICATE, "content": { "token": token } }).to_string()
}

pub(crate) fn watch(task: &str, cursor: Option<&str>, resume_token: Option<&str>) -> String {
    let mut content = json!({ "last_message_id": cursor.unwrap_or("0") });
    if let Some(token) = resume_token {
        content["resume_token"] = token.into();
    }
    json!({ "event": names::WATCH_TASK, "task_id": task, "content": content }).to_string()
}

pub(crate) fn unwatch(task: &str) -> String {
    json!({ "event": names::UNWATCH_TASK, "task_id": task }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_protocol::frame::ClientFrame;

    #[test]
    fn the_server_understands_every_frame_that_the_client_sends() {
        let cursor = Cursor::parse("e-5");
        let fields = AttachFields {
            client_id: "c",
            cursor: cursor.as_ref(),
            resume_token: Some("r"),
            take_over: true,
            observe: false,
        };
        let parse = |text: String| ClientFrame::parse(&text, 64).unwrap();
        let options = Map::from_iter([("agent".to_owned(), json!("demo"))]);
        assert!(matches!(parse(create("c", &options)), ClientFrame::CreateSession { agent: Some(_), .. }));
        let ClientFrame::Reconnect(read) = parse(reconnect("sess_1", &fields)) else { panic!() };
        assert_eq!((read.cursor.unwrap().to_string(), read.take_over, read.observe), ("e-5".into(), true, false));
        assert_eq!((read.client_id.unwrap().as_str(), read.resume_token.unwrap().expose()), ("c", "r"));
        parse(reconnect_with_state(&json!("eyJ"), &fields));
        assert!(matches!(parse(ack("sess_1", &cursor.unwrap())), ClientFrame::Ack { cursor: Some(_), .. }));
        assert!(matches!(parse(authenticate("t")), ClientFrame::Authenticate { .. }));
        parse(watch("task_1", None, Some("r")));
        parse(unwatch("task_1"));
        parse(pong());
    }
}
