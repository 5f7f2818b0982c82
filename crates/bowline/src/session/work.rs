//! What a session does: takes messages, runs agents, stores what they say, and ends every run exactly once.

use bowline_core::turn::Admission;
use bowline_protocol::event::names;
use bowline_protocol::frame::client::Content;
use bowline_protocol::frame::{Control, PlanCommand};
use bowline_protocol::{Draft, ErrorCode, LoggedEvent, MessageId, Refusal, RunId, StepId};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::actor::{Actor, Change};
use super::record::{Accepted, Queued, keys};
use super::run::{EMISSIONS_MAX, LiveRun, Said};
use super::{Mail, Mailbox};
use crate::agent::{AgentError, Answer, Asked, Emission, Emitter, Ending, Input, Message, Reply, Role, Run};
use crate::config::WhenBusy;
use crate::{dice, node};

/// How much of the first message becomes the session's title.
const TITLE_CHARS: usize = 80;

impl Actor {
    pub(super) async fn message(&mut self, from: &Mailbox, message_id: Option<MessageId>, content: Content) {
        if let Err(refusal) = self.take_message(from, message_id, content).await {
            from.refuse(&self.id, refusal);
        }
    }

    async fn take_message(
        &mut self,
        from: &Mailbox,
        message_id: Option<MessageId>,
        content: Content,
    ) -> Result<(), Refusal> {
        self.may_write(from)?;
        let digest = digest(&content);
        if let Some(id) = &message_id
            && let Some(known) = self.item::<Accepted>(&keys::idempotency(id)).await?
        {
            return self.repeated(from, id, &known, &digest);
        }
        if self.shared.is_draining() {
            return Err(node::draining());
        }
        let queue_max = match self.shared.config.session.when_busy {
            WhenBusy::Reject => 0,
            WhenBusy::Queue => self.shared.config.session.queue_max,
        };
        match self.record.turn.admit(self.record.queue.len(), queue_max) {
            Admission::Start => self.start_message(Queued { content, message_id }, &digest, None).await,
            Admission::Queue { position } => {
                let mut change = self.change();
                change.put(keys::queued(change.record.queue.to), &Queued { content, message_id: message_id.clone() });
                change.record.queue.to += 1;
                if let Some(id) = &message_id {
                    change.put(keys::idempotency(id), &Accepted { digest, seq: None });
                }
                self.commit(change).await?;
                let facts = json!({ "action": "queued", "position": position, "message_id": message_id });
                self.tell(from, format!("Your message is number {position} in the queue."), facts);
                Ok(())
            }
            Admission::Busy => {
                self.shared.metrics.limits_hit.inc("session.when_busy");
                let message =
                    "The agent is still at work on the last message. Wait for its end, or send `user.cancel`.";
                Err(Refusal::new(ErrorCode::AgentBusy, message).retry_after_ms(1000))
            }
        }
    }

    fn repeated(&self, from: &Mailbox, id: &MessageId, known: &Accepted, digest: &str) -> Result<(), Refusal> {
        if known.digest != digest {
            let message = "This message_id was used before with other content. Use a new one.";
            return Err(Refusal::new(ErrorCode::IdempotencyConflict, message));
        }
        self.shared.metrics.duplicates_avoided.inc();
        let facts = json!({ "action": "duplicate_message", "message_id": id, "seq": known.seq, "session_state": self.record.turn.state() });
        self.tell(from, "This message was accepted before; its events are the answer.".into(), facts);
        Ok(())
    }

    /// Accepts a message: its event, its place in the conversation, its key and the start of its run in one commit.
    async fn start_message(&mut self, message: Queued, digest: &str, queue_item: Option<u64>) -> Result<(), Refusal> {
        let Queued { content, message_id } = message;
        let text = content.text().unwrap_or_default();
        let mut draft = Draft::new(names::USER_MESSAGE, &content.0);
        if let Some(id) = &message_id {
            draft = draft.metadata(&json!({ "message_id": id }));
        }
        let conversation = self.conversation().await?;
        let started = self.next_seq().await?;
        let mut change = self.change();
        change.event(&draft);
        push_message(&mut change, Role::User, text.clone(), message_id.as_ref(), false);
        if let Some(id) = &message_id {
            change.put(keys::idempotency(id), &Accepted { digest: digest.to_owned(), seq: Some(started.get()) });
        }
        if let Some(number) = queue_item {
            change.delete(keys::queued(number));
            change.record.queue.from = number + 1;
        }
        if change.record.title.is_none() {
            change.record.title = Some(text.chars().take(TITLE_CHARS).collect());
        }
        self.start_run(change, Input::Message { text }, started, conversation).await
    }

    /// The one way into a run.
    async fn start_run(
        &mut self,
        mut change: Change,
        input: Input,
        started: bowline_protocol::Seq,
        conversation: Vec<Message>,
    ) -> Result<(), Refusal> {
        let id = RunId::from_random(dice::u128());
        change.record.turn.start(id.clone(), started, self.shared.clock.now_ms());
        change.put(keys::INPUT, &input);
        self.commit(change).await?;
        self.launch(id, input, conversation, Vec::new(), None).await;
        Ok(())
    }

    /// Gives a run its process.
    pub(super) async fn launch(
        &mut self,
        id: RunId,
        input: Input,
        conversation: Vec<Message>,
        logged: Vec<LoggedEvent>,
        answered: Option<(Asked, Reply)>,
    ) {
        let (emit, emissions) = mpsc::channel(EMISSIONS_MAX);
        let (commands, commands_in) = mpsc::channel(16);
        let cancel = CancellationToken::new();
        let run = Run {
            session: self.id.clone(),
            id: id.clone(),
            input,
            conversation,
            plan: self.item(keys::PLAN).await.ok().flatten(),
            config: self.record.config.clone(),
            logged,
            cancel: cancel.clone(),
            emit: Emitter::new(emit),
            commands: commands_in,
        };
        let agent = self.shared.agents.get(&self.record.agent).cloned();
        let name = self.record.agent.clone();
        let task = tokio::spawn(async move {
            match (agent, answered) {
                (None, _) => Err(AgentError::failed(format!("The agent `{name}` is no longer configured."))),
                (Some(agent), None) => agent.run(run).await,
                (Some(agent), Some((asked, reply))) => agent.answered(run, asked, reply).await,
            }
        });
        self.shared.metrics.runs_active.inc();
        self.run = Some(Box::new(LiveRun::new(id, cancel, commands, emissions, task)));
    }

    pub async fn handle_said(&mut self, said: Said) {
        match said {
            Said::Emissions(emissions) => self.store_emissions(emissions).await,
            Said::Ended(ending) => self.finish(ending).await,
        }
    }

    /// Stores what the run said, in one commit. If the store cannot, the run waits; it does not die of it.
    async fn store_emissions(&mut self, emissions: Vec<Emission>) {
        let Some(run) = self.run.as_deref() else { return };
        let id = run.id.clone();
        let limits = self.shared.config.limits.clone();
        let mut change = self.change();
        let mut touches_record = false;
        for emission in &emissions {
            match emission {
                Emission::Event(draft) | Emission::Partial(draft, _) if draft.len_hint() > limits.event_bytes_max => {
                    self.shared.metrics.limits_hit.inc("limits.event_bytes_max");
                    let why = format!("It emitted an event of more than {} bytes.", limits.event_bytes_max);
                    return self.finish(Err(AgentError::failed(why))).await;
                }
                Emission::Event(draft) | Emission::Partial(draft, _) => change.event(draft),
                Emission::Plan(plan) => change.put(keys::PLAN, plan),
                Emission::Ask { step, draft, state, .. } => {
                    let pending = change.record.turn.active().map_or(0, |active| active.pending.len());
                    if pending >= limits.confirmations_max || !change.record.turn.ask(&id, step.clone()) {
                        self.shared.metrics.limits_hit.inc("limits.confirmations_max");
                        return self.finish(Err(AgentError::failed("It asked too many questions at once."))).await;
                    }
                    let asked_ms = self.shared.clock.now_ms();
                    change.event(draft);
                    change.put(
                        keys::confirmation(step),
                        &Asked { step_id: step.clone(), state: state.clone(), asked_ms },
                    );
                    touches_record = true;
                }
            }
        }
        let stored = if touches_record { self.commit(change).await } else { self.write(change.commit).await };
        match stored {
            Ok(_) => self.said_is_stored(emissions),
            Err(refusal) => self.could_not_store(emissions, &refusal).await,
        }
    }

    fn said_is_stored(&mut self, emissions: Vec<Emission>) {
        let Some(run) = self.run.as_deref_mut() else { return };
        run.unstick();
        for emission in emissions {
            match emission {
                Emission::Partial(_, delta) => run.partial.push_str(&delta.0),
                Emission::Ask { step, reply, .. } => drop(run.answers.insert(step, reply)),
                Emission::Event(_) | Emission::Plan(_) => {}
            }
        }
    }

    async fn could_not_store(&mut self, emissions: Vec<Emission>, refusal: &Refusal) {
        let patience = self.shared.config.session.store_patience;
        let Some(run) = self.run.as_deref_mut() else { return };
        if run.stick(emissions, patience) {
            tracing::debug!(session = %self.id, %refusal, "a run waits for the store");
            return;
        }
        tracing::error!(session = %self.id, %refusal, "gave up a run: the store did not take its events in time");
        // The run stays on record as active, so that its ending is written when the store is back.
        run.give_up(AgentError::failed("The store could not keep what the agent said, for too long."));
    }

    pub(super) async fn retry_stuck(&mut self) {
        if let Some(run) = self.run.as_deref_mut() {
            let emissions = run.stuck_emissions();
            if emissions.is_empty() {
                run.unstick();
            } else {
                self.store_emissions(emissions).await;
            }
        }
    }

    pub(super) fn drop_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.shared.metrics.runs_active.dec();
            run.stop();
        }
    }

    /// The agent returned.
    async fn finish(&mut self, ending: Ending) {
        let Some(run) = self.run.as_deref() else { return };
        let (id, partial, started) = (run.id.clone(), run.partial.clone(), run.started);
        let duration_ms = started.elapsed().as_millis() as u64;
        let end = match ending.clone() {
            Ok(answer) => End::answered(answer, duration_ms),
            Err(error) if error.cancelled => End::cancelled(partial, "agent", Some(error.message)),
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
        Ok(())
    }

    pub(super) async fn start_next(&mut self) {
        while self.record.queue.len() > 0 && self.run.is_none() {
            let number = self.record.queue.from;
            let queued = self.item::<Queued>(&keys::queued(number)).await;
            let started = match queued {
                Ok(Some(message)) => {
                    let digest = digest(&message.content);
                    self.start_message(message, &digest, Some(number)).await
                }
                Ok(None) => {
                    let mut change = self.change();
                    change.record.queue.from = number + 1;
                    self.commit(change).await.map(drop)
                }
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = started {
                tracing::warn!(session = %self.id, %refusal, "the next message of the queue cannot start yet");
                return;
            }
        }
    }

    pub(super) async fn response(&mut self, from: &Mailbox, step: &StepId, reply: Reply) {
        if let Err(refusal) = self.take_response(from, step, reply).await {
            from.refuse(&self.id, refusal);
        }
    }

    async fn take_response(&mut self, from: &Mailbox, step: &StepId, reply: Reply) -> Result<(), Refusal> {
        self.may_write(from)?;
        let mut change = self.change();
        if !change.record.turn.answer(step) {
            let message = format!("No confirmation `{step}` is waiting for an answer.");
            return Err(Refusal::new(ErrorCode::UnknownStep, message));
        }
        let asked = self.item::<Asked>(&keys::confirmation(step)).await?;
        let mut content = json!({ "confirmed": reply.confirmed });
        if let Some(tasks) = &reply.tasks {
            content["tasks"] = tasks.clone();
        }
        if let Some(reason) = &reply.reason {
            content["reason"] = reason.as_str().into();
        }
        change.event(&Draft::new(names::USER_RESPONSE, &content).step(step.clone()));
        change.delete(keys::confirmation(step));
        self.commit(change).await?;
        if let Some(run) = self.run.as_deref_mut() {
            // An agent that no longer listens has ended meanwhile, and says so itself.
            if let Some(waiting) = run.answers.remove(step) {
                let _ = waiting.send(reply);
            }
            return Ok(());
        }
        self.reenter(step, asked, reply).await
    }

    /// The process that asked is gone; the answer re-enters the agent.
    async fn reenter(&mut self, step: &StepId, asked: Option<Asked>, reply: Reply) -> Result<(), Refusal> {
        let Some(active) = self.record.turn.active().cloned() else { return Ok(()) };
        let asked = asked.unwrap_or(Asked { step_id: step.clone(), state: Value::Null, asked_ms: active.started_ms });
        let input = self.item(keys::INPUT).await?.unwrap_or(Input::Message { text: String::new() });
        let mut conversation = self.conversation().await?;
        if matches!(input, Input::Message { .. }) {
            conversation.pop();
        }
        self.launch(active.run, input, conversation, Vec::new(), Some((asked, reply))).await;
        Ok(())
    }

    pub(super) async fn cancel(&mut self, from: &Mailbox, by: String, reason: Option<String>) {
        let refusal = match self.may_write(from) {
            Err(refusal) => Some(refusal),
            Ok(()) => match self.record.turn.active().map(|active| active.run.clone()) {
                None => {
                    self.tell(from, "Nothing is running.".into(), json!({ "action": "cancel", "ok": false }));
                    None
                }
                Some(run) => {
                    let partial = self.run.as_ref().map(|run| run.partial.clone()).unwrap_or_default();
                    self.end_run(&run, &End::cancelled(partial, &by, reason)).await.err()
                }
            },
        };
        match refusal {
            Some(refusal) => from.refuse(&self.id, refusal),
            None => {
                self.drop_run();
                self.start_next().await;
            }
        }
    }

    pub(super) async fn plan_command(&mut self, from: &Mailbox, command: PlanCommand) {
        let action = command.action();
        match self.take_plan_command(from, command).await {
            Ok(ok) => {
                let sentence =
                    if ok { format!("`{action}` is under way.") } else { format!("There is nothing to `{action}`.") };
                self.tell(from, sentence, json!({ "action": action, "ok": ok }));
            }
            Err(refusal) => from.refuse(&self.id, refusal),
        }
    }

    async fn take_plan_command(&mut self, from: &Mailbox, command: PlanCommand) -> Result<bool, Refusal> {
        self.may_write(from)?;
        if !self.shared.agents.get(&self.record.agent).is_some_and(|agent| agent.plans()) {
            let message = format!("The agent `{}` does not plan.", self.record.agent);
            return Err(Refusal::new(ErrorCode::NotSupported, message));
        }
        if self.record.turn.active().is_some() {
            if matches!(command, PlanCommand::SolveTasks { .. }) {
                let message = "The agent is still at work. Wait for its end, or send `user.cancel`.";
                return Err(Refusal::new(ErrorCode::AgentBusy, message).retry_after_ms(1000));
            }
            return Ok(self.run.as_ref().is_some_and(|run| run.commands.try_send(command).is_ok()));
        }
        let input = match command {
            PlanCommand::CancelTask { .. } | PlanCommand::CancelPlan { .. } => return Ok(false),
            PlanCommand::Replan { question } => Input::Replan { question },
            PlanCommand::SolveTasks { tasks } => Input::SolveTasks { tasks },
            PlanCommand::RestartTask { task_id } => Input::RestartTask { task_id },
        };
        if self.shared.is_draining() {
            return Err(node::draining());
        }
        let (conversation, started) = (self.conversation().await?, self.next_seq().await?);
        let change = self.change();
        self.start_run(change, input, started, conversation).await?;
        Ok(true)
    }

    /// The conversation so far, oldest first, at most as much as an agent is given.
    pub(super) async fn conversation(&self) -> Result<Vec<Message>, Refusal> {
        let items =
            self.shared.store.items(&self.log, keys::MESSAGES).await.map_err(|error| node::store_refusal(&error))?;
        let skip = items.len().saturating_sub(self.shared.config.limits.conversation_messages_max);
        Ok(items.into_iter().skip(skip).filter_map(|(_, bytes)| serde_json::from_slice(&bytes).ok()).collect())
    }

    pub(super) async fn item<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Refusal> {
        let bytes = self.shared.store.item(&self.log, key).await.map_err(|error| node::store_refusal(&error))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    async fn next_seq(&self) -> Result<bowline_protocol::Seq, Refusal> {
        let extent = self.shared.store.extent(&self.log).await;
        extent.map(|extent| extent.next).map_err(|error| node::store_refusal(&error))
    }

    pub(super) fn tell(&self, to: &Mailbox, sentence: String, facts: Value) {
        to.send(Mail::Control(Control::notice(Some(self.id.clone()), sentence, facts)));
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
        let mut facts = json!({ "duration_ms": duration_ms });
        if let Some(usage) = answer.usage {
            facts["usage"] = usage;
        }
        if let Some(model) = answer.model {
            facts["model"] = model.into();
        }
        End {
            draft: Draft::new(names::FINAL_ANSWER, &answer.text).metadata(&facts),
            text: answer.text,
            word: "answered",
        }
    }

    fn failed(partial: String, error: &AgentError) -> End {
        let mut facts = json!({ "error_code": error.code.as_str(), "recovery_action": error.code.action().as_str() });
        if let Some(stage) = &error.stage {
            facts["stage"] = stage.as_str().into();
        }
        let word = if error.code == ErrorCode::AgentLost { "lost" } else { "failed" };
        End { draft: Draft::new(names::ERROR, &error.message).metadata(&facts), text: partial, word }
    }

    pub fn lost(partial: String) -> End {
        let message = "The server was restarted while the agent was at work. Send the message again.";
        End::failed(partial, &AgentError { code: ErrorCode::AgentLost, ..AgentError::failed(message) })
    }

    pub fn cancelled(partial: String, by: &str, reason: Option<String>) -> End {
        let mut facts = json!({ "by": by });
        if let Some(reason) = &reason {
            facts["reason"] = reason.as_str().into();
        }
        End {
            draft: Draft::new(names::CANCELLED, "The run was cancelled.").metadata(&facts),
            text: partial,
            word: "cancelled",
        }
    }
}

fn push_message(change: &mut Change, role: Role, content: String, id: Option<&MessageId>, interrupted: bool) {
    let number = change.record.messages;
    change.record.messages += 1;
    let message_id = id.map(|id| id.as_str().to_owned());
    let at_ms = change.commit.at_ms;
    change.put(keys::message(number), &Message { role, content, at_ms, message_id, interrupted });
}

fn digest(content: &Content) -> String {
    Sha256::digest(content.0.get().as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
