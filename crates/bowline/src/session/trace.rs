//! The trace of the active turn, written together with its events: what was open at each of them.

use bowline_core::project::{Scribe, Trace};
use bowline_protocol::{Epoch, Recorded, Refusal, Seq};
use bowline_store::{Commit, Item};

use super::actor::Actor;
use super::record::keys;
use crate::node;

/// Follows one turn of the session.
#[derive(Clone, Debug)]
pub struct TurnScribe {
    started: Seq,
    scribe: Scribe,
}

impl Actor {
    /// Adds what the events of a commit change in the shape of the active turn. The scribe that comes back has seen them,
    /// and is to be believed once they are durable.
    pub(super) async fn trace(
        &self,
        commit: &mut Commit,
        started: Option<Seq>,
    ) -> Result<Option<Box<TurnScribe>>, Refusal> {
        let Some(started) = started else { return Ok(None) };
        if commit.events.is_empty() {
            return Ok(self.scribe.clone());
        }
        let is_new = self.record.turn.active().is_none_or(|active| active.started != started);
        let mut scribe = match &self.scribe {
            Some(scribe) if scribe.started == started => scribe.clone(),
            // It begins with this commit, so there is nothing to read.
            Some(_) | None if is_new => Box::new(TurnScribe { started, scribe: Scribe::new(started) }),
            Some(_) | None => Box::new(self.scribe_of(started).await?),
        };
        // An event is read before it is numbered for good; what becomes of it does not depend on its epoch.
        let epoch = Epoch::from_random(0);
        let mut changed = false;
        for event in &commit.events {
            let seq = scribe.scribe.next();
            let bytes = event.number(&epoch, seq);
            changed |= scribe.scribe.handle_event(&Recorded { seq, bytes });
        }
        if let Some(trace) = scribe.scribe.trace().filter(|_| changed) {
            commit.items.push(Item::put(keys::trace(started), trace.encode()));
        }
        Ok(Some(scribe))
    }

    /// A scribe for a turn that began before: from what is left of its events, and what was noted of those that are not.
    async fn scribe_of(&self, started: Seq) -> Result<TurnScribe, Refusal> {
        let extent = self.shared.store.extent(&self.log).await.map_err(|error| node::store_refusal(&error))?;
        let mut scribe = if extent.first > started {
            let stored = self.shared.store.item(&self.log, &keys::trace(started)).await;
            let stored = stored.map_err(|error| node::store_refusal(&error))?;
            Scribe::late(stored.and_then(|bytes| Trace::decode(&bytes)), extent.first)
        } else {
            Scribe::new(started)
        };
        for event in self.logged_since(started).await? {
            scribe.handle_event(&event);
        }
        Ok(TurnScribe { started, scribe })
    }

    /// How much of the active turn's answer was streamed before it, as its last event should say.
    pub(super) async fn streamed(&self, started: Seq, answer: &str) -> Result<Option<serde_json::Value>, Refusal> {
        match &self.scribe {
            Some(scribe) if scribe.started == started => Ok(scribe.scribe.streamed(answer)),
            Some(_) | None => Ok(self.scribe_of(started).await?.scribe.streamed(answer)),
        }
    }
}
