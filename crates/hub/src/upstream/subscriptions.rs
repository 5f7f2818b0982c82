//! What clients have subscribed to and set at a backend, so that it can be said again to the next connection; and what one connection
//! is subscribed to on behalf of several clients: the server sees one subscriber, the hub.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_core::backend::Generation;
use serde_json::json;

use crate::call::{BackendCall, CallEnding, Caller};
use crate::fields::{Fields, Raw, raw};

pub(super) const UNSUBSCRIBE: &str = "resources/unsubscribe";

pub(super) struct Subscriptions {
    /// Who wants what.
    renewals: Arc<Renewals>,
    generation: Generation,
    /// What the server was asked for. A request holds this until it has been sent, so that the server
    /// hears things in the order in which they were decided.
    uris: tokio::sync::Mutex<BTreeSet<String>>,
}

impl Subscriptions {
    pub fn new(renewals: Arc<Renewals>, generation: Generation) -> Subscriptions {
        Subscriptions { renewals, generation, uris: tokio::sync::Mutex::default() }
    }

    fn is_wanted(&self, uri: &str) -> bool {
        self.renewals.is_wanted(self.generation, uri)
    }

    /// A call's turn to be sent; none if it is not to be sent, because another client still wants the subscription that it would end.
    pub async fn turn<'a>(&'a self, call: &'a BackendCall) -> Option<SubscriptionTurn<'a>> {
        let subscribes = match call.method.as_str() {
            "resources/subscribe" => true,
            UNSUBSCRIBE => false,
            _ => return Some(SubscriptionTurn { order: None, claim: None }),
        };
        let uri = uri_of(call.params.as_ref());
        let mut uris = self.uris.lock().await;
        // Recorded before it is granted, so that no other call ends it in the meantime.
        let is_new = self.renewals.note(call);
        if subscribes {
            uris.insert(uri);
            let claim = is_new.then_some(SubscriptionClaim { renewals: &self.renewals, call, granted: false });
            return Some(SubscriptionTurn { order: Some(uris), claim });
        }
        if self.is_wanted(&uri) {
            return None;
        }
        uris.remove(&uri);
        Some(SubscriptionTurn { order: Some(uris), claim: None })
    }

    /// What clients had subscribed to is asked for again.
    pub async fn renewed(&self, kept: &[RenewableRequest]) {
        let uris = kept.iter().filter(|one| is_subscription(one));
        self.uris.lock().await.extend(uris.map(|(_, params)| uri_of(params.as_ref())));
    }

    /// A client has left: the subscriptions that no other client wants, as parameters of the requests that end them, and the right to send those.
    pub async fn unwanted(&self) -> (Vec<Raw>, tokio::sync::MutexGuard<'_, BTreeSet<String>>) {
        let mut uris = self.uris.lock().await;
        let unwanted: Vec<String> = uris.iter().filter(|uri| !self.is_wanted(uri)).cloned().collect();
        uris.retain(|uri| !unwanted.contains(uri));
        (unwanted.iter().map(|uri| raw(&json!({ "uri": uri }))).collect(), uris)
    }
}

/// The right to send a call now, and what it claims if it is granted.
pub(super) struct SubscriptionTurn<'a> {
    order: Option<tokio::sync::MutexGuard<'a, BTreeSet<String>>>,
    claim: Option<SubscriptionClaim<'a>>,
}

impl SubscriptionTurn<'_> {
    /// The call is on its way, and others may follow it.
    pub fn sent(&mut self) {
        self.order = None;
    }

    pub fn ended(mut self, ending: CallEnding) -> CallEnding {
        if let Some(claim) = &mut self.claim {
            claim.granted = matches!(ending, CallEnding::Answered { answer: Ok(_), .. });
        }
        ending
    }
}

/// A subscription that was not granted yet. Its caller may walk away.
struct SubscriptionClaim<'a> {
    renewals: &'a Renewals,
    call: &'a BackendCall,
    granted: bool,
}

impl Drop for SubscriptionClaim<'_> {
    fn drop(&mut self) {
        if !self.granted {
            self.renewals.drop_subscription(self.call);
        }
    }
}

/// Subscriptions that one client may have at one backend.
const PER_SESSION_MAX: usize = 1000;

/// A request that is made again: its method and parameters.
pub type RenewableRequest = (String, Option<Raw>);

/// Whether it is about a resource. All else that is kept is the log level that a client has set.
pub(super) fn is_subscription((method, _): &RenewableRequest) -> bool {
    method == "resources/subscribe"
}

type RenewalsByClient = HashMap<Arc<str>, (Caller, BTreeMap<String, RenewableRequest>)>;

#[derive(Default)]
pub struct Renewals {
    clients: Mutex<RenewalsByClient>,
    /// Clients that have something of the backend to themselves, on which transport: what they have subscribed to there is not what
    /// the others have.
    apart: Mutex<HashSet<(Generation, Arc<str>)>>,
}

impl Renewals {
    /// A call went well; if it is one whose effect must outlast the connection, it is kept. Whether that is something new.
    pub fn note(&self, call: &BackendCall) -> bool {
        let (key, keep) = match call.method.as_str() {
            "logging/setLevel" => ("level".to_owned(), true),
            "resources/subscribe" => (key_of(&uri_of(call.params.as_ref())), true),
            "resources/unsubscribe" => (key_of(&uri_of(call.params.as_ref())), false),
            _ => return false,
        };
        let mut clients = self.lock();
        if !keep {
            remove(&mut clients, &call.caller.session_name, &key);
            return false;
        }
        let (_, kept) =
            clients.entry(call.caller.session_name.clone()).or_insert_with(|| (call.caller.clone(), BTreeMap::new()));
        kept.len() < PER_SESSION_MAX && kept.insert(key, (call.method.clone(), call.params.clone())).is_none()
    }

    /// A subscription that was noted was not granted.
    pub fn drop_subscription(&self, call: &BackendCall) {
        remove(&mut self.lock(), &call.caller.session_name, &key_of(&uri_of(call.params.as_ref())));
    }

    pub fn forget(&self, session_name: &str) {
        self.lock().remove(session_name);
    }

    pub fn of(&self, session_name: &str) -> Vec<RenewableRequest> {
        self.lock().get(session_name).map(|(_, kept)| kept.values().cloned().collect()).unwrap_or_default()
    }

    /// What those want who share the backend on this transport.
    pub fn of_sharers(&self, generation: Generation) -> Vec<RenewableRequest> {
        let (clients, apart) = (self.lock(), self.lock_apart());
        let shared = clients.iter().filter(|(session_name, _)| !apart.contains(&(generation, (*session_name).clone())));
        shared.flat_map(|(_, (_, kept))| kept.values().cloned()).collect()
    }

    /// On this transport a client has the backend to itself from now on, or is one of several again.
    pub fn set_apart(&self, generation: Generation, session_name: &Arc<str>, apart: bool) {
        let mut all = self.lock_apart();
        let one = (generation, session_name.clone());
        match apart {
            true => all.insert(one),
            false => all.remove(&one),
        };
    }

    /// The transport is gone, and with it what each client had there alone.
    pub fn end_apart(&self, generation: Generation) {
        self.lock_apart().retain(|(other, _)| *other != generation);
    }

    /// Who of those who share the backend on this transport has subscribed to a resource.
    pub fn subscribers(&self, generation: Generation, uri: &str) -> Vec<Caller> {
        let (key, clients, apart) = (key_of(uri), self.lock(), self.lock_apart());
        let shares = |session_name: &Arc<str>| !apart.contains(&(generation, session_name.clone()));
        let wanted = clients.iter().filter(|(session_name, (_, kept))| kept.contains_key(&key) && shares(session_name));
        wanted.map(|(_, (caller, _))| caller.clone()).collect()
    }

    /// Whether any of them has.
    pub fn is_wanted(&self, generation: Generation, uri: &str) -> bool {
        !self.subscribers(generation, uri).is_empty()
    }

    fn lock_apart(&self) -> MutexGuard<'_, HashSet<(Generation, Arc<str>)>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn callers(&self) -> Vec<Caller> {
        self.lock().values().map(|(caller, _)| caller.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, RenewalsByClient> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn uri_of(params: Option<&Raw>) -> String {
    Fields::of(params.map(|raw| &**raw)).text("uri").unwrap_or_default()
}

fn key_of(uri: &str) -> String {
    format!("uri {uri}")
}

fn remove(clients: &mut RenewalsByClient, session_name: &Arc<str>, key: &str) {
    let Some((_, kept)) = clients.get_mut(session_name) else { return };
    kept.remove(key);
    if kept.is_empty() {
        clients.remove(session_name);
    }
}

impl fmt::Debug for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Renewals({} clients)", self.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Caller;

    fn call(session_name: &str, method: &str) -> BackendCall {
        let caller = Caller { session_name: session_name.into(), ..Caller::hub() };
        BackendCall { caller, ..BackendCall::of_hub(method, Some(raw(&json!({ "uri": "test://one" })))) }
    }

    #[tokio::test]
    async fn what_one_client_gives_up_is_ended_only_if_nobody_else_wants_it() {
        let renewals = Arc::new(Renewals::default());
        let shared = Subscriptions::new(renewals.clone(), Generation(1));
        for session_name in ["a", "b"] {
            let subscribe = call(session_name, "resources/subscribe");
            let turn = shared.turn(&subscribe).await.unwrap();
            drop(turn.ended(CallEnding::answered(Ok(crate::fields::empty()))));
        }
        assert!(shared.turn(&call("a", UNSUBSCRIBE)).await.is_none(), "b still wants it");
        assert!(shared.unwanted().await.0.is_empty());
        let refused = call("c", "resources/subscribe");
        drop(shared.turn(&refused).await.unwrap().ended(CallEnding::failed("no")));
        renewals.forget("b");
        assert_eq!(shared.unwanted().await.0.len(), 1, "neither does c, whom it was refused");
        assert!(shared.unwanted().await.0.is_empty(), "it is ended once");
    }

    #[tokio::test]
    async fn the_last_who_gives_it_up_ends_it_also_if_all_do_at_once() {
        let shared = Subscriptions::new(Arc::default(), Generation(1));
        for session_name in ["a", "b"] {
            let subscribe = call(session_name, "resources/subscribe");
            drop(shared.turn(&subscribe).await.unwrap().ended(CallEnding::answered(Ok(crate::fields::empty()))));
        }
        let (one, other) = (call("a", UNSUBSCRIBE), call("b", UNSUBSCRIBE));
        let (one, other) = (shared.turn(&one).await.is_some(), shared.turn(&other).await.is_some());
        assert_eq!((one, other), (false, true));
    }
}
