//! Which calls ran at the backend, what their clients were told of them, and whether both can be true.
//!
//! Each call has a key that no other has, also one that is made again because the one before did not run. So a key that runs
//! twice was sent twice by the hub.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::oracle::Oracle;

/// What a client was told of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldOutcome {
    /// An answer of the tool.
    Answered,
    /// It may have run.
    Unknown,
    NotExecuted,
}

/// A session of a client at the hub, for those who try it though it is not theirs.
#[derive(Clone, Debug)]
pub struct KnownSession {
    pub owner: String,
    pub id: String,
    pub path: String,
}

/// The calls of all clients. Clones share them.
#[derive(Clone, Debug)]
pub struct CallLedger(Arc<Mutex<LedgerFacts>>);

#[derive(Debug)]
struct LedgerFacts {
    oracle: Oracle,
    /// How often each call ran.
    ran: BTreeMap<String, u64>,
    told: BTreeMap<String, ToldOutcome>,
    sessions: Vec<KnownSession>,
}

impl CallLedger {
    pub fn new(oracle: Oracle) -> CallLedger {
        let (ran, told, sessions) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        CallLedger(Arc::new(Mutex::new(LedgerFacts { oracle, ran, told, sessions })))
    }

    fn facts(&self) -> MutexGuard<'_, LedgerFacts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backend runs a call.
    pub fn ran(&self, key: &str) {
        let mut facts = self.facts();
        let times = facts.ran.entry(key.to_owned()).or_default();
        *times += 1;
        let (times, told) = (*times, facts.told.get(key).copied());
        if times > 1 {
            facts.oracle.violate("backend", format_args!("the call {key} ran {times} times"));
        }
        if told == Some(ToldOutcome::NotExecuted) {
            facts
                .oracle
                .violate("backend", format_args!("the call {key} ran, after its client was told that it did not"));
        }
    }

    /// A client is told what became of a call.
    pub fn told(&self, who: &str, key: &str, outcome: ToldOutcome) {
        let mut facts = self.facts();
        let has_run = facts.ran.contains_key(key);
        match outcome {
            ToldOutcome::NotExecuted if has_run => {
                facts.oracle.violate(who, format_args!("was told that the call {key} did not run, and it did"));
            }
            ToldOutcome::Answered if !has_run => {
                facts.oracle.violate(who, format_args!("got an answer to the call {key}, which did not run"));
            }
            _ => {}
        }
        if let Some(before) = facts.told.insert(key.to_owned(), outcome)
            && before != outcome
        {
            facts.oracle.violate(who, format_args!("the call {key} ended as {before:?} and as {outcome:?}"));
        }
    }

    /// A session at the backend, which the hub makes for one client, was used for another.
    pub fn mixes(&self, session: &str, before: &str, now: &str) {
        let facts = self.facts();
        facts.oracle.violate("backend", format_args!("{session} is used for {now}, and was for {before}"));
    }

    /// A client was given a session.
    pub fn knows(&self, owner: &str, id: &str, path: &str) {
        let known = KnownSession { owner: owner.to_owned(), id: id.to_owned(), path: path.to_owned() };
        self.facts().sessions.push(known);
    }

    /// Sessions of others.
    pub fn not_of(&self, owner: &str) -> Vec<KnownSession> {
        self.facts().sessions.iter().filter(|known| known.owner != owner).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Promises;
    use crate::trace::Trace;

    fn seen(story: impl FnOnce(&CallLedger)) -> Vec<String> {
        let oracle = Oracle::new(Trace::new(false), Promises { tells_losses_at_once: true, keeps_all: true });
        story(&CallLedger::new(oracle.clone()));
        oracle.violations()
    }

    #[test]
    fn a_call_that_runs_once_and_is_answered_or_in_doubt_is_right() {
        for outcome in [ToldOutcome::Answered, ToldOutcome::Unknown] {
            let wrong = seen(|ledger| {
                ledger.ran("a");
                ledger.told("client", "a", outcome);
                ledger.told("client", "a", outcome);
            });
            assert!(wrong.is_empty(), "{wrong:?}");
        }
        assert!(seen(|ledger| ledger.told("client", "a", ToldOutcome::NotExecuted)).is_empty());
        assert!(seen(|ledger| ledger.told("client", "a", ToldOutcome::Unknown)).is_empty(), "it may have run, or not");
    }

    #[test]
    fn a_call_that_runs_twice_is_seen() {
        let wrong = seen(|ledger| {
            ledger.ran("a");
            ledger.ran("a");
        });
        assert_eq!(wrong, ["backend: the call a ran 2 times"]);
    }

    #[test]
    fn a_call_that_did_not_run_as_its_client_was_told_must_not_have_run_nor_run_later() {
        let before = seen(|ledger| {
            ledger.ran("a");
            ledger.told("client", "a", ToldOutcome::NotExecuted);
        });
        assert!(before[0].contains("did not run, and it did"), "{before:?}");
        let later = seen(|ledger| {
            ledger.told("client", "a", ToldOutcome::NotExecuted);
            ledger.ran("a");
        });
        assert!(later[0].contains("after its client was told"), "{later:?}");
    }

    #[test]
    fn an_answer_of_a_call_that_did_not_run_is_seen_and_so_is_a_second_outcome() {
        let invented = seen(|ledger| ledger.told("client", "a", ToldOutcome::Answered));
        assert!(invented[0].contains("which did not run"), "{invented:?}");
        let two = seen(|ledger| {
            ledger.ran("a");
            ledger.told("client", "a", ToldOutcome::Unknown);
            ledger.told("client", "a", ToldOutcome::Answered);
        });
        assert!(two[0].contains("ended as Unknown and as Answered"), "{two:?}");
    }
}
