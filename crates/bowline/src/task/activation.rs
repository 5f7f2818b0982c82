//! A task as an actor: how it is found and activated, when it is due, and when it leaves.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bowline_actor::{ActivationError, Actor, ActorLocation, RunEvent};
use bowline_api::{AgentError, Emission};
use bowline_env::clock;
use bowline_protocol::{ErrorCode, LogId, Principal, Refusal, TaskId};
use bowline_store::StoreError;
use serde_json::Value;

use super::actor::TaskActor;
use super::command::{Append, TaskClose, TaskCommand, TaskRequest};
use super::record::Worker;
use super::registry::{Tasks, gone};
use super::stream_state::StreamState;
use super::work::TaskWork;
use crate::logs::Location;
use crate::refusals;

/// How long an actor without work stays, so that the next append finds it warm.
const LINGER: Duration = Duration::from_secs(2);

impl Actor for TaskActor {
    type Id = TaskId;
    type Command = Box<TaskCommand>;
    type Emission = Emission;
    type Ending = Result<Value, AgentError>;
    type Presence = ();
    type Refusal = Refusal;
    type Host = Tasks;

    const COMMANDS_AT_ONCE: usize = 64;

    fn not_found() -> Refusal {
        refusals::task_not_found()
    }

    fn unreachable() -> Refusal {
        gone()
    }

    fn is_final(refusal: &Refusal) -> bool {
        matches!(refusal.code, ErrorCode::TaskNotFound | ErrorCode::TaskExpired)
    }

    async fn find(
        tasks: &Arc<Tasks>,
        id: &TaskId,
        asker: &Principal,
        _command: &Box<TaskCommand>,
    ) -> Result<ActorLocation<TaskActor>, Refusal> {
        let record = tasks.look_up(id, asker).await?;
        let location = tasks.logs.placement.locate(&LogId::from(id)).await;
        match location.map_err(|error| refusals::of_task(&error))? {
            Location::There(node) => Ok(ActorLocation::There(node)),
            Location::Here => {
                Ok(ActorLocation::Here(TaskActor::new(tasks.clone(), id.clone(), asker.clone(), record, None)))
            }
        }
    }

    fn refuse(_id: &TaskId, command: Box<TaskCommand>, refusal: &Refusal) {
        command.refuse(refusal);
    }

    fn host(&self) -> &Arc<Tasks> {
        &self.shared
    }

    fn id(&self) -> &TaskId {
        &self.id
    }

    fn owner(&self) -> &Principal {
        &self.owner
    }

    fn presence(&self) -> Arc<()> {
        Arc::default()
    }

    async fn activate(&mut self) -> Result<(), ActivationError<Refusal>> {
        if self.activated {
            return Ok(());
        }
        let refuse = |error: StoreError| ActivationError::from_lease(error, refusals::of_task);
        if !self.writer.is_leased() {
            self.writer.acquire().await.map_err(refuse)?;
            Box::pin(self.read_record()).await?;
        }
        self.read_stream().await.map_err(refuse)?;
        self.activated = true;
        if self.record.is_running() && self.work.is_none() && matches!(self.record.worker, Worker::Agent { .. }) {
            let message = "The server was restarted while this was at work.";
            self.end(TaskClose::failed(ErrorCode::AgentLost, message)).await;
        }
        if self.record.untold {
            self.retry_at = Some(clock::now());
        }
        Ok(())
    }

    async fn reactivate(&mut self) -> Result<(), ActivationError<Refusal>> {
        if let Some(work) = self.work.take() {
            self.shared.at_work.fetch_sub(1, Ordering::Relaxed);
            work.stop();
        }
        (self.owed, self.retry_at, self.activated) = (None, None, false);
        self.writer.reset();
        self.activate().await
    }

    fn is_in_doubt(&self) -> bool {
        self.activated && !self.writer.is_leased()
    }

    /// Appends that come together are made durable together.
    async fn handle(&mut self, commands: Vec<Box<TaskCommand>>) {
        self.idle_since = clock::now();
        let mut appends: Vec<Append> = Vec::new();
        for command in commands {
            match command.ask {
                TaskRequest::Append(append) => appends.push(append),
                TaskRequest::End { ending, reply } => {
                    self.append_all(std::mem::take(&mut appends)).await;
                    let answered = self.asked_to_end(ending).await;
                    reply.send(answered.map(Box::new));
                }
                TaskRequest::Look => self.look().await,
                TaskRequest::Verify => self.verify().await,
            }
        }
        self.append_all(appends).await;
    }

    fn process(&mut self) -> Option<&mut TaskWork> {
        self.work.as_deref_mut()
    }

    async fn handle_run_event(&mut self, event: RunEvent<Emission, Result<Value, AgentError>>) {
        self.handle_work(event).await;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let stuck = self.work.as_ref().and_then(|work| work.retry_at());
        let idle = self.is_idle().then(|| self.idle_since + LINGER);
        [idle, self.retry_at, stuck].into_iter().flatten().min()
    }

    async fn handle_timeout(&mut self, now: Instant) {
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

    /// A task goes on until it has ended; readers and producers come back elsewhere by themselves.
    fn handle_draining(&mut self) {}

    fn may_leave(&self, now: Instant) -> bool {
        self.is_idle() && now >= self.idle_since + LINGER
    }

    async fn give_back(&mut self) {
        self.writer.give_back().await;
    }
}

impl TaskActor {
    /// Believes what the store has. That is certain only under a lease: until then the one who had it before, or a commit of
    /// this node that is in doubt, may still change it.
    async fn read_record(&mut self) -> Result<(), Refusal> {
        let record = self.shared.look_up(&self.id, &self.owner).await?;
        self.shared.metrics.task_moved(self.record.status.as_str(), record.status.as_str());
        if self.record.is_running() && !record.is_running() {
            self.shared.forget_running(&self.owner);
        }
        (self.stored_ms, self.record) = (record.touched_ms, record);
        (self.stream, self.producers) = (StreamState::new(&self.record, &self.id), HashMap::new());
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.work.is_none() && self.retry_at.is_none()
    }
}
