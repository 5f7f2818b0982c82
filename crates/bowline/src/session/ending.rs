//! How runs end: answered, failed, cancelled or lost, each exactly once.

use std::collections::BTreeMap;

use bowline_api::{AgentError, Answer, RunResult, UpstreamFinish};
use bowline_env::clock;
use bowline_protocol::Refusal;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, ErrorCode, Seq, json};
use serde::Serialize;
use serde_json::value::RawValue;

use super::actor::SessionActor;
use super::caller::Answered;
use super::record::keys;
use super::{Caller, Outcome, taken};
use crate::task::status::TurnError;

/// A longer answer than this is not one: it would not fit into one event of any store.
const ANSWER_BYTES_MAX: usize = 8 << 20;

impl SessionActor {
    /// The agent returned.
    pub(super) async fn finish(&mut self, ending: RunResult) {
        let Some(run) = self.run.as_deref() else { return };
        let duration_ms = run.started.elapsed().as_millis() as u64;
        let end = match (ending.clone(), &run.cancelled) {
            (_, Some((by, reason))) => End::cancelled(by, reason.as_deref()),
            (Ok(answer), None) if answer.text.len() > ANSWER_BYTES_MAX => {
                let why = format!("Its answer is longer than {ANSWER_BYTES_MAX} bytes.");
                End::failed(&AgentError::failed(why))
            }
            (Ok(answer), None) => End::answered(answer, duration_ms),
            (Err(error), None) if error.cancelled => {
                let by = run.called_off_by.as_deref().unwrap_or("agent");
                End::cancelled_with(by, Some(&error.message), error.finish.as_ref())
            }
            (Err(error), None) => End::failed(&error),
        };
        if let Err(refusal) = self.end_run(end).await {
            // It is offered until the store takes it: a run must not stay "running" for ever.
            tracing::debug!(session = %self.id, %refusal, "the ending of a run cannot be stored yet");
            if let Some(run) = self.run.as_deref_mut() {
                run.process.put_back(ending);
            }
            return;
        }
        self.drop_run();
        self.start_next().await;
    }

    /// The one way out of a run: its terminal event, the conversation and the record change together, once.
    pub(super) async fn end_run(&mut self, mut end: End) -> Result<(), Refusal> {
        let Some(active) = self.record.turn.active().cloned() else { return Ok(()) };
        if let Some(answer) = &end.answer
            && let Some(streamed) = self.streamed(active.started, answer).await?
        {
            end.add("streamed", &streamed);
        }
        // First of all, as with an answer: an older state of this session must not bring the question back.
        for step in &active.pending {
            taken::settle(&self.shared, &self.owner, step).await?;
        }
        let ended = self.next_seq().await?;
        let mut change = self.change();
        change.record.turn.end(&active.run);
        change.event(&end.draft);
        change.delete(keys::INPUT);
        for step in &active.pending {
            change.delete(keys::confirmation(step));
        }
        self.close_turn(&mut change, &active, ended, &end).await?;
        self.commit(change).await?;
        self.shared.metrics.runs.inc(end.word);
        if self.wants_checkpoints() {
            self.checkpoint_at = Some(clock::now());
        }
        Ok(())
    }

    pub(super) async fn cancel(
        &mut self,
        from: &Caller,
        by: String,
        reason: Option<String>,
        turn: Option<Seq>,
    ) -> Answered {
        self.may_write(from)?;
        let active = self.record.turn.active();
        if active.is_none_or(|active| turn.is_some_and(|turn| turn != active.started)) {
            return Ok(Outcome::Cancelled { ran: false });
        }
        self.stop_run(by, reason).await?;
        self.start_next().await;
        Ok(Outcome::Cancelled { ran: true })
    }

    /// Stops the active run for good: its end is in the log, or will be as soon as the store takes it.
    pub(super) async fn stop_run(&mut self, by: String, reason: Option<String>) -> Result<(), Refusal> {
        match (self.end_run(End::cancelled(&by, reason.as_deref())).await, self.run.as_deref_mut()) {
            (Ok(()), _) => self.drop_run(),
            // It is not known whether the ending was kept: the caller has to ask again, because the session is activated anew
            // and knows of no cancel.
            (Err(refusal), _) if !self.writer.is_leased() => return Err(refusal),
            // The store is away, but a cancel always stops the work: its ending is written as soon as it can be.
            (Err(_), Some(run)) => {
                run.cancelled = Some((by, reason));
                run.process.give_up(Err(AgentError::cancelled("cancelled")));
            }
            (Err(refusal), None) => return Err(refusal),
        }
        Ok(())
    }

    pub(super) fn drop_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.shared.metrics.runs_active.dec();
            run.process.stop();
        }
    }
}

/// How a run ends: the event that says so, and what the conversation keeps.
pub(super) struct End {
    pub draft: Draft,
    pub word: &'static str,
    /// The whole answer; none if only what was streamed is there to keep.
    pub answer: Option<String>,
    pub error: Option<TurnError>,
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
            word: "answered",
            answer: Some(answer.text),
            error: None,
        }
    }

    fn failed(error: &AgentError) -> End {
        let mut facts = Facts::default();
        facts.add("error_code", error.code.as_str());
        facts.add("recovery_action", error.code.action().as_str());
        facts.add_some("stage", error.stage.as_ref());
        facts.add_some("finish", error.finish.as_ref().map(|word| &word.0));
        let word = if error.code == ErrorCode::AgentLost { "lost" } else { "failed" };
        let told = TurnError { code: error.code.as_str().to_owned(), message: error.message.clone() };
        let draft = Draft::new(names::ERROR, &error.message).metadata(&facts.0);
        End { draft, word, answer: None, error: Some(told) }
    }

    /// Adds a fact to what its event says.
    fn add(&mut self, key: &str, value: &impl Serialize) {
        let known = self.draft.metadata.as_deref().and_then(|raw| serde_json::from_str(raw.get()).ok());
        let mut facts = Facts(known.unwrap_or_default());
        facts.add(key, value);
        self.draft.metadata = Some(json::raw(&facts.0));
    }

    pub fn lost() -> End {
        let message = "The server was restarted while the agent was at work. Send the message again.";
        End::failed(&AgentError { code: ErrorCode::AgentLost, ..AgentError::failed(message) })
    }

    pub fn cancelled(by: &str, reason: Option<&str>) -> End {
        End::cancelled_with(by, reason, None)
    }

    /// The same, with what an upstream said of it.
    fn cancelled_with(by: &str, reason: Option<&str>, finish: Option<&UpstreamFinish>) -> End {
        let mut facts = Facts::default();
        facts.add("by", by);
        facts.add_some("reason", reason);
        facts.add_some("finish", finish.map(|word| &word.0));
        let draft = Draft::new(names::CANCELLED, "The run was cancelled.").metadata(&facts.0);
        End { draft, word: "cancelled", answer: None, error: None }
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
