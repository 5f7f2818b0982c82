//! Drives one call of a client: what the backend says on the way, in order, and then the answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bowline_protocol::LogId;
use tokio::sync::mpsc;

use crate::link::{Inbound, Sink};
use crate::message::Answer;
use crate::outcome::CallOutcome;

/// What a backend may say before anybody listens.
const INBOUND_MAX: usize = 64;

/// An answer, what became of the call, and the HTTP status that came with it.
#[derive(Clone)]
pub struct Reply {
    pub answer: Answer,
    pub outcome: CallOutcome,
    pub status: u16,
    /// The call goes on as a task of this session's, so what it has asked is still to be answered.
    pub goes_on_in: Option<LogId>,
}

impl Reply {
    pub fn new(answer: Answer) -> Reply {
        Reply::with_status(answer, 200)
    }

    pub fn with_status(answer: Answer, status: u16) -> Reply {
        Reply { outcome: CallOutcome::of_answer(&answer), answer, status, goes_on_in: None }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({}, {})", self.outcome.as_str(), self.status)
    }
}

/// What comes next in a call.
#[derive(Debug)]
pub enum Step {
    Said(Inbound),
    Ended(Reply),
}

pub type Work = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A call that is under way. Dropping it takes the call back.
pub struct Conversation {
    said: mpsc::Receiver<Inbound>,
    work: Work,
    ended: Option<Reply>,
}

impl Conversation {
    /// Begins the work that `make` gives; what belongs to it goes to the sink.
    pub fn begin(make: impl FnOnce(Sink) -> Work) -> Conversation {
        let (sink, said) = mpsc::channel(INBOUND_MAX);
        Conversation { said, work: make(sink), ended: None }
    }

    /// Everything that was said before the answer comes before the answer.
    pub async fn next(&mut self) -> Step {
        if self.ended.is_none() {
            tokio::select! {
                biased;
                Some(inbound) = self.said.recv() => return Step::Said(inbound),
                reply = &mut self.work => {
                    // Whoever speaks from here on learns that nobody listens, and a call that goes on can turn elsewhere.
                    self.said.close();
                    self.ended = Some(reply);
                }
            }
        }
        if let Some(inbound) = self.said.recv().await {
            return Step::Said(inbound);
        }
        match self.ended.clone() {
            Some(reply) => Step::Ended(reply),
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Conversation")
    }
}
