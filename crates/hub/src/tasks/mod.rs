//! Long calls as tasks: each has a log of its own in the store, so that what became of it outlives the hub.

pub mod actor;
pub mod names;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bowline_actor::{ActorDirectory, ActorHost, Router};
use bowline_env::{clock, entropy};
use bowline_protocol::{Epoch, LogId, Principal, Seq};
use bowline_store::{Clock, Commit, Fence, LeasedLog, LogKind, Record, Release, Start, Store, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::actors::{ActorRefusal, NoForwarding};
use crate::call::CallReply;
use crate::call::outcome::CallOutcome;
use crate::call::server_request::OpenQuestions;
use crate::fields::{Fields, Raw, raw};
use crate::peers::{self, PeerNodes};
use crate::tasks::actor::{HubTaskActor, HubTaskCommand};

pub use crate::tasks::actor::{CreatedTask, TaskCall};

/// Tasks that one principal may have at once, those included whose results are kept.
const PER_PRINCIPAL_MAX: usize = 1000;
const PREFIX: &str = "mcpt_";
const RESULT: &str = "result";
const OUTCOME: &str = "outcome";
/// A node claims a task in much less than this after it has made it.
const CLAIMED_AFTER_MS: u64 = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    Working,
    Completed,
    Failed,
    Cancelled,
}

impl TaskStatus {
    pub const fn word(self) -> &'static str {
        match self {
            TaskStatus::Working => "working",
            TaskStatus::Completed => "completed",
            TaskStatus::Failed => "failed",
            TaskStatus::Cancelled => "cancelled",
        }
    }

    /// What its session is notified of.
    pub const fn event(self) -> &'static str {
        match self {
            TaskStatus::Working => "task_created",
            TaskStatus::Completed => "task_completed",
            TaskStatus::Failed => "task_failed",
            TaskStatus::Cancelled => "task_cancelled",
        }
    }
}

/// The task that a backend itself made of the call; it goes on there whatever happens to us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamTask {
    pub task_id: String,
    pub poll_ms: u64,
}

/// What is durable about a task besides its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HubTaskRecord {
    pub server: String,
    pub tool: String,
    pub status: TaskStatus,
    pub created_ms: u64,
    #[serde(default)]
    pub ended_ms: Option<u64>,
    /// Its session, which is notified of what becomes of it.
    #[serde(default)]
    pub session: Option<LogId>,
    #[serde(default)]
    pub upstream: Option<UpstreamTask>,
}

impl HubTaskRecord {
    pub fn new(
        server: &str,
        tool: &str,
        session: Option<LogId>,
        upstream: Option<UpstreamTask>,
        now_ms: u64,
    ) -> HubTaskRecord {
        HubTaskRecord {
            server: server.to_owned(),
            tool: tool.to_owned(),
            status: TaskStatus::Working,
            created_ms: now_ms,
            ended_ms: None,
            session,
            upstream,
        }
    }

    /// Whether it is this session's, or was made without one by a client that has none. Others of the same principal are
    /// other clients.
    pub fn is_of(&self, session: Option<&LogId>) -> bool {
        self.session.as_ref() == session
    }

    /// Its call has ended so; the answer as it is kept.
    fn answered(&mut self, reply: &CallReply) -> Raw {
        let completed = reply.outcome == CallOutcome::Result;
        self.status = if completed { TaskStatus::Completed } else { TaskStatus::Failed };
        kept(reply)
    }

    pub fn shown(&self, id: &LogId) -> Value {
        let mut shown = json!({
            "taskId": id,
            "server": self.server,
            "tool": self.tool,
            "status": self.status.word(),
            "createdAt": clock::rfc3339(self.created_ms),
        });
        if let Some(ended) = self.ended_ms {
            shown["endedAt"] = clock::rfc3339(ended).into();
        }
        shown
    }
}

/// Which orphaned tasks are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphans {
    /// When we begin: nothing that is in the store already can be ours, so all that no other node has were left behind.
    LeftBehind,
    /// Later: those that a dead node had, and those that we ourselves let drop. What is new may be on its way to its worker.
    Dropped,
}

/// How a task ends.
#[derive(Clone)]
pub enum TaskOutcome {
    Answered(CallReply),
    Cancelled,
}

impl fmt::Debug for TaskOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TaskOutcome::Answered(_) => "Answered",
            TaskOutcome::Cancelled => "Cancelled",
        })
    }
}

/// Why there is no task.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("there are too many tasks; wait until some have expired")]
    TooMany,
    #[error("the store cannot keep the task now: {0}")]
    Store(#[from] StoreError),
}

/// What the hub around the tasks does for one.
#[async_trait]
pub trait TaskListener: Send + Sync {
    /// Follows at its backend a task that goes on there.
    async fn resume(
        &self,
        owner: &Principal,
        record: &HubTaskRecord,
        known: UpstreamTask,
        cancel: CancellationToken,
    ) -> Result<TaskCall, StoreError>;

    /// Tells the session that asked for the task, if it is still there.
    async fn tell(&self, event: &str, id: &LogId, owner: &Principal, record: &HubTaskRecord);
}

pub struct HubTasks {
    directory: ActorDirectory<HubTaskActor>,
    store: Arc<dyn Store>,
    clock: Clock,
    peers: Option<Arc<dyn PeerNodes>>,
    listener: OnceLock<Arc<dyn TaskListener>>,
    /// We are leaving: what runs is not ended by that, the next process resumes it or reports it as cut.
    pub closing: CancellationToken,
}

impl ActorHost for HubTasks {
    type Actor = HubTaskActor;

    fn directory(&self) -> &ActorDirectory<HubTaskActor> {
        &self.directory
    }

    fn router(&self) -> &dyn Router<HubTaskActor> {
        &NoForwarding
    }

    fn draining(&self) -> &CancellationToken {
        &self.closing
    }
}

impl HubTasks {
    pub fn new(store: Arc<dyn Store>, clock: Clock, peers: Option<Arc<dyn PeerNodes>>) -> HubTasks {
        HubTasks {
            directory: ActorDirectory::default(),
            store,
            clock,
            peers,
            listener: OnceLock::new(),
            closing: CancellationToken::new(),
        }
    }

    /// Sets, once, what the hub does for its tasks.
    pub fn listen(&self, listener: Arc<dyn TaskListener>) {
        let _ = self.listener.set(listener);
    }

    fn listener(&self) -> Result<&Arc<dyn TaskListener>, StoreError> {
        self.listener.get().ok_or(StoreError::Closed)
    }

    /// A task's log. All leases of tasks are taken through this.
    fn log(&self, id: &LogId) -> LeasedLog {
        LeasedLog::new(self.store.clone(), peers::lessor(&self.store, self.peers.as_ref()), id.clone())
    }

    /// A new task, in the store already, for the call that it is about to be given. Without one it is an orphan.
    pub async fn create(self: &Arc<Self>, owner: &Principal, record: HubTaskRecord) -> Result<CreatedTask, TaskError> {
        if self.store.count(LogKind::Hub, Some(owner)).await? >= PER_PRINCIPAL_MAX {
            return Err(TaskError::TooMany);
        }
        let id = LogId::parse(&format!("{PREFIX}{:032x}", entropy::u128())).ok_or(StoreError::NoSuchLog)?;
        let mut commit = Commit::to(id.clone(), Fence::OPEN, record.created_ms);
        commit.create = Some(Start { epoch: Epoch::from_random(entropy::u128() as u64), after: Seq::ZERO });
        commit.record = Some(stored(owner, &record, record.created_ms));
        self.store.commit(commit).await?;
        let mut actor = HubTaskActor::asleep(self.clone(), id.clone(), owner.clone(), record.clone());
        actor.acquire().await?;
        Ok(CreatedTask { id, record, actor: Box::new(actor) })
    }

    /// Takes up tasks that the store says are working while no node works on them. One that cannot be taken up now is found
    /// again later.
    pub async fn take_up(self: &Arc<Self>, which: Orphans) -> Result<(), StoreError> {
        for (id, stored) in self.store.list(LogKind::Hub, None).await? {
            let taken_up = match self.is_orphan(&id, &stored, which).await {
                Ok(true) => self.activate(&id, &stored.owner).await,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            match taken_up {
                Ok(()) | Err(StoreError::Held(_)) => {}
                Err(error) => {
                    tracing::warn!(task = %id, %error, "a task could not be taken up; it will be tried again");
                }
            }
        }
        Ok(())
    }

    /// Whether it is an orphan. One that was just made may not have been claimed yet by the node that made it.
    async fn is_orphan(&self, id: &LogId, stored: &Record, which: Orphans) -> Result<bool, StoreError> {
        let working = |record: &HubTaskRecord| record.status == TaskStatus::Working;
        let Some(record) = record_of(id, stored)?.filter(working) else { return Ok(false) };
        // When we leave, those who work here stop, and the next process takes over what they worked on.
        if self.directory.presence(id).is_some() || self.closing.is_cancelled() {
            return Ok(false);
        }
        let is_old = self.clock.now_ms().saturating_sub(record.created_ms) >= CLAIMED_AFTER_MS;
        let is_dropped = is_old || which == Orphans::LeftBehind;
        let Some(peers) = &self.peers else { return Ok(is_dropped) };
        Ok(match self.store.holder(id).await? {
            Some(holder) => peers.is_dead(&holder) || (is_dropped && holder == *peers.name()),
            None => is_old,
        })
    }

    /// Waits until the task is awake here, or has nothing left to do.
    async fn activate(self: &Arc<Self>, id: &LogId, owner: &Principal) -> Result<(), StoreError> {
        let (reply, activated) = oneshot::channel();
        self.deliver(id, owner, HubTaskCommand::Activate(reply)).await;
        match activated.await {
            Ok(Ok(())) | Ok(Err(ActorRefusal::NotFound)) | Err(_) => Ok(()),
            Ok(Err(ActorRefusal::Store(error))) => Err(error),
        }
    }

    /// Whether it was still working here and is cancelled now.
    pub async fn cancel(&self, id: &LogId) -> bool {
        let Some(commands) = self.directory.commands(id) else { return false };
        let (reply, cancelled) = oneshot::channel();
        commands.send(HubTaskCommand::Cancel(reply)).await.is_ok() && cancelled.await.unwrap_or(false)
    }

    /// What the server of a task that runs here has asked.
    pub fn questions(&self, id: &LogId) -> Option<Arc<OpenQuestions>> {
        self.directory.presence(id)
    }

    /// The task, if it is this principal's. A stranger's looks like one that never was.
    pub async fn find(&self, id: &str, owner: &Principal) -> Result<Option<(LogId, HubTaskRecord)>, StoreError> {
        let Some(id) = LogId::parse(id) else { return Ok(None) };
        let stored = self.store.record(&id).await?.filter(|stored| stored.owner == *owner);
        let Some(stored) = stored else { return Ok(None) };
        Ok(record_of(&id, &stored)?.map(|record| (id, record)))
    }

    /// Those of one client, oldest first.
    pub async fn list(
        &self,
        owner: &Principal,
        session: Option<&LogId>,
    ) -> Result<Vec<(LogId, HubTaskRecord)>, StoreError> {
        let all = self.store.list(LogKind::Hub, Some(owner)).await?.into_iter();
        let mut mine: Vec<_> = all.filter_map(|(id, stored)| Some((record_of(&id, &stored).ok()??, id))).collect();
        mine.retain(|(task, _)| task.is_of(session));
        mine.sort_by(|(a, at), (b, bt)| (a.created_ms, at).cmp(&(b.created_ms, bt)));
        Ok(mine.into_iter().map(|(record, id)| (id, record)).collect())
    }

    pub async fn working(&self, owner: &Principal, session: &LogId) -> Result<Vec<Value>, StoreError> {
        let all = self.list(owner, Some(session)).await?.into_iter();
        Ok(all.filter(|(_, task)| task.status == TaskStatus::Working).map(|(id, task)| task.shown(&id)).collect())
    }

    /// What the call was answered with, if it was. Results that an older version kept do not say what became of the call.
    pub async fn result(&self, id: &LogId) -> Result<Option<CallReply>, StoreError> {
        let kept = self.store.item(id, RESULT).await?;
        let Some(kept) = kept else { return Ok(None) };
        let kept = serde_json::from_slice::<Raw>(&kept).map_err(|error| unreadable(id, &error))?;
        let fields = Fields::of(Some(&kept));
        let result = fields.get("result").map(|result| Ok(result.to_owned()));
        let answer = result.or_else(|| fields.get("error").map(|error| Err(error.to_owned())));
        let reply = answer.map(CallReply::new);
        Ok(reply.map(|reply| CallReply { outcome: fields.read(OUTCOME).unwrap_or(reply.outcome), ..reply }))
    }

    /// Lets go of results that were kept long enough; whose they were.
    pub async fn expire(&self, ttl: Duration) -> Result<Vec<(LogId, Principal, HubTaskRecord)>, StoreError> {
        let mut expired = Vec::new();
        for (id, stored) in self.store.list(LogKind::Hub, None).await? {
            let Ok(Some(record)) = record_of(&id, &stored) else { continue };
            let age = record.ended_ms.map(|ended| self.clock.now_ms().saturating_sub(ended));
            if age.is_none_or(|age| u128::from(age) < ttl.as_millis()) {
                continue;
            }
            match self.release(&id).await {
                Ok(true) => expired.push((id, stored.owner, record)),
                Ok(false) => {}
                Err(error) => tracing::warn!(task = %id, %error, "the result of a task could not be let go of"),
            }
        }
        Ok(expired)
    }

    /// Whether it was ours to let go of.
    async fn release(&self, id: &LogId) -> Result<bool, StoreError> {
        let mut commit = Commit::to(id.clone(), Fence::OPEN, self.clock.now_ms());
        commit.release = Some(Release::Log);
        match self.log(id).commit(commit).await {
            Ok(_) => Ok(true),
            Err(StoreError::Held(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether this is the name of a task of the hub's own, and not one that a server chose.
pub fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The record of a task; `None` for the other logs of the hub. One that cannot be read is not one that never was: its
/// caller would do the work again.
fn record_of(id: &LogId, stored: &Record) -> Result<Option<HubTaskRecord>, StoreError> {
    let task = stored.kind == LogKind::Hub && id.as_str().starts_with(PREFIX);
    let record = task.then(|| serde_json::from_slice(&stored.body)).transpose();
    record.map_err(|error| unreadable(id, &error))
}

fn unreadable(id: &LogId, error: &serde_json::Error) -> StoreError {
    tracing::error!(task = %id, %error, "what the store keeps of a task cannot be read");
    StoreError::Io(format!("what is kept of the task {id} cannot be read"))
}

fn stored(owner: &Principal, record: &HubTaskRecord, now: u64) -> Record {
    let body = raw(record).get().as_bytes().to_vec();
    Record { kind: LogKind::Hub, owner: owner.clone(), touched_ms: now, body: body.into() }
}

/// The answer and, beside it, what became of the call.
fn kept(reply: &CallReply) -> Raw {
    let mut fields = Fields::default();
    match &reply.answer {
        Ok(result) => fields.set("result", result.clone()),
        Err(error) => fields.set("error", error.clone()),
    }
    fields.put(OUTCOME, &reply.outcome);
    fields.to_raw()
}

impl fmt::Debug for HubTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({} running)", self.directory.count(|_| true))
    }
}
