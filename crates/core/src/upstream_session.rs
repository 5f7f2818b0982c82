//! A call at a server over HTTP, in a session or without one: when a session is made, when the call is sent, sent later or sent
//! again, when its stream is taken up again, and what it came to. It never touches a socket: a transport moves bytes and says
//! what it knows (sent, not sent, unknown).
//!
//! One rule stands above the others: a call is sent again only if the server said that it did not run it, or never got it.

use std::time::Duration;

/// For so long a call waits at most for a server that asks for time.
pub const PATIENCE_MAX: Duration = Duration::from_secs(30);
/// A server that asks for time again and again gets it so often.
pub const DELAYS_MAX: u32 = 3;
/// A stream that ends at once again and again is not reopened faster than this.
pub const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// A server may say when its stream is to be asked for again, between these.
pub const RETRY_MIN: Duration = Duration::from_millis(100);
pub const RETRY_MAX: Duration = Duration::from_secs(30);

/// The status of a response, and what it says about the call and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseStatus(pub u16);

impl ResponseStatus {
    pub fn is_success(self) -> bool {
        (200..300).contains(&self.0)
    }

    fn is_client_error(self) -> bool {
        (400..500).contains(&self.0)
    }

    /// One that fails may have run the call before. Of these, [`is_busy`](ResponseStatus::is_busy) tells which a server that is
    /// still there says instead of running it.
    fn is_server_error(self) -> bool {
        (500..600).contains(&self.0)
    }

    /// Whether a call that is answered so may have run; `there` if the server is known to be there and to know its caller still.
    pub fn may_have_run(self, there: bool) -> bool {
        self.is_server_error() && !(there && self.is_busy())
    }

    /// Whether a server says that it runs nothing just now. A proxy also says 503 when its server dies during a call, so without
    /// a time to come back it is asked whether the server is still there.
    pub fn is_busy(self) -> bool {
        matches!(self.0, 429 | 503)
    }

    /// What a proxy says of a server that is not there.
    pub fn is_of_absent_server(self) -> bool {
        matches!(self.0, 502..=504)
    }

    /// How the protocol says that a session is over.
    fn is_not_found(self) -> bool {
        self.0 == 404
    }
}

/// Where a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPlace {
    /// The request stands alone.
    Stateless,
    /// The session of the hub itself. A server that does not know it is another one than the one that was met.
    OfHub,
    /// The session of one client.
    OfClient,
}

/// Why a call has no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    /// The server cannot be reached, or a proxy in front of it says so.
    Unreachable,
    /// It is there, and does not begin with this client now.
    Refused { retry_after: Option<Duration> },
    /// It answered with an error, or not in time.
    Failed,
}

/// What is known of a request that brought no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostFailure {
    /// Nothing was sent.
    NotSent,
    /// It may have been sent.
    Unknown,
}

/// What reading a response came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Result,
    Error,
    /// Something else than an answer.
    NoAnswer,
    /// The stream ended before the answer, after this time. It can be taken up again if an event of it had an id.
    Cut {
        resumable: bool,
        retry: Option<Duration>,
        lasted: Duration,
    },
}

/// Why a stream could not be taken up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeFailure {
    Refused,
    Late,
}

/// What asking a server, in a session or without one, whether it is there came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingOutcome {
    Answered,
    /// It answered something else.
    Refused(ResponseStatus),
    Unreachable,
    Late,
}

impl PingOutcome {
    /// Whether the server says that it does not know the session it was asked in. One that says nothing, or fails, has not said that.
    pub fn is_forgotten(self) -> bool {
        matches!(self, PingOutcome::Refused(status) if !status.is_server_error())
    }

    /// What it says about the server. `named` if it was asked in a session that has a name.
    pub fn presence(self, named: bool) -> Presence {
        match self {
            PingOutcome::Answered => Presence::There,
            PingOutcome::Unreachable | PingOutcome::Late => Presence::Gone,
            PingOutcome::Refused(status) if status.is_of_absent_server() => Presence::Gone,
            // One that fails at the question is there all the same, and whether it is well is for the checks to say; unless it
            // would answer in another session, since then this one is what is wrong.
            PingOutcome::Refused(status) if status.is_server_error() && named => Presence::AskAnew,
            PingOutcome::Refused(status) if status.is_server_error() => Presence::There,
            PingOutcome::Refused(_) => Presence::Gone,
        }
    }
}

/// Whether a server is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    There,
    Gone,
    /// It is gone if it answers in a session that is new, and there if it does not.
    AskAnew,
}

/// What a transport does next for a call. Each step but the last is answered with the `handle_…` of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStep {
    /// Take the session, or make it.
    Open,
    /// Send the call, after this time.
    Post {
        wait: Duration,
    },
    /// Read what came back.
    Read,
    /// Take the call's stream up again after this time; `doubt` if the server is to be suspected meanwhile.
    Resume {
        pause: Duration,
        doubt: bool,
    },
    /// Ask in the session whether it is known. `discard` the session if it is not.
    AskSession {
        discard: bool,
    },
    /// Ask whether the server still knows the hub.
    AskServer,
    End(CallConclusion),
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallConclusion {
    /// With what was read.
    Answered,
    /// It surely did not run, and nothing says that it may not run at the server that is dialled next.
    NotExecuted,
    /// The server said itself that it does not run it.
    Refused { retry_after: Option<Duration> },
    /// It has no session, or an answer that is none. An error of this call alone.
    Failed,
    /// It may have run, and the server is to be suspected.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Posting,
    Reading,
    Resuming {
        pause: Duration,
    },
    /// Whether the session is still known, after a refusal; and whether the server is busy or gone.
    AskingSession,
    AskingWhetherBusy,
    AskingServer,
    Ended,
}

/// One call. Events that do not belong to what it waits for change nothing.
#[derive(Clone, Debug)]
pub struct UpstreamCall {
    place: SessionPlace,
    state: State,
    /// Whether its session has a name, by which it can be forgotten.
    named: bool,
    delays: u32,
    /// A session that was forgotten was replaced once. A server that forgets each one is not tried for ever.
    replaced: bool,
    status: ResponseStatus,
    retry_after: Option<Duration>,
    reading: Reading,
}

impl UpstreamCall {
    /// With the first step.
    pub fn begin(place: SessionPlace) -> (UpstreamCall, CallStep) {
        let (state, step) = match place {
            SessionPlace::Stateless => (State::Posting, CallStep::Post { wait: Duration::ZERO }),
            SessionPlace::OfHub | SessionPlace::OfClient => (State::Opening, CallStep::Open),
        };
        let call = UpstreamCall {
            place,
            state,
            named: false,
            delays: 0,
            replaced: false,
            status: ResponseStatus(0),
            retry_after: None,
            reading: Reading::NoAnswer,
        };
        (call, step)
    }

    /// Its session is there; whether that has a name.
    pub fn handle_opened(&mut self, opened: Result<bool, NoSession>) -> Option<CallStep> {
        self.expects(State::Opening)?;
        Some(match opened {
            Ok(named) => {
                self.named = named;
                self.post(Duration::ZERO)
            }
            Err(NoSession::Unreachable) => self.end(CallConclusion::NotExecuted),
            Err(NoSession::Refused { retry_after }) => self.end(CallConclusion::Refused { retry_after }),
            Err(NoSession::Failed) => self.end(CallConclusion::Failed),
        })
    }

    /// The head of a response, with the time to come back that it names; or none.
    pub fn handle_posted(
        &mut self,
        posted: Result<(ResponseStatus, Option<Duration>), PostFailure>,
    ) -> Option<CallStep> {
        self.expects(State::Posting)?;
        Some(match posted {
            Err(PostFailure::NotSent) => self.end(CallConclusion::NotExecuted),
            Err(PostFailure::Unknown) => self.end(CallConclusion::Unknown),
            // Who asks for time has not run the call.
            Ok((status, Some(wait))) if status.is_busy() => {
                if wait > PATIENCE_MAX || self.delays >= DELAYS_MAX {
                    return Some(self.end(CallConclusion::Refused { retry_after: Some(wait) }));
                }
                self.delays += 1;
                self.post(wait)
            }
            Ok((status, retry_after)) => {
                (self.status, self.retry_after) = (status, retry_after);
                self.state = State::Reading;
                CallStep::Read
            }
        })
    }

    pub fn handle_read(&mut self, reading: Reading) -> Option<CallStep> {
        let pause = match self.state {
            State::Reading => Duration::ZERO,
            State::Resuming { pause } => pause,
            _ => return None,
        };
        self.reading = reading;
        if let Reading::Cut { resumable: true, retry, lasted } = reading
            && self.place != SessionPlace::Stateless
        {
            let hasty =
                if lasted < REOPEN_PAUSE && self.state != State::Reading { REOPEN_PAUSE } else { Duration::ZERO };
            let asked = retry.map(|retry| retry.clamp(RETRY_MIN, RETRY_MAX));
            return Some(self.resume(asked.unwrap_or(if pause.is_zero() { hasty } else { pause }), false));
        }
        // Any refusal that is not an answer makes the session suspect, and so does 404. If the session is still known, that was not
        // it, and the call may have run.
        let suspect = match reading {
            Reading::Error => self.status.is_not_found(),
            Reading::NoAnswer => !self.status.is_success(),
            Reading::Result | Reading::Cut { .. } => false,
        };
        if suspect && self.named && !self.replaced {
            self.state = State::AskingSession;
            return Some(CallStep::AskSession { discard: true });
        }
        Some(self.conclude())
    }

    pub fn handle_not_resumed(&mut self, why: ResumeFailure) -> Option<CallStep> {
        let State::Resuming { pause } = self.state else { return None };
        Some(match why {
            ResumeFailure::Refused => self.end(CallConclusion::Unknown),
            // A wire that was swallowed on its way. How long a call may take is its caller's to say.
            ResumeFailure::Late => self.resume(pause, true),
        })
    }

    pub fn handle_session_asked(&mut self, outcome: PingOutcome) -> Option<CallStep> {
        match self.state {
            State::AskingSession => {
                self.replaced = outcome.is_forgotten();
                if self.may_be_busy() {
                    return Some(self.conclude_busy(outcome == PingOutcome::Answered));
                }
                // Who refuses a call in a session that it does not know has not run it. Who fails may have.
                if !self.replaced || !self.status.is_client_error() {
                    return Some(self.conclude());
                }
                if self.place == SessionPlace::OfHub {
                    return Some(self.end(CallConclusion::NotExecuted));
                }
                self.state = State::AskingServer;
                Some(CallStep::AskServer)
            }
            State::AskingWhetherBusy => Some(self.conclude_busy(outcome == PingOutcome::Answered)),
            _ => None,
        }
    }

    /// Whether the server answers on what the hub has of it.
    pub fn handle_server_asked(&mut self, there: bool) -> Option<CallStep> {
        match self.state {
            // Only the client's session is forgotten, so the client gets another one.
            State::AskingServer if there => {
                self.state = State::Opening;
                Some(CallStep::Open)
            }
            // It is another server now, and is met as one before it is used.
            State::AskingServer => Some(self.end(CallConclusion::NotExecuted)),
            State::AskingWhetherBusy => Some(self.conclude_busy(there)),
            _ => None,
        }
    }

    /// What the call came to, by its status and by what was read.
    fn conclude(&mut self) -> CallStep {
        let refused = CallConclusion::Refused { retry_after: self.retry_after };
        match self.reading {
            // An error under the status of a server that runs nothing just now is the reason for that, and not the tool's.
            Reading::Error if self.status.is_busy() => self.end(refused),
            Reading::Result | Reading::Error => self.end(CallConclusion::Answered),
            Reading::NoAnswer if self.status.is_success() => self.end(CallConclusion::Failed),
            Reading::NoAnswer if self.may_be_busy() => {
                self.state = State::AskingWhetherBusy;
                match self.place {
                    SessionPlace::Stateless => CallStep::AskServer,
                    SessionPlace::OfHub | SessionPlace::OfClient => CallStep::AskSession { discard: false },
                }
            }
            Reading::NoAnswer if self.status.is_server_error() => self.end(CallConclusion::Unknown),
            Reading::NoAnswer => self.end(refused),
            Reading::Cut { .. } => self.end(CallConclusion::Unknown),
        }
    }

    /// Whether the status is what a busy server says, and also what a proxy says of one that died.
    fn may_be_busy(&self) -> bool {
        self.status.is_busy() && self.status.is_server_error() && self.reading == Reading::NoAnswer
    }

    /// A server that is still there and knows the session said itself that it is busy. Else a proxy said that it is gone.
    fn conclude_busy(&mut self, there: bool) -> CallStep {
        let refused = CallConclusion::Refused { retry_after: self.retry_after };
        self.end(if self.status.may_have_run(there) { CallConclusion::Unknown } else { refused })
    }

    fn expects(&self, state: State) -> Option<()> {
        (self.state == state).then_some(())
    }

    fn post(&mut self, wait: Duration) -> CallStep {
        self.state = State::Posting;
        CallStep::Post { wait }
    }

    fn resume(&mut self, pause: Duration, doubt: bool) -> CallStep {
        self.state = State::Resuming { pause };
        CallStep::Resume { pause, doubt }
    }

    fn end(&mut self, conclusion: CallConclusion) -> CallStep {
        self.state = State::Ended;
        CallStep::End(conclusion)
    }
}

/// How a stream that belongs to no call is held: asked for again when it ends, more patiently when it is late, more rarely when it
/// is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldStream {
    patience: Duration,
    pause: Duration,
    was_open: bool,
}

/// For so long a stream may take to open: a wire that was swallowed on its way must not be waited for.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// A server may say nothing at all before it has something to tell, so it is given twice as long each time, up to this.
const OPEN_TIMEOUT_MAX: Duration = Duration::from_secs(300);

/// What to do about a stream that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldStep {
    /// Suspect the server, and ask for the stream again after this time.
    Again(Duration),
    /// It was never offered. Calls and checks notice a loss.
    NotOffered,
}

impl Default for HeldStream {
    fn default() -> HeldStream {
        HeldStream { patience: OPEN_TIMEOUT, pause: REOPEN_PAUSE, was_open: false }
    }
}

impl HeldStream {
    /// How long the next answer is waited for.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    pub fn was_open(&self) -> bool {
        self.was_open
    }

    /// It is open now; whether it was before, so that something may have been missed.
    pub fn handle_opened(&mut self) -> bool {
        let again = self.was_open;
        *self = HeldStream { was_open: true, ..HeldStream::default() };
        again
    }

    /// It was refused, or could not be asked for. If it was open before, this is a proxy in between, or a restart.
    pub fn handle_refused(&mut self) -> HeldStep {
        if !self.was_open {
            return HeldStep::NotOffered;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(RETRY_MAX);
        HeldStep::Again(pause)
    }

    pub fn handle_late(&mut self) -> HeldStep {
        self.patience = (self.patience * 2).min(OPEN_TIMEOUT_MAX);
        HeldStep::Again(Duration::ZERO)
    }

    /// It ended after this time; the server may have said when to ask again. One that died must not be waited for longer than a
    /// moment.
    pub fn handle_ended(&self, retry: Option<Duration>, lasted: Duration) -> HeldStep {
        HeldStep::Again(match retry {
            Some(pause) => pause.clamp(RETRY_MIN, REOPEN_PAUSE),
            None if lasted < REOPEN_PAUSE => REOPEN_PAUSE,
            None => Duration::ZERO,
        })
    }
}

#[cfg(test)]
#[path = "upstream_session_tests.rs"]
mod tests;
