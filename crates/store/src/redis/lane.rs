//! Writes to one server, in order, many in one round trip; and what becomes of them when the server is lost on the way.
//!
//! One batch is under way at a time, and the next one gathers meanwhile. A batch has at most one act for each log. So
//! when an answer is lost, the log's last commit is the only one in doubt, and the log knows its last commit by id: the
//! same commit sent again is answered as it was, and not done twice. What stays in doubt until its time is up is told
//! as such.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bowline_protocol::LogId;
use redis::{Pipeline, Value};
use tokio::sync::{mpsc, oneshot};

use super::act::Act;
use super::fleet::Fleet;
use super::options::RedisOptions;
use super::reply::{Refused, number};
use super::server::{Server, Wire, rest};
use crate::StoreError;

/// A batch grows no larger than this, so that the first in it does not wait for long.
const BATCH_ACTS_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 4 << 20;

/// How long Redis waits for replicas before it says how many there were. Short, because the lane asks again.
const WAIT_MS: u64 = 500;

#[derive(Clone)]
pub struct Lane {
    queue: mpsc::UnboundedSender<Errand>,
}

/// A write that waits for its turn or its answer.
pub struct Errand {
    pub log: LogId,
    pub act: Act,
    /// Whether the act wants to know which server does it.
    pub wants_run: bool,
    until: Instant,
    /// It was sent, and the answer was lost.
    in_doubt: bool,
    asking: bool,
    answer: oneshot::Sender<Result<Value, StoreError>>,
}

impl Lane {
    pub fn start(fleet: Weak<Fleet>, server: Arc<Server>, options: &RedisOptions) -> Lane {
        let (queue, errands) = mpsc::unbounded_channel();
        let driver = Driver {
            fleet,
            server,
            timeout: options.timeout,
            // So that a second attempt fits into the time that a caller waits.
            patience: options.timeout / 2,
            wait_replicas: options.wait_replicas,
            wire: None,
            held: VecDeque::new(),
            attempt: 0,
        };
        tokio::spawn(driver.run(errands));
        Lane { queue }
    }

    /// Queues a write at once; what it came to is told later. The number of callers is bounded elsewhere.
    pub fn send(
        &self,
        log: &LogId,
        act: Act,
        wants_run: bool,
        timeout: Duration,
    ) -> oneshot::Receiver<Result<Value, StoreError>> {
        let (answer, answered) = oneshot::channel();
        let until = Instant::now() + timeout;
        self.put(Errand { log: log.clone(), act, wants_run, until, in_doubt: false, asking: false, answer });
        answered
    }

    fn put(&self, errand: Errand) {
        // A lane ends only with its store; whoever still waits then learns it from the dropped answer.
        let _ = self.queue.send(errand);
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lane")
    }
}

impl Errand {
    fn tell(self, told: Result<Value, StoreError>) {
        // Whoever does not wait any more has lost nothing: what was done stands.
        let _ = self.answer.send(told);
    }

    fn give_up(self, why: &str) {
        let told = match self.in_doubt {
            true => StoreError::InDoubt(why.to_owned()),
            false => StoreError::Unavailable(why.to_owned()),
        };
        self.tell(Err(told));
    }
}

struct Driver {
    fleet: Weak<Fleet>,
    server: Arc<Server>,
    timeout: Duration,
    patience: Duration,
    wait_replicas: u32,
    wire: Option<Wire>,
    /// Those who go before the queue, in their order.
    held: VecDeque<Errand>,
    attempt: u32,
}

impl Driver {
    async fn run(mut self, mut errands: mpsc::UnboundedReceiver<Errand>) {
        loop {
            if self.held.is_empty() {
                match errands.recv().await {
                    Some(errand) => self.held.push_back(errand),
                    None => return,
                }
            }
            while self.held.len() < BATCH_ACTS_MAX {
                let Ok(errand) = errands.try_recv() else { break };
                self.held.push_back(errand);
            }
            let batch = self.take_batch();
            match self.carry_out(batch).await {
                Ok(()) => self.attempt = 0,
                Err(why) => {
                    self.let_go(&why, &mut errands);
                    tokio::time::sleep(rest(self.attempt)).await;
                    self.attempt = self.attempt.saturating_add(1);
                }
            }
        }
    }

    /// The next ones to go: for each log the first that is held.
    fn take_batch(&mut self) -> Vec<Errand> {
        let (mut batch, mut later, mut logs, mut bytes) = (Vec::new(), VecDeque::new(), HashSet::new(), 0);
        for errand in self.held.drain(..) {
            if logs.insert(errand.log.clone()) && bytes < BATCH_BYTES_MAX {
                bytes += errand.act.len();
                batch.push(errand);
            } else {
                later.push_back(errand);
            }
        }
        self.held = later;
        batch
    }

    fn put_back(&mut self, errands: Vec<Errand>) {
        errands.into_iter().rev().for_each(|errand| self.held.push_front(errand));
    }

    /// The server cannot be used. Those whose time is up are told, and all that is not in doubt once it is known to be
    /// away for long: waiting would not help them.
    fn let_go(&mut self, why: &str, errands: &mut mpsc::UnboundedReceiver<Errand>) {
        while let Ok(errand) = errands.try_recv() {
            self.held.push_back(errand);
        }
        let now = Instant::now();
        let away = self.server.trouble().is_some_and(|(since, _)| since.elapsed() > self.timeout);
        for errand in std::mem::take(&mut self.held) {
            if errand.until <= now || (away && !errand.in_doubt) {
                errand.give_up(why);
            } else {
                self.held.push_back(errand);
            }
        }
    }

    /// Sends a batch and tells everybody in it what came of it, or puts back those who must try again.
    async fn carry_out(&mut self, mut batch: Vec<Errand>) -> Result<(), String> {
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
                self.server.note_trouble(&why);
                batch.iter_mut().for_each(|errand| errand.in_doubt = true);
                self.put_back(batch);
                return Err(why);
            }
        };
        self.server.note_fine();
        let replicas = (self.wait_replicas > 0).then(|| said.pop()).flatten();
        let replicas = replicas.and_then(Result::ok).and_then(number).unwrap_or(0);
        let mut said = said.into_iter();
        let (mut done, mut again, mut obstacle, mut full) = (Vec::new(), Vec::new(), None, None);
        for mut errand in batch {
            if errand.asking {
                said.next();
                errand.asking = false;
            }
            match said.next().unwrap_or(Err(Refused::Other("no answer".into()))) {
                Ok(value) => done.push((errand, value)),
                Err(Refused::Moved(to)) => {
                    self.hand_over(errand, |fleet, slot| fleet.note_moved(slot, &to).lane.clone());
                }
                Err(Refused::Ask(to)) => {
                    errand.asking = true;
                    self.hand_over(errand, |fleet, _| fleet.post_at(&to).lane.clone());
                }
                Err(Refused::Full(why)) if !errand.in_doubt => {
                    full = Some(why.clone());
                    errand.tell(Err(StoreError::Full(why)));
                }
                Err(Refused::Other(why)) if !errand.in_doubt => errand.tell(Err(StoreError::Io(why))),
                Err(refused) => {
                    again.push(errand);
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

    fn write_down(&self, batch: &[Errand], wire: &Wire) -> Pipeline {
        let facts = &wire.facts;
        let run = format!("{}{}", facts.run, if facts.syncs_first() { "+" } else { "" });
        let trusted: &[u8] = if facts.began_with_its_file() { b"1" } else { b"0" };
        let mut commands = Pipeline::with_capacity(batch.len() + 1);
        for errand in batch {
            if errand.asking {
                commands.cmd("ASKING");
            }
            match errand.wants_run {
                true => errand.act.add_to(&mut commands, wire, &[run.as_bytes(), trusted]),
                false => errand.act.add_to(&mut commands, wire, &[]),
            }
        }
        if self.wait_replicas > 0 {
            commands.cmd("WAIT").arg(self.wait_replicas).arg(WAIT_MS);
        }
        commands
    }

    fn hand_over(&self, errand: Errand, to: impl FnOnce(&Arc<Fleet>, u16) -> Lane) {
        match self.fleet.upgrade() {
            Some(fleet) => to(&fleet, errand.act.slot).put(errand),
            None => errand.tell(Err(StoreError::Closed)),
        }
    }

    /// Answers what was done, once enough replicas have it.
    async fn wait_for_replicas(
        &mut self,
        wire: &mut Wire,
        wanted: u64,
        mut have: u64,
        mut done: Vec<(Errand, Value)>,
    ) -> Result<(), String> {
        let mut commands = Pipeline::new();
        commands.cmd("WAIT").arg(wanted).arg(WAIT_MS);
        while have < wanted && !done.is_empty() {
            let now = Instant::now();
            let (late, waiting): (Vec<_>, Vec<_>) = done.into_iter().partition(|(errand, _)| errand.until <= now);
            for (mut errand, _) in late {
                errand.in_doubt = true;
                errand.give_up(&format!("only {have} of {wanted} replicas have it"));
            }
            done = waiting;
            have = match wire.send(&commands, self.patience).await {
                Ok(said) => said.into_iter().next().and_then(Result::ok).and_then(number).unwrap_or(0),
                Err(why) => {
                    let lost = done.into_iter().map(|(errand, _)| Errand { in_doubt: true, ..errand });
                    let lost = lost.collect();
                    self.put_back(lost);
                    return Err(why);
                }
            };
        }
        done.into_iter().for_each(|(errand, value)| errand.tell(Ok(value)));
        Ok(())
    }
}
