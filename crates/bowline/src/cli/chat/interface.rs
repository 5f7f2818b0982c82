//! What goes into the terminal client's machine and what comes out of it.

use bowline_client::LinkEvent;

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

/// What happened.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and most are events of the link")]
pub enum ChatInput {
    Link(LinkEvent),
    Line(String),
    NoMoreLines,
    Interrupt,
    /// [`Chat::poll_timeout`](super::state::Chat::poll_timeout) has come.
    Timeout,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatEffect {
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
    /// A script that is through, but not every message got an answer; each was reported when it happened.
    AfterErrors,
    Failed(String),
}
