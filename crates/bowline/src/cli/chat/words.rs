//! What goes into the terminal client's machine and what comes out of it.

use std::time::Instant;

/// How the client was started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub session: Option<String>,
    pub resume_token: Option<String>,
    pub take_over: bool,
    pub agent: Option<String>,
    /// Names this process, so that the server knows a returning connection for the same client.
    pub client_id: String,
    /// A person at a terminal, rather than a script.
    pub interactive: bool,
}

/// The time and one throw of the dice; both are the driver's.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now: Instant,
    pub chance: f64,
}

#[derive(Clone, Debug)]
pub enum Happened {
    Start,
    /// The socket is open.
    Opened,
    /// The socket could not be opened; `fatal` if trying again cannot help.
    DialFailed {
        reason: String,
        fatal: bool,
    },
    Frame(String),
    /// Something was heard that is no frame, such as a ping.
    Alive,
    Closed {
        code: Option<u16>,
        reason: String,
    },
    Line(String),
    NoMoreLines,
    Interrupt,
    /// [`Chat::poll_timeout`] has come.
    Timeout,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Dial,
    Hangup,
    Send(String),
    Show(Show),
    Leave(Leave),
}

/// What a person gets to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Show {
    /// A piece of the answer, as it comes.
    Delta(String),
    /// The whole answer. `rest` is what was not streamed yet.
    Answer {
        whole: String,
        rest: String,
    },
    Aside(String),
    Notice(String),
    Error(String),
    /// A message of the user that was not typed here and now.
    Said(String),
    Question(String),
    /// The state of a lost connection; replaces itself.
    Connection(String),
    /// The connection was lost just now, and why.
    Lost(String),
    /// Ready for the next line.
    Prompt,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    Done,
    /// A script that is through, but not every message got an answer; each was told when it happened.
    AfterErrors,
    Failed(String),
}
