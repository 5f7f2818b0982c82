//! What clients have subscribed to and set at a backend, so that it can be said again to the next connection.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Caller, Upcall};
use crate::fields::{Fields, Raw};

/// Subscriptions that one client may have at one backend.
const PER_LANE_MAX: usize = 1000;

/// A request that is made again: its method and parameters.
type Kept = (String, Option<Raw>);
type Lanes = HashMap<Arc<str>, (Caller, BTreeMap<String, Kept>)>;

#[derive(Default)]
pub struct Renewals {
    lanes: Mutex<Lanes>,
}

impl Renewals {
    /// A call went well; if it is one whose effect must outlast the connection, it is kept.
    pub fn note(&self, call: &Upcall) {
        let uri = || Fields::of(call.params.as_deref()).text("uri").unwrap_or_default();
        let (key, keep) = match call.method.as_str() {
            "logging/setLevel" => ("level".to_owned(), true),
            "resources/subscribe" => (format!("uri {}", uri()), true),
            "resources/unsubscribe" => (format!("uri {}", uri()), false),
            _ => return,
        };
        let mut lanes = self.lock();
        let (_, kept) = lanes.entry(call.caller.lane.clone()).or_insert_with(|| (call.caller.clone(), BTreeMap::new()));
        if !keep {
            kept.remove(&key);
        } else if kept.len() < PER_LANE_MAX {
            kept.insert(key, (call.method.clone(), call.params.clone()));
        }
        if kept.is_empty() {
            lanes.remove(&call.caller.lane);
        }
    }

    pub fn forget(&self, lane: &str) {
        self.lock().remove(lane);
    }

    pub fn of(&self, lane: &str) -> Vec<Kept> {
        self.lock().get(lane).map(|(_, kept)| kept.values().cloned().collect()).unwrap_or_default()
    }

    pub fn all(&self) -> Vec<Kept> {
        self.lock().values().flat_map(|(_, kept)| kept.values().cloned()).collect()
    }

    /// Who has subscribed to a resource.
    pub fn subscribers(&self, uri: &str) -> Vec<Caller> {
        let key = format!("uri {uri}");
        let lanes = self.lock();
        lanes.values().filter(|(_, kept)| kept.contains_key(&key)).map(|(caller, _)| caller.clone()).collect()
    }

    pub fn callers(&self) -> Vec<Caller> {
        self.lock().values().map(|(caller, _)| caller.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Renewals({} lanes)", self.lock().len())
    }
}
