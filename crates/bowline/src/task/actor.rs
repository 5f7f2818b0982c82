//! The one place that changes a task: its log, its record, and the work that an agent of ours does for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::dialect::{Calls, Importer, StreamIndexer};
use bowline_env::clock;
use bowline_protocol::{
    Cursor, Draft, Epoch, ErrorCode, Extent, LogId, Principal, ProducerId, Recorded, Refusal, Seq, SessionId, TaskId,
};
use bowline_store::{Commit, Committed, Fence, Item, LeasedLog, ReadLimit, StoreError};

use super::command::Ending;
use super::output;
use super::position::Position;
use super::record::{TaskRecord, Worker, keys};
use super::registry::Tasks;
use super::work::Work;
use crate::refusals;

/// How often what the store would not take is offered again.
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(250);

pub struct TaskActor {
    pub(super) shared: Arc<Tasks>,
    pub(super) id: TaskId,
    pub(super) log: LogId,
    pub(super) owner: Principal,
    pub(super) writer: LeasedLog,
    pub(super) record: TaskRecord,
    pub(super) epoch: Option<Epoch>,
    pub(super) next: Seq,
    pub(super) importer: Importer,
    /// Follows the stream as it is written.
    pub(super) indexer: StreamIndexer,
    pub(super) calls: Calls,
    /// How far each producer has come, as far as it has been asked for.
    pub(super) producers: HashMap<ProducerId, Position>,
    pub(super) work: Option<Box<Work>>,
    /// An ending that the store has not taken yet.
    pub(super) owed: Option<Ending>,
    /// When something that could not be done is tried again.
    pub(super) retry_at: Option<Instant>,
    pub(super) idle_since: Instant,
    pub(super) activated: bool,
}

impl TaskActor {
    /// An actor that still has to be activated.
    pub fn new(shared: Arc<Tasks>, id: TaskId, owner: Principal, record: TaskRecord, work: Option<Work>) -> TaskActor {
        let log = LogId::from(&id);
        TaskActor {
            writer: shared.logs.writer(&log),
            shared,
            log,
            owner,
            epoch: None,
            next: Seq::ZERO.next(),
            importer: output::importer_of(&record, &id),
            calls: output::calls_of(&record),
            indexer: StreamIndexer::new(Seq::ZERO.next()),
            id,
            record,
            producers: HashMap::new(),
            work: work.map(Box::new),
            owed: None,
            retry_at: None,
            idle_since: clock::now(),
            activated: false,
        }
    }

    /// Reads what was written before. Where the head of that is gone, what was open there was noted.
    pub(super) async fn follow(&mut self, extent: &Extent) -> Result<(), StoreError> {
        self.indexer = StreamIndexer::new(Seq::FIRST);
        self.calls = output::calls_of(&self.record);
        if extent.first > Seq::FIRST {
            self.importer.lose();
            let stored = self.shared.logs.store.items_at(&self.log, &StreamIndexer::keys(keys::INDEX)).await?;
            self.indexer = StreamIndexer::late(keys::INDEX, &stored, extent.first);
        }
        let mut from = extent.first;
        while from < extent.next {
            let limit = ReadLimit { events: 1024, bytes: 1 << 20 };
            let batch = self.shared.logs.store.read(&self.log, from, limit).await?;
            let Some(last) = batch.events.last() else { break };
            from = last.seq.next();
            for event in &batch.events {
                self.importer.follow(event);
                self.indexer.handle_event(event);
                self.calls.handle_event(event);
            }
        }
        Ok(())
    }

    /// A producer that says nothing for so long is gone, and its task with it.
    pub(super) async fn look(&mut self) {
        let quiet = self.shared.logs.clock.now_ms().saturating_sub(self.record.touched_ms);
        let gone = quiet >= self.shared.config.stream.producer_ttl.as_millis() as u64;
        if self.record.is_running() && matches!(self.record.worker, Worker::Producer) && gone {
            let message = "Its producer has said nothing for stream.producer_ttl.".to_owned();
            self.end(Ending::failed(ErrorCode::AgentLost, message)).await;
        }
        self.tell_session().await;
    }

    /// The id that its events carry: that of its session, or its own.
    pub(super) fn session(&self) -> SessionId {
        self.record.session.clone().unwrap_or_else(|| SessionId::from(&self.log))
    }

    pub(super) fn cursor(&self, seq: Seq) -> String {
        Cursor { epoch: self.epoch.clone(), seq }.to_string()
    }

    /// Makes events and the record durable together; only then does the actor believe them.
    pub(super) async fn commit<'a>(
        &mut self,
        drafts: impl IntoIterator<Item = &'a Draft>,
        items: Vec<Item>,
        mut record: TaskRecord,
    ) -> Result<Committed, Refusal> {
        let mut commit = Commit::to(self.log.clone(), Fence::default(), self.shared.logs.clock.now_ms());
        let (session, time) = (self.session(), clock::timestamp());
        commit.events = drafts.into_iter().map(|draft| draft.seal(&session, &time)).collect();
        let events = commit.events.len() as u64;
        commit.items = items;
        let (mut indexer, mut calls) = (self.indexer.clone(), self.calls.clone());
        if let Some(epoch) = &self.epoch {
            index_events(&mut commit, epoch, self.next, &mut indexer, &mut calls);
        }
        record.touched_ms = commit.at_ms;
        commit.record = Some(record.stored(&self.owner));
        let committed = self.shared.logs.commit_leased(&mut self.writer, commit).await;
        let committed = committed.map_err(|error| refusals::of_task(&error))?;
        self.epoch = Some(committed.epoch.clone());
        self.shared.metrics.events_appended.inc_by(events);
        if let Some(trimmed) = &committed.trimmed {
            self.shared.logs.count_trimmed(trimmed, Seq::ZERO);
        }
        if self.record.status != record.status {
            self.shared.metrics.task_moved(self.record.status.as_str(), record.status.as_str());
        }
        self.next = committed.next;
        (self.indexer, self.calls) = (indexer, calls);
        self.record = record;
        Ok(committed)
    }
}

/// Lets those who follow a stream see the events of a commit, the first of which will get the number `next`. What that changes
/// in what is open in the stream is added to the commit.
pub(super) fn index_events(
    commit: &mut Commit,
    epoch: &Epoch,
    next: Seq,
    indexer: &mut StreamIndexer,
    calls: &mut Calls,
) {
    for (event, at) in commit.events.iter().zip(0..) {
        let seq = next.plus(at);
        let event = Recorded { seq, bytes: event.number(epoch, seq) };
        indexer.handle_event(&event);
        calls.handle_event(&event);
    }
    commit.items.extend(indexer.take_changed(keys::INDEX).into_iter().map(|(key, index)| Item::put(key, index)));
}

impl std::fmt::Debug for TaskActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TaskActor({}, {})", self.id, self.record.status.as_str())
    }
}
