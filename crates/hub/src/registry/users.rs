//! Who has used each server that several people share, since we began: what such a server sends without an addressee may speak
//! of any of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_protocol::Principal;

use crate::config::key::BackendKey;

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

#[cfg(test)]
mod tests {
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
