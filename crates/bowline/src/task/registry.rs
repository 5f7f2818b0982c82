//! All tasks: how one is created, found by its name, and asked something. Nothing here is the truth: the store is.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use async_trait::async_trait;
use bowline_actor::{ActorDirectory, ActorHost, Router};
use bowline_env::{clock, entropy};
use bowline_mutant::mutant;
use bowline_protocol::{Epoch, ErrorCode, LogId, Principal, Refusal, Seq, SessionId, TaskId};
use bowline_store::{Commit, Fence, LogKind, Start};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::actor::TaskActor;
use super::command::{Append, Appended, EndedTask, TaskClose, TaskCommand, TaskRequest};
use super::output;
use super::record::TaskRecord;
use super::stream_state::StreamState;
use super::work::TaskWork;
use crate::config::Config;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::refusals;
use crate::reply::Responder;

/// A session's side of its background operations.
#[async_trait]
pub trait OperationListener: Send + Sync {
    /// An operation of a session has ended, in the words of its event. Succeeds once the session knows, or is over itself.
    async fn handle_operation_ended(
        &self,
        session: &SessionId,
        owner: &Principal,
        task: &TaskId,
        content: Value,
    ) -> Result<(), Refusal>;
}

pub struct Tasks {
    pub(super) config: Arc<Config>,
    pub(super) logs: Arc<Logs>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) router: Arc<dyn Router<TaskActor>>,
    /// Fires when this node wants to leave.
    pub(super) draining: CancellationToken,
    listener: OnceLock<Weak<dyn OperationListener>>,
    directory: ActorDirectory<TaskActor>,
    /// Tasks that run, by owner.
    running: Mutex<HashMap<Principal, usize>>,
    /// How many have ended since this was last taken.
    ended: AtomicUsize,
    pub(super) at_work: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ActorHost for Tasks {
    type Actor = TaskActor;

    fn directory(&self) -> &ActorDirectory<TaskActor> {
        &self.directory
    }

    fn router(&self) -> &dyn Router<TaskActor> {
        &*self.router
    }

    fn draining(&self) -> &CancellationToken {
        &self.draining
    }
}

impl Tasks {
    pub fn new(
        config: Arc<Config>,
        logs: Arc<Logs>,
        metrics: Arc<Metrics>,
        router: Arc<dyn Router<TaskActor>>,
        draining: CancellationToken,
    ) -> Tasks {
        Tasks {
            config,
            logs,
            metrics,
            router,
            draining,
            listener: OnceLock::new(),
            directory: ActorDirectory::default(),
            running: Mutex::default(),
            ended: AtomicUsize::default(),
            at_work: AtomicUsize::default(),
        }
    }

    /// Sets, once, the listener for operations that have ended.
    pub fn listen(&self, listener: Weak<dyn OperationListener>) {
        let _ = self.listener.set(listener);
    }

    /// Tells a session that its operation has ended.
    pub(super) async fn tell_session(
        &self,
        session: &SessionId,
        owner: &Principal,
        task: &TaskId,
        content: Value,
    ) -> Result<(), Refusal> {
        match self.listener.get().and_then(Weak::upgrade) {
            Some(listener) => listener.handle_operation_ended(session, owner, task, content).await,
            None => Err(gone()),
        }
    }

    /// How many tasks have a process of ours.
    pub fn at_work(&self) -> usize {
        self.at_work.load(Ordering::Relaxed)
    }

    pub fn count_running(&self, owner: &Principal) {
        *lock(&self.running).entry(owner.clone()).or_default() += 1;
    }

    /// A task has ended; its owner may have another.
    pub fn forget_running(&self, owner: &Principal) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        let mut running = lock(&self.running);
        if let Some(count) = running.get_mut(owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                running.remove(owner);
            }
        }
    }

    /// How many tasks have ended since this was last taken.
    pub fn ended(&self) -> &AtomicUsize {
        &self.ended
    }

    /// How many running tasks each owner has, as they were just counted.
    pub fn recount(&self, running: HashMap<Principal, usize>) {
        *lock(&self.running) = running;
    }

    /// Counts one more running task, if there is room: looked at and counted in one step.
    fn reserve(&self, owner: &Principal) -> Result<(), Refusal> {
        let max = self.config.limits.tasks_per_principal_max;
        let mut running = lock(&self.running);
        let count = running.entry(owner.clone()).or_default();
        if *count < max {
            *count += 1;
            return Ok(());
        }
        self.metrics.limits_hit.inc("limits.tasks_per_principal_max");
        let message = format!("You have {max} running tasks already. Complete or cancel one.");
        Err(Refusal::new(ErrorCode::RateLimited, message).retry_after_ms(5000))
    }

    /// Makes a task: a new log with its first record, and an actor if there is work for it.
    pub async fn create(
        self: &Arc<Self>,
        owner: &Principal,
        id: &TaskId,
        record: TaskRecord,
        work: Option<TaskWork>,
    ) -> Result<(), Refusal> {
        if self.draining.is_cancelled() {
            return Err(refusals::draining());
        }
        self.reserve(owner)?;
        let mut commit = Commit::to(LogId::from(id), Fence::default(), record.touched_ms);
        let epoch = Epoch::from_random(entropy::u64());
        if let Some(opening) = output::opening(&record) {
            let session = record.session.clone().unwrap_or_else(|| SessionId::from(&commit.log));
            commit.events = vec![opening.seal(&session, &clock::timestamp())];
            StreamState::new(&record, id).handle_drafts(&[&opening], Seq::FIRST, &mut commit);
        }
        let events = commit.events.len() as u64;
        commit.create = Some(Start { epoch, after: Seq::ZERO });
        commit.record = Some(record.stored(owner));
        if let Err(error) = self.logs.commit(commit).await {
            self.forget_running(owner);
            return Err(refusals::of_task(&error));
        }
        self.metrics.events_appended.inc_by(events);
        self.metrics.task_state(record.status.as_str()).inc();
        if work.is_some() {
            self.at_work.fetch_add(1, Ordering::Relaxed);
            ActorDirectory::install(TaskActor::new(self.clone(), id.clone(), owner.clone(), record, work));
        }
        Ok(())
    }

    /// The record of a task of the asker's own whose stream is still there.
    pub async fn look_up(&self, id: &TaskId, asker: &Principal) -> Result<TaskRecord, Refusal> {
        let record = self.record(id, asker).await?;
        if record.released { Err(refusals::task_expired()) } else { Ok(record) }
    }

    /// The record of a task of the asker's own. Unknown and foreign are answered alike.
    pub async fn record(&self, id: &TaskId, asker: &Principal) -> Result<TaskRecord, Refusal> {
        let stored = self.logs.store.record(&LogId::from(id)).await.map_err(|error| refusals::of_task(&error))?;
        let stored = stored.filter(|stored| {
            stored.kind == LogKind::Task && (stored.owner == *asker || mutant("skip-the-owner-of-a-task"))
        });
        let record = TaskRecord::decode(&stored.ok_or_else(refusals::task_not_found)?.body);
        record.map_err(|why| {
            Refusal::new(ErrorCode::StoreUnavailable, format!("The task's record cannot be read: {why}."))
        })
    }

    /// Hands an append over; the answer comes once it is durable.
    pub async fn append(
        self: &Arc<Self>,
        id: &TaskId,
        asker: &Principal,
        place: Option<(bowline_protocol::ProducerId, u64)>,
        chunks: Vec<Box<serde_json::value::RawValue>>,
    ) -> Result<oneshot::Receiver<Result<Appended, Refusal>>, Refusal> {
        let (reply, answer) = Responder::here();
        self.send(id, asker, TaskCommand::new(TaskRequest::Append(Append { place, chunks, reply }))).await?;
        Ok(answer)
    }

    /// Lets every actor look whether what it has stored is still there.
    pub fn verify_all(&self) {
        // One that is too busy to take it finds out when it writes.
        self.directory.offer(|| Box::new(TaskCommand::new(TaskRequest::Verify)));
    }

    /// Ends a task, if it has not ended yet.
    pub async fn end(
        self: &Arc<Self>,
        id: &TaskId,
        asker: &Principal,
        ending: TaskClose,
    ) -> Result<Box<EndedTask>, Refusal> {
        let (reply, answer) = Responder::here();
        self.send(id, asker, TaskCommand::new(TaskRequest::End { ending, reply })).await?;
        answer.await.unwrap_or_else(|_gone| Err(gone()))
    }
}

/// The actor went away without a word.
pub fn gone() -> Refusal {
    Refusal::new(ErrorCode::Internal, "The task could not be reached. Try again.").retry_after_ms(1000)
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({:?})", self.directory)
    }
}
