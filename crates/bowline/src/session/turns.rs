//! Turns: what is kept of each run beside the log, so that its task can be looked up, its message shown, and its stream begun anywhere.

use std::ops::ControlFlow;

use bowline_api::{Input, Message, Role};
use bowline_core::dialect::{StreamIndexer, message_parts};
use bowline_core::turn::Active;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, Epoch, MessageId, Recorded, Refusal, Seq, TaskId, json as text};
use bowline_store::{Commit, Item, Passed, StoreError, read_through};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::actor::{PendingChange, SessionActor};
use super::command::CommandResult;
use super::messages::{message_of, push_message};
use super::record::{AcceptedMessage, keys};
use super::run::RunEnd;
use super::{CommandOutcome, CommandSender};
use crate::refusals;
use crate::task::status::{Status, TurnError};

/// One turn of a session, kept as long as the message that began it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnEntry {
    pub created_ms: u64,
    /// It answers a message anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<TurnEnd>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnEnd {
    /// The terminal event.
    pub seq: Seq,
    pub at_ms: u64,
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// The number of the answer in the conversation, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
}

/// What partial answers add up to. They are joined as they were written: a character may be cut in two between them.
fn streamed_text(logged: &[Recorded]) -> String {
    let views = logged.iter().filter_map(Recorded::view).filter(|event| event.event == names::PARTIAL_ANSWER);
    let bodies = views.filter_map(|event| event.content.get().strip_prefix('"')?.strip_suffix('"'));
    text::unescaped(&bodies.collect::<String>())
}

impl SessionActor {
    /// Remembers a turn from its first event on.
    pub(super) fn open_turn(change: &mut PendingChange, started: Seq, again: bool) {
        let entry = TurnEntry { created_ms: change.commit.at_ms, again, ended: None };
        change.put(keys::turn(started), &entry);
    }

    /// Writes how a turn ended, and what the conversation keeps of it.
    pub(super) async fn close_turn(
        &self,
        change: &mut PendingChange,
        active: &Active,
        ended: Seq,
        end: &RunEnd,
    ) -> Result<(), Refusal> {
        let (said, parts) = self.said(active, ended, end).await?;
        let text = end.answer.clone().unwrap_or(said);
        let message = (!text.is_empty() || parts.is_some()).then(|| {
            let interrupted = end.word != "answered";
            let message = message_of(Role::Assistant, text, None);
            push_message(change, Message { interrupted, turn: Some(active.started), parts, ..message })
        });
        let entry: Option<TurnEntry> = self.item(&keys::turn(active.started)).await?;
        let entry = entry.unwrap_or(TurnEntry { created_ms: active.started_ms, again: false, ended: None });
        let status = match end.word {
            "answered" => Status::Completed,
            "cancelled" => Status::Cancelled,
            _ => Status::Failed,
        };
        let ended = TurnEnd { seq: ended, at_ms: change.commit.at_ms, status, error: end.error.clone(), message };
        change.put(keys::turn(active.started), &TurnEntry { ended: Some(ended), ..entry });
        Ok(())
    }

    /// What a turn has said so far: its text, and its parts if it said more than that.
    async fn said(&self, active: &Active, ended: Seq, end: &RunEnd) -> Result<(String, Option<Value>), Refusal> {
        if let Some(run) = self.run.as_deref().filter(|run| run.plain) {
            return Ok((run.partial.clone(), None));
        }
        let mut logged = self.logged_since(active.started).await?;
        let text = streamed_text(&logged);
        // The end is about to be logged; what the reader of a stream makes of it belongs to the message.
        let epoch = self.shared.logs.store.extent(&self.log).await.map_err(|error| refusals::of_store(&error))?.epoch;
        let bytes = end.draft.seal(&self.id, "").number(&epoch, ended);
        logged.push(Recorded { seq: ended, bytes });
        let name = TaskId::of_turn(&self.log, active.started);
        Ok((text, Some(message_parts(name.as_str(), active.started, &logged))))
    }

    /// Everything from this event on, as far as it is still retained.
    pub(super) async fn logged_since(&self, started: Seq) -> Result<Vec<Recorded>, Refusal> {
        let mut logged = Vec::new();
        let through = read_through(&*self.shared.logs.store, &self.log, started, |passed| {
            if let Passed::Event(event) = passed {
                logged.push(event.clone());
            }
            ControlFlow::<()>::Continue(())
        });
        through.await.map_err(|error| refusals::of_store(&error))?;
        Ok(logged)
    }

    /// Answers the last message anew. The answer before it leaves the conversation, though not the log.
    pub(super) async fn regenerate(
        &mut self,
        from: &CommandSender,
        by: String,
        replaces: Option<MessageId>,
    ) -> CommandResult {
        self.may_write(from)?;
        let key = replaces.as_ref().and_then(|id| MessageId::parse(&format!("regenerate:{id}")));
        if let Some(key) = &key
            && let Some(known) = self.certain::<AcceptedMessage>(&keys::idempotency(key)).await?
        {
            return self.repeated(replaces, &known, "").await;
        }
        if self.shared.is_draining() {
            return Err(refusals::draining());
        }
        if let Some(active) = self.record.turn.active() {
            let started = active.started;
            let entry: Option<TurnEntry> = self.certain(&keys::turn(started)).await?;
            if key.is_none() && entry.is_some_and(|entry| entry.again) {
                // Without a key, a second request while the first is at work can only be its repetition.
                self.shared.metrics.duplicates_avoided.inc();
                return Ok(CommandOutcome::Repeated { message_id: None, turn: Some(started), last: None });
            }
            self.stop_run(by, Some("The answer is made anew.".into())).await?;
            if self.record.turn.active().is_some() {
                // The run has stopped, but the store has not taken its ending yet; until then no other may begin.
                return Err(refusals::of_store(&StoreError::Unavailable("the last run is still ending".into())));
            }
        }
        let turn = self.start_again(key.as_ref()).await?;
        Ok(CommandOutcome::Started { turn })
    }

    async fn start_again(&mut self, key: Option<&MessageId>) -> Result<Seq, Refusal> {
        let mut conversation = self.conversation().await?;
        let mut change = self.change();
        while conversation.last().is_some_and(|message| message.role == Role::Assistant) {
            conversation.pop();
            change.record.messages -= 1;
            change.delete(keys::message(change.record.messages));
        }
        let Some(last) = conversation.pop() else {
            return Err(Refusal::field("messages", "hold nothing that could be answered again"));
        };
        let started = self.next_seq().await?;
        let mut facts = json!({ "regenerate": true });
        if let Some(id) = &last.message_id {
            facts["message_id"] = id.as_str().into();
        }
        change.event(&Draft::new(names::USER_MESSAGE, &last.content).metadata(&facts));
        // The message now belongs to the new turn, and so the new turn is kept as long as it.
        change.put(keys::message(change.record.messages - 1), &Message { turn: Some(started), ..last.clone() });
        if let Some(key) = key {
            let accepted = AcceptedMessage::new("", Some(started));
            change.put(keys::idempotency(key), &accepted);
        }
        SessionActor::open_turn(&mut change, started, true);
        self.start_run(change, Input::Message { text: last.content }, started, conversation).await
    }
}

/// Follows one turn of the session.
#[derive(Clone, Debug)]
pub struct TurnIndexer {
    started: Seq,
    indexer: StreamIndexer,
}

impl SessionActor {
    /// Adds what the events of a commit change in what is open in the active turn. The indexer that comes back has seen them,
    /// and is to be believed once they are durable.
    pub(super) async fn index_events(
        &self,
        commit: &mut Commit,
        started: Option<Seq>,
    ) -> Result<Option<Box<TurnIndexer>>, Refusal> {
        let Some(started) = started else { return Ok(None) };
        if commit.events.is_empty() {
            return Ok(self.indexer.clone());
        }
        let is_new = self.record.turn.active().is_none_or(|active| active.started != started);
        let mut indexer = match &self.indexer {
            Some(indexer) if indexer.started == started => indexer.clone(),
            // It begins with this commit, so there is nothing to read.
            Some(_) | None if is_new => Box::new(TurnIndexer { started, indexer: StreamIndexer::new(started) }),
            Some(_) | None => Box::new(self.indexer_of(started).await?),
        };
        // An event is read before it is numbered for good; what becomes of it does not depend on its epoch.
        let epoch = Epoch::from_random(0);
        for event in &commit.events {
            let seq = indexer.indexer.next();
            let bytes = event.number(&epoch, seq);
            indexer.indexer.handle_event(&Recorded { seq, bytes });
        }
        let changed = indexer.indexer.take_changed(&keys::index(started));
        commit.items.extend(changed.into_iter().map(|(key, index)| Item::put(key, index)));
        Ok(Some(indexer))
    }

    /// An indexer for a turn that began before: from what is left of its events, and what was noted of those that are not.
    async fn indexer_of(&self, started: Seq) -> Result<TurnIndexer, Refusal> {
        let extent = self.shared.logs.store.extent(&self.log).await.map_err(|error| refusals::of_store(&error))?;
        let mut indexer = if extent.first > started {
            let base = keys::index(started);
            let stored = self.shared.logs.store.items_at(&self.log, &StreamIndexer::keys(&base)).await;
            StreamIndexer::late(&base, &stored.map_err(|error| refusals::of_store(&error))?, extent.first)
        } else {
            StreamIndexer::new(started)
        };
        for event in self.logged_since(started).await? {
            indexer.handle_event(&event);
        }
        Ok(TurnIndexer { started, indexer })
    }

    /// How much of the active turn's answer was streamed before it, as its last event should say.
    pub(super) async fn streamed(&self, started: Seq, answer: &str) -> Result<Option<Value>, Refusal> {
        match &self.indexer {
            Some(indexer) if indexer.started == started => Ok(indexer.indexer.streamed(answer)),
            Some(_) | None => Ok(self.indexer_of(started).await?.indexer.streamed(answer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_was_cut_in_two_between_deltas_is_whole_again() {
        let raw = |content: &str| {
            let text = r#"{"event":"agent.partial_answer","content":CONTENT}"#.replace("CONTENT", content);
            Recorded { seq: Seq::ZERO.next(), bytes: text.into_bytes().into() }
        };
        let logged = [raw(r#""a \ud83d""#), raw(r#""\ude00 b\n""#), raw("7")];
        assert_eq!(streamed_text(&logged), "a \u{1f600} b\n");
    }
}
