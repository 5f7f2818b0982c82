//! Drives one call of a client: what the backend says on the way, in order, and then the answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use tokio::sync::mpsc;

use super::{Inbound, InboundSink};
use crate::call::reply::CallReply;

/// How many messages a backend may send before the caller reads.
const INBOUND_MAX: usize = 64;

/// What comes next in a call.
#[derive(Debug)]
pub enum ConversationStep {
    Said(Inbound),
    Ended(CallReply),
}

pub type CallFuture = Pin<Box<dyn Future<Output = CallReply> + Send>>;

/// A call that is under way. Dropping it takes the call back.
pub struct Conversation {
    said: mpsc::Receiver<Inbound>,
    work: CallFuture,
    ended: Option<CallReply>,
}

impl Conversation {
    /// Begins the work that `make` gives; what belongs to it goes to the sink.
    pub fn begin(make: impl FnOnce(InboundSink) -> CallFuture) -> Conversation {
        let (sink, said) = mpsc::channel(INBOUND_MAX);
        Conversation { said, work: make(sink), ended: None }
    }

    /// Everything that was said before the answer comes before the answer.
    pub async fn next(&mut self) -> ConversationStep {
        if self.ended.is_none() {
            tokio::select! {
                biased;
                Some(inbound) = self.said.recv() => return ConversationStep::Said(inbound),
                reply = &mut self.work => {
                    // Senders see from here on that the receiver is gone, and a call that goes on can send elsewhere.
                    self.said.close();
                    self.ended = Some(reply);
                }
            }
        }
        if let Some(inbound) = self.said.recv().await {
            return ConversationStep::Said(inbound);
        }
        match self.ended.clone() {
            Some(reply) => ConversationStep::Ended(reply),
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Conversation")
    }
}
