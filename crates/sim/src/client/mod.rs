//! The clients: each a task with a script, which it follows until it is done, however often the wire breaks.

pub mod holder;
mod job;
pub mod mcp;
mod mcp_call;
pub mod mcp_stranger;
pub mod observer;
pub mod producer;
pub mod repeater;
pub mod stranger;
pub mod turns;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dice::Dice;
use crate::net::SimNet;
use crate::oracle::Oracle;
use crate::trace::Trace;
use crate::wire::{Balancer, SimCaller};

/// What all clients have.
#[derive(Clone, Debug)]
pub struct Clients {
    pub net: SimNet,
    pub trace: Trace,
    pub oracle: Oracle,
    /// The faults have stopped.
    pub is_quiet: Arc<AtomicBool>,
    balancer: Balancer,
    /// How many clients have not finished.
    left: Arc<Mutex<Vec<String>>>,
}

impl Clients {
    pub fn new(net: SimNet, trace: Trace, oracle: Oracle, balancer: Balancer) -> Clients {
        Clients { net, trace, oracle, is_quiet: Arc::default(), balancer, left: Arc::default() }
    }

    pub fn caller(&self, who: &str, owner: &str) -> SimCaller {
        let (net, trace) = (self.net.clone(), self.trace.clone());
        let balancer = self.balancer.clone();
        SimCaller { net, trace, who: who.to_owned(), token: format!("token-of-{owner}"), balancer }
    }

    /// Starts a client on the current runtime.
    pub fn spawn(&self, who: &str, script: impl Future<Output = ()> + Send + 'static) {
        let (left, who) = (self.left.clone(), who.to_owned());
        lock(&left).push(who.clone());
        let trace = self.trace.clone();
        tokio::spawn(async move {
            script.await;
            trace.note(&who, "is done");
            lock(&left).retain(|other| *other != who);
        });
    }

    /// Who has not finished.
    pub fn left(&self) -> Vec<String> {
        lock(&self.left).clone()
    }

    pub fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One session, as those who share it know it: two devices of one person tell each other its id.
#[derive(Clone, Debug)]
pub struct SharedSession(Arc<SessionFacts>);

#[derive(Debug)]
struct SessionFacts {
    owner: String,
    /// Its names, the newest last. One that a restore gave it may be lost, and the session goes by the one before.
    names: Mutex<Vec<String>>,
    /// Holders that are not done.
    working: AtomicUsize,
    /// Which holder makes it, or makes it anew.
    maker: Mutex<Option<String>>,
    was_made: AtomicBool,
    /// No holder has acknowledged more.
    acked: AtomicU64,
    /// A holder has sent a cancel, which stops whatever runs.
    is_cancelled: AtomicBool,
    /// Messages that have had their answer: key and text.
    answered: Mutex<Vec<(String, String)>>,
}

impl SharedSession {
    pub fn new(owner: &str, holders: usize) -> SharedSession {
        let working = AtomicUsize::new(holders);
        let (owner, names, acked) = (owner.to_owned(), Mutex::default(), AtomicU64::default());
        SharedSession(Arc::new(SessionFacts {
            owner,
            names,
            working,
            maker: Mutex::default(),
            was_made: AtomicBool::default(),
            acked,
            is_cancelled: AtomicBool::default(),
            answered: Mutex::default(),
        }))
    }

    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    pub fn id(&self) -> Option<String> {
        lock(&self.0.names).last().cloned()
    }

    pub fn set_id(&self, id: &str) {
        self.0.was_made.store(true, Ordering::Relaxed);
        let mut names = lock(&self.0.names);
        names.retain(|name| name != id);
        names.push(id.to_owned());
    }

    /// A holder acknowledges this; whether that arrives is not known.
    pub fn note_ack(&self, seq: u64) {
        self.0.acked.fetch_max(seq, Ordering::Relaxed);
    }

    /// This name of the session is gone; without another one it has to be made anew.
    pub fn lose(&self, id: &str) {
        let mut names = lock(&self.0.names);
        names.retain(|name| name != id);
        if names.is_empty() {
            *lock(&self.0.maker) = None;
            self.0.acked.store(0, Ordering::Relaxed);
        }
    }

    /// Whether this holder makes the session: the first one does, and any after it was lost.
    pub fn makes(&self, who: &str, is_first: bool) -> bool {
        let mut maker = lock(&self.0.maker);
        let was_made = self.0.was_made.load(Ordering::Relaxed);
        if maker.is_none() && (is_first || was_made) {
            *maker = Some(who.to_owned());
        }
        maker.as_deref() == Some(who)
    }

    pub fn note_cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether any holder has ever cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// What all holders have acknowledged, at the most.
    pub fn acked(&self) -> u64 {
        self.0.acked.load(Ordering::Relaxed)
    }

    pub fn note_answered(&self, key: &str, text: &str) {
        lock(&self.0.answered).push((key.to_owned(), text.to_owned()));
    }

    pub fn answered(&self) -> Vec<(String, String)> {
        lock(&self.0.answered).clone()
    }

    pub fn holder_is_done(&self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }

    /// Nothing more will be written.
    pub fn is_over(&self) -> bool {
        self.0.working.load(Ordering::Relaxed) == 0
    }
}

/// Where a client goes on after a refusal.
pub fn superseded_by(frame: &serde_json::Value) -> Option<String> {
    let facts = &frame["metadata"];
    let id = facts["details"]["superseded_by"].as_str().or(facts["superseded_by"].as_str());
    id.map(str::to_owned)
}

/// A client waits between two attempts: briefly, and differently each time.
pub async fn back_off(caller: &SimCaller, dice: &mut Dice) {
    let ms = dice.between(5, 400);
    caller.pause(ms).await;
}
