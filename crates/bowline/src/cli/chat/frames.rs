//! The frames of the terminal client: what it sends, and a view of what it hears.

use bowline_protocol::frame::names;
use serde_json::{Value, json};

/// What is said about a way back.
#[derive(Clone, Debug, Default)]
pub struct Attach<'a> {
    pub session: &'a str,
    pub last_event_id: Option<String>,
    pub client_id: &'a str,
    pub resume_token: Option<&'a str>,
    pub take_over: bool,
}

pub fn create(client_id: &str, agent: Option<&str>) -> String {
    let mut content =
        json!({ "client_id": client_id, "app_version": concat!("bowline-chat/", env!("CARGO_PKG_VERSION")) });
    if let Some(agent) = agent {
        content["agent"] = agent.into();
    }
    json!({ "event": names::CREATE_SESSION, "content": content }).to_string()
}

pub fn reconnect(attach: &Attach<'_>) -> String {
    let mut content = json!({ "client_id": attach.client_id });
    if let Some(cursor) = &attach.last_event_id {
        content["last_event_id"] = cursor.as_str().into();
    }
    if let Some(token) = attach.resume_token {
        content["resume_token"] = token.into();
    }
    if attach.take_over {
        content["take_over"] = true.into();
    }
    json!({ "event": names::RECONNECT, "session_id": attach.session, "content": content }).to_string()
}

pub fn message(session: &str, message_id: &str, text: &str) -> String {
    json!({ "event": names::MESSAGE, "session_id": session, "message_id": message_id, "content": text }).to_string()
}

pub fn response(session: &str, step_id: &str, confirmed: bool) -> String {
    let content = json!({ "confirmed": confirmed });
    json!({ "event": names::RESPONSE, "session_id": session, "step_id": step_id, "content": content }).to_string()
}

pub fn cancel(session: &str) -> String {
    json!({ "event": names::CANCEL, "session_id": session, "reason": "Ctrl-C" }).to_string()
}

pub fn ack(session: &str, cursor: &str) -> String {
    json!({ "event": names::ACK, "session_id": session, "content": { "last_event_id": cursor } }).to_string()
}

/// A frame from the server, as far as a terminal cares.
#[derive(Clone, Debug)]
pub struct Heard {
    pub event: String,
    pub session: Option<String>,
    /// Present on logged events only.
    pub seq: Option<u64>,
    pub epoch: Option<String>,
    pub step_id: Option<String>,
    pub content: Value,
    pub metadata: Value,
}

impl Heard {
    pub fn parse(text: &str) -> Option<Heard> {
        let mut frame: Value = serde_json::from_str(text).ok()?;
        let word = |key: &str| frame.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
        let epoch = word("event_id").and_then(|id| id.rsplit_once('-').map(|(epoch, _)| epoch.to_owned()));
        let (event, session, step_id) = (word("event")?, word("session_id"), word("step_id"));
        let seq = frame.get("seq").and_then(Value::as_u64);
        Some(Heard {
            event,
            session,
            seq,
            epoch,
            step_id,
            content: frame["content"].take(),
            metadata: frame["metadata"].take(),
        })
    }

    /// The content as text: itself, or its `text` or `message`.
    pub fn text(&self) -> String {
        let inner = || ["text", "message"].iter().find_map(|key| self.content.get(*key)?.as_str());
        self.content.as_str().or_else(inner).unwrap_or_default().to_owned()
    }

    pub fn fact(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).and_then(Value::as_str)
    }

    pub fn figure(&self, key: &str) -> Option<u64> {
        self.metadata.get(key).and_then(Value::as_u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_protocol::frame::Request;

    #[test]
    fn the_server_understands_every_frame_that_the_client_sends() {
        let attach = Attach {
            session: "sess_1",
            last_event_id: Some("e-5".into()),
            client_id: "c",
            resume_token: Some("r"),
            take_over: true,
        };
        let parse = |text: String| Request::parse(&text, 64).unwrap();
        assert!(matches!(parse(create("c", Some("demo"))), Request::CreateSession { agent: Some(_), .. }));
        let Request::Reconnect(read) = parse(reconnect(&attach)) else { panic!() };
        assert_eq!((read.cursor.unwrap().to_string(), read.take_over, read.observe), ("e-5".into(), true, false));
        assert_eq!((read.client_id.unwrap().as_str(), read.resume_token.unwrap().expose()), ("c", "r"));
        assert!(matches!(parse(message("sess_1", "m", "hi")), Request::Message { message_id: Some(_), .. }));
        assert!(matches!(parse(response("sess_1", "s", false)), Request::Response { confirmed: false, .. }));
        assert!(matches!(parse(cancel("sess_1")), Request::Cancel { session: Some(_), .. }));
        assert!(matches!(parse(ack("sess_1", "e-5")), Request::Ack { cursor: Some(_), .. }));
    }
}
