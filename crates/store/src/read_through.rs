//! Reading a log from one event to where it ends now, without waiting for more.

use std::ops::ControlFlow;

use bowline_protocol::{LogId, Recorded, Seq};

use crate::{ReadLimit, Store, StoreError};

/// What is read of a log at a time.
const BATCH: ReadLimit = ReadLimit { events: 1024, bytes: 1 << 20 };

/// What a reader meets on its way through a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed<'a> {
    Event(&'a Recorded),
    /// Events `from .. to` can no longer be read; the next event is `to`.
    Gap {
        from: Seq,
        to: Seq,
    },
}

/// Reads from this event on, up to the end of the log or until `look` breaks off; what it broke off with is returned. A gap is handed
/// out like an event, since whether what is left is of use only the reader knows.
pub async fn read_through<T>(
    store: &dyn Store,
    log: &LogId,
    mut from: Seq,
    mut look: impl FnMut(Passed<'_>) -> ControlFlow<T>,
) -> Result<Option<T>, StoreError> {
    loop {
        let batch = store.read(log, from, BATCH).await?;
        if batch.first > from
            && let ControlFlow::Break(found) = look(Passed::Gap { from, to: batch.first })
        {
            return Ok(Some(found));
        }
        for event in &batch.events {
            if let ControlFlow::Break(found) = look(Passed::Event(event)) {
                return Ok(Some(found));
            }
        }
        let Some(last) = batch.events.last() else { return Ok(None) };
        from = last.seq.next();
    }
}

#[cfg(test)]
mod tests {
    use bowline_protocol::Epoch;

    use super::*;
    use crate::contract::{event, id};
    use crate::memory::MemoryStore;
    use crate::{Commit, EventLog as _, Fence, Retention, Start};

    #[tokio::test]
    async fn what_is_gone_is_handed_out_before_what_is_left() {
        let store = MemoryStore::new(Retention { events_max: 2, age_max_ms: u64::MAX });
        let start = Start { epoch: Epoch::parse("e").unwrap(), after: Seq::ZERO };
        let events = ["a", "b", "c"].map(event).into();
        let commit = Commit { create: Some(start), events, ..Commit::to(id("log"), Fence::OPEN, 0) };
        store.commit(commit).await.unwrap();
        let (log, mut met) = (id("log"), Vec::new());
        let through = read_through(&store, &log, Seq::FIRST, |passed| {
            met.push(match passed {
                Passed::Event(event) => (event.seq.get(), 0),
                Passed::Gap { from, to } => (from.get(), to.get()),
            });
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(through.await, Ok(None));
        assert_eq!(met, [(1, 2), (2, 0), (3, 0)]);
        let found = read_through(&store, &log, Seq::FIRST, |passed| match passed {
            Passed::Gap { .. } => ControlFlow::Break("a gap"),
            Passed::Event(_) => ControlFlow::Break("an event"),
        });
        assert_eq!(found.await, Ok(Some("a gap")));
    }
}
