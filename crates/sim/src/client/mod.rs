//! The clients: each a task with a script, which it follows until it is done, however often the wire breaks.

pub mod holder;
pub mod observer;
pub mod producer;
pub mod stranger;
pub mod turns;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dice::Dice;
use crate::net::SimNet;
use crate::oracle::Oracle;
use crate::trace::Trace;
use crate::wire::SimCaller;

/// What all clients have.
#[derive(Clone, Debug)]
pub struct Clients {
    pub net: SimNet,
    pub trace: Trace,
    pub oracle: Oracle,
    /// The faults have stopped.
    pub is_quiet: Arc<AtomicBool>,
    /// How many clients have not finished.
    left: Arc<Mutex<Vec<String>>>,
}

impl Clients {
    pub fn new(net: SimNet, trace: Trace, oracle: Oracle) -> Clients {
        Clients { net, trace, oracle, is_quiet: Arc::default(), left: Arc::default() }
    }

    pub fn caller(&self, who: &str, owner: &str) -> SimCaller {
        let (net, trace) = (self.net.clone(), self.trace.clone());
        SimCaller { net, trace, who: who.to_owned(), token: format!("token-of-{owner}") }
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
    /// The newest id.
    id: Mutex<Option<String>>,
    /// Holders that are not done.
    working: AtomicUsize,
}

impl SharedSession {
    pub fn new(owner: &str, holders: usize) -> SharedSession {
        let working = AtomicUsize::new(holders);
        SharedSession(Arc::new(SessionFacts { owner: owner.to_owned(), id: Mutex::default(), working }))
    }

    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    pub fn id(&self) -> Option<String> {
        lock(&self.0.id).clone()
    }

    pub fn set_id(&self, id: &str) {
        *lock(&self.0.id) = Some(id.to_owned());
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
