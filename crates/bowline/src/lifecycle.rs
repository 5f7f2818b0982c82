//! How far a running server has come: recovered, about to leave, leaving.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[derive(Debug, Default)]
pub struct Lifecycle {
    /// Fires when the server drains: clients are notified, nothing new is accepted.
    pub draining: CancellationToken,
    /// Fires when it does leave: connections close.
    pub closing: CancellationToken,
    /// Every open WebSocket, so that the server stops only after each was notified.
    pub connections: TaskTracker,
    recovered: AtomicBool,
}

impl Lifecycle {
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// What an earlier process left behind is continued or ended.
    pub fn handle_recovered(&self) {
        self.recovered.store(true, Ordering::Release);
    }

    pub fn is_recovered(&self) -> bool {
        self.recovered.load(Ordering::Acquire)
    }
}
