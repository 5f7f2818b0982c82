//! What nodes say to each other, as it is written: things asked of sessions and tasks that live elsewhere, answers, and mail
//! for connections.

use bowline_core::hold::ConnectionKey;
use bowline_protocol::{ErrorCode, Principal, ProducerId, Refusal, Seq, SessionId, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::session::{SessionAsk, SessionMail, SessionOutcome};
use super::task::TaskFacts;
use crate::secret::Presented;
use crate::session::CommandResult;
use crate::task::command::{Appended, EndedTask, TaskClose};

#[derive(Serialize, Deserialize)]
pub enum NodeMessage {
    Session {
        session: SessionId,
        asker: Principal,
        from: RemoteSender,
        ask: SessionAsk,
        hops: u8,
    },
    /// What was asked of a session, unopened: the node that was asked is leaving, and another can have the session.
    Returned {
        session: SessionId,
        asker: Principal,
        from: RemoteSender,
        ask: SessionAsk,
        hops: u8,
    },
    Task {
        task: TaskId,
        asker: Principal,
        number: u64,
        ask: TaskAsk,
        hops: u8,
    },
    Mail {
        #[serde(rename = "party")]
        connection: ConnectionKey,
        mail: Box<SessionMail>,
    },
    Answer {
        number: u64,
        answer: NodeAnswer,
    },
    /// Of a stream, which goes on over many messages. The number is that of the node which began it.
    Talk {
        number: u64,
        turn: NodeStreamMessage,
    },
    /// Are you reading? Any message answers.
    Ping,
    /// Nothing but what stands on the envelope.
    Hello,
    /// Messages of the receiver's did not arrive here.
    Missed,
    /// A message of the receiver's cannot be read here.
    Unread {
        why: String,
    },
    /// To the sender, this incarnation of the receiver is dead.
    Dead {
        incarnation: u64,
    },
}

impl NodeMessage {
    /// Whether this node waits for what comes of it.
    pub fn is_awaited(&self) -> bool {
        match self {
            NodeMessage::Session { from, ask, .. } => ask.is_awaited() && !matches!(from, RemoteSender::Nobody),
            NodeMessage::Task { number, .. } => *number > 0,
            NodeMessage::Talk { turn, .. } => matches!(turn, NodeStreamMessage::Ask(_)),
            _ => false,
        }
    }
}

/// Who asks, as the node knows them that they came to.
#[derive(Debug, Serialize, Deserialize)]
pub enum RemoteSender {
    Connection {
        #[serde(rename = "party")]
        connection: ConnectionKey,
        admitted: bool,
    },
    Request {
        number: u64,
        proof: Option<Presented>,
    },
    Nobody,
}

/// What either side of a stream says.
#[derive(Serialize, Deserialize)]
pub enum NodeStreamMessage {
    Ask(Box<RawValue>),
    Part(String),
    /// That was all.
    End,
    /// A part was taken.
    Taken,
    /// The side that asked wants no more.
    Left,
}

/// What may be asked of a task.
#[derive(Serialize, Deserialize)]
pub enum TaskAsk {
    Append { place: Option<(ProducerId, u64)>, chunks: Vec<Box<RawValue>> },
    End(TaskEnding),
    Look,
}

#[derive(Serialize, Deserialize)]
pub enum TaskEnding {
    Completed { result: Option<Value>, finish: Option<Box<RawValue>> },
    Failed { code: ErrorCode, message: String, finish: Option<Box<RawValue>> },
    Cancelled { by: String, reason: Option<String>, finish: Option<Box<RawValue>> },
}

#[derive(Serialize, Deserialize)]
pub enum NodeAnswer {
    Session(Result<SessionOutcome, Refusal>),
    Appended(Result<TaskAppended, Refusal>),
    Ended(Result<Box<TaskEnded>, Refusal>),
    /// The one who was asked went away without an answer.
    Gone,
}

#[derive(Serialize, Deserialize)]
pub struct TaskAppended {
    last_message_id: String,
}

#[derive(Serialize, Deserialize)]
pub struct TaskEnded {
    by_this: bool,
    record: TaskFacts,
    last: Seq,
    last_message_id: String,
}

impl NodeAnswer {
    pub fn of_session(answered: CommandResult) -> NodeAnswer {
        NodeAnswer::Session(answered.map(Into::into))
    }

    pub fn of_append(appended: Result<Appended, Refusal>) -> NodeAnswer {
        NodeAnswer::Appended(appended.map(|Appended { last_message_id }| TaskAppended { last_message_id }))
    }

    pub fn of_end(ended: Result<Box<EndedTask>, Refusal>) -> NodeAnswer {
        NodeAnswer::Ended(ended.map(|ended| {
            let EndedTask { by_this, record, last, last_message_id } = *ended;
            Box::new(TaskEnded { by_this, record: record.into(), last, last_message_id })
        }))
    }
}

impl From<TaskAppended> for Appended {
    fn from(appended: TaskAppended) -> Appended {
        Appended { last_message_id: appended.last_message_id }
    }
}

impl From<Box<TaskEnded>> for Box<EndedTask> {
    fn from(ended: Box<TaskEnded>) -> Box<EndedTask> {
        let TaskEnded { by_this, record, last, last_message_id } = *ended;
        Box::new(EndedTask { by_this, record: record.into(), last, last_message_id })
    }
}

impl From<TaskClose> for TaskEnding {
    fn from(ending: TaskClose) -> TaskEnding {
        match ending {
            TaskClose::Completed { result, finish } => TaskEnding::Completed { result, finish },
            TaskClose::Failed { code, message, finish } => TaskEnding::Failed { code, message, finish },
            TaskClose::Cancelled { by, reason, finish } => TaskEnding::Cancelled { by, reason, finish },
        }
    }
}

impl From<TaskEnding> for TaskClose {
    fn from(ending: TaskEnding) -> TaskClose {
        match ending {
            TaskEnding::Completed { result, finish } => TaskClose::Completed { result, finish },
            TaskEnding::Failed { code, message, finish } => TaskClose::Failed { code, message, finish },
            TaskEnding::Cancelled { by, reason, finish } => TaskClose::Cancelled { by, reason, finish },
        }
    }
}

impl std::fmt::Debug for NodeMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NodeMessage::Session { .. } => "Session",
            NodeMessage::Returned { .. } => "Returned",
            NodeMessage::Task { .. } => "Task",
            NodeMessage::Mail { .. } => "Mail",
            NodeMessage::Answer { .. } => "Answer",
            NodeMessage::Talk { .. } => "Talk",
            NodeMessage::Ping => "Ping",
            NodeMessage::Hello => "Hello",
            NodeMessage::Missed => "Missed",
            NodeMessage::Unread { .. } => "Unread",
            NodeMessage::Dead { .. } => "Dead",
        })
    }
}
