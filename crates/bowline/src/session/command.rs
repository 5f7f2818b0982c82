//! What may be asked of a session, by whom, and what they are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bowline_api::{Functions, Reply, Role, WorkCommand};
use bowline_core::Resume;
use bowline_core::hold::ConnectionKey;
use bowline_protocol::frame::Control;
use bowline_protocol::frame::client::Content;
use bowline_protocol::{
    ClientId, Cursor, Extent, LogId, MessageId, Principal, Refusal, Seq, SessionId, StepId, TaskId,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::export::ExportOptions;
use super::functions::Returned;
use super::operations::Order;
use super::restore::Restored;
use super::webhooks::Owed;
use crate::reply;
use crate::secret::Presented;
use crate::task::AcceptedOperation;

/// A command to a session: what is asked, and whom to answer.
#[derive(Debug)]
pub struct SessionCommand {
    pub from: CommandSender,
    pub ask: SessionRequest,
    /// How many nodes it came through.
    pub hops: u8,
}

/// What may be asked of a session. Nothing but facts, so that it can travel to the node where the session lives.
#[derive(Debug)]
pub enum SessionRequest {
    Attach(Box<AttachRequest>),
    Detach,
    /// The connection showed a sign of life after it was probed.
    Alive,
    Message {
        message_id: Option<MessageId>,
        /// Another key under which the same message may come again.
        also: Option<MessageId>,
        /// The turn that it follows: it is taken only if that is the newest, and nothing follows it yet.
        behind: Option<Seq>,
        content: Content,
    },
    /// Answers the last message anew; the new turn takes the place of the last one.
    Regenerate {
        by: String,
        /// The answer that is to be replaced, as the client calls it: the same one twice runs once.
        replaces: Option<MessageId>,
    },
    Response {
        step_id: StepId,
        reply: Reply,
        /// What else the one who replies asked for, as the log is to keep it.
        request: Option<Content>,
        /// The event that asks, if webhooks get what follows the answer.
        announce: Option<Seq>,
    },
    /// The outputs of functions that a run has called.
    Returned(Box<Returned>),
    /// Webhooks have the end of a response.
    WebhookDelivered(Owed),
    Cancel {
        by: String,
        reason: Option<String>,
        /// Only the turn that began with this event.
        turn: Option<Seq>,
    },
    /// A command to the agent, about its work.
    Command {
        by: String,
        command: WorkCommand,
    },
    Operate(Box<Order>),
    /// A background operation of this session has ended.
    OperationEnded {
        task: TaskId,
        content: Box<Value>,
    },
    Export(ExportOptions),
    Ack {
        seq: Seq,
    },
    End {
        by: String,
    },
    /// Nothing but that its secret was shown.
    Prove,
    /// The session was not used for its lifetime; the actor checks that itself.
    Expire,
    /// This node was away for so long that others may have taken the session; the actor looks for itself.
    Verify,
}

impl SessionRequest {
    /// Whether it can be asked twice without being done twice.
    pub fn is_repeatable(&self) -> bool {
        match self {
            SessionRequest::Attach(_)
            | SessionRequest::Alive
            | SessionRequest::Ack { .. }
            | SessionRequest::Export(_) => true,
            SessionRequest::Message { message_id, .. } => message_id.is_some(),
            _ => false,
        }
    }

    /// Whether its sender waits for the outcome.
    pub fn is_awaited(&self) -> bool {
        !matches!(
            self,
            SessionRequest::Detach
                | SessionRequest::Alive
                | SessionRequest::Ack { .. }
                | SessionRequest::Expire
                | SessionRequest::Verify
        )
    }
}

impl SessionCommand {
    pub fn new(from: CommandSender, ask: SessionRequest) -> SessionCommand {
        SessionCommand { from, ask, hops: 0 }
    }

    /// A command without a sender that waits.
    pub fn unasked(ask: SessionRequest) -> SessionCommand {
        SessionCommand::new(CommandSender::Internal, ask)
    }

    /// Answers the sender, if it waits for an answer.
    pub fn refuse(self, session: &SessionId, refusal: &Refusal) {
        match (self.ask, self.from) {
            (SessionRequest::Attach(request), CommandSender::Connection(mailbox)) => {
                // The session may have got another name since.
                let AttachRequest { session, origin, .. } = *request;
                mailbox.send(Mail::Refused { session, refusal: refusal.clone(), origin: Some(origin) });
            }
            (ask, _) if !ask.is_awaited() => {}
            (_, from) => from.settle(session, "", Err(refusal.clone())),
        }
    }
}

/// How the client came to a session, which decides how success and failure are worded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachOrigin {
    Created,
    Reconnect,
    /// `user.reconnect_with_state` without state: failures are `error.recovery_failed`.
    Recover,
    /// With a signed state.
    Restored,
}

/// How a connection wants to hold or observe a session.
#[derive(Debug)]
pub struct AttachRequest {
    /// The name under which the client asks. While it waits, the session may have got another.
    pub session: SessionId,
    pub principal: Principal,
    pub origin: AttachOrigin,
    pub cursor: Option<Cursor>,
    pub client_id: Option<ClientId>,
    pub proof: Option<Presented>,
    pub observe: bool,
    pub take_over: bool,
    /// What a signed state led to.
    pub restored: Option<Box<Restored>>,
    /// When the client asked, to measure how long its way back took.
    pub since: Instant,
}

/// A connection with its claim on a session.
#[derive(Debug)]
pub struct Attacher {
    pub mailbox: Mailbox,
    pub request: AttachRequest,
}

/// Session → connection.
#[derive(Debug)]
pub enum Mail {
    Granted(Box<Grant>),
    Control(Control),
    /// A request about a session was refused.
    Refused {
        session: SessionId,
        refusal: Refusal,
        origin: Option<AttachOrigin>,
    },
    /// What this connection knows of the session may not be so any more, and it must come back.
    Cut {
        session: SessionId,
    },
    /// Another connection holds the session now; this connection's link to it is over.
    TakenOver {
        session: SessionId,
    },
    /// The session goes on under another id.
    Superseded {
        session: SessionId,
        by: SessionId,
    },
    /// Are you alive? Any frame from the client answers.
    Probe {
        session: SessionId,
    },
    /// The session is over with event `last`; its log will be let go once that has been read.
    Over {
        session: SessionId,
        last: Seq,
    },
}

impl Mail {
    /// The session that it is about, under the name by which it was asked for.
    pub fn about(&self) -> Option<&SessionId> {
        match self {
            Mail::Granted(grant) => Some(&grant.claimed),
            Mail::Control(control) => control.session.as_ref(),
            Mail::Refused { session, .. }
            | Mail::Cut { session }
            | Mail::TakenOver { session }
            | Mail::Superseded { session, .. }
            | Mail::Probe { session }
            | Mail::Over { session, .. } => Some(session),
        }
    }
}

/// The right to read a session's log from here on, and to write to it if it was not only to observe.
#[derive(Debug)]
pub struct Grant {
    pub session: SessionId,
    /// The id that was asked for; a restored session goes on under another.
    pub claimed: SessionId,
    /// The session's log, which may have an older name.
    pub log: LogId,
    pub observe: bool,
    pub origin: AttachOrigin,
    pub extent: Extent,
    pub resume: Resume,
    /// How far the client said it was.
    pub position: Option<Seq>,
    /// When the client asked, to measure how long its way back took.
    pub since: Instant,
    /// `agent.session_created`, to be sent before anything else.
    pub greeting: Control,
}

/// Where a connection reads its mail. Boxed, because a channel keeps room for 32 of whatever it carries.
pub type MailReceiver = mpsc::UnboundedReceiver<Box<Mail>>;

/// The way back to one connection.
#[derive(Clone)]
pub struct Mailbox {
    pub connection: ConnectionKey,
    /// Whether the connection was attached to the session that it writes to now or before. Then it has shown whose it is, and
    /// gets a notice of what became of the session.
    pub admitted: bool,
    route: MailRoute,
}

#[derive(Clone)]
enum MailRoute {
    /// Unbounded, because a connection stops reading its socket while answers pile up, so a client cannot make it grow.
    Here(mpsc::UnboundedSender<Box<Mail>>),
    /// The connection is another node's.
    Remote(Arc<dyn Fn(Mail) + Send + Sync>),
}

impl Mailbox {
    pub fn new() -> (Mailbox, MailReceiver) {
        let (mail, inbox) = mpsc::unbounded_channel();
        (Mailbox { connection: next_connection(), admitted: false, route: MailRoute::Here(mail) }, inbox)
    }

    /// Stands for a connection of another node's.
    pub fn remote(carry: impl Fn(Mail) + Send + Sync + 'static) -> Mailbox {
        Mailbox { connection: next_connection(), admitted: false, route: MailRoute::Remote(Arc::new(carry)) }
    }

    /// The same, for something that is asked of a session that it was or was not attached to.
    #[must_use]
    pub fn asking(&self, admitted: bool) -> Mailbox {
        Mailbox { admitted, ..self.clone() }
    }

    pub fn is_remote(&self) -> bool {
        matches!(self.route, MailRoute::Remote(_))
    }

    /// Whether the connection is gone, as far as this process can know.
    pub fn is_closed(&self) -> bool {
        matches!(&self.route, MailRoute::Here(mail) if mail.is_closed())
    }

    /// A connection that is gone needs no mail.
    pub fn send(&self, mail: Mail) {
        match &self.route {
            MailRoute::Here(sender) => drop(sender.send(Box::new(mail))),
            MailRoute::Remote(carry) => carry(mail),
        }
    }

    pub fn refuse(&self, session: &SessionId, refusal: Refusal) {
        self.send(Mail::Refused { session: session.clone(), refusal, origin: None });
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mailbox({}{})", self.connection, if self.is_remote() { ", remote" } else { "" })
    }
}

fn next_connection() -> ConnectionKey {
    static PARTIES: AtomicU64 = AtomicU64::new(1);
    PARTIES.fetch_add(1, Ordering::Relaxed)
}

#[derive(Debug)]
pub enum CommandSender {
    /// A WebSocket, which must hold the session to write to it.
    Connection(Mailbox),
    /// One HTTP request. Its owner may always write.
    Request(RequestCaller),
    /// The server itself, which waits for no answer.
    Internal,
}

pub struct RequestCaller {
    /// What proves ownership where a name does not.
    pub proof: Option<Presented>,
    pub reply: reply::Responder<CommandResult>,
}

pub type CommandResult = Result<CommandOutcome, Refusal>;

/// What came of a command.
#[derive(Debug)]
pub enum CommandOutcome {
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
    Operation(Box<AcceptedOperation>),
    /// Done, and there is nothing to add.
    Done,
}

impl std::fmt::Debug for RequestCaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestCaller")
    }
}

impl RequestCaller {
    pub fn new(proof: Option<Presented>) -> (RequestCaller, oneshot::Receiver<CommandResult>) {
        let (reply, answer) = reply::Responder::here();
        (RequestCaller { proof, reply }, answer)
    }
}

impl CommandSender {
    /// Whether it is a connection that has shown before whose the session is.
    pub fn is_admitted(&self) -> bool {
        matches!(self, CommandSender::Connection(mailbox) if mailbox.admitted)
    }

    /// Says what came of it. A request that is gone needs no answer.
    pub fn settle(self, session: &SessionId, state: &str, answered: CommandResult) {
        match (self, answered) {
            (CommandSender::Request(request), answered) => request.reply.send(answered),
            (CommandSender::Internal, _) => {}
            (CommandSender::Connection(mailbox), Err(refusal)) => mailbox.refuse(session, refusal),
            (CommandSender::Connection(mailbox), Ok(outcome)) => {
                if let Some((sentence, facts)) = outcome.notice(state) {
                    mailbox.send(Mail::Control(Control::notice(Some(session.clone()), sentence, facts)));
                }
            }
        }
    }
}

impl CommandOutcome {
    /// What a connection is sent, where the log does not say it.
    fn notice(self, state: &str) -> Option<(String, Value)> {
        match self {
            CommandOutcome::Queued { position, message_id } => Some((
                format!("Your message is number {position} in the queue."),
                json!({ "action": "queued", "position": position, "message_id": message_id }),
            )),
            CommandOutcome::Repeated { message_id, turn, last } => Some((
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
            CommandOutcome::Cancelled { ran: false } => {
                Some(("Nothing is running.".into(), json!({ "action": "cancel", "ok": false })))
            }
            CommandOutcome::Commanded { action, ok } => {
                let sentence =
                    if ok { format!("`{action}` is under way.") } else { format!("There is nothing to `{action}`.") };
                Some((sentence, json!({ "action": action, "ok": ok })))
            }
            CommandOutcome::Started { .. }
            | CommandOutcome::Cancelled { ran: true }
            | CommandOutcome::Operation(_)
            | CommandOutcome::Done => None,
        }
    }
}

/// What a message may bring besides its text: messages that came before it elsewhere, and instructions and functions for its answer alone.
/// What is of another shape is left out.
#[derive(Default, Deserialize)]
pub struct MessageExtras {
    #[serde(default)]
    pub before: Vec<Earlier>,
    #[serde(default)]
    pub instructions: Option<String>,
    /// What the agent may call of the sender's.
    #[serde(default)]
    pub functions: Option<Functions>,
    /// Whether webhooks get the end of its answer.
    #[serde(default)]
    pub announce: bool,
}

/// A message of the conversation that the session does not have yet.
#[derive(Deserialize)]
pub struct Earlier {
    pub role: Role,
    pub content: String,
}

impl MessageExtras {
    pub fn of(content: &Content) -> MessageExtras {
        let text = content.0.get();
        // A list would be read as a struct too.
        let object = text.starts_with('{');
        object.then(|| serde_json::from_str(text).ok()).flatten().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_right_shape_is_taken() {
        let of = |value: Value| MessageExtras::of(&Content(serde_json::value::to_raw_value(&value).unwrap()));
        let extras = of(json!({ "text": "c", "before": [{ "role": "user", "content": "a" }], "instructions": "b" }));
        assert_eq!((extras.before.len(), extras.instructions.as_deref()), (1, Some("b")));
        for nothing in [json!("text"), json!([[], "x"]), json!({ "text": "c" }), json!({ "before": "x", "text": "c" })]
        {
            let extras = of(nothing);
            assert!(extras.before.is_empty() && extras.instructions.is_none());
        }
    }
}
