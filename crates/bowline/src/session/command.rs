//! What is said between those who ask and a session's actor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bowline_core::Resume;
use bowline_core::hold::Party;
use bowline_protocol::frame::client::{Content, Secret};
use bowline_protocol::frame::{Control, PlanCommand};
use bowline_protocol::{
    ClientId, Cursor, Extent, LogId, MessageId, Principal, Refusal, Seq, SessionId, StepId, TaskId,
};
use tokio::sync::mpsc;

use super::caller::Caller;
use super::export::ExportOptions;
use super::operations::Order;
use super::restore::Restored;
use crate::agent::Reply;

/// Anybody → session.
#[derive(Debug)]
pub enum Command {
    Attach(Box<Claimant>),
    Detach {
        party: Party,
    },
    /// The connection showed a sign of life after it was probed.
    Alive {
        party: Party,
    },
    Message {
        from: Caller,
        message_id: Option<MessageId>,
        content: Content,
    },
    /// Answers the last message anew; the new turn takes the place of the last one.
    Regenerate {
        from: Caller,
        by: String,
        /// The answer that is to be replaced, as the client calls it: the same one twice runs once.
        replaces: Option<MessageId>,
    },
    Response {
        from: Caller,
        step_id: StepId,
        reply: Reply,
    },
    Cancel {
        from: Caller,
        by: String,
        reason: Option<String>,
        /// Only the turn that began with this event.
        turn: Option<Seq>,
    },
    Plan {
        from: Caller,
        command: PlanCommand,
    },
    Operate {
        from: Caller,
        order: Box<Order>,
    },
    /// A background operation of this session has ended.
    OperationEnded {
        from: Caller,
        task: TaskId,
        content: Box<serde_json::Value>,
    },
    Export {
        from: Mailbox,
        options: ExportOptions,
    },
    Ack {
        party: Party,
        seq: Seq,
    },
    End {
        from: Caller,
        by: String,
    },
    /// Nobody needed the session for its lifetime; the actor looks for itself.
    Expire,
}

impl Command {
    /// Answers whoever waits for an answer.
    pub fn refuse(self, session: &SessionId, refusal: &Refusal) {
        match self {
            Command::Attach(claimant) => {
                let mail =
                    Mail::Refused { session: session.clone(), refusal: refusal.clone(), way: Some(claimant.way) };
                claimant.mailbox.send(mail);
            }
            Command::Message { from, .. }
            | Command::Regenerate { from, .. }
            | Command::Response { from, .. }
            | Command::Cancel { from, .. }
            | Command::Plan { from, .. }
            | Command::Operate { from, .. }
            | Command::OperationEnded { from, .. }
            | Command::End { from, .. } => from.settle(session, "", Err(refusal.clone())),
            Command::Export { from, .. } => from.refuse(session, refusal.clone()),
            Command::Detach { .. } | Command::Alive { .. } | Command::Ack { .. } | Command::Expire => {}
        }
    }
}

/// How the client found its way to a session, which decides how success and failure are worded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Created,
    Reconnect,
    /// `user.reconnect_with_state` without state: failures are `error.recovery_failed`.
    Recover,
    /// With a signed state.
    Restored,
}

/// A connection that wants to hold or observe a session.
#[derive(Debug)]
pub struct Claimant {
    pub mailbox: Mailbox,
    pub principal: Principal,
    pub way: Way,
    pub cursor: Option<Cursor>,
    pub client_id: Option<ClientId>,
    pub resume_token: Option<Secret>,
    pub observe: bool,
    pub take_over: bool,
    /// What a signed state led to.
    pub restored: Option<Box<Restored>>,
    pub since: Instant,
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
        way: Option<Way>,
    },
    /// What this connection knows of the session may not be so any more, and it must come back.
    Cut {
        session: SessionId,
    },
    /// Somebody else holds the session now; this connection's link to it is over.
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

/// The right to read a session's log from here on, and to write to it if it was not only to observe.
#[derive(Debug)]
pub struct Grant {
    pub session: SessionId,
    /// The id that was asked for; a restored session goes on under another.
    pub claimed: SessionId,
    /// The session's log, which may have an older name.
    pub log: LogId,
    pub observe: bool,
    pub way: Way,
    pub extent: Extent,
    pub resume: Resume,
    /// When the client asked, to measure how long its way back took.
    pub since: Instant,
    /// `agent.session_created`, to be sent before anything else.
    pub greeting: Control,
}

/// Where a connection reads its mail. Boxed, because a channel keeps room for 32 of whatever it carries.
pub type Inbox = mpsc::UnboundedReceiver<Box<Mail>>;
/// Where an actor reads its commands.
pub type Commands = mpsc::Receiver<Box<Command>>;

/// The way back to one connection. Unbounded, because a connection stops reading its socket while answers pile up, so
/// a client cannot make it grow.
#[derive(Clone, Debug)]
pub struct Mailbox {
    pub party: Party,
    mail: mpsc::UnboundedSender<Box<Mail>>,
}

impl Mailbox {
    pub fn new() -> (Mailbox, Inbox) {
        static PARTIES: AtomicU64 = AtomicU64::new(1);
        let (mail, inbox) = mpsc::unbounded_channel();
        (Mailbox { party: PARTIES.fetch_add(1, Ordering::Relaxed), mail }, inbox)
    }

    /// A connection that is gone needs no mail.
    pub fn send(&self, mail: Mail) {
        let _ = self.mail.send(Box::new(mail));
    }

    pub fn refuse(&self, session: &SessionId, refusal: Refusal) {
        self.send(Mail::Refused { session: session.clone(), refusal, way: None });
    }
}
