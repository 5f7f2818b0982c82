//! Where servers send a session what belongs to no call. It stays when the session is woken anew, since servers are not told of that.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::HubSession;
use crate::call::{Inbound, InboundSink};

/// What servers may say to a session before it is written down.
const INBOX_MAX: usize = 64;

/// For whom the messages are now.
#[derive(Clone, Debug, Default)]
pub struct InboxListener(Arc<Mutex<Weak<HubSession>>>);

impl InboxListener {
    pub fn session(&self) -> Option<Arc<HubSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

#[derive(Clone, Debug)]
pub struct Inbox {
    pub sink: InboundSink,
    pub hearer: InboxListener,
    pub closed: CancellationToken,
}

impl Inbox {
    pub fn new() -> (Inbox, mpsc::Receiver<Inbound>) {
        let (sink, said) = mpsc::channel(INBOX_MAX);
        (Inbox { sink, hearer: InboxListener::default(), closed: CancellationToken::new() }, said)
    }

    /// The session is not here any more. A task that still acts for it sees that the inbox is closed.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// What comes from now on is for this one.
    pub fn belongs_to(&self, session: &Arc<HubSession>) {
        *self.hearer.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(session);
    }
}
