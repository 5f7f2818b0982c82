//! A request of a backend's that wants an answer, and the way back for that.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Inbound, InboundSink};
use crate::fields::Raw;
use crate::message::{self, RpcResult};

/// Where the answer goes. Dropping it says that there is none.
pub struct Replier {
    answer: oneshot::Sender<RpcResult>,
    /// Which of its client's calls it belongs to is known. If not, it may outlive the one that it was asked in.
    pub certain: bool,
}

impl Replier {
    pub fn send(self, answer: RpcResult) -> Result<(), RpcResult> {
        self.answer.send(answer)
    }

    /// Resolves once the answer is not awaited any more.
    pub async fn closed(&mut self) {
        self.answer.closed().await;
    }

    /// Whether the answer is not awaited any more.
    pub fn is_closed(&self) -> bool {
        self.answer.is_closed()
    }
}

impl From<oneshot::Sender<RpcResult>> for Replier {
    fn from(answer: oneshot::Sender<RpcResult>) -> Replier {
        Replier { answer, certain: true }
    }
}

impl fmt::Debug for Replier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replier")
    }
}

/// A request of the backend's that we can answer ourselves.
pub fn own_answer(method: &str) -> Option<RpcResult> {
    (method == "ping").then(|| Ok(crate::fields::empty()))
}

/// The answer to a request from the backend that has no recipient.
pub fn no_recipient() -> RpcResult {
    Err(message::error(message::METHOD_NOT_FOUND, "no client here can answer this"))
}

/// The receiving side of the answer to a request from the backend.
pub struct AnswerReceiver(oneshot::Receiver<RpcResult>);

impl AnswerReceiver {
    pub fn new(server: &Arc<str>, method: String, params: Option<Raw>, certain: bool) -> (Inbound, AnswerReceiver) {
        let (answer, answered) = oneshot::channel();
        let reply = Replier { answer, certain };
        (Inbound::Request { server: server.clone(), method, params, reply }, AnswerReceiver(answered))
    }

    pub async fn given(self) -> RpcResult {
        self.0.await.unwrap_or_else(|_| Err(message::error(message::INTERNAL_ERROR, "the client did not answer")))
    }
}

impl fmt::Debug for AnswerReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerReceiver")
    }
}

/// Hands a question to `sink` and waits for the answer.
pub async fn ask(sink: Option<&InboundSink>, question: (Inbound, AnswerReceiver)) -> RpcResult {
    let (Some(sink), (question, answer)) = (sink, question) else { return no_recipient() };
    if sink.send(question).await.is_err() {
        return no_recipient();
    }
    answer.given().await
}
