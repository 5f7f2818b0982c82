//! Messages of a backend that cannot be taken, and why.

use std::fmt;

use crate::fields::Raw;
use crate::message::{self, BYTES_MAX, Malformed, RpcId};
use crate::scan::JsonScan;

/// The error of a call that was answered under another id.
pub const WRONGLY_NAMED: &str = "it answered another request than the one asked";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    TooLong,
    Malformed(Malformed),
}

impl Unread {
    /// Whether such a message can be the answer to a call. A program may also write lines of its own between its messages; those
    /// must not end a call.
    pub fn may_answer(self, scan: &JsonScan) -> bool {
        let meant = match self {
            Unread::TooLong | Unread::Malformed(Malformed::TooDeep) => true,
            Unread::Malformed(Malformed::NotUtf8 | Malformed::NotJson | Malformed::NotRpc) => {
                scan.is_rpc() || scan.is_plainly_response()
            }
        };
        meant && scan.may_be_response()
    }

    /// Why a call has no answer on the stream that is its alone, if this was to be its answer there. What is not even JSON was
    /// to be something.
    pub fn spoils(self, scan: &JsonScan, id: &RpcId) -> Option<String> {
        let unreadable = matches!(self, Unread::Malformed(Malformed::NotUtf8 | Malformed::NotJson));
        let noise = unreadable && !scan.has_method();
        let wrongly = scan.id().is_some_and(|other| other != id);
        match noise || self.may_answer(scan) {
            true if wrongly => Some(WRONGLY_NAMED.to_owned()),
            true => Some(self.to_string()),
            false => None,
        }
    }

    /// The error for a backend whose request cannot be read, so that it does not wait for an answer.
    pub fn refusal(self, scan: &JsonScan) -> Option<Raw> {
        let id = scan.asks().filter(|_| scan.is_rpc())?;
        let error = message::error(message::INVALID_REQUEST, "the request is larger than is taken, or cannot be read");
        Some(message::response(id, &Err(error)))
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::TooLong => write!(f, "the answer has more than {BYTES_MAX} bytes, which are not taken"),
            Unread::Malformed(why) => write!(f, "the answer cannot be read: {why}"),
        }
    }
}
