//! One connection to one session as a machine: `handle_*` takes what happened, `poll_*` says what to do. It has no socket,
//! clock or source of randomness.

mod attach;
mod event;
mod receive;
mod requests;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use bowline_core::Backoff;
use bowline_protocol::{CloseCode, Cursor, Epoch, ErrorCode, Refusal, Seq};
use serde_json::Value;

pub use event::{
    AttachTarget, AttachedSession, BACKOFF, GapCause, LinkConfig, LinkEvent, LinkOutput, Moment, ResetCause,
    SessionTarget, StopCause, WhenGone, WhenHeld,
};

use crate::frame;
use requests::PendingRequest;
use watch::TaskWatch;

/// Acks are gathered for this long, so that a fast stream costs few of them.
pub const ACK_EVERY: Duration = Duration::from_millis(200);
/// An open socket that says nothing is given this long, until the server has named its heartbeat interval.
const GREETING_TIMEOUT: Duration = Duration::from_secs(15);

/// The state of a connection.
#[derive(Debug)]
enum ConnectionPhase {
    /// Not started, or stopped.
    Idle,
    /// Lost; the next attempt is made at this time.
    Waiting {
        until: Instant,
    },
    /// A socket is being opened.
    Dialing,
    /// The socket is open; the server's first frame has not come yet.
    Greeting,
    /// The session was asked for.
    Attaching(AttachMode),
    /// Another connection holds the session; the application decides.
    Held,
    /// Attached; the owed events are coming. The last of them has this number.
    Replaying {
        to_seq: u64,
    },
    Live,
}

/// How the link asks for its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachMode {
    Create,
    Reconnect {
        take_over: bool,
    },
    State,
    /// It asks for none.
    Tasks,
}

/// The session that a link is attached to, or wants to be.
struct LinkSession {
    id: String,
    resume_token: Option<String>,
    observe: bool,
}

/// How many events a link has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Logged events that came.
    pub events: u64,
    /// Those that had come before.
    pub repeated: u64,
    /// Those that were missing when a later one came.
    pub missing: u64,
}

/// One connection to one session.
///
/// The caller opens and closes sockets as [`LinkOutput`] says, and reports what happens to them. A link that is lost comes back
/// by itself, asks for what it missed, and sends the requests again that the server may not have got.
pub struct ClientLink {
    config: LinkConfig,
    phase: ConnectionPhase,
    /// The way to take when the socket is open.
    way: AttachMode,
    session: Option<LinkSession>,
    /// Whether a link to this session was ever live.
    was_live: bool,
    /// The last event that was delivered, in the epoch that the server named when it attached us.
    cursor: Option<Cursor>,
    /// The newest signed state, to restore the session from if the server no longer has it.
    signed_state: Option<Value>,
    backoff: Backoff,
    heartbeat: Option<Duration>,
    heard_at: Option<Instant>,
    /// How long the server asked us to stay away.
    retry_after: Duration,
    acked_seq: u64,
    ack_at: Option<Instant>,
    /// Where we stood when a heartbeat said that the log has more.
    behind_at: Option<u64>,
    /// Events were missing, and the connection was made anew because of it.
    hole_seen: bool,
    requests: VecDeque<PendingRequest>,
    /// Whether the first of them is under way on this connection.
    requesting: bool,
    resend_at: Option<Instant>,
    next_request: u64,
    watches: Vec<TaskWatch>,
    watch_again_at: Option<Instant>,
    stats: LinkStats,
    outputs: VecDeque<LinkOutput>,
}

/// Tokens and what people wrote are not shown.
impl fmt::Debug for ClientLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({:?}, {:?}, {:?})", self.session(), self.phase, self.cursor)
    }
}

impl ClientLink {
    /// A link that is not started yet.
    pub fn new(config: LinkConfig) -> ClientLink {
        ClientLink {
            backoff: config.backoff,
            config,
            phase: ConnectionPhase::Idle,
            way: AttachMode::Create,
            session: None,
            was_live: false,
            cursor: None,
            signed_state: None,
            heartbeat: None,
            heard_at: None,
            retry_after: Duration::ZERO,
            acked_seq: 0,
            ack_at: None,
            behind_at: None,
            hole_seen: false,
            requests: VecDeque::new(),
            requesting: false,
            resend_at: None,
            next_request: 1,
            watches: Vec::new(),
            watch_again_at: None,
            stats: LinkStats::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Connects, and attaches to the target. An earlier connection is closed.
    pub fn start(&mut self, target: AttachTarget) {
        if !matches!(self.phase, ConnectionPhase::Idle | ConnectionPhase::Waiting { .. }) {
            self.outputs.push_back(LinkOutput::HangUp);
        }
        self.forget_session();
        match target {
            AttachTarget::New => self.way = AttachMode::Create,
            AttachTarget::Session(SessionTarget { id, cursor, resume_token, take_over, observe }) => {
                self.session = Some(LinkSession { id, resume_token, observe });
                self.cursor = cursor;
                self.way = AttachMode::Reconnect { take_over };
            }
            AttachTarget::State { signed_state, last_seq } => {
                self.signed_state = Some(signed_state);
                self.cursor = last_seq.and_then(Seq::new).map(Cursor::bare);
                self.way = AttachMode::State;
            }
            AttachTarget::Tasks => self.way = AttachMode::Tasks,
        }
        self.backoff.reset();
        self.dial();
    }

    /// Attaches to the same session over a new connection, as if `cursor` were the last event that came.
    pub fn restart_from(&mut self, cursor: Cursor) {
        self.cursor = Some(cursor);
        self.outputs.push_back(LinkOutput::HangUp);
        self.dial();
    }

    /// Disconnects for good. Requests that wait fail.
    pub fn stop(&mut self) {
        self.acknowledge();
        self.end(StopCause::Closed);
    }

    /// Takes the session from the connection that holds it, after [`LinkEvent::Held`].
    pub fn take_over(&mut self) {
        if matches!(self.phase, ConnectionPhase::Held) {
            self.attach(AttachMode::Reconnect { take_over: true });
        }
    }

    /// Gives the server a new credential on the open connection.
    pub fn authenticate(&mut self, token: &str) {
        if self.is_open() {
            self.send(frame::authenticate(token));
        }
    }

    /// The session, once it is known.
    pub fn session(&self) -> Option<&str> {
        self.session.as_ref().map(|session| session.id.as_str())
    }

    /// The proof that the session is ours, for the next process that attaches to it.
    pub fn resume_token(&self) -> Option<&str> {
        self.session.as_ref()?.resume_token.as_deref()
    }

    /// The last event that was delivered.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// The newest signed state of the session that the server sent.
    pub fn signed_state(&self) -> Option<&Value> {
        self.signed_state.as_ref()
    }

    /// Whether requests go out at once.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Live)
    }

    /// Whether the connection is attached to the session, live or still replaying.
    pub fn is_attached(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Live | ConnectionPhase::Replaying { .. })
    }

    /// When the next attempt to return is made, if the connection is lost.
    pub fn retry_at(&self) -> Option<Instant> {
        match self.phase {
            ConnectionPhase::Waiting { until } => Some(until),
            _ => None,
        }
    }

    /// What has come so far.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<LinkOutput> {
        self.outputs.pop_front()
    }

    /// When to call [`handle_timeout`](ClientLink::handle_timeout), if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            ConnectionPhase::Idle | ConnectionPhase::Dialing => None,
            ConnectionPhase::Waiting { until } => Some(until),
            _ => {
                let silence = self.heard_at.map(|heard| heard + self.silence_max());
                [silence, self.ack_at, self.resend_at, self.watch_again_at].into_iter().flatten().min()
            }
        }
    }

    /// The time of [`poll_timeout`](ClientLink::poll_timeout) has come.
    pub fn handle_timeout(&mut self, at: Moment) {
        let due = |time: Option<Instant>| time.is_some_and(|time| at.now >= time);
        match self.phase {
            ConnectionPhase::Idle | ConnectionPhase::Dialing => {}
            ConnectionPhase::Waiting { until } => {
                if at.now >= until {
                    self.dial();
                }
            }
            _ if due(self.heard_at.map(|heard| heard + self.silence_max())) => {
                self.lose(at, "the server has gone silent");
            }
            _ => {
                if due(self.ack_at) {
                    self.acknowledge();
                }
                if due(self.resend_at) {
                    self.resend();
                }
                if due(self.watch_again_at) {
                    self.send_watches();
                }
            }
        }
    }

    /// The socket is open.
    pub fn handle_opened(&mut self, at: Moment) {
        if matches!(self.phase, ConnectionPhase::Dialing) {
            self.phase = ConnectionPhase::Greeting;
            self.heard_at = Some(at.now);
        }
    }

    /// The socket could not be opened; `permanent` if no later attempt would succeed either.
    pub fn handle_dial_failed(&mut self, at: Moment, reason: &str, permanent: bool) {
        if permanent {
            self.end(StopCause::Unreachable(reason.to_owned()));
        } else {
            self.lose(at, reason);
        }
    }

    /// Something came that is no text frame: a ping, for example.
    pub fn handle_alive(&mut self, at: Moment) {
        self.heard_at = Some(at.now);
    }

    /// The socket has closed. The hundreds of a code say what to do: 40xx come back, 41xx start anew, 42xx stay away.
    pub fn handle_closed(&mut self, at: Moment, code: Option<u16>, reason: &str) {
        if !self.is_open() {
            return;
        }
        let reason = if reason.is_empty() { "the connection was closed" } else { reason };
        match code {
            Some(code) if code == CloseCode::TakenOver.code() => {
                self.end(StopCause::TakenOver { reason: reason.to_owned() });
            }
            Some(code @ 4200..=4299) => {
                self.end(StopCause::ClosedByServer { code, reason: reason.to_owned() });
            }
            Some(4100..=4199) => {
                let refusal = Refusal::new(ErrorCode::SessionInactive, reason);
                if self.start_anew(refusal) {
                    self.way = AttachMode::Create;
                    self.lose(at, reason);
                }
            }
            Some(code) => {
                // The server could not take what we sent; sending it again would end the same way.
                let unacceptable = [CloseCode::Unsupported, CloseCode::InvalidUtf8, CloseCode::TooBig];
                if unacceptable.iter().any(|close| close.code() == code) {
                    let message = format!("the message was refused: {reason}");
                    self.fail_request(Refusal::new(ErrorCode::MessageTooLarge, message));
                }
                self.lose(at, reason);
            }
            None => self.lose(at, reason),
        }
    }

    fn is_open(&self) -> bool {
        !matches!(self.phase, ConnectionPhase::Idle | ConnectionPhase::Waiting { .. })
    }

    fn dial(&mut self) {
        self.phase = ConnectionPhase::Dialing;
        self.heartbeat = None;
        self.heard_at = None;
        self.behind_at = None;
        self.ack_at = None;
        self.lose_requests();
        self.lose_watches();
        self.outputs.push_back(LinkOutput::Dial);
    }

    /// The connection is of no use any more: hang up, wait, and come back.
    fn lose(&mut self, at: Moment, reason: &str) {
        if !self.is_open() {
            return;
        }
        let delay = self.backoff.next(at.jitter).max(std::mem::take(&mut self.retry_after));
        let attempt = self.backoff.attempt();
        if self.config.attempts_max.is_some_and(|max| attempt > max) {
            return self.end(StopCause::GaveUp { reason: reason.to_owned() });
        }
        let until = at.now + delay;
        self.phase = ConnectionPhase::Waiting { until };
        self.lose_requests();
        self.lose_watches();
        self.outputs.push_back(LinkOutput::HangUp);
        self.tell(LinkEvent::Lost { reason: reason.to_owned(), attempt, retry_at: until });
    }

    /// The link stays away until it is started again.
    fn end(&mut self, cause: StopCause) {
        if self.is_open() {
            self.outputs.push_back(LinkOutput::HangUp);
        }
        self.phase = ConnectionPhase::Idle;
        let refusal = match &cause {
            StopCause::Refused(refusal) => refusal.clone(),
            StopCause::SessionEnded { message, .. } => Refusal::new(ErrorCode::SessionInactive, message.as_str()),
            _ => Refusal::new(ErrorCode::OutcomeUnknown, "The connection was closed before the answer came."),
        };
        self.tell(LinkEvent::Stopped(cause));
        self.fail_requests(&refusal);
        self.fail_watches(&refusal);
    }

    fn forget_session(&mut self) {
        self.session = None;
        self.cursor = None;
        self.signed_state = None;
        self.was_live = false;
        self.acked_seq = 0;
        self.ack_at = None;
        self.hole_seen = false;
    }

    /// Two heartbeat intervals without a sign of life are a lost connection.
    fn silence_max(&self) -> Duration {
        self.heartbeat.map_or(GREETING_TIMEOUT, |interval| interval * 2)
    }

    fn seq(&self) -> u64 {
        self.cursor.as_ref().map_or(0, |cursor| cursor.seq.get())
    }

    fn set_cursor(&mut self, epoch: Option<Epoch>, seq: u64) {
        self.cursor = Some(Cursor { epoch, seq: Seq::new(seq).unwrap_or(Seq::MAX) });
    }

    /// Acknowledges what was delivered, if there is anything new.
    pub fn acknowledge(&mut self) {
        self.ack_at = None;
        if self.seq() > self.acked_seq {
            self.send_ack();
        }
    }

    fn send_ack(&mut self) {
        self.ack_at = None;
        if let (Some(session), Some(cursor), true) = (&self.session, &self.cursor, self.is_attached()) {
            self.acked_seq = cursor.seq.get();
            let ack = frame::ack(&session.id, cursor);
            self.send(ack);
        }
    }

    fn send(&mut self, frame: String) {
        self.outputs.push_back(LinkOutput::Send(frame));
    }

    fn tell(&mut self, event: LinkEvent) {
        self.outputs.push_back(LinkOutput::Event(event));
    }
}

#[cfg(test)]
mod link_tests;
