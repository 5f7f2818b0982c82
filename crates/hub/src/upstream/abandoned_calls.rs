//! Calls that were given up: their server may still ask or say something on their behalf, and that is nobody else's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_env::clock;

/// For so long a server may go on with a call that nobody waits for. As long as a question waits for a person.
const FOR: Duration = Duration::from_secs(600);
/// The oldest make room for newer ones.
const MAX: usize = 1000;

/// Each call's client, and until when it counts.
type Calls = BTreeMap<u64, (Option<Arc<str>>, Instant)>;

#[derive(Default)]
pub(super) struct GivenUp(Mutex<Calls>);

impl GivenUp {
    /// `client` is its session. Calls without one may each be another client's.
    pub fn add(&self, number: u64, client: Option<Arc<str>>) {
        let mut calls = self.lock();
        calls.insert(number, (client, clock::now() + FOR));
        if calls.len() > MAX {
            calls.pop_first();
        }
    }

    /// Its server has answered it all the same, and has nothing more to say.
    pub fn ended(&self, number: u64) {
        self.lock().remove(&number);
    }

    /// Whether all of them are this client's.
    pub fn are_only(&self, client: Option<&Arc<str>>) -> bool {
        let mut calls = self.lock();
        if !calls.is_empty() {
            let now = clock::now();
            calls.retain(|_, (_, until)| *until > now);
        }
        calls.values().all(|(other, _)| other.is_some() && other.as_ref() == client)
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_one_clients_call_is_no_other_clients() {
        let (given_up, alice, bob): (GivenUp, Arc<str>, Arc<str>) = (GivenUp::default(), "a".into(), "b".into());
        assert!(given_up.are_only(Some(&alice)) && given_up.are_only(None));
        given_up.add(1, Some(alice.clone()));
        assert!(given_up.are_only(Some(&alice)) && !given_up.are_only(Some(&bob)) && !given_up.are_only(None));
        given_up.add(2, None);
        assert!(!given_up.are_only(Some(&alice)) && !given_up.are_only(None));
        given_up.ended(2);
        assert!(given_up.are_only(Some(&alice)));
        given_up.ended(1);
        assert!(given_up.are_only(Some(&bob)));
    }
}
