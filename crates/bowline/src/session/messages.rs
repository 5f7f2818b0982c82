//! What a session is given: a message, one from the queue, a command to the work of its run, or an answer to a question.

use bowline_api::{
    CommandEffect, CommandTarget, Input, Message, OpenQuestion, Reply, Role, Work, WorkCommand, work_of,
};
use bowline_core::dialect::StreamIndexer;
use bowline_core::turn::MessageAdmission;
use bowline_mutant::mutant;
use bowline_protocol::event::names;
use bowline_protocol::frame::client::Content;
use bowline_protocol::{Draft, ErrorCode, MessageId, Refusal, RunId, Seq, StepId};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::actor::{PendingChange, SessionActor};
use super::background::Background;
use super::command::{CommandResult, MessageExtras};
use super::record::{AcceptedMessage, Queued, keys};
use super::run::Entry;
use super::turns::TurnEntry;
use super::{CommandOutcome, CommandSender, used_states};
use crate::config::WhenBusy;
use crate::decode::decode;
use crate::refusals;

/// How much of the first message becomes the session's title. Each commit of the record repeats it.
const TITLE_CHARS: usize = 80;

/// The title of a session that begins with this message.
pub(super) fn title_of(first_message: &str) -> String {
    first_message.chars().take(TITLE_CHARS).collect()
}

impl SessionActor {
    pub(super) async fn message(
        &mut self,
        from: &CommandSender,
        message: Queued,
        behind: Option<Seq>,
    ) -> CommandResult {
        self.may_write(from)?;
        let digest = digest(&message.content);
        if let Some((id, known)) = self.accepted(&message).await? {
            return self.repeated(Some(id), &known, &digest).await;
        }
        if self.shared.is_draining() {
            return Err(refusals::draining());
        }
        if let Some(behind) = behind {
            self.is_newest(behind).await?;
        }
        let queue_max = match self.shared.config.session.when_busy {
            WhenBusy::Reject => 0,
            WhenBusy::Queue => self.shared.config.session.queue_max,
        };
        match self.record.turn.admit(self.record.queue.len(), queue_max) {
            MessageAdmission::Start => {
                let turn = self.start_message(message, &digest, None).await?;
                Ok(CommandOutcome::Started { turn })
            }
            MessageAdmission::Queue { position } => {
                let mut change = self.change();
                change.put(keys::queued(change.record.queue.to), &message);
                change.record.queue.to += 1;
                remember(&mut change, &message, &digest, None);
                self.commit(change).await?;
                Ok(CommandOutcome::Queued { position, message_id: message.message_id })
            }
            MessageAdmission::Busy => {
                self.shared.metrics.limits_hit.inc("session.when_busy");
                let message =
                    "The agent is still at work on the last message. Wait for its end, or send `user.cancel`.";
                Err(Refusal::new(ErrorCode::AgentBusy, message).retry_after_ms(1000))
            }
        }
    }

    /// Whether this turn is the newest, waits for no answer, and no message is queued behind it.
    async fn is_newest(&self, turn: Seq) -> Result<(), Refusal> {
        if self.record.turn.active().is_some_and(|active| !active.pending.is_empty()) {
            let message =
                "The agent waits for an answer to its question, or for outputs of functions: send that first.";
            return Err(Refusal::new(ErrorCode::AgentBusy, message));
        }
        let newest = match self.record.messages.checked_sub(1) {
            None => None,
            Some(last) => self.item::<Message>(&keys::message(last)).await?.and_then(|message| message.turn),
        };
        if self.record.queue.is_empty() && newest.is_none_or(|newest| newest == turn) {
            return Ok(());
        }
        let message = "Another message follows this turn already. Name the newest of the conversation.";
        Err(Refusal::new(ErrorCode::NotSupported, message).details(json!({ "field": "behind" })))
    }

    /// The message that was accepted under one of the keys of this one, and what it is called. A key that is new to it is
    /// one of its keys from now on.
    async fn accepted(&mut self, message: &Queued) -> Result<Option<(MessageId, AcceptedMessage)>, Refusal> {
        let mut found: Option<(MessageId, AcceptedMessage)> = None;
        let mut new = None;
        for key in [&message.message_id, &message.also].into_iter().flatten() {
            let Some(known) = self.certain::<AcceptedMessage>(&keys::idempotency(key)).await? else {
                new = Some(key.clone());
                continue;
            };
            let id = known.of.clone().unwrap_or_else(|| key.clone());
            let known = if known.of.is_some() { self.certain(&keys::idempotency(&id)).await? } else { Some(known) };
            let Some(known) = known else { continue };
            if found.as_ref().is_some_and(|(other, _)| *other != id) {
                let message = "The message_id and the Idempotency-Key were used before, for two different messages.";
                return Err(Refusal::new(ErrorCode::IdempotencyConflict, message));
            }
            found = Some((id, known));
        }
        if let (Some((id, known)), Some(new)) = (&found, new)
            && known.also.is_none()
            && known.digest == digest(&message.content)
        {
            let mut change = self.change();
            change.put(
                keys::idempotency(&new),
                &AcceptedMessage { of: Some(id.clone()), ..AcceptedMessage::new("", None) },
            );
            change.put(keys::idempotency(id), &AcceptedMessage { also: Some(new), ..known.clone() });
            self.commit(change).await?;
        }
        Ok(found)
    }

    /// The key was used before: its turn is the answer, unless it was used for something else.
    pub(super) async fn repeated(
        &self,
        message_id: Option<MessageId>,
        known: &AcceptedMessage,
        digest: &str,
    ) -> CommandResult {
        // A key that came with a signed state has no digest: what was sent under it is not known any more.
        if !known.digest.is_empty() && known.digest != digest {
            let message = "This message_id was used before with other content. Use a new one.";
            return Err(Refusal::new(ErrorCode::IdempotencyConflict, message));
        }
        self.shared.metrics.duplicates_avoided.inc();
        let turn = known.seq.and_then(Seq::new);
        let entry = match turn {
            Some(started) => self.item::<TurnEntry>(&keys::turn(started)).await?,
            None => None,
        };
        Ok(CommandOutcome::Repeated { message_id, turn, last: entry.and_then(|entry| entry.ended).map(|end| end.seq) })
    }

    /// Accepts a message: its event, its place in the conversation, its key and the start of its run in one commit.
    async fn start_message(&mut self, message: Queued, digest: &str, queue_item: Option<u64>) -> Result<Seq, Refusal> {
        let Queued { content, message_id, .. } = &message;
        let text = content.text().unwrap_or_default();
        let mut draft = Draft::new(names::USER_MESSAGE, &content.0);
        if let Some(id) = message_id {
            draft = draft.metadata(&json!({ "message_id": id }));
        }
        let mut conversation = self.conversation().await?;
        let started = self.next_seq().await?;
        let mut change = self.change();
        change.event(&draft);
        let MessageExtras { before, instructions, functions, announce } = MessageExtras::of(content);
        let brought = before.len() as u64;
        for earlier in before {
            let message = message_of(earlier.role, earlier.content, None);
            push_message(&mut change, message.clone());
            conversation.push(Message { at_ms: change.commit.at_ms, ..message });
        }
        let parts = content.parts();
        let said = message_of(Role::User, text.clone(), message_id.as_ref());
        push_message(&mut change, Message { turn: Some(started), parts, instructions, functions, ..said });
        remember(&mut change, &message, digest, Some(started));
        if let Some(number) = queue_item {
            change.delete(keys::queued(number));
            change.record.queue.from = number + 1;
        }
        self.forget_oldest(&mut change, brought).await?;
        if change.record.title.is_none() {
            change.record.title = Some(title_of(&text));
        }
        SessionActor::open_turn(&mut change, started, false);
        let owed = if announce { self.owe_webhook(&mut change, started, None) } else { None };
        let started = self.start_run(change, Input::Message { text }, started, conversation).await?;
        self.post_webhook(owed);
        Ok(started)
    }

    /// A conversation keeps so many messages; the oldest go, and their keys with them.
    async fn forget_oldest(&self, change: &mut PendingChange, brought: u64) -> Result<(), Refusal> {
        let kept = self.shared.config.limits.messages_kept_max;
        // A message and its answer come, and what the message brought, so as many may go.
        for number in
            change.record.messages.saturating_sub(kept + 2 + brought)..change.record.messages.saturating_sub(kept)
        {
            let Some(message) = self.item::<Message>(&keys::message(number)).await? else { continue };
            change.delete(keys::message(number));
            if let Some(turn) = message.turn.filter(|_| message.role == Role::User) {
                change.delete(keys::turn(turn));
                StreamIndexer::keys(&keys::index(turn)).into_iter().for_each(|key| change.delete(key));
            }
            if let Some(id) = message.message_id.as_deref().and_then(MessageId::parse) {
                let accepted = self.item::<AcceptedMessage>(&keys::idempotency(&id)).await?;
                for key in accepted.and_then(|accepted| accepted.also).iter().chain([&id]) {
                    change.delete(keys::idempotency(key));
                }
            }
        }
        Ok(())
    }

    pub(super) async fn start_next(&mut self) {
        while !self.record.queue.is_empty() && self.record.turn.active().is_none() && !self.shared.is_draining() {
            let number = self.record.queue.from;
            let queued = self.item::<Queued>(&keys::queued(number)).await;
            let started = match queued {
                Ok(Some(message)) => {
                    let digest = digest(&message.content);
                    self.start_message(message, &digest, Some(number)).await.map(drop)
                }
                Ok(None) => {
                    let mut change = self.change();
                    change.record.queue.from = number + 1;
                    self.commit(change).await.map(drop)
                }
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = started {
                tracing::debug!(session = %self.id, %refusal, "the next message of the queue cannot start yet");
                return self.flush_later();
            }
        }
    }

    pub(super) async fn command(&mut self, from: &CommandSender, by: String, command: WorkCommand) -> CommandResult {
        self.may_write(from)?;
        let action = command.action().to_owned();
        let ok = match self.effect_of(command).await? {
            CommandEffect::Unsupported(why) => {
                let message = format!("The agent `{}` {why}.", self.record.agent);
                return Err(Refusal::new(ErrorCode::NotSupported, message));
            }
            CommandEffect::Busy => {
                let message = "The agent is still at work. Wait for its end, or send `user.cancel`.";
                return Err(Refusal::new(ErrorCode::AgentBusy, message).retry_after_ms(1000));
            }
            CommandEffect::Nothing => false,
            CommandEffect::Pass { command, calls_off } => {
                let Some(run) = &mut self.run else { return Ok(CommandOutcome::Commanded { action, ok: false }) };
                let taken = run.commands.try_send(command).is_ok();
                if taken && calls_off {
                    run.called_off_by = Some(by);
                }
                taken
            }
            CommandEffect::Start(_) if self.shared.is_draining() => return Err(refusals::draining()),
            CommandEffect::Start(input) => {
                let (conversation, started) = (self.conversation().await?, self.next_seq().await?);
                let mut change = self.change();
                SessionActor::open_turn(&mut change, started, false);
                self.start_run(change, input, started, conversation).await?;
                true
            }
        };
        Ok(CommandOutcome::Commanded { action, ok })
    }

    async fn effect_of(&self, command: WorkCommand) -> Result<CommandEffect, Refusal> {
        if self.record.turn.active().is_some() {
            return Ok(match &self.run {
                Some(run) => run.work.effect_of(command, CommandTarget::Run),
                None => self.new_work().effect_of(command, CommandTarget::Run),
            });
        }
        let kept: Option<Value> = self.item(keys::WORK).await?;
        Ok(self.new_work().effect_of(command, CommandTarget::Idle(kept.as_ref())))
    }

    /// What follows the work of a run that has said nothing yet.
    pub(super) fn new_work(&self) -> Box<dyn Work> {
        work_of(self.shared.agents.get(&self.record.agent).map(|agent| &**agent))
    }

    /// The conversation so far, oldest first, at most as much as an agent is given. Of background work that has ended it
    /// has the result.
    pub(super) async fn conversation(&self) -> Result<Vec<Message>, Refusal> {
        let given = self.shared.config.limits.conversation_messages_max as u64;
        let newest = self.record.messages.saturating_sub(given)..self.record.messages;
        let keys: Vec<String> = newest.map(keys::message).collect();
        let items =
            self.shared.logs.store.items_at(&self.log, &keys).await.map_err(|error| refusals::of_store(&error))?;
        let mut messages: Vec<Message> =
            items.into_iter().filter_map(|(_, bytes)| serde_json::from_slice(&bytes).ok()).collect();
        let background = Background::look(&self.shared.logs, &self.log, &self.record).await?;
        background.reveal(&self.shared.logs, &self.log, &mut messages).await?;
        Ok(messages)
    }

    /// An item that helps and that nothing depends on: one that cannot be read counts as none, and is logged.
    pub(super) async fn item<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Refusal> {
        let bytes = self.shared.logs.store.item(&self.log, key).await.map_err(|error| refusals::of_store(&error))?;
        // The refusal was logged when it was made.
        Ok(decode(&self.log, key, bytes).unwrap_or_default())
    }

    /// An item that stops something from being done twice: one that cannot be read stops it too.
    pub(super) async fn certain<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Refusal> {
        let bytes = self.shared.logs.store.item(&self.log, key).await.map_err(|error| refusals::of_store(&error))?;
        decode(&self.log, key, bytes)
    }

    /// The number that the next event will get. Only this actor writes to this log, so it is certain.
    pub(super) async fn next_seq(&self) -> Result<Seq, Refusal> {
        let extent = self.shared.logs.store.extent(&self.log).await;
        extent.map(|extent| extent.next).map_err(|error| refusals::of_store(&error))
    }
}

/// Keeps the keys of a message, so that it is accepted once.
fn remember(change: &mut PendingChange, message: &Queued, digest: &str, started: Option<Seq>) {
    let Some(id) = &message.message_id else { return };
    if mutant("forget-the-key-of-a-message") {
        return;
    }
    change.put(
        keys::idempotency(id),
        &AcceptedMessage { also: message.also.clone(), ..AcceptedMessage::new(digest, started) },
    );
    if let Some(also) = &message.also {
        change
            .put(keys::idempotency(also), &AcceptedMessage { of: Some(id.clone()), ..AcceptedMessage::new("", None) });
    }
}

/// A message as it is kept, before it has a place in the conversation.
pub(super) fn message_of(role: Role, content: String, id: Option<&MessageId>) -> Message {
    let message_id = id.map(|id| id.as_str().to_owned());
    Message {
        role,
        content,
        at_ms: 0,
        message_id,
        interrupted: false,
        turn: None,
        instructions: None,
        functions: None,
        parts: None,
    }
}

/// Adds a message at the end of the conversation, and says which number it has there.
pub(super) fn push_message(change: &mut PendingChange, message: Message) -> u64 {
    let number = change.record.messages;
    change.record.messages += 1;
    change.put(keys::message(number), &Message { at_ms: change.commit.at_ms, ..message });
    number
}

/// The same content written otherwise (white space, escapes) is the same content.
pub(super) fn digest(content: &Content) -> String {
    let plain = serde_json::from_str::<Value>(content.0.get()).map(|value| value.to_string()).unwrap_or_default();
    Sha256::digest(plain.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl SessionActor {
    pub(super) async fn response(
        &mut self,
        from: &CommandSender,
        step: &StepId,
        reply: Reply,
        request: Option<Content>,
        announce: Option<Seq>,
    ) -> CommandResult {
        self.may_write(from)?;
        let mut change = self.change();
        let calls = self.certain::<IgnoredAny>(&keys::calls(step)).await?;
        // Outputs of functions are the caller's to give, and no person can answer for it.
        if calls.is_some() || !change.record.turn.answer(step) {
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
        used_states::settle(&self.shared, &self.owner, step).await?;
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
        let owed = self.owe_answer(&mut change, announce);
        self.commit(change).await?;
        self.post_webhook(owed);
        if let Some(waiting) = self.run.as_deref_mut().and_then(|run| run.answers.remove(step)) {
            // An agent that no longer listens has ended meanwhile, and says so itself.
            let _ = waiting.send(reply);
        } else if let Some(Reentry { run, input, conversation, asked }) = reentry {
            self.launch(run, input, conversation, Entry::Answered(asked, reply)).await;
        }
        Ok(CommandOutcome::Done)
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
