//! A server over HTTP that knows no sessions: what its clients ask of it, it is asked by all of them together.

use std::sync::Arc;

use super::{HttpTransport, response};
use crate::call::{BackendCall, CallEnding};
use crate::fields::Raw;
use crate::message;
use crate::upstream::RENEWAL_TIMEOUT;
use crate::upstream::backend_session::HttpSession;
use crate::upstream::subscriptions::UNSUBSCRIBE;

impl HttpTransport {
    /// A call in a session, which may concern others than its caller.
    pub(super) async fn call_shared(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        if self.sessionless().await.is_none() {
            return self.call_in_session(call).await;
        }
        let Some(mut turn) = self.subscriptions.turn(call).await else {
            return CallEnding::answered(Ok(crate::fields::empty()));
        };
        // Each request is a connection of its own, so the order in which they arrive is not defined.
        turn.sent();
        turn.ended(self.call_in_session(call).await)
    }

    /// A client has left: what only it had subscribed to is ended.
    pub(super) async fn end_unwanted(self: &Arc<Self>) {
        let Some(session) = self.sessionless().await else { return };
        let (unwanted, _order) = self.subscriptions.unwanted().await;
        for params in unwanted {
            self.ask(&session, UNSUBSCRIBE, Some(&params)).await;
        }
    }

    /// Sends a request whose answer is not awaited.
    pub(super) async fn ask(self: &Arc<Self>, session: &Arc<HttpSession>, method: &str, params: Option<&Raw>) {
        let id = self.own_id();
        let body = message::request(&id, method, params);
        let asked = async {
            if let Ok(response) = self.post(&body, &[], Some(session)).await {
                response::read_response(response, &id, None, self, Some(session)).await;
            }
        };
        let _ = tokio::time::timeout(RENEWAL_TIMEOUT, asked).await;
    }

    async fn sessionless(&self) -> Option<Arc<HttpSession>> {
        self.shared.session.lock().await.clone().filter(|session| session.id.is_none())
    }
}
