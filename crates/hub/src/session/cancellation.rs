//! The calls of one client that are under way, so that each can be taken back by its id, and all when the client is gone.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::message::Id;

/// A client may use an id twice at once, so each call is also known by its token's place.
type Calls = Arc<Mutex<Vec<(Id, Arc<CancellationToken>)>>>;

#[derive(Clone)]
pub struct Running {
    calls: Calls,
    over: CancellationToken,
}

impl Running {
    /// All of them are taken back when `over` fires.
    pub fn new(over: &CancellationToken) -> Running {
        Running { calls: Calls::default(), over: over.clone() }
    }

    pub fn begin(&self, id: &Id) -> UnderWay {
        let token = Arc::new(self.over.child_token());
        lock(&self.calls).push((id.clone(), token.clone()));
        UnderWay { calls: self.calls.clone(), token }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        lock(&self.calls).len()
    }

    pub fn take_back(&self, id: &Id) {
        lock(&self.calls).iter().filter(|(known, _)| known == id).for_each(|(_, token)| token.cancel());
    }
}

/// A call, until it is dropped.
pub struct UnderWay {
    calls: Calls,
    token: Arc<CancellationToken>,
}

impl UnderWay {
    /// Fires when the call is taken back.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnderWay")
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.calls).retain(|(_, token)| !Arc::ptr_eq(token, &self.token));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Running {
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
        let running = Running::new(&over);
        let (one, same, other) =
            (running.begin(&Id::number(1)), running.begin(&Id::number(1)), running.begin(&Id::text("1")));
        drop(one);
        running.take_back(&Id::number(1));
        assert!(same.token().is_cancelled() && !other.token().is_cancelled());
        drop(same);
        assert_eq!(format!("{running:?}"), "Running(1)");
        over.cancel();
        assert!(other.token().is_cancelled());
    }
}
