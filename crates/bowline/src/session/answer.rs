//! A person's answer to a question of a run, also when the process that asked is gone.

use bowline_api::{Input, Message, OpenQuestion, Reply};
use bowline_protocol::event::names;
use bowline_protocol::frame::client::Content;
use bowline_protocol::{Draft, ErrorCode, Refusal, RunId, StepId};
use serde_json::{Value, json};

use super::actor::SessionActor;
use super::caller::Answered;
use super::record::keys;
use super::{Caller, Outcome, taken};
use crate::refusals;

impl SessionActor {
    pub(super) async fn response(
        &mut self,
        from: &Caller,
        step: &StepId,
        reply: Reply,
        request: Option<Content>,
    ) -> Answered {
        self.may_write(from)?;
        let mut change = self.change();
        if !change.record.turn.answer(step) {
            let message = format!("No confirmation `{step}` is waiting for an answer.");
            return Err(Refusal::new(ErrorCode::UnknownStep, message));
        }
        let mut reentry = None;
        match self.run.as_deref() {
            // The process that asked is gone: everything it needs to go on is read before the answer counts.
            None => reentry = Some(self.reentry(step).await?),
            Some(run) if !run.answers.contains_key(step) => {
                let message = "The agent is taking in an earlier answer. Answer this one when it has.";
                return Err(Refusal::new(ErrorCode::AgentBusy, message).retry_after_ms(500));
            }
            Some(_) => {}
        }
        // Settled first: an older state of this session must not bring the question back to be approved again.
        taken::settle(&self.shared, &self.owner, step).await?;
        let mut content = json!({ "confirmed": reply.confirmed });
        if let Some(tasks) = &reply.tasks {
            content["tasks"] = tasks.clone();
        }
        if let Some(reason) = &reply.reason {
            content["reason"] = reason.as_str().into();
        }
        if let Some(request) = request.and_then(|request| serde_json::from_str(request.0.get()).ok()) {
            content["response"] = request;
        }
        change.event(&Draft::new(names::USER_RESPONSE, &content).step(step.clone()));
        change.delete(keys::confirmation(step));
        self.commit(change).await?;
        if let Some(waiting) = self.run.as_deref_mut().and_then(|run| run.answers.remove(step)) {
            // An agent that no longer listens has ended meanwhile, and says so itself.
            let _ = waiting.send(reply);
        } else if let Some(Reentry { run, input, conversation, asked }) = reentry {
            self.launch(run, input, conversation, Vec::new(), Some((asked, reply))).await;
        }
        Ok(Outcome::Done)
    }

    /// What is kept of a run whose process has gone while it waited for an answer.
    async fn reentry(&self, step: &StepId) -> Result<Reentry, Refusal> {
        let active = self.record.turn.active().cloned();
        let (run, started_ms) =
            active.map(|active| (active.run, active.started_ms)).ok_or_else(refusals::session_not_found)?;
        let asked = self.certain::<OpenQuestion>(&keys::confirmation(step)).await?;
        let asked = asked.unwrap_or_else(|| OpenQuestion {
            step_id: step.clone(),
            question: Value::Null,
            metadata: serde_json::Map::new(),
            state: Value::Null,
            asked_ms: started_ms,
        });
        let (input, conversation) = self.input_and_past().await?;
        Ok(Reentry { run, input, conversation, asked })
    }

    /// The input of the active run, and the conversation before it.
    pub(super) async fn input_and_past(&self) -> Result<(Input, Vec<Message>), Refusal> {
        let input = self.item(keys::INPUT).await?.unwrap_or(Input::Message { text: String::new() });
        let mut conversation = self.conversation().await?;
        if matches!(input, Input::Message { .. }) {
            conversation.pop();
        }
        Ok((input, conversation))
    }
}

/// A run that goes on in a new process because it was answered.
struct Reentry {
    run: RunId,
    input: Input,
    conversation: Vec<Message>,
    asked: OpenQuestion,
}
