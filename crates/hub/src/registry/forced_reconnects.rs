//! How often one principal may force a reconnect of a server that all clients share: it ends the others' connections too.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowline_core::Bucket;
use bowline_protocol::Principal;

use crate::config::key::BackendKey;
use crate::requester::{Requester, RequesterRole};

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

#[cfg(test)]
mod tests {
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
