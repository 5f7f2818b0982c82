//! What clients have subscribed to and set at a backend, so that it can be said again to the next connection.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_core::backend::Generation;

use crate::call::{BackendCall, Caller};
use crate::fields::{Fields, Raw};

/// Subscriptions that one client may have at one backend.
const PER_LANE_MAX: usize = 1000;

/// A request that is made again: its method and parameters.
pub type RenewableRequest = (String, Option<Raw>);

/// Whether it is about a resource. All else that is kept is the log level that a client has set.
pub(super) fn is_subscription((method, _): &RenewableRequest) -> bool {
    method == "resources/subscribe"
}

type RenewalsByClient = HashMap<Arc<str>, (Caller, BTreeMap<String, RenewableRequest>)>;

#[derive(Default)]
pub struct Renewals {
    lanes: Mutex<RenewalsByClient>,
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
        let mut lanes = self.lock();
        if !keep {
            remove(&mut lanes, &call.caller.lane, &key);
            return false;
        }
        let (_, kept) = lanes.entry(call.caller.lane.clone()).or_insert_with(|| (call.caller.clone(), BTreeMap::new()));
        kept.len() < PER_LANE_MAX && kept.insert(key, (call.method.clone(), call.params.clone())).is_none()
    }

    /// A subscription that was noted was not granted.
    pub fn drop_subscription(&self, call: &BackendCall) {
        remove(&mut self.lock(), &call.caller.lane, &key_of(&uri_of(call.params.as_ref())));
    }

    pub fn forget(&self, lane: &str) {
        self.lock().remove(lane);
    }

    pub fn of(&self, lane: &str) -> Vec<RenewableRequest> {
        self.lock().get(lane).map(|(_, kept)| kept.values().cloned().collect()).unwrap_or_default()
    }

    /// What those want who share the backend on this transport.
    pub fn of_sharers(&self, generation: Generation) -> Vec<RenewableRequest> {
        let (lanes, apart) = (self.lock(), self.lock_apart());
        let shared = lanes.iter().filter(|(lane, _)| !apart.contains(&(generation, (*lane).clone())));
        shared.flat_map(|(_, (_, kept))| kept.values().cloned()).collect()
    }

    /// On this transport a client has the backend to itself from now on, or is one of several again.
    pub fn set_apart(&self, generation: Generation, lane: &Arc<str>, apart: bool) {
        let mut all = self.lock_apart();
        let one = (generation, lane.clone());
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
        let (key, lanes, apart) = (key_of(uri), self.lock(), self.lock_apart());
        let shares = |lane: &Arc<str>| !apart.contains(&(generation, lane.clone()));
        let wanted = lanes.iter().filter(|(lane, (_, kept))| kept.contains_key(&key) && shares(lane));
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
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn uri_of(params: Option<&Raw>) -> String {
    Fields::of(params.map(|raw| &**raw)).text("uri").unwrap_or_default()
}

fn key_of(uri: &str) -> String {
    format!("uri {uri}")
}

fn remove(lanes: &mut RenewalsByClient, lane: &Arc<str>, key: &str) {
    let Some((_, kept)) = lanes.get_mut(lane) else { return };
    kept.remove(key);
    if kept.is_empty() {
        lanes.remove(lane);
    }
}

impl fmt::Debug for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Renewals({} lanes)", self.lock().len())
    }
}
