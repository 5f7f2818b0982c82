//! Connections that wait for the next request to their server.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::sleep_until;

use super::endpoint::HttpOrigin;
use super::wire::HttpWire;
use crate::clock;

/// A server may close what it does not hear of; one that is older is not tried.
pub(super) const IDLE_FOR: Duration = Duration::from_secs(90);

pub(super) struct HttpPool {
    /// As many wait for one server; each is one that was in use at once.
    idle_max: usize,
    idle: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// Of each, the one that was used last is the last.
    of: HashMap<HttpOrigin, VecDeque<(Instant, Box<HttpWire>)>>,
    /// A task lets go of those that nothing is asked of. It ends when there are none.
    is_swept: bool,
}

impl HttpPool {
    pub fn new(idle_max: usize) -> Arc<HttpPool> {
        Arc::new(HttpPool { idle_max, idle: Mutex::default() })
    }

    pub fn keeps(&self) -> bool {
        self.idle_max > 0
    }

    /// One that is still there, as far as that can be seen.
    pub fn take(&self, origin: &HttpOrigin) -> Option<Box<HttpWire>> {
        loop {
            let (since, mut wire) = self.lock().of.get_mut(origin)?.pop_back()?;
            if clock::since(since) < IDLE_FOR && wire.is_ready() {
                return Some(wire);
            }
        }
    }

    pub fn put(self: &Arc<Self>, origin: &HttpOrigin, wire: Box<HttpWire>) {
        // Where no task can let go of it, it is not kept.
        let (true, Ok(runtime)) = (self.keeps(), Handle::try_current()) else { return };
        let mut idle = self.lock();
        if !idle.of.contains_key(origin) {
            idle.of.insert(origin.clone(), VecDeque::new());
        }
        if let Some(waiting) = idle.of.get_mut(origin) {
            if waiting.len() >= self.idle_max {
                waiting.pop_front();
            }
            waiting.push_back((clock::now(), wire));
        }
        if !idle.is_swept {
            idle.is_swept = true;
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// When there is something to let go again; none if nothing waits any more.
    fn let_go(&self) -> Option<Instant> {
        let mut idle = self.lock();
        idle.of.retain(|_, waiting| {
            while waiting.front().is_some_and(|(since, _)| clock::since(*since) >= IDLE_FOR) {
                waiting.pop_front();
            }
            !waiting.is_empty()
        });
        let oldest = idle.of.values().filter_map(|waiting| waiting.front()).map(|(since, _)| *since).min();
        idle.is_swept = oldest.is_some();
        oldest.map(|since| since + IDLE_FOR)
    }

    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().of.values().map(VecDeque::len).sum()
    }

    /// Whether the newest one of all is as good as new.
    #[cfg(test)]
    pub fn is_newest_ready(&self) -> bool {
        let mut idle = self.lock();
        idle.of.values_mut().filter_map(VecDeque::back_mut).any(|(_, wire)| wire.is_ready())
    }
}

async fn sweep(pool: Weak<HttpPool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.let_go()) {
        sleep_until(next.into()).await;
    }
}
