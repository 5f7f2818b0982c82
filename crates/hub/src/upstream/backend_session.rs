//! One client's place at a backend with sessions: its session there, and its calls that are under way.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bowline_core::attribution::{
    AttributedRequest, Attribution, CallNumber, ConnectionScope, Recipient, RequestListener, ServerMessage,
};
use bowline_env::clock;
use http::HeaderMap;
use tokio_util::sync::CancellationToken;

use crate::call::{Caller, InboundSink, SHARED_LANE};
use crate::fields::Raw;
use crate::upstream::pending_calls::AskedByBackend;

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

/// The least recently used session of this owner, if there is no room for another.
fn surplus<S>(lanes: &HashMap<Arc<str>, Arc<BackendSession<S>>>, owner: &str) -> Option<Arc<str>> {
    let mut mine: Vec<&Arc<BackendSession<S>>> =
        lanes.values().filter(|lane| lane.is_sessionless() && *lane.caller.owner == *owner).collect();
    mine.sort_by_key(|lane| *lock(&lane.used));
    let full = mine.len() >= SESSIONLESS_MAX;
    mine.into_iter().find(|lane| full && lock(&lane.calls).attribution.is_empty()).map(|lane| lane.caller.lane.clone())
}

/// One client's place at the backend, and its session there, whatever that is.
pub(super) struct BackendSession<S> {
    pub caller: Caller,
    pub session: tokio::sync::Mutex<Option<Arc<S>>>,
    calls: Mutex<SessionCalls>,
    used: Mutex<Instant>,
}

/// The calls that are under way, for requests that name none, and where those go.
struct SessionCalls {
    attribution: Attribution,
    sinks: BTreeMap<CallNumber, InboundSink>,
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
        // Only a client with a session has its place alone. All others share one, and clients without sessions may be many.
        let place = if caller.inbox.is_some() { ConnectionScope::OwnSession } else { ConnectionScope::Shared };
        let calls = SessionCalls { attribution: Attribution::new(place), sinks: BTreeMap::new() };
        BackendSession {
            caller: caller.clone(),
            session: tokio::sync::Mutex::default(),
            calls: Mutex::new(calls),
            used: Mutex::new(clock::now()),
        }
    }

    /// Whose something is that names no call, and where it goes if it is a call's.
    pub fn whose_word(&self) -> (Recipient, Option<InboundSink>) {
        let mut calls = lock(&self.calls);
        let whose = calls.attribution.whose(clock::now(), ServerMessage::Word(None));
        let sink = match whose {
            Recipient::Call(number) | Recipient::OneOfCalls(number) => calls.sinks.get(&number).cloned(),
            Recipient::Client | Recipient::Unaddressed | Recipient::Departed | Recipient::Ambiguous => None,
        };
        (whose, sink)
    }

    /// A call's caller has walked away, and its server may not know that yet.
    pub fn give_up(&self, number: CallNumber) {
        lock(&self.calls).attribution.handle_given_up(clock::now(), number);
    }

    /// Whether it has a session of this kind now. One that is only being made is none.
    pub fn has(&self, is: impl FnOnce(&S) -> bool) -> bool {
        self.session.try_lock().is_ok_and(|session| session.as_ref().is_some_and(|session| is(session)))
    }

    fn touch(&self) {
        *lock(&self.used) = clock::now();
    }

    /// There is no signal when its client is gone.
    fn is_sessionless(&self) -> bool {
        self.caller.inbox.is_none() && !self.is_shared()
    }

    pub fn is_shared(&self) -> bool {
        self.caller.lane.as_ref() == SHARED_LANE
    }
}

/// A call that is under way in a lane.
pub(super) struct SessionCall<'a, S>(&'a BackendSession<S>, CallNumber);

impl<'a, S> SessionCall<'a, S> {
    pub fn new(
        lane: &'a BackendSession<S>,
        number: CallNumber,
        caller: &Caller,
        sink: Option<InboundSink>,
    ) -> SessionCall<'a, S> {
        let client = caller.inbox.is_some().then(|| caller.lane.clone());
        let listener = if sink.is_some() { RequestListener::Caller } else { RequestListener::Absent };
        let mut calls = lock(&lane.calls);
        calls.attribution.handle_sent(number, AttributedRequest { client, listener, wants_progress: false });
        calls.sinks.extend(sink.map(|sink| (number, sink)));
        SessionCall(lane, number)
    }
}

impl<S> Drop for SessionCall<'_, S> {
    fn drop(&mut self) {
        self.0.touch();
        let mut calls = lock(&self.0.calls);
        calls.attribution.handle_ended(self.1);
        calls.sinks.remove(&self.1);
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
        let listed = SessionCall::new(&busy, 1, &busy.caller, Some(sink));
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
        let list = |number: u64, caller: &Caller| SessionCall::new(&shared, number, caller, Some(sink.clone()));
        let goes = |place: &BackendSession<HttpSession>| place.whose_word().1.is_some();
        let give_up = |number: u64, caller: &Caller| {
            let left = list(number, caller);
            shared.give_up(number);
            drop(left);
        };
        let first = list(1, &of_session("a"));
        assert!(goes(&shared));
        let second = list(2, &of_session("a"));
        assert!(goes(&shared), "both are one client's");
        let other = list(3, &of_session("b"));
        assert!(shared.whose_word().0 == Recipient::Ambiguous);
        drop((first, second, other));
        let (one, another) = (list(4, &caller("c", "alice")), list(5, &caller("c", "alice")));
        assert!(!goes(&shared), "without sessions they may be two clients'");
        drop((one, another));
        let only = list(6, &of_session("a"));
        give_up(7, &of_session("a"));
        assert!(goes(&shared), "what is left of its own call may be");
        give_up(8, &of_session("b"));
        assert!(!goes(&shared), "what is left of another client's call has no recipient");
        drop(only);
        // Clients without sessions that look alike share a place too, one client's own place is its own.
        let (alike, _) = lanes.of(&caller("principal alice {}", "alice"));
        let number = |number, caller: &Caller| SessionCall::new(&alike, number, caller, Some(sink.clone()));
        let (one, another) = (number(1, &alike.caller), number(2, &alike.caller));
        assert!(!goes(&alike));
        drop(another);
        assert!(goes(&alike));
        drop(one);
    }
}
