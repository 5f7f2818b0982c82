//! Who sent a command, and how it is answered: a connection by frames, an HTTP request by one outcome.

use bowline_protocol::frame::Control;
use bowline_protocol::{MessageId, Refusal, Seq, SessionId};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Mail, Mailbox};
use crate::reply::Reply;
use crate::secret::Presented;
use crate::task::Begun;

#[derive(Debug)]
pub enum Caller {
    /// A WebSocket, which must hold the session to write to it.
    Connection(Mailbox),
    /// One HTTP request. Its owner may always write.
    Request(Request),
    /// The server itself, which waits for no answer.
    Nobody,
}

pub struct Request {
    /// What proves ownership where a name does not.
    pub proof: Option<Presented>,
    pub reply: Reply<Answered>,
}

pub type Answered = Result<Outcome, Refusal>;

/// What came of a command.
#[derive(Debug)]
pub enum Outcome {
    /// A turn began with this event; the events that follow are the answer.
    Started {
        turn: Seq,
    },
    Queued {
        position: usize,
        message_id: Option<MessageId>,
    },
    /// It was accepted before; there is no turn while it waits in the queue.
    Repeated {
        message_id: Option<MessageId>,
        turn: Option<Seq>,
        /// The event that ended the turn, if it has ended.
        last: Option<Seq>,
    },
    /// A run was stopped, or there was none to stop.
    Cancelled {
        ran: bool,
    },
    /// A command was taken, or had nothing to act on.
    Commanded {
        action: String,
        ok: bool,
    },
    Operation(Box<Begun>),
    /// Done, and there is nothing to add.
    Done,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

impl Request {
    pub fn new(proof: Option<Presented>) -> (Request, oneshot::Receiver<Answered>) {
        let (reply, answer) = Reply::here();
        (Request { proof, reply }, answer)
    }
}

impl Caller {
    /// Whether it is a connection that has shown before whose the session is.
    pub fn is_admitted(&self) -> bool {
        matches!(self, Caller::Connection(mailbox) if mailbox.admitted)
    }

    /// Says what came of it. A request that is gone needs no answer.
    pub fn settle(self, session: &SessionId, state: &str, answered: Answered) {
        match (self, answered) {
            (Caller::Request(request), answered) => request.reply.send(answered),
            (Caller::Nobody, _) => {}
            (Caller::Connection(mailbox), Err(refusal)) => mailbox.refuse(session, refusal),
            (Caller::Connection(mailbox), Ok(outcome)) => {
                if let Some((sentence, facts)) = outcome.notice(state) {
                    mailbox.send(Mail::Control(Control::notice(Some(session.clone()), sentence, facts)));
                }
            }
        }
    }
}

impl Outcome {
    /// What a connection is told, where the log does not say it.
    fn notice(self, state: &str) -> Option<(String, Value)> {
        match self {
            Outcome::Queued { position, message_id } => Some((
                format!("Your message is number {position} in the queue."),
                json!({ "action": "queued", "position": position, "message_id": message_id }),
            )),
            Outcome::Repeated { message_id, turn, last } => Some((
                "This message was accepted before; its events are the answer.".into(),
                json!({
                    "action": "duplicate_message",
                    "message_id": message_id,
                    "seq": turn,
                    "first_seq": turn,
                    "last_seq": last,
                    "session_state": state,
                }),
            )),
            Outcome::Cancelled { ran: false } => {
                Some(("Nothing is running.".into(), json!({ "action": "cancel", "ok": false })))
            }
            Outcome::Commanded { action, ok } => {
                let sentence =
                    if ok { format!("`{action}` is under way.") } else { format!("There is nothing to `{action}`.") };
                Some((sentence, json!({ "action": action, "ok": ok })))
            }
            Outcome::Started { .. } | Outcome::Cancelled { ran: true } | Outcome::Operation(_) | Outcome::Done => None,
        }
    }
}
