//! The way back for an answer, to a caller in this process or on another node.

use std::fmt;

use tokio::sync::oneshot;

/// The way back for one answer.
pub struct Responder<T>(Box<dyn FnOnce(T) + Send + Sync>);

impl<T: Send + 'static> Responder<T> {
    pub fn new(send: impl FnOnce(T) + Send + Sync + 'static) -> Responder<T> {
        Responder(Box::new(send))
    }

    /// For a caller in this process. One that is gone needs no answer.
    pub fn here() -> (Responder<T>, oneshot::Receiver<T>) {
        let (reply, answer) = oneshot::channel();
        (Responder::new(move |answered| drop(reply.send(answered))), answer)
    }

    pub fn send(self, answer: T) {
        (self.0)(answer);
    }
}

impl<T> fmt::Debug for Responder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}
