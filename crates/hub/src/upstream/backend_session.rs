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

use crate::call::{Caller, InboundSink, SHARED_SESSION};
use crate::fields::Raw;
use crate::upstream::pending_calls::AskedByBackend;

/// Clients without sessions are told apart by what they can do, which they may say anew with each request. This many of one
/// owner are kept.
const SESSIONLESS_MAX: usize = 8;

/// The sessions of one link, by the names of their clients.
pub(super) struct BackendSessions<S>(Mutex<HashMap<Arc<str>, Arc<BackendSession<S>>>>);

impl<S> Default for BackendSessions<S> {
    fn default() -> BackendSessions<S> {
        BackendSessions(Mutex::default())
    }
}

impl<S> BackendSessions<S> {
    /// The client's session, and those that had to make room for it.
    pub fn of(&self, caller: &Caller) -> (Arc<BackendSession<S>>, Vec<Arc<BackendSession<S>>>) {
        let mut backend_sessions = lock(&self.0);
        if let Some(backend_session) = backend_sessions.get(&caller.session_name) {
            backend_session.touch();
            return (backend_session.clone(), Vec::new());
        }
        let backend_session = Arc::new(BackendSession::new(caller));
        let is_sessionless = backend_session.is_sessionless();
        let surplus = if is_sessionless { surplus(&backend_sessions, &caller.owner) } else { Vec::new() };
        let gone = surplus.into_iter().filter_map(|name| backend_sessions.remove(&name)).collect();
        backend_sessions.insert(caller.session_name.clone(), backend_session.clone());
        (backend_session, gone)
    }

    pub fn find(&self, name: &str) -> Option<Arc<BackendSession<S>>> {
        lock(&self.0).get(name).cloned()
    }

    pub fn remove(&self, name: &str) -> Option<Arc<BackendSession<S>>> {
        lock(&self.0).remove(name)
    }

    pub fn drain(&self) -> Vec<Arc<BackendSession<S>>> {
        lock(&self.0).drain().map(|(_, backend_session)| backend_session).collect()
    }

    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// The sessions of this owner that make room for another, those first that were used least recently. While calls are under way in more than are
/// kept, there are more.
fn surplus<S>(backend_sessions: &HashMap<Arc<str>, Arc<BackendSession<S>>>, owner: &str) -> Vec<Arc<str>> {
    let mut mine: Vec<&Arc<BackendSession<S>>> = backend_sessions
        .values()
        .filter(|backend_session| backend_session.is_sessionless() && *backend_session.caller.owner == *owner)
        .collect();
    mine.sort_by_key(|backend_session| *lock(&backend_session.used));
    let too_many = (mine.len() + 1).saturating_sub(SESSIONLESS_MAX);
    let idle = mine.into_iter().filter(|backend_session| lock(&backend_session.calls).attribution.is_empty());
    idle.take(too_many).map(|backend_session| backend_session.caller.session_name.clone()).collect()
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
        self.caller.session_name.as_ref() == SHARED_SESSION
    }
}

/// A call that is under way in a session.
pub(super) struct SessionCall<'a, S>(&'a BackendSession<S>, CallNumber);

impl<'a, S> SessionCall<'a, S> {
    pub fn new(
        backend_session: &'a BackendSession<S>,
        number: CallNumber,
        caller: &Caller,
        sink: Option<InboundSink>,
    ) -> SessionCall<'a, S> {
        let client = caller.inbox.is_some().then(|| caller.session_name.clone());
        let listener = if sink.is_some() { RequestListener::Caller } else { RequestListener::Absent };
        let mut calls = lock(&backend_session.calls);
        calls.attribution.handle_sent(number, AttributedRequest { client, listener, wants_progress: false });
        calls.sinks.extend(sink.map(|sink| (number, sink)));
        SessionCall(backend_session, number)
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

    fn caller(session_name: &str, owner: &str) -> Caller {
        Caller { session_name: session_name.into(), owner: owner.into(), ..Caller::hub() }
    }

    #[test]
    fn a_client_that_says_something_else_each_time_does_not_fill_the_backend_with_sessions() {
        let backend_sessions = BackendSessions::<HttpSession>::default();
        backend_sessions.of(&Caller::hub());
        let (other, _) = backend_sessions.of(&caller("b", "bob"));
        let (busy, _) = backend_sessions.of(&caller("a busy", "alice"));
        let (sink, _said) = tokio::sync::mpsc::channel(1);
        let listed = SessionCall::new(&busy, 1, &busy.caller, Some(sink));
        let gone: Vec<_> = (0..20).flat_map(|n| backend_sessions.of(&caller(&format!("a {n}"), "alice")).1).collect();
        let names: Vec<_> =
            gone.iter().map(|backend_session| backend_session.caller.session_name.to_string()).collect();
        assert_eq!(names, (0..13).map(|n| format!("a {n}")).collect::<Vec<_>>());
        assert_eq!(backend_sessions.len(), 1 + 1 + SESSIONLESS_MAX);
        assert!(Arc::ptr_eq(&backend_sessions.of(&caller("b", "bob")).0, &other));
        drop(listed);
        // The busy one was used last, and then the oldest of the others.
        backend_sessions.of(&caller("a 13", "alice"));
        assert_eq!(backend_sessions.of(&caller("a new", "alice")).1[0].caller.session_name.as_ref(), "a 14");
    }

    #[test]
    fn sessions_that_were_all_busy_make_room_once_they_are_not() {
        let backend_sessions = BackendSessions::<HttpSession>::default();
        let (sink, _said) = tokio::sync::mpsc::channel(1);
        let busy: Vec<_> = (0..3 * SESSIONLESS_MAX)
            .map(|n| -> &'static _ { Box::leak(Box::new(backend_sessions.of(&caller(&format!("a {n}"), "alice")).0)) })
            .map(|place| SessionCall::new(place, 1, &place.caller, Some(sink.clone())))
            .collect();
        assert_eq!(backend_sessions.len(), 3 * SESSIONLESS_MAX);
        drop(busy);
        let gone = backend_sessions.of(&caller("a new", "alice")).1;
        assert_eq!((gone.len(), backend_sessions.len()), (2 * SESSIONLESS_MAX + 1, SESSIONLESS_MAX));
    }

    #[test]
    fn a_question_that_names_no_call_is_asked_of_nobody_where_several_clients_share_a_place() {
        let backend_sessions = BackendSessions::<HttpSession>::default();
        let (shared, _) = backend_sessions.of(&Caller::hub());
        let (sink, _said) = tokio::sync::mpsc::channel(1);
        let of_session = |session_name: &str| Caller { inbox: Some(sink.clone()), ..caller(session_name, "alice") };
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
        let (alike, _) = backend_sessions.of(&caller("principal alice {}", "alice"));
        let number = |number, caller: &Caller| SessionCall::new(&alike, number, caller, Some(sink.clone()));
        let (one, another) = (number(1, &alike.caller), number(2, &alike.caller));
        assert!(!goes(&alike));
        drop(another);
        assert!(goes(&alike));
        drop(one);
    }
}
