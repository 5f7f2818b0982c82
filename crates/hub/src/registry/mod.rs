//! Which servers there are: those of the configuration, those added or removed at run time, what was last seen of each, who has used
//! it, and how often it was forced to reconnect.

pub(crate) mod stored;

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_core::Bucket;
use bowline_protocol::{LogId, Principal};
use bowline_store::{Clock, Item, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, RememberedServer};
use crate::call::facts::ServerFacts;
use crate::call::{Requester, RequesterRole};
use crate::catalogue::Catalogue;
use crate::config::BackendKey;
use crate::config::spec::ServerSpec;
use crate::fields::{Raw, raw};

const MINUTE: Duration = Duration::from_secs(60);

pub struct ForcedReconnects {
    per_minute_max: u32,
    /// With the time of the last one. A bucket that was left alone for a minute is full, and need not be kept.
    buckets: Mutex<HashMap<(Principal, BackendKey), (Bucket, Instant)>>,
}

impl ForcedReconnects {
    pub fn new(per_minute_max: u32) -> ForcedReconnects {
        ForcedReconnects { per_minute_max, buckets: Mutex::default() }
    }

    /// Takes one, or says how long until there is one. Operators, and owners of what they added, are not limited.
    pub fn take(&self, who: &Requester, key: &BackendKey, now: Instant) -> Result<(), Duration> {
        if who.role == RequesterRole::Operator || key.owner.is_some() {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.retain(|_, (_, used)| now.saturating_duration_since(*used) < MINUTE);
        let every = MINUTE / self.per_minute_max.max(1);
        let full = || (Bucket::rare(now, self.per_minute_max, every), now);
        let (bucket, used) = buckets.entry((who.principal.clone(), key.clone())).or_insert_with(full);
        *used = now;
        bucket.take(now)
    }
}

impl fmt::Debug for ForcedReconnects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForcedReconnects({} a minute)", self.per_minute_max)
    }
}

/// More than this need not be known. It outlives the server itself, since its last words may come late; there are as many as
/// an operator has named.
enum UsedBy {
    By(Principal),
    BySeveral,
}

#[derive(Default)]
pub struct Users(Mutex<HashMap<BackendKey, UsedBy>>);

impl Users {
    /// A principal uses a server. Noted before anything is sent there.
    pub fn note(&self, key: &BackendKey, principal: &Principal) {
        // A server that a principal added is used by that principal alone.
        if key.owner.is_some() {
            return;
        }
        let mut used = self.lock();
        match used.get_mut(key) {
            None => drop(used.insert(key.clone(), UsedBy::By(principal.clone()))),
            Some(UsedBy::By(other)) if other == principal => {}
            Some(known) => *known = UsedBy::BySeveral,
        }
    }

    /// Whether this principal alone has used it.
    pub fn are_only(&self, key: &BackendKey, principal: &Principal) -> bool {
        match self.lock().get(key) {
            None => true,
            Some(UsedBy::By(known)) => known == principal,
            Some(UsedBy::BySeveral) => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BackendKey, UsedBy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users(of {} servers)", self.lock().len())
    }
}

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

    fn written(&self) -> MutexGuard<'_, HashMap<BackendKey, u64>> {
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

#[cfg(test)]
mod forced_reconnects_tests {
    use super::*;

    use bowline_env::clock;

    #[test]
    fn one_principal_has_so_many_at_each_server_and_then_one_by_one() {
        let limits = ForcedReconnects::new(2);
        let [alice, bob] = ["alice", "bob"].map(|name| Principal::parse(name).unwrap());
        let (user, other) = (Requester::from(&alice), Requester::from(&bob));
        let (one, two, t0) = (BackendKey::shared("one"), BackendKey::shared("two"), clock::now());
        let takes =
            |who: &Requester, key: &BackendKey, after: u64| limits.take(who, key, t0 + Duration::from_secs(after));
        assert!(takes(&user, &one, 0).is_ok() && takes(&user, &one, 0).is_ok());
        assert_eq!(takes(&user, &one, 0), Err(Duration::from_secs(30)));
        assert!(takes(&other, &one, 0).is_ok() && takes(&user, &two, 0).is_ok(), "each has its own");
        assert!(takes(&user, &one, 30).is_ok() && takes(&user, &one, 31).is_err());
        assert!(takes(&user, &one, 95).is_ok() && takes(&user, &one, 95).is_ok(), "after a minute all are back");
        for _ in 0..9 {
            assert!(takes(&Requester::operator(alice.clone()), &one, 95).is_ok(), "an operator is not limited");
            assert!(takes(&user, &BackendKey::of(&alice, "mine"), 95).is_ok(), "nor an owner");
        }
    }
}

#[cfg(test)]
mod users_tests {
    use super::*;

    #[test]
    fn a_server_is_one_persons_until_another_has_used_it() {
        let [alice, bob] = ["alice", "bob"].map(|name| Principal::parse(name).unwrap());
        let (users, key) = (Users::default(), BackendKey { owner: None, name: "b".into() });
        assert!(users.are_only(&key, &alice) && users.are_only(&key, &bob));
        users.note(&key, &alice);
        users.note(&key, &alice);
        assert!(users.are_only(&key, &alice) && !users.are_only(&key, &bob));
        users.note(&key, &bob);
        users.note(&key, &bob);
        assert!(!users.are_only(&key, &alice) && !users.are_only(&key, &bob));
    }
}
