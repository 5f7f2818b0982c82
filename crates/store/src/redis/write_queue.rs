//! Writes to one server, in order, many in one round trip; and what becomes of them when the server is lost on the way.
//!
//! One batch is under way at a time, and the next one gathers meanwhile. A batch has at most one operation for each log. So
//! when an answer is lost, the log's last commit is the only one in doubt, and the log knows its last commit by id: the
//! same commit sent again is answered as it was, and not done twice. What stays in doubt until its time is up is reported
//! as such. What was sent on a connection that was given up may arrive after it was sent again on another, and after the
//! commits that followed: commits are numbered, and the script refuses an earlier number under the same fence.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bowline_env::clock;
use bowline_mutant::mutant;
use bowline_protocol::LogId;
use redis::{Pipeline, Value};
use tokio::sync::{mpsc, oneshot};

use super::operation::RedisOperation;
use super::options::RedisOptions;
use super::reply::{Refused, number};
use super::server::{Server, ServerConnection, rest};
use super::topology::Topology;
use crate::StoreError;

/// A batch grows no larger than this, so that the first in it does not wait for long.
const BATCH_OPERATIONS_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 4 << 20;

/// How long Redis waits for replicas before it says how many there were. Short, because the queue asks again.
const WAIT_MS: u64 = 500;

#[derive(Clone)]
pub struct WriteQueue {
    queue: mpsc::UnboundedSender<QueuedWrite>,
}

/// A write that waits for its turn or its answer.
pub struct QueuedWrite {
    pub log: LogId,
    pub operation: RedisOperation,
    /// Whether the operation wants to know which server does it.
    pub wants_run: bool,
    until: Instant,
    /// It was sent, and the answer was lost.
    in_doubt: bool,
    asking: bool,
    answer: oneshot::Sender<Result<Value, StoreError>>,
}

impl WriteQueue {
    pub fn start(topology: Weak<Topology>, server: Arc<Server>, options: &RedisOptions) -> WriteQueue {
        let (queue, writes) = mpsc::unbounded_channel();
        let driver = QueueDriver {
            topology,
            server,
            timeout: options.timeout,
            // So that a second attempt fits into the time that a caller waits.
            patience: options.timeout / 2,
            wait_replicas: options.wait_replicas,
            wire: None,
            held: VecDeque::new(),
            attempt: 0,
        };
        tokio::spawn(driver.run(writes));
        WriteQueue { queue }
    }

    /// Queues a write at once; its outcome comes later. The number of callers is bounded elsewhere.
    pub fn send(
        &self,
        log: &LogId,
        operation: RedisOperation,
        wants_run: bool,
        timeout: Duration,
    ) -> oneshot::Receiver<Result<Value, StoreError>> {
        let (answer, answered) = oneshot::channel();
        let until = clock::now() + timeout;
        self.put(QueuedWrite { log: log.clone(), operation, wants_run, until, in_doubt: false, asking: false, answer });
        answered
    }

    fn put(&self, write: QueuedWrite) {
        // A queue ends only with its store; a caller that still waits then sees its answer dropped.
        let _ = self.queue.send(write);
    }
}

impl fmt::Debug for WriteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteQueue")
    }
}

impl QueuedWrite {
    fn tell(self, answer: Result<Value, StoreError>) {
        // A caller that stopped waiting loses nothing: what was written stays.
        let _ = self.answer.send(answer);
    }

    fn give_up(self, why: &str) {
        let answer = match self.in_doubt && !mutant("take-a-doubt-for-a-no") {
            true => StoreError::InDoubt(why.to_owned()),
            false => StoreError::Unavailable(why.to_owned()),
        };
        self.tell(Err(answer));
    }
}

struct QueueDriver {
    topology: Weak<Topology>,
    server: Arc<Server>,
    timeout: Duration,
    patience: Duration,
    wait_replicas: u32,
    wire: Option<ServerConnection>,
    /// Those who go before the queue, in their order.
    held: VecDeque<QueuedWrite>,
    attempt: u32,
}

impl QueueDriver {
    async fn run(mut self, mut writes: mpsc::UnboundedReceiver<QueuedWrite>) {
        loop {
            if self.held.is_empty() {
                match writes.recv().await {
                    Some(write) => self.held.push_back(write),
                    None => return,
                }
            }
            while self.held.len() < BATCH_OPERATIONS_MAX {
                let Ok(write) = writes.try_recv() else { break };
                self.held.push_back(write);
            }
            let batch = self.take_batch();
            match self.carry_out(batch).await {
                Ok(()) => self.attempt = 0,
                Err(why) => {
                    self.let_go(&why, &mut writes);
                    tokio::time::sleep(rest(self.attempt)).await;
                    self.attempt = self.attempt.saturating_add(1);
                }
            }
        }
    }

    /// The next ones to go: for each log the first that is held.
    fn take_batch(&mut self) -> Vec<QueuedWrite> {
        let (mut batch, mut later, mut logs, mut bytes) = (Vec::new(), VecDeque::new(), HashSet::new(), 0);
        for write in self.held.drain(..) {
            if logs.insert(write.log.clone()) && bytes < BATCH_BYTES_MAX {
                bytes += write.operation.len();
                batch.push(write);
            } else {
                later.push_back(write);
            }
        }
        self.held = later;
        batch
    }

    fn put_back(&mut self, writes: Vec<QueuedWrite>) {
        writes.into_iter().rev().for_each(|write| self.held.push_front(write));
    }

    /// The server cannot be used. Callers whose time is up are answered, and all that is not in doubt once it is known to be
    /// away for long: waiting would not help them.
    fn let_go(&mut self, why: &str, writes: &mut mpsc::UnboundedReceiver<QueuedWrite>) {
        while let Ok(write) = writes.try_recv() {
            self.held.push_back(write);
        }
        let now = clock::now();
        let away = self.server.outage().is_some_and(|(since, _)| clock::since(since) > self.timeout);
        for write in std::mem::take(&mut self.held) {
            if write.until <= now || (away && !write.in_doubt) {
                write.give_up(why);
            } else {
                self.held.push_back(write);
            }
        }
    }

    /// Sends a batch and answers each write in it, or puts back those that must be tried again.
    async fn carry_out(&mut self, mut batch: Vec<QueuedWrite>) -> Result<(), String> {
        // What would be sent into nothing would be in doubt; a dial that fails is not.
        let mut wire = match self.wire.take().filter(|wire| !wire.is_gone()) {
            Some(wire) => wire,
            None => match self.server.dial(None).await {
                Ok(wire) => wire,
                Err(why) => {
                    self.put_back(batch);
                    return Err(why);
                }
            },
        };
        if wire.facts.run != self.server.facts().run {
            // The server was found to be another one since this connection was made.
            self.put_back(batch);
            return Err(format!("Redis at {} has changed", self.server));
        }
        let commands = self.write_down(&batch, &wire);
        let mut said = match wire.send(&commands, self.patience).await {
            Ok(said) => said,
            Err(why) => {
                let why = format!("Redis at {} was lost on the way: {why}", self.server);
                self.server.note_outage(&why);
                batch.iter_mut().for_each(|write| write.in_doubt = true);
                self.put_back(batch);
                return Err(why);
            }
        };
        self.server.note_fine();
        let replicas = (self.wait_replicas > 0).then(|| said.pop()).flatten();
        let replicas = replicas.and_then(Result::ok).and_then(number).unwrap_or(0);
        let mut said = said.into_iter();
        let (mut done, mut again, mut obstacle, mut full) = (Vec::new(), Vec::new(), None, None);
        for mut write in batch {
            if write.asking {
                said.next();
                write.asking = false;
            }
            match said.next().unwrap_or(Err(Refused::Other("no answer".into()))) {
                Ok(value) => done.push((write, value)),
                Err(Refused::Moved(to)) => {
                    self.hand_over(write, |topology, slot| topology.note_moved(slot, &to).queue.clone());
                }
                Err(Refused::Ask(to)) => {
                    write.asking = true;
                    self.hand_over(write, |topology, _| topology.master_at(&to).queue.clone());
                }
                Err(Refused::Full(why)) if !write.in_doubt => {
                    full = Some(why.clone());
                    write.tell(Err(StoreError::Full(why)));
                }
                Err(Refused::Other(why)) if !write.in_doubt => write.tell(Err(StoreError::Io(why))),
                Err(refused) => {
                    again.push(write);
                    obstacle = Some(refused);
                }
            }
        }
        self.put_back(again);
        self.wait_for_replicas(&mut wire, u64::from(self.wait_replicas), replicas, done).await?;
        match obstacle {
            None => {
                match full {
                    Some(why) => self.server.note_refusal(&format!("Redis at {} is full: {why}", self.server)),
                    None => self.server.note_taken(),
                }
                self.wire = Some(wire);
            }
            Some(Refused::NoScript) if wire.load(self.timeout).await.is_ok() => self.wire = Some(wire),
            // The connection is made anew, which finds out who is there now.
            Some(refused) => {
                let why = format!("Redis at {} takes no commits: {refused}", self.server);
                self.server.note_refusal(&why);
                return Err(why);
            }
        }
        Ok(())
    }

    fn write_down(&self, batch: &[QueuedWrite], wire: &ServerConnection) -> Pipeline {
        let facts = &wire.facts;
        let run = format!("{}{}", facts.run, if facts.syncs_first() { "+" } else { "" });
        let trusted: &[u8] = if facts.began_with_its_file() { b"1" } else { b"0" };
        let mut commands = Pipeline::with_capacity(batch.len() + 1);
        for write in batch {
            if write.asking {
                commands.cmd("ASKING");
            }
            match write.wants_run {
                true => write.operation.add_to(&mut commands, wire, &[run.as_bytes(), trusted]),
                false => write.operation.add_to(&mut commands, wire, &[]),
            }
        }
        if self.wait_replicas > 0 {
            commands.cmd("WAIT").arg(self.wait_replicas).arg(WAIT_MS);
        }
        commands
    }

    fn hand_over(&self, write: QueuedWrite, to: impl FnOnce(&Arc<Topology>, u16) -> WriteQueue) {
        match self.topology.upgrade() {
            Some(topology) => to(&topology, write.operation.slot).put(write),
            None => write.tell(Err(StoreError::Closed)),
        }
    }

    /// Answers what was done, once enough replicas have it.
    async fn wait_for_replicas(
        &mut self,
        wire: &mut ServerConnection,
        wanted: u64,
        mut have: u64,
        mut done: Vec<(QueuedWrite, Value)>,
    ) -> Result<(), String> {
        let mut commands = Pipeline::new();
        commands.cmd("WAIT").arg(wanted).arg(WAIT_MS);
        while have < wanted && !done.is_empty() {
            let now = clock::now();
            let (late, waiting): (Vec<_>, Vec<_>) = done.into_iter().partition(|(write, _)| write.until <= now);
            for (mut write, _) in late {
                write.in_doubt = true;
                write.give_up(&format!("only {have} of {wanted} replicas have it"));
            }
            done = waiting;
            have = match wire.send(&commands, self.patience).await {
                Ok(said) => said.into_iter().next().and_then(Result::ok).and_then(number).unwrap_or(0),
                Err(why) => {
                    let lost = done.into_iter().map(|(write, _)| QueuedWrite { in_doubt: true, ..write });
                    let lost = lost.collect();
                    self.put_back(lost);
                    return Err(why);
                }
            };
        }
        done.into_iter().for_each(|(write, value)| write.tell(Ok(value)));
        Ok(())
    }
}
