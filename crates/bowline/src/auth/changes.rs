//! Notifies the holders of accepted credentials that what credentials are checked against has changed.

use tokio::sync::watch;

/// Shared by everything that verifies credentials. The number only says that something is new.
#[derive(Clone, Debug)]
pub struct Changes(watch::Sender<u64>);

impl Default for Changes {
    fn default() -> Changes {
        Changes(watch::Sender::new(0))
    }
}

impl Changes {
    pub fn announce(&self) {
        self.0.send_modify(|number| *number = number.wrapping_add(1));
    }

    /// Hears of every change from now on.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
