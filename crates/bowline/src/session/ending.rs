//! How runs end: answered, failed, cancelled or lost, each exactly once.

use std::collections::BTreeMap;

use bowline_protocol::Refusal;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, ErrorCode, RunId, StepId, json};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Mailbox;
use super::actor::Actor;
use super::record::keys;
use super::work::push_message;
use crate::agent::{AgentError, Answer, Ending, LastWord, Role};

/// A longer answer than this is not one: it would not fit into one event of any store.
const ANSWER_BYTES_MAX: usize = 8 << 20;

impl Actor {
    /// The agent returned.
    pub(super) async fn finish(&mut self, ending: Ending) {
        let Some(run) = self.run.as_deref() else { return };
        let (id, partial, started) = (run.id.clone(), run.partial.clone(), run.started);
        let cancelled = run.cancelled.clone();
        let duration_ms = started.elapsed().as_millis() as u64;
        let end = match ending.clone() {
            _ if cancelled.is_some() => {
                let (by, reason) = cancelled.unwrap_or_default();
                End::cancelled(partial, &by, reason.as_deref())
            }
            Ok(answer) if answer.text.len() > ANSWER_BYTES_MAX => {
                let why = format!("Its answer is longer than {ANSWER_BYTES_MAX} bytes.");
                End::failed(String::new(), &AgentError::failed(why))
            }
            Ok(answer) => End::answered(answer, duration_ms),
            Err(error) if error.cancelled => {
                End::cancelled_with(partial, "agent", Some(&error.message), error.finish.as_ref())
            }
            Err(error) => End::failed(partial, &error),
        };
        if let Err(refusal) = self.end_run(&id, &end).await {
            // It is offered until the store takes it: a run must not stay "running" for ever.
            tracing::debug!(session = %self.id, %refusal, "the ending of a run cannot be stored yet");
            if let Some(run) = self.run.as_deref_mut() {
                run.put_back(ending);
            }
            return;
        }
        self.drop_run();
        self.start_next().await;
    }

    /// The one way out of a run: its terminal event, the conversation and the record change together, once.
    pub(super) async fn end_run(&mut self, id: &RunId, end: &End) -> Result<(), Refusal> {
        let mut change = self.change();
        let pending: Vec<StepId> = change.record.turn.active().map(|active| active.pending.clone()).unwrap_or_default();
        if !change.record.turn.end(id) {
            return Ok(());
        }
        change.event(&end.draft);
        change.delete(keys::INPUT);
        for step in &pending {
            change.delete(keys::confirmation(step));
        }
        if !end.text.is_empty() {
            push_message(&mut change, Role::Assistant, end.text.clone(), None, end.word != "answered");
        }
        self.commit(change).await?;
        self.shared.metrics.runs.inc(end.word);
        if self.wants_checkpoints() {
            self.checkpoint_at = Some(std::time::Instant::now());
        }
        Ok(())
    }

    pub(super) async fn cancel(&mut self, from: &Mailbox, by: String, reason: Option<String>) {
        if let Err(refusal) = self.may_write(from) {
            return from.refuse(&self.id, refusal);
        }
        let Some(run) = self.record.turn.active().map(|active| active.run.clone()) else {
            return self.tell(
                from,
                "Nothing is running.".into(),
                serde_json::json!({ "action": "cancel", "ok": false }),
            );
        };
        let partial = self.run.as_ref().map(|run| run.partial.clone()).unwrap_or_default();
        match (self.end_run(&run, &End::cancelled(partial, &by, reason.as_deref())).await, self.run.as_deref_mut()) {
            (Ok(()), _) => {
                self.drop_run();
                self.start_next().await;
            }
            // The store is away, but a cancel always stops the work: its ending is written as soon as it can be.
            (Err(_), Some(run)) => {
                run.cancelled = Some((by, reason));
                run.give_up(AgentError::cancelled("cancelled"));
            }
            (Err(refusal), None) => from.refuse(&self.id, refusal),
        }
    }

    pub(super) fn drop_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.shared.metrics.runs_active.dec();
            run.stop();
        }
    }
}

/// How a run ends: the event that says so, and what the conversation keeps.
pub(super) struct End {
    pub draft: Draft,
    pub text: String,
    pub word: &'static str,
}

impl End {
    fn answered(answer: Answer, duration_ms: u64) -> End {
        let mut facts = Facts::default();
        answer.metadata.iter().for_each(|(key, value)| facts.add(key, value));
        facts.add("duration_ms", &duration_ms);
        facts.add_some("usage", answer.usage.as_ref());
        facts.add_some("model", answer.model.as_ref());
        facts.add_some("finish", answer.finish.as_ref().map(|word| &word.0));
        End {
            draft: Draft::new(names::FINAL_ANSWER, &answer.text).metadata(&facts.0),
            text: answer.text,
            word: "answered",
        }
    }

    fn failed(partial: String, error: &AgentError) -> End {
        let mut facts = Facts::default();
        facts.add("error_code", error.code.as_str());
        facts.add("recovery_action", error.code.action().as_str());
        facts.add_some("stage", error.stage.as_ref());
        facts.add_some("finish", error.finish.as_ref().map(|word| &word.0));
        let word = if error.code == ErrorCode::AgentLost { "lost" } else { "failed" };
        End { draft: Draft::new(names::ERROR, &error.message).metadata(&facts.0), text: partial, word }
    }

    pub fn lost(partial: String) -> End {
        let message = "The server was restarted while the agent was at work. Send the message again.";
        End::failed(partial, &AgentError { code: ErrorCode::AgentLost, ..AgentError::failed(message) })
    }

    pub fn cancelled(partial: String, by: &str, reason: Option<&str>) -> End {
        End::cancelled_with(partial, by, reason, None)
    }

    /// The same, with what an upstream said of it.
    fn cancelled_with(partial: String, by: &str, reason: Option<&str>, finish: Option<&LastWord>) -> End {
        let mut facts = Facts::default();
        facts.add("by", by);
        facts.add_some("reason", reason);
        facts.add_some("finish", finish.map(|word| &word.0));
        End {
            draft: Draft::new(names::CANCELLED, "The run was cancelled.").metadata(&facts.0),
            text: partial,
            word: "cancelled",
        }
    }
}

/// The metadata of an ending. What an upstream said stays as it wrote it.
#[derive(Default)]
struct Facts(BTreeMap<String, Box<RawValue>>);

impl Facts {
    fn add(&mut self, key: &str, value: &(impl Serialize + ?Sized)) {
        self.0.insert(key.to_owned(), json::raw(value));
    }

    fn add_some(&mut self, key: &str, value: Option<&(impl Serialize + ?Sized)>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }
}
