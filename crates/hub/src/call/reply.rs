//! What a call came to: how it ended at its backend, and what its client is answered.

use std::fmt;

use bowline_core::backend::CallFailure;
use bowline_protocol::LogId;

use super::outcome::CallOutcome;
use crate::fields::Raw;
use crate::message::{self, RpcResult};

/// How a call through the hub ended.
pub enum CallEnd {
    Answered { answer: RpcResult, status: u16 },
    Failed(CallFailure),
}

impl fmt::Debug for CallEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallEnd::Answered { answer, status } => write!(f, "Answered(ok: {}, {status})", answer.is_ok()),
            CallEnd::Failed(outcome) => write!(f, "Failed({outcome:?})"),
        }
    }
}

/// An answer, what became of the call, and the HTTP status that came with it.
#[derive(Clone)]
pub struct CallReply {
    pub answer: RpcResult,
    pub outcome: CallOutcome,
    pub status: u16,
    /// The call goes on as a task of this session's, so what it has asked is still to be answered.
    pub goes_on_in: Option<LogId>,
}

impl CallReply {
    pub fn new(answer: RpcResult) -> CallReply {
        CallReply::with_status(answer, 200)
    }

    pub fn with_status(answer: RpcResult, status: u16) -> CallReply {
        CallReply { outcome: CallOutcome::of_answer(&answer), answer, status, goes_on_in: None }
    }
}

impl fmt::Debug for CallReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({}, {})", self.outcome.as_str(), self.status)
    }
}

pub fn refuse(code: i64, text: &str) -> CallReply {
    let status = if code == message::METHOD_NOT_FOUND { 404 } else { 200 };
    CallReply::with_status(Err(message::error(code, text)), status)
}

pub fn done(result: Raw) -> CallReply {
    CallReply::new(Ok(result))
}
