//! The calls of one client that are under way, so that each can be taken back by its id, and all when the client is gone.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::message::RpcId;

/// A client may use an id twice at once, so each call is also known by its token's place.
type CancelTokens = Arc<Mutex<Vec<(RpcId, Arc<CancellationToken>)>>>;

#[derive(Clone)]
pub struct CancellableCalls {
    calls: CancelTokens,
    over: CancellationToken,
}

impl CancellableCalls {
    /// All of them are taken back when `over` fires.
    pub fn new(over: &CancellationToken) -> CancellableCalls {
        CancellableCalls { calls: CancelTokens::default(), over: over.clone() }
    }

    pub fn begin(&self, id: &RpcId) -> CallGuard {
        let token = Arc::new(self.over.child_token());
        lock(&self.calls).push((id.clone(), token.clone()));
        CallGuard { calls: self.calls.clone(), token }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        lock(&self.calls).len()
    }

    pub fn take_back(&self, id: &RpcId) {
        lock(&self.calls).iter().filter(|(known, _)| known == id).for_each(|(_, token)| token.cancel());
    }
}

/// A call, until it is dropped.
pub struct CallGuard {
    calls: CancelTokens,
    token: Arc<CancellationToken>,
}

impl CallGuard {
    /// Fires when the call is taken back.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }
}

impl fmt::Debug for CallGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallGuard")
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        lock(&self.calls).retain(|(_, token)| !Arc::ptr_eq(token, &self.token));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for CancellableCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({})", lock(&self.calls).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_taken_back_by_its_id_and_forgotten_when_it_is_over() {
        let over = CancellationToken::new();
        let running = CancellableCalls::new(&over);
        let (one, same, other) =
            (running.begin(&RpcId::number(1)), running.begin(&RpcId::number(1)), running.begin(&RpcId::text("1")));
        drop(one);
        running.take_back(&RpcId::number(1));
        assert!(same.token().is_cancelled() && !other.token().is_cancelled());
        drop(same);
        assert_eq!(format!("{running:?}"), "Running(1)");
        over.cancel();
        assert!(other.token().is_cancelled());
    }
}
