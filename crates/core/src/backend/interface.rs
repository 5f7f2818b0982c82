//! The types of a backend's machine: its inputs, its outputs and its policy.

use std::time::Duration;

use super::calls::CallFailure;

/// One transport to the backend, counted from 1. Each dial makes a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// A call, as the driver numbers them.
pub type QueuedCallId = u64;
/// A caller that asked for a reconnect and waits for its end.
pub type Ticket = u64;

/// The numbers of a backend's life.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The delays start over with it after each success, and a backend that is lost as soon as it is connected is dialled once
    /// in this time at most.
    pub retry_first: Duration,
    pub retry_max: Duration,
    /// A backend that wants to be left alone for longer is dialled all the same.
    pub retry_after_max: Duration,
    /// The share of a delay that chance may add or take away.
    pub retry_jitter: f64,
    /// How long calls on the old transport may finish after a forced reconnect.
    pub grace: Duration,
    /// Calls that may wait for a dial at once.
    pub queued_max: usize,
    /// How long a call that surely did not run waits to be sent again, within its deadline.
    pub patience: Duration,
    /// How often is dialled while such calls wait.
    pub retry_waited_for: Duration,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            retry_first: Duration::from_secs(1),
            retry_max: Duration::from_secs(180),
            retry_after_max: Duration::from_secs(3600),
            retry_jitter: 0.1,
            grace: Duration::from_secs(5),
            queued_max: 1024,
            // A server that is restarted is back by then; of one that is not, its caller should hear.
            patience: Duration::from_secs(10),
            retry_waited_for: Duration::from_secs(1),
        }
    }
}

/// Why a dial failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialError {
    /// It may work later; `retry_after` is what the backend itself asked for.
    Passing { reason: String, retry_after: Option<Duration> },
    /// It can never work as it is configured.
    Fatal { reason: String },
}

impl DialError {
    /// The same with its reason in other words.
    pub fn map(self, words: impl FnOnce(String) -> String) -> DialError {
        match self {
            DialError::Passing { reason, retry_after } => DialError::Passing { reason: words(reason), retry_after },
            DialError::Fatal { reason } => DialError::Fatal { reason: words(reason) },
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Make this transport; answer with `Backend::handle_dialled`.
    Dial(Generation),
    Send {
        generation: Generation,
        call: QueuedCallId,
    },
    /// End the call with this.
    Fail {
        call: QueuedCallId,
        outcome: CallFailure,
    },
    /// This transport is not needed any more.
    Retire(Generation),
    Tell(BackendNotice),
    /// The dial that this ticket waited for is over.
    Redialled {
        ticket: Ticket,
        success: bool,
    },
}

/// What the sessions are notified of, in the order in which it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendNotice {
    Connected,
    Disconnected { intentional: bool },
    Reconnecting { attempt: u32, next_retry: Duration },
    Reconnected { attempts_taken: u32, down: Duration },
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendStatus {
    Connecting,
    Connected,
    Reconnecting,
    Disconnected,
    Error,
}

impl BackendStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            BackendStatus::Connecting => "connecting",
            BackendStatus::Connected => "connected",
            BackendStatus::Reconnecting => "reconnecting",
            BackendStatus::Disconnected => "disconnected",
            BackendStatus::Error => "error",
        }
    }
}
