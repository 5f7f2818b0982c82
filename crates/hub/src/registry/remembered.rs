//! What servers were when they were last seen: kept in the store, so that one that is away is known after our own restart too.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use bowline_protocol::LogId;
use bowline_store::{Clock, Item, Store, StoreError};
use serde::{Deserialize, Serialize};

use super::stored;
use crate::backend::{Backend, RememberedServer};
use crate::call::facts::ServerFacts;
use crate::catalogue::Catalogue;
use crate::config::key::BackendKey;
use crate::config::spec::ServerSpec;
use crate::fields::{Raw, raw};

/// The log in which it is kept.
const LOG: &str = "hub_memory";

pub struct Memory {
    store: Arc<dyn Store>,
    clock: Clock,
    log: LogId,
    /// Marks of what was written last, so that the same is not written again after each reconnect.
    written: Mutex<HashMap<BackendKey, u64>>,
}

#[derive(Serialize, Deserialize)]
struct StoredFacts {
    /// Which configuration this was seen under. Another one leads to another server.
    spec: u64,
    facts: Option<ServerFacts>,
    lists: [Vec<Raw>; 4],
}

impl Memory {
    pub async fn open(store: Arc<dyn Store>, clock: Clock) -> Result<Memory, StoreError> {
        let log = stored::own_log(&store, &clock, LOG).await?;
        Ok(Memory { store, clock, log, written: Mutex::default() })
    }

    /// What was seen of this server under this very configuration. A store that cannot be read knows nothing.
    pub async fn recall(&self, key: &BackendKey, spec: &ServerSpec) -> Option<RememberedServer> {
        let kept = match self.store.item(&self.log, &stored::item(key)).await {
            Ok(kept) => kept?,
            Err(error) => {
                tracing::warn!(server = %key.name, %error, "what was known of a server cannot be read");
                return None;
            }
        };
        let written: StoredFacts = serde_json::from_slice(&kept).ok()?;
        let catalogue = Arc::new(Catalogue::of(written.lists));
        (written.spec == mark_of(spec)).then_some(RememberedServer { facts: written.facts, catalogue })
    }

    /// Keeps what is known now, if it is something else than before. Lists that were never seen are not empty ones.
    pub async fn keep(&self, backend: &Backend) {
        let (key, spec, now) = (&backend.key, &*backend.spec, backend.snapshot());
        if !now.lists.are_known() {
            return;
        }
        let written =
            StoredFacts { spec: mark_of(spec), facts: now.facts, lists: now.catalogue.lists().map(<[Raw]>::to_vec) };
        let text = raw(&written);
        let mark = mark_of(text.get());
        if self.written().insert(key.clone(), mark) == Some(mark) {
            return;
        }
        let item = Item::put(stored::item(key), text.get().as_bytes().to_vec());
        if let Err(error) = stored::change(&self.store, &self.clock, &self.log, &item).await {
            self.written().remove(key);
            tracing::warn!(server = %key.name, %error, "what a server offers could not be kept");
        }
    }

    /// The server was removed, and what was known of it with it.
    pub async fn forget(&self, key: &BackendKey) {
        self.written().remove(key);
        if let Err(error) = stored::change(&self.store, &self.clock, &self.log, &Item::delete(stored::item(key))).await
        {
            tracing::warn!(server = %key.name, %error, "what a server offered could not be forgotten");
        }
    }

    fn written(&self) -> std::sync::MutexGuard<'_, HashMap<BackendKey, u64>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells one thing from another without keeping it: a configuration may hold secrets. The hash may change with the
/// compiler, which costs one memory.
fn mark_of<T: Hash + ?Sized>(thing: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    thing.hash(&mut hasher);
    hasher.finish()
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}
