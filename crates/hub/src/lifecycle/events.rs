//! What happens to backends: noted, and told to the sessions that may see it.

use std::sync::{Arc, Weak};

use bowline_store::StoreError;
use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::backend::BackendEvent;
use crate::config::key::BackendKey;
use crate::fields::Raw;
use crate::hub::{Happening, Hub};
use crate::message;
use crate::relay::resubscribe;
use crate::session::registry::wants;
use crate::session::{HubSession, OWN_STREAM, Route};

/// Sessions that are notified of one event at the same time.
const TELL_AT_ONCE: usize = 256;

impl Hub {
    async fn happened(self: &Arc<Self>, key: BackendKey, event: BackendEvent) {
        // When the hub itself stops, its servers are let go, and what they offer has not changed.
        if matches!(event, BackendEvent::ListChanged(_)) && self.tasks.closing.is_cancelled() {
            return;
        }
        self.observer.backend_event(event.name());
        tracing::info!(server = %key.name, event = event.name(), data = %shown(&event, &key), "backend");
        let happening: Happening = Arc::new((key, event));
        let _ = self.happenings.send(happening.clone());
        // When we shut down, the servers stay where they are: no client has lost one.
        if self.tasks.closing.is_cancelled() {
            return;
        }
        self.tell_sessions(&happening).await;
        let (key, event) = &*happening;
        let Some(backend) = self.backend(key) else { return };
        match event {
            BackendEvent::Connected { .. } | BackendEvent::Reconnected { .. } => {
                let awake = self.sessions.awake();
                for session in awake.iter().filter(|session| self.sees(&session.principal, key)) {
                    resubscribe::renew(self, session, &backend);
                }
                self.memory.keep(&backend).await;
            }
            BackendEvent::ListChanged(_) => self.memory.keep(&backend).await,
            _ => {}
        }
    }

    /// Tells every session that may see the backend.
    async fn tell_sessions(&self, happening: &Happening) {
        self.settle_lost_sessions().await;
        let (key, event) = &**happening;
        let awake = self.sessions.awake();
        let said = matches!(event, BackendEvent::Stderr(_) | BackendEvent::Notification { .. });
        if said
            && key.owner.is_none()
            && let Some(first) = awake.first()
        {
            // What a server that several people share sends without an addressee may speak of any of them, and not all of
            // them have sessions.
            let alone = awake.iter().all(|session| session.principal == first.principal);
            if !alone || !self.is_only_used_by(key, &first.principal) {
                return;
            }
        }
        let backend = self.backend(key);
        let concerned = awake.into_iter().filter(|session| {
            // It hears there by itself what is said to all, and has not used a process that others shared.
            let elsewhere = said || matches!(event, BackendEvent::ProcessCrashed(_));
            let apart = elsewhere && backend.as_ref().is_some_and(|backend| backend.has_own(session.id.as_str()));
            let visible = self.sees(&session.principal, key);
            let routed = match &session.record.route {
                Route::All => true,
                Route::One(name) => *name == key.name,
            };
            visible && routed && !apart && event.concerns(session.id.as_str())
        });
        let program = backend.as_ref().is_some_and(|backend| backend.spec.is_stdio());
        // Many at once, so that the store can write them down in one piece. Each is told of one thing after the other all the
        // same, since nothing else is told before this is over.
        let telling = futures_util::stream::iter(concerned).for_each_concurrent(TELL_AT_ONCE, |session| async move {
            let message = self.as_it_is(&session, event, program);
            if let Err(error) = tell(&session, &key.name, event, message.as_ref()).await {
                tracing::warn!(session = %session.id, %error, "cannot notify a session");
            }
        });
        telling.await;
    }

    /// An event as the server's own notification, for those who see its lists, or the server itself as it is. What is said by
    /// anything but a program is said to each of its clients by itself.
    fn as_it_is(&self, session: &HubSession, event: &BackendEvent, program: bool) -> Option<Raw> {
        let alone = session.record.route != Route::All;
        match event {
            BackendEvent::ListChanged(method) if alone || (self.options.expose.direct() && !session.record.handle) => {
                Some(message::notification(method, None))
            }
            BackendEvent::Notification { method, params } if alone && program && wants(session, method, params) => {
                Some(message::notification(method, params.as_ref()))
            }
            _ => None,
        }
    }
}

/// With the message that the client gets besides, if there is one.
async fn tell(session: &HubSession, name: &str, event: &BackendEvent, message: Option<&Raw>) -> Result<(), StoreError> {
    // The server is gone, or what this client had of it.
    if matches!(event, BackendEvent::Disconnected { .. }) || event.is_own_crash() {
        session.reject(name).await?;
    }
    if message.is_none() {
        return session.tell(event.name(), name, &event.data(name)).await.map(drop);
    }
    session.tell_too(name, &event.data(name)).await?;
    session.say(OWN_STREAM, message, false).await.map(drop)
}

/// What may stand in our own log: no content, and no line that a child wrote.
fn shown(event: &BackendEvent, key: &BackendKey) -> Value {
    match event {
        BackendEvent::Notification { method, .. } => method.as_str().into(),
        BackendEvent::Stderr(_) | BackendEvent::Connected { .. } => Value::Null,
        BackendEvent::OfClient { event, .. } => shown(event, key),
        BackendEvent::Reconnected { attempts_taken, down, .. } => {
            serde_json::json!({ "attemptsTaken": attempts_taken, "downMs": down.as_millis() as u64 })
        }
        event => event.data(&key.name).to_value(),
    }
}

/// Tells what happens to everyone whom it concerns, in the order in which it happened.
pub(super) async fn listen(hub: Weak<Hub>, mut told: mpsc::Receiver<(BackendKey, BackendEvent)>) {
    while let Some((key, event)) = told.recv().await {
        let Some(hub) = hub.upgrade() else { return };
        hub.happened(key, event).await;
    }
}
