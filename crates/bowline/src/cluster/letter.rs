//! What nodes say to each other: things asked of sessions and tasks that live elsewhere, answers, and mail for connections.

use bowline_core::hold::Party;
use bowline_protocol::{Principal, ProducerId, Refusal, SessionId, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::talk::Turn;
use crate::session::caller::Answered;
use crate::session::record::Presented;
use crate::session::{Ask, Mail};
use crate::task::command::{Appended, Ended, Ending};

#[derive(Debug, Serialize, Deserialize)]
pub enum Parcel {
    Session {
        session: SessionId,
        asker: Principal,
        from: Sender,
        ask: Ask,
        hops: u8,
    },
    /// What was asked of a session, unopened: the node that was asked is leaving, and another can have the session.
    Returned {
        session: SessionId,
        asker: Principal,
        from: Sender,
        ask: Ask,
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
        party: Party,
        mail: Box<Mail>,
    },
    Answer {
        number: u64,
        answer: Answer,
    },
    /// Of a talk, which goes on over many letters. The number is that of the node which began it.
    Talk {
        number: u64,
        turn: Turn,
    },
    /// Are you reading? Any letter answers.
    Ping,
    /// Nothing but what stands on the envelope.
    Hello,
    /// Letters of the receiver's did not arrive here.
    Missed,
    /// A letter of the receiver's cannot be read here.
    Unread {
        why: String,
    },
    /// To the sender, this incarnation of the receiver is dead.
    Dead {
        incarnation: u64,
    },
}

impl Parcel {
    /// Whether somebody here waits for what comes of it.
    pub fn is_awaited(&self) -> bool {
        match self {
            Parcel::Session { from, ask, .. } => ask.is_awaited() && !matches!(from, Sender::Nobody),
            Parcel::Task { number, .. } => *number > 0,
            Parcel::Talk { turn, .. } => matches!(turn, Turn::Ask(_)),
            _ => false,
        }
    }
}

/// Who asks, as the node knows them that they came to.
#[derive(Debug, Serialize, Deserialize)]
pub enum Sender {
    Connection { party: Party, admitted: bool },
    Request { number: u64, proof: Option<Presented> },
    Nobody,
}

/// What may be asked of a task.
#[derive(Serialize, Deserialize)]
pub enum TaskAsk {
    Append { place: Option<(ProducerId, u64)>, chunks: Vec<Box<RawValue>> },
    End(Ending),
    Look,
}

#[derive(Serialize, Deserialize)]
pub enum Answer {
    Session(Answered),
    Appended(Result<Appended, Refusal>),
    Ended(Result<Box<Ended>, Refusal>),
    /// The one who was asked went away without a word.
    Gone,
}

impl std::fmt::Debug for TaskAsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TaskAsk::Append { .. } => "Append",
            TaskAsk::End(_) => "End",
            TaskAsk::Look => "Look",
        })
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Answer::Session(_) => "Session",
            Answer::Appended(_) => "Appended",
            Answer::Ended(_) => "Ended",
            Answer::Gone => "Gone",
        })
    }
}
