//! One suite that every store passes: each function tries one promise of the two traits.

mod directory;
mod lease;
mod log;

use std::sync::Arc;

use async_trait::async_trait;
use bowline_protocol::event::{Draft, names};
use bowline_protocol::{Epoch, LogId, Principal, Seq, SessionId, Unnumbered};
use bytes::Bytes;

use crate::{
    Claim, Commit, Committed, Fence, Leased, LogKind, ReadLimit, Record, Retention, Retentions, Start, Store,
    StoreError,
};

pub use directory::*;
pub use lease::*;
pub use log::*;

/// Makes stores to try.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// An empty store.
    async fn open(&self, retention: Retentions) -> Arc<dyn Store>;

    /// Closes the store and opens it again; `None` if it does not outlive its process.
    async fn reopen(&self, store: Arc<dyn Store>, retention: Retentions) -> Option<Arc<dyn Store>>;
}

const MUCH: Retention = Retention { events_max: 1_000_000, age_max_ms: 1_000_000 };
pub const PLENTY: Retentions = Retentions { sessions: MUCH, tasks: MUCH, nodes: MUCH };
pub const ALL: ReadLimit = ReadLimit { events: usize::MAX, bytes: usize::MAX };

pub fn id(name: &str) -> LogId {
    LogId::parse(name).expect("tests use sound names")
}

pub fn seq(number: u64) -> Seq {
    Seq::new(number).expect("tests use small numbers")
}

/// An event with this text in it.
pub fn event(text: &str) -> Unnumbered {
    Draft::new(names::THINKING, text).seal(&SessionId::from_random(1), "2026-01-01T00:00:00Z")
}

pub fn record(owner: &str, body: &str) -> Record {
    Record {
        kind: LogKind::Session,
        owner: Principal::parse(owner).expect("tests use sound names"),
        touched_ms: 5,
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

pub fn create(log: &str) -> Commit {
    Commit {
        create: Some(Start { epoch: Epoch::from_random(7), after: Seq::ZERO }),
        ..Commit::to(id(log), Fence(0), 0)
    }
}

/// A commit of these texts under a fence of its own.
pub async fn append(store: &dyn Store, log: &str, texts: &[&str]) -> Result<Committed, StoreError> {
    append_at(store, log, 0, texts).await
}

pub async fn append_at(store: &dyn Store, log: &str, at_ms: u64, texts: &[&str]) -> Result<Committed, StoreError> {
    let fence = store.lease(&id(log), &Claim::alone()).await.and_then(Leased::fence)?;
    let events = texts.iter().map(|text| event(text)).collect();
    let commit = Commit { events, ..Commit::to(id(log), fence, at_ms) };
    store.commit(commit).await
}

/// Everything that can be read of a log: numbers and texts. Checks on the way that each event says its own number.
pub async fn texts(store: &dyn Store, log: &str) -> Vec<(u64, String)> {
    let mut from = Seq::ZERO;
    let mut all = Vec::new();
    loop {
        let limit = ReadLimit { events: 7, bytes: 4096 };
        let batch = store.read(&id(log), from, limit).await.expect("the log can be read");
        let Some(last) = batch.events.last() else { return all };
        from = last.seq.next();
        for recorded in batch.events {
            let event = recorded.decode().expect("an event is JSON");
            assert_eq!(event.seq, recorded.seq, "an event says its own number");
            let text = event.content.as_str().unwrap_or_default().to_owned();
            all.push((recorded.seq.get(), text));
        }
    }
}

pub(crate) fn owned(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(n, text)| (*n, (*text).to_owned())).collect()
}

/// Calls a macro of yours with every function of the suite.
#[macro_export]
macro_rules! contract {
    ($each:ident) => {
        $each!(events_are_numbered_from_where_the_log_starts);
        $each!(a_log_is_created_once_and_must_exist);
        $each!(the_newest_fence_wins);
        $each!(the_fence_of_the_creator_holds_until_a_higher_one_comes);
        $each!(a_lease_is_taken_only_from_the_claimed_holder_or_by_the_holder);
        $each!(of_many_claims_one_is_granted_each_fence);
        $each!(a_lease_is_given_back_by_its_holder_only);
        $each!(a_fence_that_was_not_granted_ends_the_holding);
        $each!(whether_a_log_has_waiting_readers_can_be_asked);
        $each!(the_holder_goes_with_the_log_but_not_with_its_contents);
        $each!(reads_keep_to_their_limits_but_give_at_least_one_event);
        $each!(retention_by_count_lets_go_of_the_oldest);
        $each!(retention_by_age_lets_go_when_swept);
        $each!(tasks_and_nodes_have_a_retention_of_their_own);
        $each!(releasing_contents_keeps_the_record_and_the_numbers);
        $each!(releasing_the_log_leaves_nothing);
        $each!(items_come_by_key_and_by_prefix_in_order);
        $each!(records_are_listed_and_counted_by_owner_and_kind);
        $each!(records_are_visited_in_the_order_of_their_last_touch);
        $each!(a_reader_that_subscribes_and_then_looks_misses_nothing);
        $each!(a_follower_sees_each_commit_after_its_wake_up);
        $each!(a_follower_learns_that_its_log_goes_on_in_another_epoch);
        $each!(concurrent_commits_get_numbers_without_holes);
        $each!(many_logs_can_be_written_at_once);
    };
}
