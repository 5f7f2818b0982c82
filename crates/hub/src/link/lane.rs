//! One client's place at a backend of the older era: its session there, and its calls that are under way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::{Caller, SHARED_LANE, Sink};
use crate::fields::Raw;

/// One client's session at the backend.
pub(super) struct Lane {
    pub caller: Caller,
    pub session: tokio::sync::Mutex<Option<Arc<UpSession>>>,
    /// The calls that are under way, for requests that name none.
    calls: Mutex<Vec<(u64, Sink)>>,
}

pub(super) struct UpSession {
    pub id: Option<String>,
    pub version: String,
    /// What the backend answered to `initialize`.
    pub initialized: Raw,
    /// Ends the stream that belongs to the session.
    pub over: CancellationToken,
}

impl Lane {
    pub fn new(caller: &Caller) -> Lane {
        Lane { caller: caller.clone(), session: tokio::sync::Mutex::default(), calls: Mutex::default() }
    }

    /// The newest call of this client, for a request that names none.
    pub fn newest_call(&self) -> Option<Sink> {
        lock(&self.calls).last().map(|(_, sink)| sink.clone())
    }

    pub fn is_shared(&self) -> bool {
        self.caller.lane.as_ref() == SHARED_LANE
    }
}

/// A call that is under way in a lane.
pub(super) struct Listed<'a>(&'a Lane, u64);

impl<'a> Listed<'a> {
    pub fn new(lane: &'a Arc<Lane>, number: u64, sink: Sink) -> Listed<'a> {
        lock(&lane.calls).push((number, sink));
        Listed(lane, number)
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        lock(&self.0.calls).retain(|(number, _)| *number != self.1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
