//! The index of the active turn, written together with its events: what was open at each of them.

use bowline_core::dialect::StreamIndexer;
use bowline_protocol::{Epoch, Recorded, Refusal, Seq};
use bowline_store::{Commit, Item};

use super::actor::SessionActor;
use super::record::keys;
use crate::refusals;

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
    pub(super) async fn streamed(&self, started: Seq, answer: &str) -> Result<Option<serde_json::Value>, Refusal> {
        match &self.indexer {
            Some(indexer) if indexer.started == started => Ok(indexer.indexer.streamed(answer)),
            Some(_) | None => Ok(self.indexer_of(started).await?.indexer.streamed(answer)),
        }
    }
}
