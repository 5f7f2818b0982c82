//! Where a task's stream stands, as its writer follows it, and what of that is kept beside the log.
//!
//! A writer that comes back goes on with what it kept and reads only the events since, so that the first append after
//! a silence costs the same in a long stream as in a short one.

use std::ops::ControlFlow;

use bowline_core::dialect::{Importer, OperationCalls, StreamIndexer, StreamIndexerState};
use bowline_protocol::{Draft, Extent, LogId, Recorded, Seq, TaskId};
use bowline_store::{Commit, Item, Passed, Store, StoreError, read_through};
use serde::{Deserialize, Serialize};

use super::output;
use super::record::{TaskRecord, keys};

/// The checkpoint's own version. One that this server does not know is left alone, and the log is read instead.
const VERSION: u32 = 1;
/// So many events, or bytes of them, are at most read by a writer that comes back: less than a millisecond's work.
const EVENTS_MAX: u64 = 128;
const BYTES_MAX: usize = 64 << 10;
/// A checkpoint is written only once this many times its size were written since the last one.
const SPACING: usize = 4;
/// A longer one is not kept. It would take a stream with thousands of open calls.
const CHECKPOINT_BYTES_MAX: usize = 1 << 20;

/// Everything that follows a task's stream.
#[derive(Debug)]
pub struct StreamState {
    pub importer: Importer,
    pub indexer: StreamIndexer,
    pub calls: OperationCalls,
    since: Since,
}

/// What was written since the last checkpoint, and how long that was.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    events: u64,
    bytes: usize,
    checkpoint_bytes: usize,
}

impl Since {
    fn add(&mut self, bytes: usize) {
        self.events += 1;
        self.bytes += bytes;
    }

    fn is_checkpoint_due(&self) -> bool {
        (self.events >= EVENTS_MAX || self.bytes >= BYTES_MAX) && self.bytes >= SPACING * self.checkpoint_bytes
    }
}

/// A state as it is kept, up to an event.
#[derive(Serialize)]
struct WrittenState<'a> {
    version: u32,
    importer: &'a Importer,
    calls: &'a OperationCalls,
    indexer: StreamIndexerState,
}

#[derive(Deserialize)]
struct Checkpoint {
    version: u32,
    importer: Importer,
    calls: OperationCalls,
    indexer: StreamIndexerState,
}

impl Checkpoint {
    /// The checkpoint in an item, if all events behind it are still there.
    fn of(bytes: &[u8], extent: &Extent) -> Option<Checkpoint> {
        let checkpoint: Checkpoint = serde_json::from_slice(bytes).ok()?;
        let next = checkpoint.indexer.next();
        (checkpoint.version == VERSION && extent.first <= next && next <= extent.next).then_some(checkpoint)
    }
}

impl StreamState {
    /// That of a stream without events.
    pub fn new(record: &TaskRecord, id: &TaskId) -> StreamState {
        StreamState {
            importer: output::importer_of(record, id),
            calls: output::calls_of(record),
            indexer: StreamIndexer::new(Seq::FIRST),
            since: Since::default(),
        }
    }

    /// Reads where the stream stands: from its checkpoint on, or else from the first event that is left. Where the head
    /// of it is gone, what was open there was noted.
    pub async fn read(
        store: &dyn Store,
        log: &LogId,
        record: &TaskRecord,
        id: &TaskId,
        extent: &Extent,
    ) -> Result<StreamState, StoreError> {
        let mut state = StreamState::new(record, id);
        if extent.next == Seq::FIRST {
            return Ok(state);
        }
        let mut wanted = StreamIndexer::keys(keys::INDEX);
        wanted.push(keys::CHECKPOINT.to_owned());
        let kept = store.items_at(log, &wanted).await?;
        if let Some((_, bytes)) = kept.iter().find(|(key, _)| key == keys::CHECKPOINT)
            && let Some(checkpoint) = Checkpoint::of(bytes, extent)
        {
            let Checkpoint { importer, calls, indexer: mut followed, .. } = checkpoint;
            state.importer = state.importer.resumed(importer);
            state.calls = state.calls.resumed(calls);
            state.since.checkpoint_bytes = bytes.len();
            let from = followed.next();
            state.follow(store, log, from, extent, |_, event| followed.pass_event(event)).await?;
            state.indexer = StreamIndexer::resumed(followed, keys::INDEX, &kept);
            return Ok(state);
        }
        if extent.first > Seq::FIRST {
            state.importer.lose();
            state.indexer = StreamIndexer::late(keys::INDEX, &kept, extent.first);
        }
        let handle = |indexer: &mut StreamIndexer, event: &Recorded| indexer.handle_event(event);
        state.follow(store, log, extent.first, extent, handle).await?;
        Ok(state)
    }

    async fn follow(
        &mut self,
        store: &dyn Store,
        log: &LogId,
        from: Seq,
        extent: &Extent,
        mut index: impl FnMut(&mut StreamIndexer, &Recorded),
    ) -> Result<(), StoreError> {
        if from >= extent.next {
            return Ok(());
        }
        let through = read_through(store, log, from, |passed| {
            // What was let go of since the extent was read lies before what is followed here, or is of no more use to its writer.
            let Passed::Event(event) = passed else { return ControlFlow::Continue(()) };
            self.importer.follow(event);
            self.calls.handle_event(event);
            index(&mut self.indexer, event);
            self.since.add(event.bytes.len());
            if event.seq.next() < extent.next { ControlFlow::Continue(()) } else { ControlFlow::<()>::Break(()) }
        });
        through.await.map(drop)
    }

    /// Sees the events of a commit, the first of which will get the number `next`. What that changes in what is open in
    /// the stream is added to the commit, and now and then where it stands. If the commit fails, the state is to be
    /// [read](StreamState::read) again.
    pub fn handle_drafts(&mut self, drafts: &[&Draft], next: Seq, commit: &mut Commit) {
        for (draft, at) in drafts.iter().zip(0..) {
            draft.look(|view| {
                self.indexer.handle_view(next.plus(at), view);
                self.calls.handle_view(view);
            });
            self.since.add(draft.len_hint());
        }
        let changed = self.indexer.take_changed(keys::INDEX);
        commit.items.extend(changed.into_iter().map(|(key, index)| Item::put(key, index)));
        commit.items.extend(self.checkpoint());
    }

    fn checkpoint(&mut self) -> Option<Item> {
        // The end of a stream is a commit of its own. If that never comes, the stream has not ended.
        if !self.since.is_checkpoint_due() || self.importer.is_ended() {
            return None;
        }
        let Self { importer, calls, indexer, .. } = self;
        let written = WrittenState { version: VERSION, importer, calls, indexer: indexer.state() };
        let bytes = serde_json::to_vec(&written).ok()?;
        if bytes.len() > CHECKPOINT_BYTES_MAX {
            self.since.checkpoint_bytes = bytes.len();
            return None;
        }
        self.since = Since { checkpoint_bytes: bytes.len(), ..Since::default() };
        Some(Item::put(keys::CHECKPOINT, bytes))
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::dialect::Imported;
    use bowline_protocol::{Principal, SessionId};
    use bowline_store::memory::MemoryStore;
    use bowline_store::{EventLog as _, Fence, Retention, Start};
    use serde_json::json;

    use super::super::AcceptedOperation;
    use super::super::record::Worker;
    use super::*;

    fn shown(state: &StreamState) -> String {
        let StreamState { importer, calls, indexer, .. } = state;
        serde_json::to_string(&WrittenState { version: VERSION, importer, calls, indexer: indexer.state() }).unwrap()
    }

    fn chunk(n: u64) -> serde_json::Value {
        match n % 50 {
            0 => json!({ "type": "text-start", "id": format!("t{}", n / 50) }),
            7 => json!({ "type": "tool-input-available", "toolCallId": format!("c{n}"), "toolName": "x", "input": n }),
            9 => json!({ "type": "tool-output-available", "toolCallId": format!("c{}", n - 2), "output": { "n": n } }),
            49 if n % 100 == 49 => json!({ "type": "text-end", "id": format!("t{}", n / 50) }),
            _ => json!({ "type": "text-delta", "id": format!("t{}", n / 50), "delta": format!("word {n} ") }),
        }
    }

    #[tokio::test]
    async fn a_writer_that_comes_back_reads_what_follows_the_checkpoint_and_knows_all_before_it() {
        let store = MemoryStore::new(Retention { events_max: 1_000_000, age_max_ms: u64::MAX });
        let (id, owner) = (TaskId::from_random(7), Principal::parse("me").unwrap());
        let record = TaskRecord::new(&AcceptedOperation::new(7, None, None), Worker::Producer, None, 1);
        let (log, session) = (LogId::from(&id), SessionId::from_random(7));
        let mut commit = Commit::to(log.clone(), Fence::OPEN, 1);
        commit.create = Some(Start { epoch: bowline_protocol::Epoch::from_random(1), after: Seq::ZERO });
        commit.record = Some(record.stored(&owner));
        store.commit(commit).await.unwrap();

        let mut state = StreamState::new(&record, &id);
        let mut item_bytes = 0;
        for n in 0..3000 {
            let chunk = serde_json::value::to_raw_value(&chunk(n)).unwrap();
            let (opening, imported) = state.importer.handle_json(&chunk).unwrap();
            let Imported::Event(draft) = imported else { panic!("chunk {n} becomes an event") };
            let drafts: Vec<Draft> = opening.into_iter().chain([draft]).collect();
            let drafts: Vec<&Draft> = drafts.iter().collect();
            let mut commit = Commit::to(log.clone(), Fence::OPEN, 1);
            commit.events = drafts.iter().map(|draft| draft.seal(&session, "2026-01-01T00:00:00Z")).collect();
            let next = store.extent(&log).await.unwrap().next;
            state.handle_drafts(&drafts, next, &mut commit);
            let checkpoint = commit.items.iter().find(|item| item.key == keys::CHECKPOINT);
            item_bytes += checkpoint.and_then(|item| item.value.as_ref()).map_or(0, |value| value.len());
            store.commit(commit).await.unwrap();
            if n % 97 == 0 {
                let extent = store.extent(&log).await.unwrap();
                let read = StreamState::read(&store, &log, &record, &id, &extent).await.unwrap();
                assert!(read.since.events < 8 * EVENTS_MAX, "{} events were read at {n}", read.since.events);
                assert_eq!(shown(&read), shown(&state), "after chunk {n}");
            }
        }
        assert!(item_bytes / 3000 < 100, "a checkpoint costs an event {} bytes", item_bytes / 3000);

        // A log of an earlier version has none, and is read whole, to the same effect.
        let mut commit = Commit::to(log.clone(), Fence::OPEN, 1);
        commit.items.push(Item::delete(keys::CHECKPOINT));
        store.commit(commit).await.unwrap();
        let extent = store.extent(&log).await.unwrap();
        let mut read = StreamState::read(&store, &log, &record, &id, &extent).await.unwrap();
        assert_eq!(read.since.events, 3001);
        assert_eq!(shown(&read), shown(&state));
        let mut commit = Commit::to(log.clone(), Fence::OPEN, 1);
        read.handle_drafts(&[], extent.next, &mut commit);
        assert!(commit.items.iter().any(|item| item.key == keys::CHECKPOINT), "and gets one with its next commit");
    }
}
