//! What an application asks of its session, and how the server answers it.

use std::fmt;

use bowline_protocol::event::names as events;
use bowline_protocol::frame::names;
use serde_json::{Map, Value, json};

use crate::ServerFrame;

/// Names a request of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);

/// Something to ask of a session.
#[derive(Clone)]
pub enum ClientRequest {
    /// A message to the agent. The same `message_id` twice runs once, so it is safe to send it again after a loss.
    Message {
        /// The key of the message.
        message_id: String,
        /// Text, or an object with `text`.
        content: Value,
    },
    /// The reply to a question (`agent.user_confirm`).
    Response {
        /// The step of the question.
        step_id: String,
        /// `{confirmed, tasks?, reason?}`.
        content: Value,
    },
    /// Cancel the active run.
    Cancel {
        /// Why, for the log.
        reason: Option<String>,
    },
    /// Export the session as a signed state.
    RequestState {
        /// `{include_memory?, include_plan?, include_work?, format?}`.
        options: Value,
    },
    /// A plan command: the name of its frame without `user.`, and its fields.
    Plan {
        /// `cancel_task`, `restart_task`, `cancel_plan`, `replan` or `solve_tasks`.
        action: &'static str,
        /// `task_id`, `reason`, `question` or `tasks`.
        fields: Map<String, Value>,
    },
    /// End the session.
    End,
}

impl fmt::Debug for ClientRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClientRequest::Message { .. } => "Message",
            ClientRequest::Response { .. } => "Response",
            ClientRequest::Cancel { .. } => "Cancel",
            ClientRequest::RequestState { .. } => "RequestState",
            ClientRequest::Plan { action, .. } => action,
            ClientRequest::End => "End",
        })
    }
}

/// How the server answered a request that it accepted.
#[derive(Clone, PartialEq)]
pub enum RequestOutcome {
    /// The message is in the log, or in the queue before it.
    Message {
        /// Its number; `None` while it is queued.
        seq: Option<u64>,
        /// The server had accepted it before.
        duplicate: bool,
    },
    /// The reply is in the log.
    Response {
        /// Its number.
        seq: u64,
    },
    /// The run has ended.
    Cancel {
        /// Whether by this cancel.
        cancelled: bool,
    },
    /// The signed state, as text or as an object, with the metadata that came with it.
    State {
        /// To be kept as it is, and given to [`Target::State`](crate::AttachTarget::State).
        signed_state: Value,
        /// What `PROTOCOL.md` says of `agent.state_exported`.
        metadata: Value,
    },
    /// The plan command reached the run.
    Plan {
        /// Whether there was something to do.
        ok: bool,
    },
    /// The session has ended.
    Ended,
}

impl fmt::Debug for RequestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestOutcome::Message { seq, duplicate } => write!(f, "Message({seq:?}, duplicate: {duplicate})"),
            RequestOutcome::Response { seq } => write!(f, "Response({seq})"),
            RequestOutcome::Cancel { cancelled } => write!(f, "Cancel({cancelled})"),
            RequestOutcome::State { .. } => f.write_str("State"),
            RequestOutcome::Plan { ok } => write!(f, "Plan({ok})"),
            RequestOutcome::Ended => f.write_str("Ended"),
        }
    }
}

impl ClientRequest {
    pub(crate) fn frame(&self, session: &str) -> String {
        let frame = match self {
            ClientRequest::Message { message_id, content } => {
                json!({ "event": names::MESSAGE, "session_id": session, "message_id": message_id, "content": content })
            }
            ClientRequest::Response { step_id, content } => {
                json!({ "event": names::RESPONSE, "session_id": session, "step_id": step_id, "content": content })
            }
            ClientRequest::Cancel { reason } => {
                json!({ "event": names::CANCEL, "session_id": session, "reason": reason })
            }
            ClientRequest::RequestState { options } => {
                json!({ "event": names::REQUEST_STATE, "session_id": session, "content": options })
            }
            ClientRequest::Plan { action, fields } => {
                let mut frame = Value::Object(fields.clone());
                frame["event"] = format!("user.{action}").into();
                frame["session_id"] = session.into();
                frame
            }
            ClientRequest::End => json!({ "event": names::END_SESSION, "session_id": session }),
        };
        frame.to_string()
    }

    /// Whether sending it again after a loss does it once: it has a key of its own, or doing it twice changes nothing.
    pub(crate) fn is_idempotent(&self) -> bool {
        !matches!(self, ClientRequest::Plan { .. })
    }

    /// The outcome that a logged event or a control frame shows, if it shows one.
    pub(crate) fn outcome(&self, frame: &ServerFrame) -> Option<RequestOutcome> {
        let name = frame.event.as_str();
        let action = (name == names::NOTICE).then(|| frame.word("action")).flatten();
        match self {
            ClientRequest::Message { message_id, .. } => {
                if frame.word("message_id") != Some(message_id) {
                    return None;
                }
                match (frame.seq, action) {
                    (Some(seq), _) if name == events::USER_MESSAGE => {
                        Some(RequestOutcome::Message { seq: Some(seq), duplicate: false })
                    }
                    (_, Some("queued")) => Some(RequestOutcome::Message { seq: None, duplicate: false }),
                    (_, Some("duplicate_message")) => {
                        Some(RequestOutcome::Message { seq: frame.number("seq"), duplicate: true })
                    }
                    _ => None,
                }
            }
            ClientRequest::Response { step_id, .. } => {
                let seq = frame.seq.filter(|_| name == events::USER_RESPONSE)?;
                (frame.step_id.as_ref() == Some(step_id)).then_some(RequestOutcome::Response { seq })
            }
            ClientRequest::Cancel { .. } => {
                if action == Some("cancel") {
                    return Some(RequestOutcome::Cancel { cancelled: false });
                }
                let ends = matches!(name, events::FINAL_ANSWER | events::ERROR | events::CANCELLED);
                let cancelled = name == events::CANCELLED;
                (ends && frame.seq.is_some()).then_some(RequestOutcome::Cancel { cancelled })
            }
            ClientRequest::RequestState { options } => {
                let signed_state = frame.metadata.get("signed_state").filter(|_| name == names::STATE_EXPORTED)?;
                // A checkpoint that was pushed meanwhile does not answer a request for the other form.
                let other_form = options["format"] == "token" && !signed_state.is_string();
                let signed_state = signed_state.clone();
                (!other_form).then(|| RequestOutcome::State { signed_state, metadata: frame.metadata.clone() })
            }
            ClientRequest::Plan { action: asked, .. } => {
                let ok = frame.metadata["ok"] == true;
                (action == Some(*asked)).then_some(RequestOutcome::Plan { ok })
            }
            ClientRequest::End => (name == events::SESSION_END).then_some(RequestOutcome::Ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_protocol::frame::ClientFrame;

    #[test]
    fn the_server_understands_every_request() {
        let parse = |request: ClientRequest| ClientFrame::parse(&request.frame("sess_1"), 64).unwrap();
        let message = ClientRequest::Message { message_id: "m".into(), content: "hi".into() };
        assert!(matches!(parse(message), ClientFrame::Message { message_id: Some(_), .. }));
        let response = ClientRequest::Response { step_id: "s".into(), content: json!({ "confirmed": false }) };
        assert!(matches!(parse(response), ClientFrame::Response { confirmed: false, .. }));
        assert!(matches!(parse(ClientRequest::Cancel { reason: None }), ClientFrame::Cancel { session: Some(_), .. }));
        parse(ClientRequest::RequestState { options: json!({ "format": "token" }) });
        let fields = Map::from_iter([("task_id".to_owned(), json!("t"))]);
        assert!(matches!(parse(ClientRequest::Plan { action: "cancel_task", fields }), ClientFrame::Plan { .. }));
        parse(ClientRequest::End);
    }
}
