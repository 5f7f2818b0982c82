//! What the server of a task has asked and its client has not answered yet.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_env::clock;

use crate::call::server_request::{Replier, SuspendedQuestion};
use crate::fields::{Fields, Raw};
use crate::message;

/// A server that asks more than this at once gets an error.
const OPEN_MAX: usize = 64;

#[derive(Default)]
pub struct OpenQuestions(Mutex<Vec<(Instant, SuspendedQuestion)>>);

impl OpenQuestions {
    /// Those that are still awaited.
    fn lock(&self) -> MutexGuard<'_, Vec<(Instant, SuspendedQuestion)>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, question)| !question.reply.is_closed());
        open
    }

    pub fn put(&self, server: Arc<str>, method: String, params: Option<Raw>, reply: Replier) {
        let mut open = self.lock();
        if open.len() >= OPEN_MAX {
            let _ = reply.send(Err(message::error(message::INTERNAL_ERROR, "too many questions are open already")));
            return;
        }
        let question =
            SuspendedQuestion::new(server, method, params, reply, |key| open.iter().all(|(_, other)| other.key != key));
        open.push((clock::now(), question));
    }

    /// The questions by their keys.
    pub fn shown(&self) -> Fields {
        self.lock().iter().fold(Fields::default(), |shown, (_, question)| {
            let one = Fields::default().and("method", &question.method).and("params", &question.params);
            shown.and(&question.key, &one)
        })
    }

    /// Gives the answers to those who asked. An answer to anything else is passed over.
    pub fn answer(&self, responses: &Fields) {
        let mut open = self.lock();
        for (_, question) in open.extract_if(.., |(_, question)| responses.has(&question.key)) {
            if let Some(response) = responses.get(&question.key) {
                // A server that has stopped waiting needs no answer.
                let _ = question.reply.send(Ok(response.to_owned()));
            }
        }
    }

    /// Takes back what was asked `patience` ago. How long until the next is due; `None` if nothing is open.
    pub fn expire(&self, patience: Duration) -> Option<Duration> {
        let (mut open, now) = (self.lock(), clock::now());
        for (_, question) in open.extract_if(.., |(asked, _)| *asked + patience <= now) {
            let _ = question.reply.send(Err(message::error(message::INTERNAL_ERROR, "Expired")));
        }
        open.first().map(|(asked, _)| (*asked + patience).saturating_duration_since(now))
    }
}

impl fmt::Debug for OpenQuestions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenQuestions({})", self.lock().len())
    }
}
