//! How a task ends: exactly once, with its terminal event, and its session is notified.

use std::sync::atomic::Ordering;

use bowline_env::clock;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, ErrorCode, RecoveryAction, Refusal};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::actor::{RETRY_EVERY, TaskActor};
use super::append::ended;
use super::command::{EndedTask, TaskClose};
use super::record::{TaskRecord, Worker};
use crate::task::status::{Status, TurnError};

/// What the terminal event says to programs. A producer's last chunk is kept as it was written.
#[derive(Default, Serialize)]
struct EndingFacts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_action: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish: Option<&'a RawValue>,
    /// How much of its text was streamed before.
    #[serde(skip_serializing_if = "Option::is_none")]
    streamed: Option<Value>,
}

impl EndingFacts<'_> {
    fn of(finish: &Option<Box<RawValue>>) -> EndingFacts<'_> {
        EndingFacts { finish: finish.as_deref(), ..EndingFacts::default() }
    }
}

pub(super) fn owed() -> Refusal {
    let message = "The task was stopped; that cannot be written down yet. Ask again.";
    Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(1000)
}

impl TaskActor {
    /// A request to end it. A second one is harmless: it is answered with how the task stands.
    pub(super) async fn asked_to_end(&mut self, ending: TaskClose) -> Result<EndedTask, Refusal> {
        let by_this = self.record.is_running();
        if by_this {
            if matches!(ending, TaskClose::Cancelled { .. }) {
                // A cancel always stops the work, also when the store is away.
                self.end(ending).await;
                if self.owed.is_some() {
                    return Err(owed());
                }
            } else {
                self.write_end(&ending).await?;
                self.settle_end();
            }
        } else if matches!(ending, TaskClose::Completed { .. } | TaskClose::Failed { .. }) && self.contradicts(&ending)
        {
            return Err(ended());
        }
        let last = self.next.prev();
        Ok(EndedTask { by_this, record: self.record.clone(), last, last_message_id: self.cursor(last) })
    }

    fn contradicts(&self, ending: &TaskClose) -> bool {
        match ending {
            // A request without a result does not contradict the one that is known; one with a result would lose it.
            TaskClose::Completed { result, .. } => {
                self.record.status != Status::Completed || result.is_some() && *result != self.record.result
            }
            TaskClose::Failed { .. } => self.record.status != Status::Failed,
            TaskClose::Cancelled { .. } => false,
        }
    }

    /// Ends it from within. If the store is away, that is owed until it is back.
    pub(super) async fn end(&mut self, ending: TaskClose) {
        self.stop_work();
        if let Err(refusal) = self.write_end(&ending).await {
            tracing::debug!(task = %self.id, %refusal, "the end of a task cannot be stored yet");
            self.owed = Some(ending);
            self.retry_at = Some(clock::now() + RETRY_EVERY);
            return;
        }
        self.settle_end();
    }

    fn stop_work(&mut self) {
        if let Some(work) = self.work.take() {
            work.stop();
            self.shared.at_work.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn settle_end(&mut self) {
        self.stop_work();
        // Not now: the requester may be the very session that is to be notified.
        self.retry_at = Some(clock::now());
    }

    /// The one way out of `running`: the terminal event and the record change together, once.
    async fn write_end(&mut self, ending: &TaskClose) -> Result<(), Refusal> {
        if !self.record.is_running() {
            return Ok(());
        }
        self.refresh().await?;
        let mut record = TaskRecord { finished_ms: Some(self.shared.logs.clock.now_ms()), ..self.record.clone() };
        let draft = match ending {
            TaskClose::Completed { result, finish } => {
                record.status = Status::Completed;
                record.result = result.clone();
                // A producer's text is what it sent.
                let text = result.as_ref().filter(|_| matches!(record.worker, Worker::Agent { .. }));
                let text = text.and_then(Value::as_str).unwrap_or_default();
                let streamed = self.stream.indexer.streamed(text);
                let facts = EndingFacts {
                    duration_ms: Some(self.age_ms()),
                    result: result.as_ref(),
                    streamed,
                    ..EndingFacts::of(finish)
                };
                Draft::new(names::FINAL_ANSWER, text).metadata(&facts)
            }
            TaskClose::Failed { code, message, finish } => {
                record.status = Status::Failed;
                record.error = Some(TurnError { code: code.as_str().to_owned(), message: message.clone() });
                let (error_code, recovery_action) = (Some(code.as_str()), Some(code.action().as_str()));
                let facts = EndingFacts { error_code, recovery_action, ..EndingFacts::of(finish) };
                Draft::new(names::ERROR, message).metadata(&facts)
            }
            TaskClose::Cancelled { by, reason, finish } => {
                record.status = Status::Cancelled;
                let facts = EndingFacts { by: Some(by), reason: reason.as_deref(), ..EndingFacts::of(finish) };
                Draft::new(names::CANCELLED, "The task was cancelled.").metadata(&facts)
            }
        };
        record.untold = record.session.is_some();
        let opening = self.stream.importer.opening("");
        let drafts: Vec<Draft> = opening.into_iter().chain(self.output(ending)).chain([draft]).collect();
        self.commit(&drafts, Vec::new(), Some(record)).await?;
        self.shared.forget_running(&self.owner);
        Ok(())
    }

    pub(super) fn age_ms(&self) -> u64 {
        self.shared.logs.clock.now_ms().saturating_sub(self.record.created_ms)
    }

    /// Its session's log says that the operation is over. Tried until it does, or until the session is over itself.
    pub(super) async fn tell_session(&mut self) {
        let Some(session) = self.record.session.clone().filter(|_| self.record.untold) else { return };
        let mut content =
            json!({ "operation_id": self.record.operation_id, "task_id": self.id, "status": self.record.status });
        if let Some(result) = &self.record.result {
            content["result"] = result.clone();
        }
        if let Some(error) = &self.record.error {
            content["error"] = json!({ "code": error.code, "message": error.message });
        }
        let answered = self.shared.tell_session(&session, &self.owner, &self.id, content).await;
        let record = TaskRecord { untold: false, ..self.record.clone() };
        let stored = match answered {
            Err(refusal) if refusal.code.action() == RecoveryAction::RetryLater => Err(refusal),
            // The session knows, or does not exist any more.
            Ok(()) | Err(_) => self.commit(&[], Vec::new(), Some(record)).await.map(drop),
        };
        if let Err(refusal) = stored {
            tracing::debug!(task = %self.id, %refusal, "cannot notify a session of an operation's end yet");
            self.retry_at = Some(clock::now() + RETRY_EVERY);
        }
    }
}
