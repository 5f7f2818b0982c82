//! Every way to say no: closed error codes, each with one recovery action, and the WebSocket close codes.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

macro_rules! codes {
    ($($variant:ident = $text:literal, $action:ident, $http:literal, $about:literal;)*) => {
        /// What went wrong, for programs. Closed: a new code is a change of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode { $(#[doc = $about] #[serde(rename = $text)] $variant,)* }

        impl ErrorCode {
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$variant => $text,)* }
            }

            /// What the client should do next: exactly one action per code.
            pub const fn action(self) -> RecoveryAction {
                match self { $(ErrorCode::$variant => RecoveryAction::$action,)* }
            }

            /// The HTTP status of this code.
            pub const fn status(self) -> u16 {
                match self { $(ErrorCode::$variant => $http,)* }
            }

            /// One sentence on when it happens.
            pub const fn about(self) -> &'static str {
                match self { $(ErrorCode::$variant => $about,)* }
            }
        }
    };
}

codes! {
    InvalidJson = "INVALID_JSON", FixRequest, 400, "The frame or body is not JSON, or nests too deeply.";
    InvalidPayload = "INVALID_PAYLOAD", FixRequest, 400, "A field is missing or has the wrong shape; the message names it.";
    UnknownEvent = "UNKNOWN_EVENT", FixRequest, 400, "No such client event.";
    UnknownStep = "UNKNOWN_STEP", FixRequest, 404, "No confirmation with this step_id is waiting.";
    NotSupported = "NOT_SUPPORTED", FixRequest, 400, "This agent or server cannot do that.";
    MessageTooLarge = "MESSAGE_TOO_LARGE", FixRequest, 413, "The message or body is larger than its limit.";
    RateLimited = "RATE_LIMITED", RetryLater, 429, "More than a limit allows at once: frames per second, streams, running tasks.";
    Unauthorized = "UNAUTHORIZED", Authenticate, 401, "No credential, or one that is wrong or has expired.";
    SessionNotFound = "SESSION_NOT_FOUND", CreateNewSession, 404, "No such session, or it is another principal's.";
    SessionExpired = "SESSION_EXPIRED", CreateNewSession, 410, "The session was quiet for longer than session.ttl.";
    SessionInactive = "SESSION_INACTIVE", CreateNewSession, 409, "The session was ended or superseded.";
    SessionAlreadyActive = "SESSION_ALREADY_ACTIVE", TakeOver, 409, "Another live connection holds the session.";
    SessionTakenOver = "SESSION_TAKEN_OVER", None, 409, "Another connection took the session over; this one no longer holds it.";
    SessionReadOnly = "SESSION_READ_ONLY", Reconnect, 409, "This connection does not hold the session, so it cannot write to it.";
    TooManySessions = "TOO_MANY_SESSIONS", RetryLater, 429, "The principal has limits.sessions_per_principal_max sessions already.";
    AgentBusy = "AGENT_BUSY", RetryLater, 409, "A run is active and session.when_busy rejects, or the queue is full.";
    AgentFailed = "AGENT_FAILED", Retry, 502, "The agent gave up; the message says why.";
    AgentLost = "AGENT_LOST", Retry, 502, "The process that ran the agent died in the middle of the run.";
    AgentUnreachable = "AGENT_UNREACHABLE", Retry, 502, "The agent's upstream could not be reached, or broke off.";
    StateVerificationFailed = "STATE_VERIFICATION_FAILED", ExportStateAgain, 400, "The signed state is not ours, not yours, or was altered.";
    StateExpired = "STATE_EXPIRED", CreateNewSession, 410, "The signed state is older than state.ttl.";
    StateVersionMismatch = "STATE_VERSION_MISMATCH", CreateNewSession, 400, "The signed state has a version that this server cannot read.";
    StateStale = "STATE_STALE", CreateNewSession, 409, "The signed state was restored before and state.single_use is on.";
    StateTooLarge = "STATE_TOO_LARGE", ExportStateAgain, 413, "The signed state is larger than state.bytes_max.";
    StateRestoreFailed = "STATE_RESTORE_FAILED", CreateNewSession, 409, "The signed state is sound, but nothing here can take it up.";
    ReplayGap = "REPLAY_GAP", RequestState, 410, "Events after the cursor are no longer retained.";
    EpochMismatch = "EPOCH_MISMATCH", RequestState, 410, "The cursor belongs to another incarnation of the log.";
    CursorAhead = "CURSOR_AHEAD", Reconnect, 409, "The cursor is beyond what was sent or exists.";
    TaskNotFound = "TASK_NOT_FOUND", None, 404, "No such task, or it is another principal's.";
    TaskExpired = "TASK_EXPIRED", None, 410, "The task's stream was kept for stream.ttl and is gone.";
    TaskEnded = "TASK_ENDED", None, 409, "The task has ended; nothing can be added to it.";
    IdempotencyConflict = "IDEMPOTENCY_CONFLICT", FixRequest, 409, "The same key was used before with another body.";
    OutcomeUnknown = "OUTCOME_UNKNOWN", None, 502, "A tool call was cut in flight; it may or may not have run.";
    ServerDraining = "SERVER_DRAINING", RetryLater, 503, "The server is shutting down; come back a moment later.";
    StoreUnavailable = "STORE_UNAVAILABLE", RetryLater, 503, "The event cannot be made durable now, so nothing was accepted.";
    Internal = "INTERNAL", RetryLater, 500, "A fault of the server's own; its log has the details.";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The one thing that helps after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecoveryAction {
    CreateNewSession,
    ExportStateAgain,
    RequestState,
    Reconnect,
    TakeOver,
    Retry,
    RetryLater,
    Authenticate,
    FixRequest,
    None,
}

impl RecoveryAction {
    pub const ALL: &[RecoveryAction] = &[
        RecoveryAction::CreateNewSession,
        RecoveryAction::ExportStateAgain,
        RecoveryAction::RequestState,
        RecoveryAction::Reconnect,
        RecoveryAction::TakeOver,
        RecoveryAction::Retry,
        RecoveryAction::RetryLater,
        RecoveryAction::Authenticate,
        RecoveryAction::FixRequest,
        RecoveryAction::None,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            RecoveryAction::CreateNewSession => "create_new_session",
            RecoveryAction::ExportStateAgain => "export_state_again",
            RecoveryAction::RequestState => "request_state",
            RecoveryAction::Reconnect => "reconnect",
            RecoveryAction::TakeOver => "take_over",
            RecoveryAction::Retry => "retry",
            RecoveryAction::RetryLater => "retry_later",
            RecoveryAction::Authenticate => "authenticate",
            RecoveryAction::FixRequest => "fix_request",
            RecoveryAction::None => "none",
        }
    }
}

/// A request that was not granted: the code for programs, a sentence for people, and what may help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: ErrorCode,
    pub message: String,
    pub retry_after_ms: Option<u64>,
    pub details: Option<Value>,
}

impl Refusal {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), retry_after_ms: None, details: None }
    }

    /// A field is missing or wrong. The sentence names it, and so do the details.
    pub fn field(field: &str, problem: &str) -> Refusal {
        let details = Some(serde_json::json!({ "field": field }));
        // Some problems are sentences already.
        let problem = problem.trim_end_matches('.');
        Refusal { details, ..Refusal::new(ErrorCode::InvalidPayload, format!("`{field}` {problem}.")) }
    }

    pub fn retry_after_ms(self, ms: u64) -> Refusal {
        Refusal { retry_after_ms: Some(ms), ..self }
    }

    pub fn details(self, details: Value) -> Refusal {
        Refusal { details: Some(details), ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refusal {}

/// WebSocket close codes. Ours carry the advice in their hundreds: 40xx reconnect, 41xx start anew, 42xx stay away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum CloseCode {
    Normal = 1000,
    /// The frames break RFC 6455.
    Protocol = 1002,
    /// A binary frame: this protocol is text.
    Unsupported = 1003,
    /// Text that is not UTF-8.
    InvalidUtf8 = 1007,
    /// A frame over `limits.frame_bytes_max`.
    TooBig = 1009,
    /// The server is shutting down.
    Restart = 1012,
    /// Nothing was heard for two heartbeat intervals.
    HeartbeatLost = 4000,
    /// The server cannot go on with a session of the connection: its log could not be read, or the node that had it is
    /// gone. The client's position is safe.
    Interrupted = 4001,
    /// Another connection took over, and this one has no session left.
    TakenOver = 4201,
    /// More than `limits.bad_frames_max` frames could not be understood.
    BadFrames = 4202,
    /// No valid credential in time, or one that expired.
    Unauthorized = 4203,
}

impl CloseCode {
    pub const ALL: &[CloseCode] = &[
        CloseCode::Normal,
        CloseCode::Protocol,
        CloseCode::Unsupported,
        CloseCode::InvalidUtf8,
        CloseCode::TooBig,
        CloseCode::Restart,
        CloseCode::HeartbeatLost,
        CloseCode::Interrupted,
        CloseCode::TakenOver,
        CloseCode::BadFrames,
        CloseCode::Unauthorized,
    ];

    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The code as text, for labels.
    pub const fn name(self) -> &'static str {
        match self {
            CloseCode::Normal => "1000",
            CloseCode::Protocol => "1002",
            CloseCode::Unsupported => "1003",
            CloseCode::InvalidUtf8 => "1007",
            CloseCode::TooBig => "1009",
            CloseCode::Restart => "1012",
            CloseCode::HeartbeatLost => "4000",
            CloseCode::Interrupted => "4001",
            CloseCode::TakenOver => "4201",
            CloseCode::BadFrames => "4202",
            CloseCode::Unauthorized => "4203",
        }
    }

    pub const fn reason(self) -> &'static str {
        match self {
            CloseCode::Normal => "bye",
            CloseCode::Protocol => "the frames break the WebSocket protocol",
            CloseCode::Unsupported => "binary frames are not supported; send JSON text",
            CloseCode::InvalidUtf8 => "text frames must be UTF-8",
            CloseCode::TooBig => "frame larger than limits.frame_bytes_max",
            CloseCode::Restart => "server is restarting; reconnect",
            CloseCode::HeartbeatLost => "nothing heard for two heartbeat intervals; reconnect",
            CloseCode::Interrupted => "a session cannot be followed further on this connection; reconnect",
            CloseCode::TakenOver => "another connection took over",
            CloseCode::BadFrames => "too many frames that could not be understood",
            CloseCode::Unauthorized => "not authorised",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_screaming() {
        let mut seen = std::collections::HashSet::new();
        for code in ErrorCode::ALL {
            assert!(seen.insert(code.as_str()));
            assert!(code.as_str().bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
        }
    }

    #[test]
    fn a_close_code_is_called_by_its_number() {
        assert!(CloseCode::ALL.iter().all(|code| code.name() == code.code().to_string()));
    }

    #[test]
    fn a_close_reason_fits_into_a_control_frame() {
        assert!(CloseCode::ALL.iter().all(|code| code.reason().len() <= 123));
    }
}
