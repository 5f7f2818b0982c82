//! What a client has asked servers to go on doing, subscriptions and log levels: kept with its session, to be asked for again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_store::Item;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::fields::{Fields, Raw, raw};

/// Before the keys of their items in a session's log.
pub const PREFIX: &str = "standing/";
const SET_LEVEL: &str = "logging/setLevel";
const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";
/// What one session may have at all its servers.
const PER_SESSION_MAX: usize = 1000;

/// One request that stands until it is taken back.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptRequest {
    /// Missing if all servers are meant.
    pub server: Option<String>,
    pub method: String,
    pub params: Option<Raw>,
}

impl KeptRequest {
    /// Whether requests with this method stand, or take one back.
    pub fn is_kept(method: &str) -> bool {
        matches!(method, SET_LEVEL | SUBSCRIBE | UNSUBSCRIBE)
    }

    fn parameter(&self, name: &str) -> Option<String> {
        Fields::of(self.params.as_deref()).text(name)
    }
}

#[derive(Default)]
pub struct KeptRequests(Mutex<BTreeMap<String, KeptRequest>>);

impl KeptRequests {
    /// As they were kept.
    pub fn of(items: Vec<(String, Bytes)>) -> KeptRequests {
        let read = |(key, value): (String, Bytes)| Some((key, serde_json::from_slice(&value).ok()?));
        KeptRequests(Mutex::new(items.into_iter().filter_map(read).collect()))
    }

    /// A request went well. What is to be written if it is one that stands, or takes one back.
    pub fn note(&self, request: KeptRequest) -> Option<Item> {
        let (what, keep) = match request.method.as_str() {
            SET_LEVEL => ("level".to_owned(), true),
            SUBSCRIBE => (format!("uri {}", request.parameter("uri")?), true),
            UNSUBSCRIBE => (format!("uri {}", request.parameter("uri")?), false),
            _ => return None,
        };
        let key = format!("{PREFIX}{}/{what}", request.server.as_deref().unwrap_or_default());
        let mut standing = self.lock();
        if !keep {
            return standing.remove(&key).map(|_| Item::delete(key));
        }
        if standing.len() >= PER_SESSION_MAX && !standing.contains_key(&key) {
            return None;
        }
        let item = Item::put(key.clone(), raw(&request).get().as_bytes().to_vec());
        standing.insert(key, request);
        Some(item)
    }

    /// What was asked of this server.
    pub fn at(&self, server: &str) -> Vec<KeptRequest> {
        let meant = |one: &&KeptRequest| one.server.as_deref().is_none_or(|name| name == server);
        self.lock().values().filter(meant).cloned().collect()
    }

    pub fn log_level(&self) -> Option<String> {
        self.lock().values().find(|one| one.method == SET_LEVEL).and_then(|one| one.parameter("level"))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, KeptRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptRequest({})", self.method)
    }
}

impl fmt::Debug for KeptRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptRequests({})", self.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_taken_back_does_not_stand_and_the_newest_level_counts() {
        let standing = KeptRequests::default();
        let note = |server: Option<&str>, method: &str, params: serde_json::Value| {
            standing
                .note(KeptRequest {
                    server: server.map(ToOwned::to_owned),
                    method: method.to_owned(),
                    params: Some(raw(&params)),
                })
                .is_some()
        };
        assert!(note(Some("a"), "resources/subscribe", json!({ "uri": "x" })));
        assert!(note(Some("b"), "resources/subscribe", json!({ "uri": "x" })));
        assert!(note(None, SET_LEVEL, json!({ "level": "debug" })));
        assert!(note(None, SET_LEVEL, json!({ "level": "error" })));
        assert!(!note(Some("a"), "tools/call", json!({})));
        assert!(note(Some("a"), "resources/unsubscribe", json!({ "uri": "x" })));
        assert!(!note(Some("a"), "resources/unsubscribe", json!({ "uri": "x" })), "it is not there any more");
        assert_eq!((standing.at("a").len(), standing.at("b").len()), (1, 2));
        assert_eq!(standing.log_level().as_deref(), Some("error"));
    }
}
