//! Finds the actor of a task, or wakes it from the store; makes new tasks. Nothing here is the truth: the store is.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_core::project::Scribe;
use bowline_protocol::{Epoch, ErrorCode, LogId, Principal, Refusal, Seq, SessionId, TaskId};
use bowline_store::{Commit, Fence, Holder, Kind, Start};
use tokio::sync::{mpsc, oneshot};

use super::actor::{TaskActor, trace};
use super::command::{Append, Appended, Command, Commands, Ended, Ending};
use super::output;
use super::record::TaskRecord;
use super::work::Work;
use crate::cluster::Place;
use crate::node::{self, Shared};
use crate::reply::Reply;
use crate::{clock, dice, drive};

/// Commands that may wait for one task before its senders wait too.
const COMMANDS_MAX: usize = 64;

#[derive(Default)]
pub struct Tasks {
    live: Mutex<HashMap<TaskId, Entry>>,
    /// Tasks that run, by owner.
    running: Mutex<HashMap<Principal, usize>>,
    /// How many have ended since somebody asked.
    ended: AtomicUsize,
    pub(super) at_work: AtomicUsize,
}

#[derive(Clone)]
struct Entry {
    owner: Principal,
    commands: mpsc::Sender<Command>,
}

/// Where the actor of a task is.
enum Found {
    Here(mpsc::Sender<Command>),
    There(Holder),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tasks {
    /// The actor leaves, unless somebody has written to it meanwhile.
    pub fn retire(&self, id: &TaskId, commands: &Commands) -> bool {
        let mut live = lock(&self.live);
        if !commands.is_empty() {
            return false;
        }
        live.remove(id);
        true
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
    fn reserve(shared: &Shared, owner: &Principal) -> Result<(), Refusal> {
        let max = shared.config.limits.tasks_per_principal_max;
        let mut running = lock(&shared.tasks.running);
        let count = running.entry(owner.clone()).or_default();
        if *count < max {
            *count += 1;
            return Ok(());
        }
        shared.metrics.limits_hit.inc("limits.tasks_per_principal_max");
        let message = format!("You have {max} running tasks already. Complete or cancel one.");
        Err(Refusal::new(ErrorCode::RateLimited, message).retry_after_ms(5000))
    }

    /// Makes a task: a new log with its first record, and an actor if there is work for it.
    pub async fn found(
        shared: &Arc<Shared>,
        owner: &Principal,
        id: &TaskId,
        record: TaskRecord,
        work: Option<Work>,
    ) -> Result<(), Refusal> {
        if shared.is_draining() {
            return Err(node::draining());
        }
        Tasks::reserve(shared, owner)?;
        let mut commit = Commit::to(LogId::from(id), Fence::default(), record.touched_ms);
        let (epoch, first) = (Epoch::from_random(dice::u64()), Seq::ZERO.next());
        if let Some(opening) = output::opening(&record) {
            let session = record.session.clone().unwrap_or_else(|| SessionId::from(&commit.log));
            commit.events = vec![opening.seal(&session, &clock::timestamp())];
            trace(&mut commit, &epoch, first, &mut Scribe::new(first), &mut output::calls_of(&record));
        }
        let events = commit.events.len() as u64;
        commit.create = Some(Start { epoch, after: Seq::ZERO });
        commit.record = Some(record.stored(owner));
        if let Err(error) = shared.commit(commit).await {
            shared.tasks.forget_running(owner);
            return Err(node::task_refusal(&error));
        }
        shared.metrics.events_appended.inc_by(events);
        shared.metrics.task_state(record.status.as_str()).inc();
        if work.is_some() {
            shared.tasks.at_work.fetch_add(1, Ordering::Relaxed);
            Tasks::install(shared, TaskActor::new(shared.clone(), id.clone(), owner.clone(), record, work), owner);
        }
        Ok(())
    }

    /// Puts an actor where others find it, and sets it going.
    pub fn install(shared: &Arc<Shared>, actor: TaskActor, owner: &Principal) -> mpsc::Sender<Command> {
        let mut live = lock(&shared.tasks.live);
        // Two who looked at the same time woke it twice; the first one installed is the one that counts.
        if let Some(entry) = live.get(actor.id()).filter(|entry| !entry.commands.is_closed()) {
            return entry.commands.clone();
        }
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        live.insert(actor.id().clone(), Entry { owner: owner.clone(), commands: commands.clone() });
        drop(live);
        tokio::spawn(drive::task::drive(shared.clone(), Box::new(actor), inbox));
        commands
    }

    async fn find(shared: &Arc<Shared>, id: &TaskId, asker: &Principal) -> Result<Found, Refusal> {
        let awake = lock(&shared.tasks.live).get(id).filter(|entry| !entry.commands.is_closed()).cloned();
        if let Some(entry) = awake {
            return if entry.owner == *asker { Ok(Found::Here(entry.commands)) } else { Err(node::task_not_found()) };
        }
        let record = Tasks::look_up(shared, id, asker).await?;
        if let Some(cluster) = &shared.cluster {
            let place = cluster.place(&LogId::from(id)).await.map_err(|error| node::task_refusal(&error))?;
            if let Place::There(elsewhere) = place {
                return Ok(Found::There(elsewhere));
            }
        }
        let actor = TaskActor::new(shared.clone(), id.clone(), asker.clone(), record, None);
        Ok(Found::Here(Tasks::install(shared, actor, asker)))
    }

    /// The record of a task of the asker's own whose stream is still there.
    pub async fn look_up(shared: &Shared, id: &TaskId, asker: &Principal) -> Result<TaskRecord, Refusal> {
        let record = Tasks::record(shared, id, asker).await?;
        if record.released { Err(node::task_expired()) } else { Ok(record) }
    }

    /// The record of a task of the asker's own. Unknown and foreign are answered alike.
    pub async fn record(shared: &Shared, id: &TaskId, asker: &Principal) -> Result<TaskRecord, Refusal> {
        let stored = shared.store.record(&LogId::from(id)).await.map_err(|error| node::task_refusal(&error))?;
        let stored = stored.filter(|stored| stored.kind == Kind::Task && stored.owner == *asker);
        let record = TaskRecord::decode(&stored.ok_or_else(node::task_not_found)?.body);
        record.map_err(|why| {
            Refusal::new(ErrorCode::StoreUnavailable, format!("The task's record cannot be read: {why}."))
        })
    }

    /// Delivers a command to a task of the asker's own, wherever it lives.
    pub async fn send(shared: &Arc<Shared>, id: &TaskId, asker: &Principal, command: Command) -> Result<(), Refusal> {
        Tasks::try_send(shared, id, asker, command, 0).await.map_err(|(_, refusal)| refusal)
    }

    /// The same for another node; whoever asked there is told if it cannot be.
    pub async fn deliver(shared: &Arc<Shared>, id: &TaskId, asker: &Principal, command: Command, hops: u8) {
        if let Err((command, refusal)) = Tasks::try_send(shared, id, asker, command, hops).await {
            command.refuse(&refusal);
        }
    }

    async fn try_send(
        shared: &Arc<Shared>,
        id: &TaskId,
        asker: &Principal,
        command: Command,
        hops: u8,
    ) -> Result<(), (Box<Command>, Refusal)> {
        let mut command = command;
        // An actor that leaves at this very moment is woken again; that cannot go on for long.
        for _ in 0..100 {
            match Tasks::find(shared, id, asker).await {
                Err(refusal) => return Err((Box::new(command), refusal)),
                Ok(Found::There(node)) => return Tasks::pass_on(shared, &node, id, asker, command, hops),
                Ok(Found::Here(commands)) => match commands.send(command).await {
                    Ok(()) => return Ok(()),
                    Err(returned) => command = returned.0,
                },
            }
            tokio::task::yield_now().await;
        }
        Err((Box::new(command), gone()))
    }

    /// Hands a command over to the node that holds its task.
    pub fn pass_on(
        shared: &Shared,
        node: &Holder,
        id: &TaskId,
        asker: &Principal,
        command: Command,
        hops: u8,
    ) -> Result<(), (Box<Command>, Refusal)> {
        match &shared.cluster {
            Some(cluster) => cluster.forward_task(node, id, asker, command, hops),
            None => Err((Box::new(command), gone())),
        }
    }

    /// Hands an append over; the answer comes once it is durable.
    pub async fn append(
        shared: &Arc<Shared>,
        id: &TaskId,
        asker: &Principal,
        place: Option<(bowline_protocol::ProducerId, u64)>,
        chunks: Vec<Box<serde_json::value::RawValue>>,
    ) -> Result<oneshot::Receiver<Result<Appended, Refusal>>, Refusal> {
        let (reply, answer) = Reply::here();
        Tasks::send(shared, id, asker, Command::Append(Append { place, chunks, reply })).await?;
        Ok(answer)
    }

    /// Ends a task, if it has not ended yet.
    pub async fn end(
        shared: &Arc<Shared>,
        id: &TaskId,
        asker: &Principal,
        ending: Ending,
    ) -> Result<Box<Ended>, Refusal> {
        let (reply, answer) = Reply::here();
        Tasks::send(shared, id, asker, Command::End { ending, reply }).await?;
        answer.await.unwrap_or_else(|_gone| Err(gone()))
    }
}

/// The actor went away without a word.
pub fn gone() -> Refusal {
    Refusal::new(ErrorCode::Internal, "The task could not be reached. Try again.").retry_after_ms(1000)
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({} awake)", lock(&self.live).len())
    }
}
