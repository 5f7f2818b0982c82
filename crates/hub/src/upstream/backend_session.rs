//! One client's place at a backend of the older revision: its session there, and its calls that are under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bowline_env::clock;
use reqwest::header::HeaderMap;
use tokio_util::sync::CancellationToken;

use super::abandoned_calls::GivenUp;
use super::cancellation::AskedByBackend;
use crate::call::{Caller, SHARED_LANE, Sink};
use crate::fields::Raw;

/// Clients without sessions are told apart by what they can do, which they may say anew with each request. This many of one
/// owner are kept.
const SESSIONLESS_MAX: usize = 8;

/// The lanes of one link, by the names of their clients.
pub(super) struct BackendSessions<S>(Mutex<HashMap<Arc<str>, Arc<BackendSession<S>>>>);

impl<S> Default for BackendSessions<S> {
    fn default() -> BackendSessions<S> {
        BackendSessions(Mutex::default())
    }
}

impl<S> BackendSessions<S> {
    /// The client's lane, and one that had to make room for it.
    pub fn of(&self, caller: &Caller) -> (Arc<BackendSession<S>>, Option<Arc<BackendSession<S>>>) {
        let mut lanes = lock(&self.0);
        if let Some(lane) = lanes.get(&caller.lane) {
            lane.touch();
            return (lane.clone(), None);
        }
        let lane = Arc::new(BackendSession::new(caller));
        let surplus = if lane.is_sessionless() { surplus(&lanes, &caller.owner) } else { None };
        let gone = surplus.and_then(|name| lanes.remove(&name));
        lanes.insert(caller.lane.clone(), lane.clone());
        (lane, gone)
    }

    pub fn find(&self, name: &str) -> Option<Arc<BackendSession<S>>> {
        lock(&self.0).get(name).cloned()
    }

    pub fn remove(&self, name: &str) -> Option<Arc<BackendSession<S>>> {
        lock(&self.0).remove(name)
    }

    pub fn drain(&self) -> Vec<Arc<BackendSession<S>>> {
        lock(&self.0).drain().map(|(_, lane)| lane).collect()
    }

    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// The lane of this owner that nobody has used for longest, if there is no room for another.
fn surplus<S>(lanes: &HashMap<Arc<str>, Arc<BackendSession<S>>>, owner: &str) -> Option<Arc<str>> {
    let mut mine: Vec<&Arc<BackendSession<S>>> =
        lanes.values().filter(|lane| lane.is_sessionless() && *lane.caller.owner == *owner).collect();
    mine.sort_by_key(|lane| *lock(&lane.used));
    let full = mine.len() >= SESSIONLESS_MAX;
    mine.into_iter().find(|lane| full && lock(&lane.calls).is_empty()).map(|lane| lane.caller.lane.clone())
}

/// One client's place at the backend, and its session there, whatever that is.
pub(super) struct BackendSession<S> {
    pub caller: Caller,
    pub session: tokio::sync::Mutex<Option<Arc<S>>>,
    /// The calls that are under way, for requests that name none.
    calls: Mutex<Vec<Call>>,
    given_up: GivenUp,
    used: Mutex<Instant>,
}

/// A call that is under way.
struct Call {
    number: u64,
    /// The client's session, if it has one. Calls without one may each be another client's.
    client: Option<Arc<str>>,
    sink: Sink,
}

/// A session over Streamable HTTP.
pub(super) struct HttpSession {
    pub id: Option<String>,
    /// What every request in it has.
    pub headers: HeaderMap,
    /// What the backend answered to `initialize`.
    pub initialized: Raw,
    /// What the backend asks in it.
    pub asked: AskedByBackend,
    /// Ends the stream that belongs to the session.
    pub over: CancellationToken,
}

impl<S> BackendSession<S> {
    fn new(caller: &Caller) -> BackendSession<S> {
        BackendSession {
            caller: caller.clone(),
            session: tokio::sync::Mutex::default(),
            calls: Mutex::default(),
            given_up: GivenUp::default(),
            used: Mutex::new(clock::now()),
        }
    }

    /// The newest call here, for a request that names none, if all of them are one client's: guessing would show one
    /// client what is another's.
    pub fn newest_call(&self) -> Option<Sink> {
        let calls = lock(&self.calls);
        let newest = calls.last()?;
        let alone =
            calls.len() == 1 || newest.client.is_some() && calls.iter().all(|call| call.client == newest.client);
        let of_one = alone && self.given_up.are_only(newest.client.as_ref());
        (self.is_one_clients() || of_one).then(|| newest.sink.clone())
    }

    /// What names no call may belong to any of them.
    pub fn has_several_calls(&self) -> bool {
        lock(&self.calls).len() > 1
    }

    /// Several clients have calls under way here, and nothing says whose something is.
    pub fn is_contested(&self) -> bool {
        !self.is_one_clients() && !lock(&self.calls).is_empty() && self.newest_call().is_none()
    }

    /// Only one client has its place here. All others share one, and clients without sessions may be many.
    fn is_one_clients(&self) -> bool {
        self.caller.inbox.is_some()
    }

    /// A call's caller has walked away, and its server may not know that yet.
    pub fn give_up(&self, number: u64, caller: &Caller) {
        if !self.is_one_clients() {
            self.given_up.add(number, caller.inbox.is_some().then(|| caller.lane.clone()));
        }
    }

    /// Whether it has a session of this kind now. One that is only being made is none.
    pub fn has(&self, is: impl FnOnce(&S) -> bool) -> bool {
        self.session.try_lock().is_ok_and(|session| session.as_ref().is_some_and(|session| is(session)))
    }

    fn touch(&self) {
        *lock(&self.used) = clock::now();
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
pub(super) struct Listed<'a, S>(&'a BackendSession<S>, u64);

impl<'a, S> Listed<'a, S> {
    pub fn new(lane: &'a BackendSession<S>, number: u64, caller: &Caller, sink: Sink) -> Listed<'a, S> {
        let client = caller.inbox.is_some().then(|| caller.lane.clone());
        lock(&lane.calls).push(Call { number, client, sink });
        Listed(lane, number)
    }
}

impl<S> Drop for Listed<'_, S> {
    fn drop(&mut self) {
        self.0.touch();
        lock(&self.0.calls).retain(|call| call.number != self.1);
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
        let lanes = BackendSessions::<HttpSession>::default();
        lanes.of(&Caller::hub());
        let (other, _) = lanes.of(&caller("b", "bob"));
        let (busy, _) = lanes.of(&caller("a busy", "alice"));
        let (sink, _said) = tokio::sync::mpsc::channel(1);
        let listed = Listed::new(&busy, 1, &busy.caller, sink);
        let gone: Vec<_> = (0..20).filter_map(|n| lanes.of(&caller(&format!("a {n}"), "alice")).1).collect();
        let names: Vec<_> = gone.iter().map(|lane| lane.caller.lane.to_string()).collect();
        assert_eq!(names, (0..13).map(|n| format!("a {n}")).collect::<Vec<_>>());
        assert_eq!(lanes.len(), 1 + 1 + SESSIONLESS_MAX);
        assert!(Arc::ptr_eq(&lanes.of(&caller("b", "bob")).0, &other));
        drop(listed);
        // The busy one was used last, and then the oldest of the others.
        lanes.of(&caller("a 13", "alice"));
        assert_eq!(lanes.of(&caller("a new", "alice")).1.unwrap().caller.lane.as_ref(), "a 14");
    }

    #[test]
    fn a_question_that_names_no_call_is_asked_of_nobody_where_several_clients_share_a_place() {
        let lanes = BackendSessions::<HttpSession>::default();
        let (shared, _) = lanes.of(&Caller::hub());
        let (sink, _said) = tokio::sync::mpsc::channel(1);
        let of_session = |lane: &str| Caller { inbox: Some(sink.clone()), ..caller(lane, "alice") };
        let list = |number: u64, caller: &Caller| Listed::new(&shared, number, caller, sink.clone());
        let first = list(1, &of_session("a"));
        assert!(shared.newest_call().is_some());
        let second = list(2, &of_session("a"));
        assert!(shared.newest_call().is_some(), "both are one client's");
        assert!(!shared.is_contested());
        let other = list(3, &of_session("b"));
        assert!(shared.newest_call().is_none() && shared.is_contested());
        drop((first, second, other));
        let (one, another) = (list(4, &caller("c", "alice")), list(5, &caller("c", "alice")));
        assert!(shared.newest_call().is_none(), "without sessions they may be two clients'");
        drop((one, another));
        let only = list(6, &of_session("a"));
        shared.give_up(7, &of_session("a"));
        assert!(shared.newest_call().is_some(), "what is left of its own call may be");
        shared.give_up(8, &of_session("b"));
        assert!(shared.newest_call().is_none(), "what is left of another's is nobody's");
        drop(only);
        // Clients without sessions that look alike share a place too, one client's own place is its own.
        let (alike, _) = lanes.of(&caller("principal alice {}", "alice"));
        let number = |number, caller: &Caller| Listed::new(&alike, number, caller, sink.clone());
        let (one, another) = (number(1, &alike.caller), number(2, &alike.caller));
        assert!(alike.newest_call().is_none());
        drop(another);
        assert!(alike.newest_call().is_some());
        drop(one);
    }
}
