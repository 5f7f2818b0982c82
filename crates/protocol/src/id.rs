//! Names of things: sessions, runs, connections, steps, owners. Two names that must not be swapped are two types.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::position::Seq;

/// Longest name a peer may send for anything; longer ones are refused before they are stored.
pub const NAME_BYTES_MAX: usize = 128;

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Takes a name as a peer wrote it; `None` if it is empty, too long or holds control characters.
            pub fn parse(text: &str) -> Option<$type> {
                let ok = !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control);
                ok.then(|| $type(text.into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

macro_rules! random_name {
    ($type:ident, $prefix:literal) => {
        impl $type {
            /// 128 random bits behind the prefix: never guessable, never reused.
            pub fn from_random(bits: u128) -> $type {
                $type(format!(concat!($prefix, "{:032x}"), bits).into())
            }
        }
    };
}

name!(/// A session, `sess_` and 128 random bits. A name, not a secret.
    SessionId);
random_name!(SessionId, "sess_");
name!(/// One execution of an agent.
    RunId);
random_name!(RunId, "run_");
name!(/// One WebSocket connection.
    ConnectionId);
random_name!(ConnectionId, "conn_");
name!(/// Pairs a tool call with its result, or a confirmation with its answer.
    StepId);
random_name!(StepId, "step_");
name!(/// The client's own key for a message: the same one twice runs once.
    MessageId);
random_name!(MessageId, "msg_");
name!(/// Who is asking. Every session, task and read belongs to one.
    Principal);
name!(/// The name of a log in the store: that of the session or task it is for.
    LogId);
name!(/// Long-running work with a log that can be watched: one chat turn, or one background operation.
    TaskId);
random_name!(TaskId, "task_");
name!(/// A background operation, as its tool and its webhook know it.
    OperationId);
random_name!(OperationId, "op_");
name!(/// A program that appends to a task, as it calls itself.
    ProducerId);
name!(/// Names one browser tab or app of a person, as the client chose it.
    ClientId);

impl From<&SessionId> for LogId {
    fn from(session: &SessionId) -> LogId {
        LogId(session.0.clone())
    }
}

impl From<&LogId> for SessionId {
    fn from(log: &LogId) -> SessionId {
        SessionId(log.0.clone())
    }
}

impl From<&TaskId> for LogId {
    fn from(task: &TaskId) -> LogId {
        LogId(task.0.clone())
    }
}

/// What a turn's name begins with. It holds the session's log and the event that started the turn, so that finding a
/// turn needs no directory of its own.
const TURN: &str = "turn_";

impl TaskId {
    /// The turn of a session that began with this event.
    pub fn of_turn(log: &LogId, started: Seq) -> TaskId {
        TaskId(format!("{TURN}{started}_{log}").into())
    }

    /// Which log holds the turn and where it begins; none if this names a task with a log of its own.
    pub fn turn(&self) -> Option<(LogId, Seq)> {
        let (started, log) = self.0.strip_prefix(TURN)?.split_once('_')?;
        let plain = !started.starts_with('0') && started.bytes().all(|byte| byte.is_ascii_digit());
        let started = Seq::new(started.parse().ok().filter(|_| plain)?)?;
        Some((LogId::parse(log)?, started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_turn_says_where_it_is() {
        let log = LogId::from(&SessionId::from_random(3));
        let task = TaskId::of_turn(&log, Seq::new(12).unwrap());
        assert_eq!(task.turn(), Some((log, Seq::new(12).unwrap())));
        for other in ["task_1", "turn_", "turn_x_sess_1", "turn_012_sess_1", "turn_+1_sess_1", "turn_1_"] {
            assert_eq!(TaskId::parse(other).unwrap().turn(), None, "{other}");
        }
    }

    #[test]
    fn a_random_session_name_shows_all_its_bits() {
        assert_eq!(SessionId::from_random(1).as_str(), "sess_00000000000000000000000000000001");
    }

    #[test]
    fn names_with_control_characters_or_of_huge_length_are_refused() {
        assert!(MessageId::parse("").is_none());
        assert!(MessageId::parse("a\nb").is_none());
        assert!(MessageId::parse(&"x".repeat(NAME_BYTES_MAX + 1)).is_none());
        assert!(MessageId::parse("m-1").is_some());
    }
}
