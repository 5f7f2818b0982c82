//! Maintenance, which no request asks for: recovery after a crash, expiry, tombstones, and what a sweep lets go of.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_actor::{ActivationError, Actor, ActorDirectory, ActorHost as _};
use bowline_env::clock;
use bowline_hub::Hub;
use bowline_protocol::{LogId, SessionId, TaskId};
use bowline_store::{Commit, Fence, Holder, LogKind, Record, Release, StoreError};
use futures_util::StreamExt;

use crate::alias;
use crate::config::Config;
use crate::logs::{Location, Logs};
use crate::metrics::{self, Metrics};
use crate::session::actor::SessionActor;
use crate::session::background;
use crate::session::record::SessionState;
use crate::session::{Life, SessionCommand, SessionRecord, SessionRequest, Sessions};
use crate::task::actor::TaskActor;
use crate::task::record::Worker;
use crate::task::status::Status;
use crate::task::{TaskCommand, TaskRecord, TaskRequest, Tasks};
use crate::tombstones::Tombstones;

/// The next sweep comes early when so many sessions and tasks have ended.
const ENDED_MAX: usize = 1000;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// No task is let go within this time after its end because there are too many.
const LAST_READ: Duration = Duration::from_secs(10);
/// How many logs are swept at the same time.
const AT_ONCE: usize = 64;
/// Much less than a store keeps it, so that a jump of the clock of the store's server is made good at once.
const SHARE_TIME_EVERY: Duration = Duration::from_secs(2);

/// States expire by the wall clock, as credentials do. So that one that is set back makes no state good again whose mark
/// is gone, marks stay for this much longer.
const SET_BACK_MAX: Duration = Duration::from_secs(24 * 3600);
/// What maintenance looks after.
pub struct Maintenance {
    pub config: Arc<Config>,
    pub logs: Arc<Logs>,
    pub metrics: Arc<Metrics>,
    pub sessions: Arc<Sessions>,
    pub tasks: Arc<Tasks>,
    /// All MCP servers and their clients.
    pub hub: Arc<Hub>,
}

impl fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maintenance")
    }
}

impl Maintenance {
    /// Ends or continues what the last process left behind, before a request is served.
    pub async fn recover(&self) -> anyhow::Result<()> {
        let started = clock::now();
        let (mut sessions, mut woken) = (0u64, 0u64);
        for (log, stored) in self.logs.store.list(LogKind::Session, None).await? {
            let record = match SessionRecord::decode(&stored.body) {
                Ok(record) => record,
                Err(why) => {
                    tracing::error!(session = %log, %why, "a session's record cannot be read; it is left alone");
                    continue;
                }
            };
            sessions += 1;
            self.metrics.session_state(record.state().as_str()).inc();
            if record.life == Life::Active {
                self.sessions.count_live(&stored.owner);
            }
            if !needs_care(&record) {
                continue;
            }
            woken += 1;
            let mut actor = SessionActor::new(self.sessions.clone(), log.clone(), stored.owner.clone(), record);
            match Box::pin(actor.activate()).await {
                // It stays as long as it has something to do, as any other that was woken.
                Ok(()) => drop(ActorDirectory::install(actor)),
                Err(ActivationError::Elsewhere(_)) => {}
                Err(ActivationError::Refused(refusal)) => {
                    tracing::error!(session = %log, %refusal, "a session could not be recovered yet");
                }
            }
        }
        let tasks = self.recover_tasks().await?;
        let ms = clock::since(started).as_millis() as u64;
        tracing::info!(sessions, woken, tasks, ms, "recovered");
        Ok(())
    }

    /// Ends the operations that were cut, and tells sessions what they have not heard. A producer's task just goes on.
    async fn recover_tasks(&self) -> anyhow::Result<u64> {
        let mut tasks = 0;
        for (log, stored) in self.logs.store.list(LogKind::Task, None).await? {
            let Some((id, record)) = task_of(&log, &stored) else { continue };
            tasks += 1;
            self.metrics.task_state(record.status.as_str()).inc();
            if record.is_running() {
                self.tasks.count_running(&stored.owner);
            }
            if task_needs_care(&record) {
                let mut actor = TaskActor::new(self.tasks.clone(), id, stored.owner.clone(), record, None);
                match Box::pin(actor.activate()).await {
                    Ok(()) => drop(ActorDirectory::install(actor)),
                    Err(ActivationError::Elsewhere(_)) => {}
                    Err(ActivationError::Refused(refusal)) => {
                        tracing::error!(task = %log, %refusal, "a task could not be recovered yet");
                    }
                }
            }
        }
        Ok(tasks)
    }

    /// Another node is dead: what it had in hand is continued or ended here, unless a third was faster.
    pub async fn take_over(&self, node: &Holder) -> Result<(), StoreError> {
        let (sessions, tasks) = self.take_up(Some(node)).await?;
        self.hub.take_over(node).await?;
        tracing::info!(%node, sessions, tasks, "took over from a dead node");
        Ok(())
    }

    /// The store may have lost what it had answered, perhaps the end of a run whose session is not awake any more. What no living
    /// node has in hand is continued or ended here, unless another was faster.
    pub async fn take_up_after_loss(&self) -> Result<(), StoreError> {
        let (sessions, tasks) = self.take_up(None).await?;
        tracing::info!(sessions, tasks, "looked after what the store has lost");
        Ok(())
    }

    /// Activates what needs care and was a dead node's, or without one, what no other node has. Says how much.
    async fn take_up(&self, dead: Option<&Holder>) -> Result<(u64, u64), StoreError> {
        let (mut sessions, mut tasks) = (0u64, 0u64);
        // What is ended here is taken from what is counted here, so it has to be counted first.
        self.recount().await?;
        for (log, stored) in self.logs.store.list(LogKind::Session, None).await? {
            let Ok(record) = SessionRecord::decode(&stored.body) else { continue };
            if needs_care(&record) && self.is_left(&log, dead).await? {
                sessions += 1;
                let actor = SessionActor::new(self.sessions.clone(), log, stored.owner.clone(), record);
                // It takes the lease, and sees to the rest. One that is awake stays as it is.
                ActorDirectory::install(actor);
            }
        }
        for (log, stored) in self.logs.store.list(LogKind::Task, None).await? {
            let Some((id, record)) = task_of(&log, &stored) else { continue };
            if task_needs_care(&record) && self.is_left(&log, dead).await? {
                tasks += 1;
                let actor = TaskActor::new(self.tasks.clone(), id, stored.owner.clone(), record, None);
                ActorDirectory::install(actor);
            }
        }
        Ok((sessions, tasks))
    }

    async fn is_left(&self, log: &LogId, dead: Option<&Holder>) -> Result<bool, StoreError> {
        Ok(match dead {
            Some(_) => self.logs.store.holder(log).await?.as_ref() == dead,
            None => matches!(self.logs.placement.locate(log).await?, Location::Here),
        })
    }

    /// Whether the session of a task keeps how it ended. Then its tombstone stays, to lead requests there.
    async fn is_known_to_session(&self, id: &TaskId, record: &TaskRecord) -> bool {
        let Some(session) = &record.session else { return false };
        // A session that cannot be read now may know it.
        background::end_of(&self.logs, session, id).await.map_or(true, |end| end.is_some())
    }

    /// Streams that were kept long enough after their end are let go; a tombstone says so for a while longer.
    async fn sweep_tasks(&self, now_ms: u64) -> Result<(), StoreError> {
        let older_than = |at: u64, ttl: Duration| now_ms.saturating_sub(at) >= ttl.as_millis() as u64;
        let (mut kept, mut tombstones, mut due) = (Tombstones::default(), Tombstones::default(), Vec::new());
        let (mut streams, mut released) = (HashMap::new(), HashMap::new());
        for (log, stored) in self.logs.store.list(LogKind::Task, None).await? {
            let Some((id, record)) = task_of(&log, &stored) else { continue };
            if record.released {
                let old = older_than(stored.touched_ms, self.config.session.tombstone_ttl);
                if old && !self.is_known_to_session(&id, &record).await {
                    due.push(log.clone());
                } else {
                    tombstones.note(&stored.owner, stored.touched_ms, &log);
                }
                released.insert(log, record.status);
            } else if record.is_running() {
                let quiet = older_than(stored.touched_ms, self.config.stream.producer_ttl);
                if quiet && matches!(record.worker, Worker::Producer) {
                    let _ = self.tasks.send(&id, &stored.owner, TaskCommand::new(TaskRequest::Look)).await;
                }
            } else if !record.untold {
                // Those who read it when it ended are given the time to read its end.
                let is_read = !older_than(stored.touched_ms, LAST_READ);
                if !is_read && !older_than(stored.touched_ms, self.config.stream.ttl) {
                    kept.note(&stored.owner, stored.touched_ms, &log);
                }
                streams.insert(log, (stored.owner, stored.touched_ms, record));
            }
        }
        let limits = &self.config.limits;
        let too_many = kept.beyond(limits.ended_tasks_per_principal_max);
        self.metrics.limits_hit.inc_by("limits.ended_tasks_per_principal_max", too_many.len() as u64);
        let over = streams.iter().filter(|(_, (_, touched_ms, _))| older_than(*touched_ms, self.config.stream.ttl));
        let over: Vec<LogId> = over.map(|(log, _)| log.clone()).chain(too_many).collect();
        each(over, |log| {
            let stream = streams.get(&log).cloned();
            async move {
                let Some((owner, _, record)) = stream else { return Ok(()) };
                let mut release = Commit::to(log, Fence::default(), now_ms);
                release.record = Some(record.tombstone(now_ms).stored(&owner));
                release.release = Some(Release::Contents);
                self.logs.write_once(release).await.map(drop)
            }
        })
        .await?;
        let too_many = tombstones.beyond(limits.tombstones_per_principal_max);
        self.metrics.limits_hit.inc_by("limits.tombstones_per_principal_max", too_many.len() as u64);
        due.extend(too_many);
        each(due, |log| {
            let status = released.get(&log).copied();
            async move {
                self.forget(&log, now_ms).await?;
                status.into_iter().for_each(|status| metrics::leave(&self.metrics.task_state(status.as_str())));
                Ok(())
            }
        })
        .await
    }

    /// Retention by age, expiry and tombstones.
    pub async fn sweep_for_ever(&self) {
        let config = &self.config;
        let ttl =
            config.session.ttl.min(config.buffer.age_max).min(config.session.tombstone_ttl).min(config.stream.ttl);
        let every = (ttl / 4).clamp(Duration::from_millis(100), Duration::from_secs(30));
        loop {
            self.rest(every).await;
            if let Err(error) = self.sweep().await {
                tracing::warn!(%error, "the sweep failed; it will be tried again");
            }
        }
    }

    /// Waits for the next sweep, or for less if so much has ended that it should not wait to be forgotten.
    async fn rest(&self, every: Duration) {
        let (ended, mut left) = ([self.sessions.ended(), self.tasks.ended()], every);
        loop {
            // At least once: a client that ends much must not make the sweep run without a pause.
            let pause = left.min(LOOK_EVERY);
            tokio::time::sleep(pause).await;
            left -= pause;
            if left.is_zero() || ended.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>() >= ENDED_MAX {
                break;
            }
        }
        ended.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Tells nodes that start later what time it is for those that run.
    pub async fn share_time_for_ever(&self) {
        loop {
            if let Err(error) = self.logs.store.share_time(self.logs.clock.now_ms()).await {
                tracing::debug!(%error, "the time of this node could not be shared");
            }
            tokio::time::sleep(SHARE_TIME_EVERY).await;
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let now_ms = self.logs.clock.now_ms();
        for trimmed in self.logs.store.sweep(now_ms).await? {
            let acked = self.sessions.acked(&trimmed.log).await;
            self.logs.count_trimmed(&trimmed, acked);
        }
        let health = self.logs.store.health();
        self.metrics.store_bytes.set(health.bytes as i64);
        self.metrics.store_logs.set(health.logs as i64);
        self.metrics.store_quarantined.set(health.quarantined.len() as i64);
        let older_than = |at: u64, ttl: Duration| now_ms.saturating_sub(at) >= ttl.as_millis() as u64;
        let (mut retained, mut fullest) = (0, 0);
        let (mut tombstones, mut due) = (Tombstones::default(), Vec::new());
        let (sessions, limit) =
            (self.logs.store.list(LogKind::Session, None).await?, self.config.limits.tombstones_per_principal_max);
        // Records are read only where something may be due.
        let (young, crowded) = (self.config.session.ttl.min(self.config.session.tombstone_ttl), sessions.len() > limit);
        for (log, stored) in sessions {
            let events = self.logs.store.extent(&log).await.map_or(0, |extent| extent.retained());
            (retained, fullest) = (retained + events, fullest.max(events));
            if !crowded && !older_than(stored.touched_ms, young) {
                continue;
            }
            let Ok(record) = SessionRecord::decode(&stored.body) else { continue };
            let id = record.current.clone().unwrap_or_else(|| SessionId::from(&log));
            if record.life == Life::Active && older_than(stored.touched_ms, self.config.session.ttl) {
                let _ = self.sessions.send(&id, &stored.owner, SessionCommand::unasked(SessionRequest::Expire)).await;
            } else if record.life != Life::Active && older_than(stored.touched_ms, self.config.session.tombstone_ttl) {
                due.push(log);
            } else if record.life != Life::Active && record.released {
                tombstones.note(&stored.owner, stored.touched_ms, &log);
            }
        }
        let too_many = tombstones.beyond(limit);
        self.metrics.limits_hit.inc_by("limits.tombstones_per_principal_max", too_many.len() as u64);
        due.extend(too_many);
        let forgotten = each(due, |log| async move {
            self.forget(&log, now_ms).await?;
            metrics::leave(&self.metrics.session_state("ended"));
            Ok(())
        });
        if let Err(error) = forgotten.await {
            tracing::warn!(%error, "tombstones of sessions could not all be removed");
        }
        self.sweep_tasks(now_ms).await?;
        if self.logs.placement.is_shared() {
            self.recount().await?;
        }
        self.sweep_marks(now_ms).await?;
        self.metrics.buffer_events.set(retained as i64);
        self.metrics.buffer_fullest.set(fullest as i64);
        Ok(())
    }

    /// What other nodes did is not seen as it happens, so what is counted here is counted anew from time to time.
    async fn recount(&self) -> Result<(), StoreError> {
        let (mut sessions, mut living) = (HashMap::new(), HashMap::new());
        for (_, stored) in self.logs.store.list(LogKind::Session, None).await? {
            let Ok(record) = SessionRecord::decode(&stored.body) else { continue };
            *sessions.entry(record.state()).or_default() += 1;
            if record.life == Life::Active {
                *living.entry(stored.owner).or_default() += 1;
            }
        }
        let (mut tasks, mut running) = (HashMap::new(), HashMap::new());
        for (log, stored) in self.logs.store.list(LogKind::Task, None).await? {
            let Some((_, record)) = task_of(&log, &stored) else { continue };
            *tasks.entry(record.status.as_str()).or_default() += 1;
            if record.is_running() {
                *running.entry(stored.owner).or_default() += 1;
            }
        }
        self.sessions.recount(living);
        self.tasks.recount(running);
        for state in SessionState::ALL {
            self.metrics.session_state(state.as_str()).set(sessions.get(&state).copied().unwrap_or(0));
        }
        for status in Status::ALL {
            self.metrics.task_state(status.as_str()).set(tasks.get(status.as_str()).copied().unwrap_or(0));
        }
        Ok(())
    }

    /// Other names of sessions that are gone, and marks of states that have expired.
    async fn sweep_marks(&self, now_ms: u64) -> Result<(), StoreError> {
        for (log, alias) in self.logs.store.list(LogKind::Alias, None).await? {
            let named = alias::listed(&alias);
            if named.is_empty() || named.iter().any(|name| LogId::parse(name).is_none()) {
                // What it stands for may be there, so the name is not free.
                tracing::error!(%log, "what a name stands for cannot be read; it is left alone");
                continue;
            }
            if alias::still_there(&self.logs, &named).await.is_empty() && self.is_still(&log, &alias).await {
                self.forget(&log, now_ms).await?;
            }
        }
        let kept_ms = (self.config.state.ttl + SET_BACK_MAX).as_millis() as u64;
        let by_both_ms = now_ms.min(clock::wall_ms());
        for (log, mark) in self.logs.store.list(LogKind::Restored, None).await? {
            if by_both_ms.saturating_sub(mark.touched_ms) > kept_ms {
                self.forget(&log, now_ms).await?;
            }
        }
        Ok(())
    }

    /// Whether a name still stands for what it did when it was listed: it may have been given anew since.
    async fn is_still(&self, log: &LogId, alias: &Record) -> bool {
        matches!(self.logs.store.record(log).await, Ok(Some(now)) if now.body == alias.body)
    }

    /// The last trace of a session goes.
    async fn forget(&self, log: &LogId, now_ms: u64) -> Result<(), StoreError> {
        let mut forget = Commit::to(log.clone(), Fence::default(), now_ms);
        forget.release = Some(Release::Log);
        match self.logs.write_once(forget).await {
            // Another node was faster.
            Err(StoreError::NoSuchLog) => Ok(()),
            done => done.map(drop),
        }
    }
}

/// Whether a process that died has left something to be done in a session.
fn needs_care(record: &SessionRecord) -> bool {
    let over = record.life != Life::Active && !record.released;
    let cut = record.turn.active().is_some_and(|active| active.pending.is_empty());
    over || cut || record.held || !record.queue.is_empty() || record.webhooks > 0
}

fn task_needs_care(record: &TaskRecord) -> bool {
    let cut = record.is_running() && matches!(record.worker, Worker::Agent { .. });
    cut || record.untold
}

fn task_of(log: &LogId, stored: &Record) -> Option<(TaskId, TaskRecord)> {
    match TaskRecord::decode(&stored.body) {
        Ok(record) => Some((TaskId::parse(log.as_str())?, record)),
        Err(why) => {
            tracing::error!(task = %log, %why, "a task's record cannot be read; it is left alone");
            None
        }
    }
}

/// Does the same to many logs, some at a time, so that the store can write them in one piece. What fails is tried again
/// with the next sweep; the first failure is returned.
async fn each<F: Future<Output = Result<(), StoreError>>>(
    logs: Vec<LogId>,
    act: impl Fn(LogId) -> F,
) -> Result<(), StoreError> {
    let mut done = futures_util::stream::iter(logs).map(act).buffer_unordered(AT_ONCE);
    let mut came_to = Ok(());
    while let Some(one) = done.next().await {
        came_to = came_to.and(one);
    }
    came_to
}
