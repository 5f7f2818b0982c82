//! The one place that changes a task: its log, its record, and the work that an agent of ours does for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bowline_core::project::{Calls, Importer, Scribe, Trace};
use bowline_protocol::{
    Cursor, Draft, Epoch, ErrorCode, Extent, LogId, Principal, ProducerId, Recorded, Refusal, Seq, SessionId, TaskId,
};
use bowline_store::{Commit, Committed, Fence, Item, Leased, ReadLimit, StoreError};

use super::command::{Append, Command, Ending};
use super::output;
use super::position::Position;
use super::record::{TaskRecord, Worker, keys};
use super::registry::Tasks;
use super::work::Work;
use crate::node::Shared;
use crate::session::actor::Unbegun;
use crate::{clock, node};

/// How long an actor without work stays, so that the next append finds it warm.
const LINGER: Duration = Duration::from_secs(2);
/// How often what the store would not take is offered again.
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(250);

pub struct TaskActor {
    pub(super) shared: Arc<Shared>,
    pub(super) id: TaskId,
    pub(super) log: LogId,
    pub(super) owner: Principal,
    pub(super) fence: Fence,
    pub(super) record: TaskRecord,
    pub(super) epoch: Option<Epoch>,
    pub(super) next: Seq,
    pub(super) importer: Importer,
    /// Follows the stream as it is written.
    pub(super) scribe: Scribe,
    pub(super) calls: Calls,
    /// How far each producer has come, as far as it has been asked for.
    pub(super) producers: HashMap<ProducerId, Position>,
    pub(super) work: Option<Box<Work>>,
    /// An ending that the store has not taken yet.
    pub(super) owed: Option<Ending>,
    /// When something that could not be done is tried again.
    pub(super) retry_at: Option<Instant>,
    idle_since: Instant,
    begun: bool,
    /// Nobody knows whether the last commit was kept, so nothing that this actor believes counts any more.
    in_doubt: bool,
}

impl TaskActor {
    /// An actor that still has to [`begin`](TaskActor::begin).
    pub fn new(shared: Arc<Shared>, id: TaskId, owner: Principal, record: TaskRecord, work: Option<Work>) -> TaskActor {
        TaskActor {
            shared,
            log: LogId::from(&id),
            owner,
            fence: Fence::default(),
            epoch: None,
            next: Seq::ZERO.next(),
            importer: output::importer_of(&record, &id),
            calls: output::calls_of(&record),
            scribe: Scribe::new(Seq::ZERO.next()),
            id,
            record,
            producers: HashMap::new(),
            work: work.map(Box::new),
            owed: None,
            retry_at: None,
            idle_since: Instant::now(),
            begun: false,
            in_doubt: false,
        }
    }

    /// Takes the right to write, and settles what an earlier process left behind.
    pub async fn begin(&mut self) -> Result<(), Unbegun> {
        if self.begun {
            return Ok(());
        }
        let refuse = |error: StoreError| node::task_refusal(&error);
        self.fence = match self.shared.take_up(&self.log).await.map_err(refuse)? {
            Leased::Granted(fence) => fence,
            Leased::Held(node) => return Err(Unbegun::Elsewhere(node)),
        };
        let extent = self.shared.store.extent(&self.log).await.map_err(refuse)?;
        (self.epoch, self.next) = (Some(extent.epoch.clone()), extent.next);
        if self.record.is_running() {
            self.follow(&extent).await.map_err(refuse)?;
        }
        self.begun = true;
        if self.record.is_running() && self.work.is_none() && matches!(self.record.worker, Worker::Agent { .. }) {
            let message = "The server was restarted while this was at work.".to_owned();
            self.end(Ending::failed(ErrorCode::AgentLost, message)).await;
        }
        if self.record.untold {
            self.retry_at = Some(Instant::now());
        }
        Ok(())
    }

    /// Reads what was written before. Where the head of that is gone, what was open there was noted.
    async fn follow(&mut self, extent: &Extent) -> Result<(), StoreError> {
        self.scribe = Scribe::new(Seq::FIRST);
        self.calls = output::calls_of(&self.record);
        if extent.first > Seq::FIRST {
            self.importer.lose();
            let trace = self.shared.store.item(&self.log, keys::TRACE).await?;
            self.scribe = Scribe::late(trace.and_then(|bytes| Trace::decode(&bytes)), extent.first);
        }
        let mut from = extent.first;
        while from < extent.next {
            let limit = ReadLimit { events: 1024, bytes: 1 << 20 };
            let batch = self.shared.store.read(&self.log, from, limit).await?;
            let Some(last) = batch.events.last() else { break };
            from = last.seq.next();
            for event in &batch.events {
                self.importer.follow(event);
                self.scribe.handle_event(event);
                self.calls.handle_event(event);
            }
        }
        Ok(())
    }

    /// Lets other nodes have the task, now that nobody here needs it.
    pub async fn give_back(&self) {
        self.shared.give_back(&self.log, self.fence).await;
    }

    pub fn owner(&self) -> &Principal {
        &self.owner
    }

    /// Whether it must [`begin_again`](TaskActor::begin_again) before anything else.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    pub fn doubt(&mut self) {
        self.in_doubt = true;
    }

    /// Begins anew with what the store knows, as after a crash: a new lease shuts the doubtful commit out, and what it
    /// did or did not do is seen.
    pub async fn begin_again(&mut self) -> Result<(), Unbegun> {
        if let Some(work) = self.work.take() {
            self.shared.tasks.at_work.fetch_sub(1, Ordering::Relaxed);
            work.stop();
        }
        let record = Tasks::look_up(&self.shared, &self.id, &self.owner).await?;
        self.shared.metrics.task_moved(self.record.status.as_str(), record.status.as_str());
        if self.record.is_running() && !record.is_running() {
            self.shared.tasks.forget_running(&self.owner);
        }
        self.record = record;
        (self.importer, self.producers) = (output::importer_of(&self.record, &self.id), HashMap::new());
        (self.owed, self.retry_at, self.begun, self.in_doubt) = (None, None, false, false);
        self.begin().await
    }

    pub fn id(&self) -> &TaskId {
        &self.id
    }

    pub(crate) fn live_work(&mut self) -> Option<&mut Work> {
        self.work.as_deref_mut().filter(|work| !work.is_stuck())
    }

    /// Everything that was asked since the last time; appends are made durable together.
    pub async fn handle(&mut self, commands: Vec<Command>) {
        self.idle_since = Instant::now();
        let mut appends: Vec<Append> = Vec::new();
        for command in commands {
            match command {
                Command::Append(append) => appends.push(append),
                Command::End { ending, reply } => {
                    self.append_all(std::mem::take(&mut appends)).await;
                    let answered = self.asked_to_end(ending).await;
                    reply.send(answered.map(Box::new));
                }
                Command::Look => self.look().await,
            }
        }
        self.append_all(appends).await;
    }

    /// A producer that says nothing for so long is gone, and its task with it.
    async fn look(&mut self) {
        let quiet = self.shared.clock.now_ms().saturating_sub(self.record.touched_ms);
        let gone = quiet >= self.shared.config.stream.producer_ttl.as_millis() as u64;
        if self.record.is_running() && matches!(self.record.worker, Worker::Producer) && gone {
            let message = "Its producer has said nothing for stream.producer_ttl.".to_owned();
            self.end(Ending::failed(ErrorCode::AgentLost, message)).await;
        }
        self.tell_session().await;
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let stuck = self.work.as_ref().and_then(|work| work.retry_at());
        let idle = self.is_idle().then(|| self.idle_since + LINGER);
        [idle, self.retry_at, stuck].into_iter().flatten().min()
    }

    pub async fn handle_timeout(&mut self, now: Instant) {
        if self.work.as_ref().and_then(|work| work.retry_at()).is_some_and(|at| at <= now) {
            self.retry_stuck().await;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            if let Some(ending) = self.owed.take() {
                self.end(ending).await;
            }
            self.tell_session().await;
        }
    }

    fn is_idle(&self) -> bool {
        self.work.is_none() && self.retry_at.is_none()
    }

    pub fn may_leave(&self, now: Instant) -> bool {
        self.is_idle() && now >= self.idle_since + LINGER
    }

    /// The id that its events carry: that of its session, or its own.
    pub(super) fn session(&self) -> SessionId {
        self.record.session.clone().unwrap_or_else(|| SessionId::from(&self.log))
    }

    pub(super) fn cursor(&self, seq: Seq) -> String {
        Cursor { epoch: self.epoch.clone(), seq }.to_string()
    }

    /// Makes events and the record durable together; only then does the actor believe them.
    pub(super) async fn commit(
        &mut self,
        drafts: &[Draft],
        items: Vec<Item>,
        mut record: TaskRecord,
    ) -> Result<Committed, Refusal> {
        let mut commit = Commit::to(self.log.clone(), self.fence, self.shared.clock.now_ms());
        let (session, time) = (self.session(), clock::timestamp());
        commit.events = drafts.iter().map(|draft| draft.seal(&session, &time)).collect();
        commit.items = items;
        let (mut scribe, mut calls) = (self.scribe.clone(), self.calls.clone());
        if let Some(epoch) = &self.epoch {
            trace(&mut commit, epoch, self.next, &mut scribe, &mut calls);
        }
        record.touched_ms = commit.at_ms;
        commit.record = Some(record.stored(&self.owner));
        let committed = self.shared.commit(commit).await.map_err(|error| {
            self.in_doubt |= matches!(error, StoreError::InDoubt(_) | StoreError::StaleFence { .. });
            node::task_refusal(&error)
        })?;
        self.epoch = Some(committed.epoch.clone());
        self.shared.metrics.events_appended.inc_by(drafts.len() as u64);
        if let Some(trimmed) = &committed.trimmed {
            self.shared.count_trimmed(trimmed, Seq::ZERO);
        }
        if self.record.status != record.status {
            self.shared.metrics.task_moved(self.record.status.as_str(), record.status.as_str());
        }
        self.next = committed.next;
        (self.scribe, self.calls) = (scribe, calls);
        self.record = record;
        Ok(committed)
    }
}

/// Lets those who follow a stream see the events of a commit, the first of which will get the number `next`. What that changes
/// in the shape of the stream is added to the commit.
pub(super) fn trace(commit: &mut Commit, epoch: &Epoch, next: Seq, scribe: &mut Scribe, calls: &mut Calls) {
    let mut changed = false;
    for (event, at) in commit.events.iter().zip(0..) {
        let seq = next.plus(at);
        let event = Recorded { seq, bytes: event.number(epoch, seq) };
        changed |= scribe.handle_event(&event);
        calls.handle_event(&event);
    }
    if let Some(trace) = scribe.trace().filter(|_| changed) {
        commit.items.push(Item::put(keys::TRACE, trace.encode()));
    }
}

impl std::fmt::Debug for TaskActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TaskActor({}, {})", self.id, self.record.status.as_str())
    }
}
