//! What goes into a link and what comes out of it.

use std::fmt;
use std::time::{Duration, Instant};

use bowline_core::Backoff;
use bowline_protocol::{Cursor, Refusal};
use serde_json::{Map, Value};

use crate::{RequestId, RequestOutcome, ServerFrame};

/// Returns at once after a loss, spread over a quarter of a second, then after growing pauses of up to a minute.
pub const BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(60), 0.2).at_once_within(Duration::from_millis(250));

/// The time, and a random number for the jitter of pauses: both are the caller's.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Never earlier than the last one.
    pub now: Instant,
    /// Uniform in 0..1.
    pub jitter: f64,
}

/// What does not change while a link lives.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Names this client. The server knows a returning client by it, so it is to be the same over restarts of a device and
    /// different for each window or process.
    pub client_id: String,
    /// Further fields of `user.create_session`: `agent`, `app_version`, `config`.
    pub create: Map<String, Value>,
    /// What to do when another live connection holds the session.
    pub when_held: WhenHeld,
    /// What to do when a session that the client was attached to is gone, and there is no signed state to restore it from.
    pub when_gone: WhenGone,
    /// The pauses between attempts to return.
    pub backoff: Backoff,
    /// After so many attempts in a row the link stops; `None` for no bound.
    pub attempts_max: Option<u32>,
}

impl LinkConfig {
    /// The defaults: ask when held, stop when gone, no bound on attempts.
    pub fn new(client_id: impl Into<String>) -> LinkConfig {
        LinkConfig {
            client_id: client_id.into(),
            create: Map::new(),
            when_held: WhenHeld::Ask,
            when_gone: WhenGone::Stop,
            backoff: BACKOFF,
            attempts_max: None,
        }
    }
}

/// What to do when another live connection holds the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenHeld {
    /// Report [`LinkEvent::Held`] and wait for [`Link::take_over`](super::ClientLink::take_over).
    Ask,
    /// Take it over.
    TakeOver,
}

/// What to do when the session is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenGone {
    /// Report [`LinkEvent::Stopped`].
    Stop,
    /// Report [`LinkEvent::Replaced`] and create a new session.
    Create,
}

/// What a link attaches to.
#[derive(Clone)]
pub enum AttachTarget {
    /// A new session.
    New,
    /// A session that exists.
    Session(SessionTarget),
    /// The session that a signed state is of: the living one, or one that the server rebuilds from the state.
    State {
        /// As the server exported it.
        signed_state: Value,
        /// The last event that the client has of it.
        last_seq: Option<u64>,
    },
    /// No session: the connection only watches tasks.
    Tasks,
}

impl fmt::Debug for AttachTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachTarget::New => f.write_str("New"),
            AttachTarget::Session(session) => write!(f, "Session({})", session.id),
            AttachTarget::State { .. } => f.write_str("State"),
            AttachTarget::Tasks => f.write_str("Tasks"),
        }
    }
}

/// A session that exists, and how to attach to it.
#[derive(Clone, Default)]
pub struct SessionTarget {
    /// The session.
    pub id: String,
    /// The last event that the client has. `None`: the server decides where reading starts.
    pub cursor: Option<Cursor>,
    /// The token of the last attachment, where the server asks for one.
    pub resume_token: Option<String>,
    /// Take the session from another live connection.
    pub take_over: bool,
    /// Read only, beside the connection that holds the session.
    pub observe: bool,
}

impl fmt::Debug for SessionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionTarget({}, {:?}, observe: {})", self.id, self.cursor, self.observe)
    }
}

/// What a link wants done.
#[derive(Clone, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "the queue of outputs is short, and a box would cost an allocation for each event"
)]
pub enum LinkOutput {
    /// Open a socket.
    Dial,
    /// Close the socket.
    HangUp,
    /// Send a text frame.
    Send(String),
    /// Something for the application.
    Event(LinkEvent),
}

/// What people wrote is not shown.
impl fmt::Debug for LinkOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkOutput::Dial => f.write_str("Dial"),
            LinkOutput::HangUp => f.write_str("HangUp"),
            LinkOutput::Send(frame) => write!(f, "Send({} bytes)", frame.len()),
            LinkOutput::Event(event) => event.fmt(f),
        }
    }
}

/// What happened, for the application.
#[derive(Clone, PartialEq)]
pub enum LinkEvent {
    /// The server has attached this connection to the session.
    Attached(AttachedSession),
    /// The next event of the session's log. Each comes once and in order.
    Logged(ServerFrame),
    /// Events `from_seq … to_seq` will not come. Reported before any later one.
    Gap {
        /// The first that is missing.
        from_seq: u64,
        /// The last that is missing.
        to_seq: u64,
        /// Why.
        cause: GapCause,
    },
    /// What the application has of the log is not what the log holds: it is to be shown anew.
    Reset(ResetCause),
    /// The session is gone, as the refusal says; the link creates a new one. Requests that waited have failed.
    Replaced(Refusal),
    /// All events that were owed after a return have come; what follows is live.
    Replayed {
        /// How many came.
        count: u64,
        /// The notice, with `code` and `lost` in its metadata if events are missing.
        notice: ServerFrame,
    },
    /// The link is live: requests go out.
    Live,
    /// The connection is lost; the link comes back by itself.
    Lost {
        /// Why, in a sentence.
        reason: String,
        /// The attempt that follows, from 1.
        attempt: u32,
        /// When it is made.
        retry_at: Instant,
    },
    /// Another live connection holds the session.
    Held,
    /// A request is done.
    Done {
        /// Which.
        request: RequestId,
        /// How.
        outcome: RequestOutcome,
    },
    /// A request failed and is not sent again.
    Failed {
        /// Which.
        request: RequestId,
        /// Why.
        refusal: Refusal,
    },
    /// The server refused something that is no request, or cannot do a request yet: that one is sent again.
    Refused(Refusal),
    /// The server pushed a signed state of the session.
    Checkpoint(Value),
    /// A chunk of a watched task.
    TaskChunk {
        /// The task.
        task_id: String,
        /// The position of the chunk, to go on from in a later [`watch`](super::ClientLink::watch).
        id: Option<String>,
        /// The chunk.
        chunk: Value,
    },
    /// A watched task is over.
    TaskEnded {
        /// The task.
        task_id: String,
        /// `completed`, `failed`, `cancelled` or `expired`.
        status: String,
    },
    /// A task cannot be watched.
    TaskFailed {
        /// The task.
        task_id: String,
        /// Why.
        refusal: Refusal,
    },
    /// A notice, or another control frame, that the link has no use for.
    Notice(ServerFrame),
    /// A frame could not be read and was left out.
    Unreadable,
    /// The link stays disconnected until it is started again. Requests and watches that are open fail after this.
    Stopped(StopCause),
}

/// What people wrote is not shown.
impl fmt::Debug for LinkEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkEvent::Attached(attached) => write!(f, "{attached:?}"),
            LinkEvent::Logged(frame) => write!(f, "Logged({frame:?})"),
            LinkEvent::Gap { from_seq, to_seq, cause } => write!(f, "Gap({from_seq}–{to_seq}, {cause:?})"),
            LinkEvent::Reset(cause) => write!(f, "Reset({cause:?})"),
            LinkEvent::Replaced(refusal) => write!(f, "Replaced({})", refusal.code),
            LinkEvent::Replayed { count, .. } => write!(f, "Replayed({count})"),
            LinkEvent::Live => f.write_str("Live"),
            LinkEvent::Lost { reason, attempt, .. } => write!(f, "Lost({reason}, attempt {attempt})"),
            LinkEvent::Held => f.write_str("Held"),
            LinkEvent::Done { request, outcome } => write!(f, "Done({request:?}, {outcome:?})"),
            LinkEvent::Failed { request, refusal } => write!(f, "Failed({request:?}, {})", refusal.code),
            LinkEvent::Refused(refusal) => write!(f, "Refused({})", refusal.code),
            LinkEvent::Checkpoint(_) => f.write_str("Checkpoint"),
            LinkEvent::TaskChunk { task_id, id, .. } => write!(f, "TaskChunk({task_id}, {id:?})"),
            LinkEvent::TaskEnded { task_id, status } => write!(f, "TaskEnded({task_id}, {status})"),
            LinkEvent::TaskFailed { task_id, refusal } => write!(f, "TaskFailed({task_id}, {})", refusal.code),
            LinkEvent::Notice(frame) => write!(f, "Notice({frame:?})"),
            LinkEvent::Unreadable => f.write_str("Unreadable"),
            LinkEvent::Stopped(cause) => write!(f, "Stopped({cause:?})"),
        }
    }
}

/// An attachment, as the server confirmed it.
#[derive(Clone, Debug, PartialEq)]
pub struct AttachedSession {
    /// The session.
    pub session: String,
    /// The session is new.
    pub created: bool,
    /// What its run was doing: `idle`, `running` or `waiting` for a person.
    pub state: String,
    /// The verdict on the cursor: `caught_up`, `replay`, `gap`, `other_epoch` or `ahead_of_log`.
    pub verdict: String,
    /// The last event of the log.
    pub last_seq: u64,
    /// Whether events follow before [`LinkEvent::Replayed`].
    pub replays: bool,
    /// The session that a signed state was restored to it from, if it was.
    pub restored_from: Option<String>,
}

/// Why events will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapCause {
    /// The server no longer retains them.
    NotRetained,
    /// The server did not send them, also when it was asked again.
    NotSent,
}

/// Why the log is not the one that the application knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCause {
    /// It is another incarnation of the log.
    OtherEpoch,
    /// The log ends before the last event that the application has.
    AheadOfLog,
}

/// Why a link stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum StopCause {
    /// [`Link::stop`](super::ClientLink::stop).
    Closed,
    /// The server refused, and no attempt would change that.
    Refused(Refusal),
    /// The server cannot be reached, and no attempt would change that.
    Unreachable(String),
    /// The server closed the connection with a code that says to stay away.
    ClosedByServer {
        /// The code.
        code: u16,
        /// What the server said.
        reason: String,
    },
    /// Another connection took the session over.
    TakenOver {
        /// What the server said.
        reason: String,
    },
    /// The session has ended.
    SessionEnded {
        /// What the server said.
        message: String,
        /// The session that it goes on as, if it does.
        superseded_by: Option<String>,
    },
    /// [`LinkConfig::attempts_max`] attempts in a row failed.
    GaveUp {
        /// Why the last one failed.
        reason: String,
    },
}
