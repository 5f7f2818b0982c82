//! The one place that changes a task: its log, its record, and the work that an agent of ours does for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_env::clock;
use bowline_protocol::{
    Cursor, Draft, Epoch, ErrorCode, LogId, Principal, ProducerId, Refusal, Seq, SessionId, TaskId,
};
use bowline_store::{Commit, Committed, Fence, Item, LeasedLog, StoreError};

use super::command::TaskClose;
use super::position::Position;
use super::record::{TaskRecord, Worker};
use super::registry::Tasks;
use super::stream_state::StreamState;
use super::work::TaskWork;
use crate::refusals;

/// How often what the store would not take is offered again.
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(250);
/// Events alone do not change the record; it is written with them this often, so that its time stays about right.
const TOUCH_EVERY_MS: u64 = 1000;

pub struct TaskActor {
    pub(super) shared: Arc<Tasks>,
    pub(super) id: TaskId,
    pub(super) log: LogId,
    pub(super) owner: Principal,
    pub(super) writer: LeasedLog,
    pub(super) record: TaskRecord,
    /// The time that the stored record has; that of `record` may be newer.
    pub(super) stored_ms: u64,
    pub(super) epoch: Option<Epoch>,
    pub(super) next: Seq,
    /// Follows the stream as it is written.
    pub(super) stream: StreamState,
    /// A commit failed, so `stream` has seen events that are not in the log.
    pub(super) is_stale: bool,
    /// How far each producer has come, as far as it has been asked for.
    pub(super) producers: HashMap<ProducerId, Position>,
    pub(super) work: Option<Box<TaskWork>>,
    /// An ending that the store has not taken yet.
    pub(super) owed: Option<TaskClose>,
    /// When something that could not be done is tried again.
    pub(super) retry_at: Option<Instant>,
    pub(super) idle_since: Instant,
    pub(super) activated: bool,
}

impl TaskActor {
    /// An actor that still has to be activated.
    pub fn new(
        shared: Arc<Tasks>,
        id: TaskId,
        owner: Principal,
        record: TaskRecord,
        work: Option<TaskWork>,
    ) -> TaskActor {
        let log = LogId::from(&id);
        TaskActor {
            writer: shared.logs.writer(&log),
            shared,
            log,
            owner,
            epoch: None,
            next: Seq::ZERO.next(),
            stream: StreamState::new(&record, &id),
            is_stale: false,
            stored_ms: record.touched_ms,
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

    /// A producer that says nothing for so long is gone, and its task with it.
    pub(super) async fn look(&mut self) {
        let quiet = self.shared.logs.clock.now_ms().saturating_sub(self.record.touched_ms);
        // What was stored may be a little older than what was said last.
        let gone = quiet >= self.shared.config.stream.producer_ttl.as_millis() as u64 + self.touch_every_ms();
        if self.record.is_running() && matches!(self.record.worker, Worker::Producer) && gone {
            let message = "Its producer has said nothing for stream.producer_ttl.".to_owned();
            self.end(TaskClose::failed(ErrorCode::AgentLost, message)).await;
        }
        self.tell_session().await;
    }

    /// Writes its record: a commit is refused as one in doubt if the last one is gone.
    pub(super) async fn verify(&mut self) {
        let record = self.record.clone();
        if let Err(refusal) = self.commit(&[], Vec::new(), Some(record)).await {
            tracing::debug!(task = %self.id, %refusal, "a task could not be verified");
        }
    }

    /// The id that its events carry: that of its session, or its own.
    pub(super) fn session(&self) -> SessionId {
        self.record.session.clone().unwrap_or_else(|| SessionId::from(&self.log))
    }

    pub(super) fn cursor(&self, seq: Seq) -> String {
        Cursor { epoch: self.epoch.clone(), seq }.to_string()
    }

    /// How old the time in the stored record may be before it is written for that alone.
    fn touch_every_ms(&self) -> u64 {
        let ttl_ms = self.shared.config.stream.producer_ttl.as_millis() as u64;
        TOUCH_EVERY_MS.min(ttl_ms / 16)
    }

    /// Reads where the stream stands, if a commit that failed has left that behind.
    pub(super) async fn refresh(&mut self) -> Result<(), Refusal> {
        if self.is_stale {
            self.read_stream().await.map_err(|error| refusals::of_task(&error))?;
        }
        Ok(())
    }

    pub(super) async fn read_stream(&mut self) -> Result<(), StoreError> {
        let store = &*self.shared.logs.store;
        let extent = store.extent(&self.log).await?;
        if self.record.is_running() {
            self.stream = StreamState::read(store, &self.log, &self.record, &self.id, &extent).await?;
        }
        (self.epoch, self.next, self.is_stale) = (Some(extent.epoch), extent.next, false);
        Ok(())
    }

    /// Makes events durable, together with the record if that changes. If they cannot be, what was made of them is
    /// forgotten, and read again before the next ones.
    pub(super) async fn commit<'a>(
        &mut self,
        drafts: impl IntoIterator<Item = &'a Draft>,
        items: Vec<Item>,
        record: Option<TaskRecord>,
    ) -> Result<Committed, Refusal> {
        let at_ms = self.shared.logs.clock.now_ms();
        let mut commit = Commit::to(self.log.clone(), Fence::default(), at_ms);
        let (session, time) = (self.session(), clock::timestamp());
        let drafts: Vec<&Draft> = drafts.into_iter().collect();
        commit.events = drafts.iter().map(|draft| draft.seal(&session, &time)).collect();
        commit.items = items;
        self.stream.handle_drafts(&drafts, self.next, &mut commit);
        let is_old = at_ms.saturating_sub(self.stored_ms) >= self.touch_every_ms();
        let record = record.or_else(|| is_old.then(|| self.record.clone()));
        let record = record.map(|record| TaskRecord { touched_ms: at_ms, ..record });
        commit.record = record.as_ref().map(|record| record.stored(&self.owner));
        let committed = match self.shared.logs.commit_leased(&mut self.writer, commit).await {
            Ok(committed) => committed,
            Err(error) => {
                self.producers.clear();
                self.is_stale = true;
                return Err(refusals::of_task(&error));
            }
        };
        self.epoch = Some(committed.epoch.clone());
        self.shared.metrics.events_appended.inc_by(drafts.len() as u64);
        if let Some(trimmed) = &committed.trimmed {
            self.shared.logs.count_trimmed(trimmed, Seq::ZERO);
        }
        self.next = committed.next;
        self.record.touched_ms = at_ms;
        if let Some(record) = record {
            if self.record.status != record.status {
                self.shared.metrics.task_moved(self.record.status.as_str(), record.status.as_str());
            }
            (self.record, self.stored_ms) = (record, at_ms);
        }
        Ok(committed)
    }
}

impl std::fmt::Debug for TaskActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TaskActor({}, {})", self.id, self.record.status.as_str())
    }
}
