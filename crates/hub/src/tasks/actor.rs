//! A task of the hub as an actor: it waits for its call, keeps what is learnt on the way, and ends once, with what the call came to.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_actor::{ActivationError, Actor, ActorDirectory, ActorLocation, Process, RunEvent};
use bowline_env::clock;
use bowline_protocol::{LogId, Principal};
use bowline_store::{Commit, Fence, Item, LeasedLog, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{HubTaskRecord, HubTasks, RESULT, TaskOutcome, TaskStatus, UpstreamTask, record_of, stored};
use crate::actors::ActorRefusal;
use crate::call::server_request::OpenQuestions;
use crate::call::{CallReply, outcome};
use crate::fields::Raw;

/// While the store cannot take an ending, it is tried again this often.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
/// After so many it is given up, and the task is an orphan.
const WRITES_MAX: usize = 600;

/// The call behind a task.
pub struct TaskCall {
    /// `None` if it was cancelled.
    pub call: JoinHandle<Option<CallReply>>,
    /// The task that the backend made of it, once that is known.
    pub upstream: mpsc::Receiver<UpstreamTask>,
    /// Takes the call back.
    pub cancel: CancellationToken,
}

impl fmt::Debug for TaskCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskCall")
    }
}

/// What a task emits while it works, and how its call ended.
type TaskProcess = Process<UpstreamTask, Option<CallReply>>;

impl From<TaskCall> for TaskProcess {
    fn from(TaskCall { call, upstream, cancel }: TaskCall) -> TaskProcess {
        // A call that panicked was not answered.
        Process::new(cancel, upstream, call, |_| None)
    }
}

pub enum HubTaskCommand {
    /// Answers once it is awake.
    Activate(oneshot::Sender<Result<(), ActorRefusal>>),
    /// Takes its call back. Says whether that is how it ended.
    Cancel(oneshot::Sender<bool>),
}

impl fmt::Debug for HubTaskCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HubTaskCommand::Activate(_) => "Activate",
            HubTaskCommand::Cancel(_) => "Cancel",
        })
    }
}

/// A task that is in the store and has no call yet.
#[derive(Debug)]
pub struct CreatedTask {
    pub id: LogId,
    pub record: HubTaskRecord,
    pub(super) actor: Box<HubTaskActor>,
}

impl CreatedTask {
    /// What its server will ask.
    pub fn questions(&self) -> Arc<OpenQuestions> {
        self.actor.questions.clone()
    }

    /// From here on it goes on by itself, whether its caller stays or not. Returns once its session knows of it.
    pub fn start(self, call: TaskCall) -> impl Future<Output = ()> + Send {
        let CreatedTask { id, mut actor, .. } = self;
        let (tasks, owner) = (actor.tasks.clone(), actor.owner.clone());
        (actor.call, actor.is_new) = (Some(Box::new(call.into())), true);
        ActorDirectory::install(*actor);
        async move {
            // It has left already if the hub leaves.
            let _ = tasks.activate(&id, &owner).await;
        }
    }
}

pub struct HubTaskActor {
    tasks: Arc<HubTasks>,
    id: LogId,
    owner: Principal,
    record: HubTaskRecord,
    log: LeasedLog,
    call: Option<Box<TaskProcess>>,
    /// What its server asks while the hub waits for it.
    questions: Arc<OpenQuestions>,
    /// Its session has not heard of it.
    is_new: bool,
    /// How it ends, until that is in the store.
    owed: Option<Owed>,
    cancellers: Vec<oneshot::Sender<bool>>,
    /// Nothing is left to do here.
    is_over: bool,
}

struct Owed {
    end: TaskOutcome,
    retry_at: Instant,
    tries: usize,
}

impl HubTaskActor {
    /// One that still has to be activated.
    pub(super) fn asleep(tasks: Arc<HubTasks>, id: LogId, owner: Principal, record: HubTaskRecord) -> HubTaskActor {
        HubTaskActor {
            log: tasks.log(&id),
            tasks,
            id,
            owner,
            record,
            call: None,
            questions: Arc::default(),
            is_new: false,
            owed: None,
            cancellers: Vec::new(),
            is_over: false,
        }
    }

    pub(super) async fn acquire(&mut self) -> Result<(), StoreError> {
        self.log.acquire().await.map(drop)
    }

    /// Takes up an orphan: one that goes on at its backend is polled again, of any other it is not known whether it ran.
    async fn take_up(&mut self) -> Result<(), StoreError> {
        self.acquire().await?;
        // It may have ended since it was found; under our own lease no other node can end it.
        let known = self.tasks.store.record(&self.id).await?;
        let record = known.map(|known| record_of(&self.id, &known)).transpose()?.flatten();
        let Some(record) = record.filter(|record| record.status == TaskStatus::Working) else {
            return Err(StoreError::NoSuchLog);
        };
        self.record = record;
        match self.record.upstream.clone() {
            Some(known) => {
                let listener = self.tasks.listener()?;
                let call = listener.resume(&self.owner, &self.record, known, CancellationToken::new()).await?;
                self.call = Some(Box::new(call.into()));
            }
            None => self.end(TaskOutcome::Answered(outcome::cut_by_restart("tools/call"))).await,
        }
        Ok(())
    }

    /// Keeps which task of the backend's is polled.
    async fn note_upstream(&mut self, upstream: UpstreamTask) {
        self.record.upstream = Some(upstream);
        let record = self.record.clone();
        if let Err(error) = self.write(&record, None).await {
            tracing::warn!(task = %self.id, %error, "a task's upstream could not be kept; a restart would fail it");
        }
    }

    async fn end(&mut self, end: TaskOutcome) {
        self.call = None;
        self.owed = Some(Owed { end, retry_at: clock::now(), tries: 0 });
        self.try_to_end().await;
    }

    /// Writes down how it ended. In doubt it may have been written; under a new lease it is written again, to the same effect.
    async fn try_to_end(&mut self) {
        let Some(mut owed) = self.owed.take() else { return };
        let mut record = self.record.clone();
        let mut result = match &owed.end {
            TaskOutcome::Answered(reply) => Some(record.answered(reply)),
            TaskOutcome::Cancelled => {
                record.status = TaskStatus::Cancelled;
                None
            }
        };
        record.ended_ms = Some(self.tasks.clock.now_ms());
        let is_kept = loop {
            owed.tries += 1;
            match self.write(&record, result.as_ref()).await {
                Ok(()) => break true,
                Err(StoreError::Held(_) | StoreError::StaleFence { .. }) => break false,
                Err(StoreError::TooLarge { .. }) if owed.tries < WRITES_MAX => {
                    result = Some(record.answered(&CallReply::new(Ok(outcome::too_large_to_keep()))));
                }
                Err(StoreError::InDoubt(_)) if owed.tries < WRITES_MAX => {}
                Err(StoreError::Unavailable(_) | StoreError::Full(_)) if owed.tries < WRITES_MAX => {
                    owed.retry_at = clock::now() + WRITE_AGAIN;
                    self.owed = Some(owed);
                    return;
                }
                Err(error) => {
                    tracing::error!(task = %self.id, %error, "the end of a task could not be kept");
                    break false;
                }
            }
        };
        self.record = record;
        for canceller in self.cancellers.drain(..) {
            let _ = canceller.send(self.record.status == TaskStatus::Cancelled);
        }
        if is_kept {
            self.tell_session().await;
        }
        self.is_over = true;
    }

    /// Tells its session how it stands.
    async fn tell_session(&self) {
        if let Ok(listener) = self.tasks.listener() {
            listener.tell(self.record.status.event(), &self.id, &self.owner, &self.record).await;
        }
    }

    async fn write(&mut self, record: &HubTaskRecord, result: Option<&Raw>) -> Result<(), StoreError> {
        let now = self.tasks.clock.now_ms();
        let mut commit = Commit::to(self.id.clone(), Fence::OPEN, now);
        commit.record = Some(stored(&self.owner, record, now));
        commit.items = result.map(|result| Item::put(RESULT, result.get().as_bytes().to_vec())).into_iter().collect();
        self.log.commit(commit).await.map(drop)
    }
}

impl Actor for HubTaskActor {
    type Id = LogId;
    type Command = HubTaskCommand;
    type Emission = UpstreamTask;
    type Ending = Option<CallReply>;
    type Presence = OpenQuestions;
    type Refusal = ActorRefusal;
    type Host = HubTasks;

    const COMMANDS_AT_ONCE: usize = 16;

    fn not_found() -> ActorRefusal {
        ActorRefusal::NotFound
    }

    fn unreachable() -> ActorRefusal {
        ActorRefusal::unreachable()
    }

    fn is_final(refusal: &ActorRefusal) -> bool {
        *refusal == ActorRefusal::NotFound
    }

    async fn find(
        tasks: &Arc<HubTasks>,
        id: &LogId,
        asker: &Principal,
        _command: &HubTaskCommand,
    ) -> Result<ActorLocation<HubTaskActor>, ActorRefusal> {
        // What was at work here goes on after the next start.
        if tasks.closing.is_cancelled() {
            return Err(ActorRefusal::Store(StoreError::Closed));
        }
        let found = tasks.find(id.as_str(), asker).await.map_err(ActorRefusal::Store)?;
        let (id, record) = found.ok_or(ActorRefusal::NotFound)?;
        Ok(ActorLocation::Here(HubTaskActor::asleep(tasks.clone(), id, asker.clone(), record)))
    }

    fn refuse(_id: &LogId, command: HubTaskCommand, refusal: &ActorRefusal) {
        if let HubTaskCommand::Activate(reply) = command {
            let _ = reply.send(Err(refusal.clone()));
        }
    }

    fn host(&self) -> &Arc<HubTasks> {
        &self.tasks
    }

    fn id(&self) -> &LogId {
        &self.id
    }

    fn owner(&self) -> &Principal {
        &self.owner
    }

    fn presence(&self) -> Arc<OpenQuestions> {
        self.questions.clone()
    }

    async fn activate(&mut self) -> Result<(), ActivationError<ActorRefusal>> {
        if self.is_new {
            self.is_new = false;
            self.tell_session().await;
        }
        if self.call.is_some() {
            return Ok(());
        }
        self.take_up().await.map_err(|error| ActivationError::from_lease(error, ActorRefusal::of_store))
    }

    async fn reactivate(&mut self) -> Result<(), ActivationError<ActorRefusal>> {
        self.activate().await
    }

    /// Never for long: what it writes may be written again, to the same effect.
    fn is_in_doubt(&self) -> bool {
        false
    }

    async fn handle(&mut self, commands: Vec<HubTaskCommand>) {
        for command in commands {
            match command {
                HubTaskCommand::Activate(reply) => drop(reply.send(Ok(()))),
                // It is ending, or has ended.
                HubTaskCommand::Cancel(reply) if self.is_over => {
                    let _ = reply.send(self.record.status == TaskStatus::Cancelled);
                }
                HubTaskCommand::Cancel(reply) => {
                    if let Some(call) = &self.call {
                        call.cancel.cancel();
                    }
                    self.cancellers.push(reply);
                }
            }
        }
    }

    fn process(&mut self) -> Option<&mut TaskProcess> {
        self.call.as_deref_mut()
    }

    async fn handle_run_event(&mut self, event: RunEvent<UpstreamTask, Option<CallReply>>) {
        // The hub leaves and lets its servers go, which ends their calls here and not the tasks.
        if self.tasks.closing.is_cancelled() {
            self.call = None;
            return;
        }
        match event {
            RunEvent::Emissions(known) => {
                for upstream in known {
                    self.note_upstream(upstream).await;
                }
            }
            RunEvent::Ended(Some(reply)) => self.end(TaskOutcome::Answered(reply)).await,
            RunEvent::Ended(None) => self.end(TaskOutcome::Cancelled).await,
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.owed.as_ref().map(|owed| owed.retry_at)
    }

    async fn handle_timeout(&mut self, now: Instant) {
        if self.owed.as_ref().is_some_and(|owed| owed.retry_at <= now) {
            self.try_to_end().await;
        }
    }

    fn handle_draining(&mut self) {}

    /// An ending that is known is offered to the store to the last moment.
    fn may_leave(&self, _now: Instant) -> bool {
        self.is_over || self.owed.is_none() && self.tasks.closing.is_cancelled()
    }

    async fn give_back(&mut self) {}
}

impl fmt::Debug for HubTaskActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HubTaskActor({}, {})", self.id, self.record.status.word())
    }
}
