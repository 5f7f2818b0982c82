//! One client's place at a backend of the older era: its session there, and its calls that are under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::{Caller, SHARED_LANE, Sink};
use crate::fields::Raw;

/// Clients without sessions are told apart by what they can do, which they may say anew with each request. This many of one
/// owner are kept.
const SESSIONLESS_MAX: usize = 8;

/// The lanes of one link, by the names of their clients.
#[derive(Default)]
pub(super) struct Lanes(Mutex<HashMap<Arc<str>, Arc<Lane>>>);

impl Lanes {
    /// The client's lane, and one that had to make room for it.
    pub fn of(&self, caller: &Caller) -> (Arc<Lane>, Option<Arc<Lane>>) {
        let mut lanes = lock(&self.0);
        if let Some(lane) = lanes.get(&caller.lane) {
            return (lane.clone(), None);
        }
        let lane = Arc::new(Lane::new(caller));
        let surplus = if lane.is_sessionless() { surplus(&lanes, &caller.owner) } else { None };
        let gone = surplus.and_then(|name| lanes.remove(&name));
        lanes.insert(caller.lane.clone(), lane.clone());
        (lane, gone)
    }

    pub fn find(&self, name: &str) -> Option<Arc<Lane>> {
        lock(&self.0).get(name).cloned()
    }

    pub fn remove(&self, name: &str) -> Option<Arc<Lane>> {
        lock(&self.0).remove(name)
    }

    pub fn drain(&self) -> Vec<Arc<Lane>> {
        lock(&self.0).drain().map(|(_, lane)| lane).collect()
    }

    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// The oldest lane of this owner that nobody uses, if there is no room for another.
fn surplus(lanes: &HashMap<Arc<str>, Arc<Lane>>, owner: &str) -> Option<Arc<str>> {
    let mut mine: Vec<&Arc<Lane>> =
        lanes.values().filter(|lane| lane.is_sessionless() && *lane.caller.owner == *owner).collect();
    mine.sort_by_key(|lane| lane.made);
    let full = mine.len() >= SESSIONLESS_MAX;
    mine.into_iter().find(|lane| full && lock(&lane.calls).is_empty()).map(|lane| lane.caller.lane.clone())
}

/// One client's session at the backend.
pub(super) struct Lane {
    pub caller: Caller,
    pub session: tokio::sync::Mutex<Option<Arc<UpSession>>>,
    /// The calls that are under way, for requests that name none.
    calls: Mutex<Vec<(u64, Sink)>>,
    made: Instant,
}

pub(super) struct UpSession {
    pub id: Option<String>,
    pub version: String,
    /// What the backend answered to `initialize`.
    pub initialized: Raw,
    /// Ends the stream that belongs to the session.
    pub over: CancellationToken,
}

impl Lane {
    pub fn new(caller: &Caller) -> Lane {
        Lane {
            caller: caller.clone(),
            session: tokio::sync::Mutex::default(),
            calls: Mutex::default(),
            made: Instant::now(),
        }
    }

    /// The newest call of this client, for a request that names none.
    pub fn newest_call(&self) -> Option<Sink> {
        lock(&self.calls).last().map(|(_, sink)| sink.clone())
    }

    /// Nobody says when its client is gone.
    fn is_sessionless(&self) -> bool {
        self.caller.inbox.is_none() && !self.is_shared()
    }

    pub fn is_shared(&self) -> bool {
        self.caller.lane.as_ref() == SHARED_LANE
    }
}

/// A call that is under way in a lane.
pub(super) struct Listed<'a>(&'a Lane, u64);

impl<'a> Listed<'a> {
    pub fn new(lane: &'a Arc<Lane>, number: u64, sink: Sink) -> Listed<'a> {
        lock(&lane.calls).push((number, sink));
        Listed(lane, number)
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        lock(&self.0.calls).retain(|(number, _)| *number != self.1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(lane: &str, owner: &str) -> Caller {
        Caller { lane: lane.into(), owner: owner.into(), ..Caller::hub() }
    }

    #[test]
    fn a_client_that_says_something_else_each_time_does_not_fill_the_backend_with_sessions() {
        let lanes = Lanes::default();
        lanes.of(&Caller::hub());
        let (other, _) = lanes.of(&caller("b", "bob"));
        let (busy, _) = lanes.of(&caller("a busy", "alice"));
        let (sink, _said) = tokio::sync::mpsc::channel(1);
        let listed = Listed::new(&busy, 1, sink);
        let gone: Vec<_> = (0..20).filter_map(|n| lanes.of(&caller(&format!("a {n}"), "alice")).1).collect();
        let names: Vec<_> = gone.iter().map(|lane| lane.caller.lane.to_string()).collect();
        assert_eq!(names, (0..13).map(|n| format!("a {n}")).collect::<Vec<_>>());
        assert_eq!(lanes.len(), 1 + 1 + SESSIONLESS_MAX);
        assert!(Arc::ptr_eq(&lanes.of(&caller("b", "bob")).0, &other));
        drop(listed);
        assert_eq!(lanes.of(&caller("a new", "alice")).1.unwrap().caller.lane.as_ref(), "a busy");
    }
}
