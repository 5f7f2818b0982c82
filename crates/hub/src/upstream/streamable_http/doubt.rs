//! Doubt about a server over HTTP: it is asked whether it is still there and knows a session. What its answers mean,
//! `core::upstream_session` decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::upstream_session::{PingOutcome, Presence};
use bowline_env::http::Response;
use futures_util::future::BoxFuture;

use super::HttpTransport;
use super::request::PostError;
use super::response::{self, ResponseOutcome};
use crate::call::{BackendCall, CallEnding, Exchange};
use crate::fields::into_bytes;
use crate::message::{self, RpcId};
use crate::upstream::TransportEvent;
use crate::upstream::backend_session::{BackendSession, HttpSession};
use crate::upstream::http::status_of;

/// A check of whether the backend is still there must be quick: calls wait for it.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);

impl HttpTransport {
    /// Asks the backend whether it is there, and knows the session if there is one.
    pub(super) async fn ping_in_time(self: &Arc<Self>, session: Option<&Arc<HttpSession>>) -> PingOutcome {
        tokio::time::timeout(CONFIRM_TIMEOUT, self.ping(session)).await.unwrap_or(PingOutcome::Late)
    }

    async fn ping(self: &Arc<Self>, session: Option<&Arc<HttpSession>>) -> PingOutcome {
        let id = self.own_id();
        let ping = into_bytes(message::request(&id, self.revision(Exchange::Session).ping_method(), None));
        self.pinged(&id, self.post(ping, &[], session.map(|session| &**session)).await).await
    }

    async fn pinged(self: &Arc<Self>, id: &RpcId, posted: Result<Response, PostError>) -> PingOutcome {
        let Ok(response) = posted else { return PingOutcome::Unreachable };
        let status = response.status();
        match response::read_response(response, id, None, self, None).await {
            // In a session the status says whether the session is good. A stateless server may refuse us and be well.
            ResponseOutcome::Answer(_) if status.is_success() || self.facts().exchange == Exchange::Stateless => {
                PingOutcome::Answered
            }
            ResponseOutcome::Answer(_) | ResponseOutcome::Other(_) | ResponseOutcome::Ended { .. } => {
                PingOutcome::Refused(status_of(status))
            }
        }
    }

    /// The backend does not know the session any more. For our own that means that it was restarted.
    pub(super) async fn session_gone(
        self: &Arc<Self>,
        backend_session: &Arc<BackendSession<HttpSession>>,
        session: &Arc<HttpSession>,
        why: &str,
    ) {
        if backend_session.is_shared() {
            self.lost(why).await;
        }
        // The task that noticed it ends with the session, so it cannot do the rest.
        let (transport, backend_session, session) = (self.clone(), backend_session.clone(), session.clone());
        tokio::spawn(async move {
            transport.discard(&backend_session, &session).await;
            transport.reopen(&backend_session).await;
        });
    }

    /// A client's session is gone, and ours is not. Who waits for something gets another one; all others with their next
    /// call.
    pub(super) fn reopen<'a>(
        self: &'a Arc<Self>,
        backend_session: &'a Arc<BackendSession<HttpSession>>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let waits = !self.dial.renewals.of(&backend_session.caller.session_name).is_empty();
            let here = self
                .backend_sessions
                .find(&backend_session.caller.session_name)
                .is_some_and(|known| Arc::ptr_eq(&known, backend_session));
            if waits && here {
                let _ = self.closed.run_until_cancelled(self.session(backend_session)).await;
            }
        })
    }

    /// Makes sure that the next call gets another session than `old`.
    pub(super) async fn discard(&self, backend_session: &BackendSession<HttpSession>, old: &Arc<HttpSession>) {
        old.over.cancel();
        let mut current = backend_session.session.lock().await;
        if current.as_ref().is_some_and(|session| Arc::ptr_eq(session, old)) {
            *current = None;
        }
    }

    /// The wire broke under a call. Whether the backend is gone is found out by asking it.
    pub(super) fn broken(self: &Arc<Self>, why: String) -> CallEnding {
        self.suspect(&why);
        CallEnding::Broken(why)
    }

    pub(super) fn suspect(self: &Arc<Self>, why: &str) {
        if self.closed.is_cancelled() || self.suspected.swap(true, Ordering::AcqRel) {
            return;
        }
        let (transport, why) = (self.clone(), why.to_owned());
        tokio::spawn(async move {
            let answers = transport.confirm_in_time().await;
            transport.suspected.store(false, Ordering::Release);
            if !answers {
                transport.lost(&why).await;
            }
        });
    }

    pub(super) async fn confirm_in_time(self: &Arc<Self>) -> bool {
        tokio::time::timeout(CONFIRM_TIMEOUT, self.confirm()).await.unwrap_or(false)
    }

    /// Whether the backend answers on what we have: the session, or the stateless probe.
    async fn confirm(self: &Arc<Self>) -> bool {
        let session = self.shared.session.lock().await.clone();
        let pinged = if self.facts().exchange == Exchange::Stateless {
            let id = self.own_id();
            let revision = self.revision(Exchange::Stateless);
            let ping = BackendCall::of_hub(revision.ping_method(), None);
            let (body, headers) = self.alone(revision, &id, &ping);
            self.pinged(&id, self.post(body, &headers, None).await).await
        } else {
            self.ping(session.as_ref()).await
        };
        match pinged.presence(session.is_some_and(|session| session.id.is_some())) {
            Presence::There => true,
            Presence::Gone => false,
            Presence::AskAnew => !self.answers_anew().await,
        }
    }

    /// Whether the backend answers in a session that is new.
    async fn answers_anew(self: &Arc<Self>) -> bool {
        let Ok((fresh, _)) = self.open(&self.shared).await else { return false };
        let answers = self.ping(Some(&fresh)).await == PingOutcome::Answered;
        self.farewell(&fresh).await;
        answers
    }

    pub(super) async fn lost(&self, why: &str) {
        // The reporting task may end with the transport, so nothing is awaited between the two.
        let Ok(place) = self.dial.events.reserve().await else { return };
        if !self.closed.is_cancelled() {
            self.closed.cancel();
            place.send((self.dial.generation, TransportEvent::Lost { reason: why.to_owned(), exit: None }));
        }
    }
}
