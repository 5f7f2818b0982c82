//! A call in a session that is under way over HTTP: if its caller leaves, the call is cancelled at the backend.

use std::sync::Arc;

use super::HttpTransport;
use crate::message::{self, RpcId};
use crate::upstream::backend_session::{BackendSession, HttpSession};
use crate::upstream::cancelled;

pub(super) struct OpenCall<'a> {
    pub transport: &'a Arc<HttpTransport>,
    pub lane: &'a BackendSession<HttpSession>,
    pub session: &'a Arc<HttpSession>,
    pub id: &'a RpcId,
    pub over: bool,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.lane.give_up(self.id.as_number().unwrap_or_default());
        }
        if !self.over && !self.transport.closed.is_cancelled() {
            let body = message::notification("notifications/cancelled", Some(&cancelled(self.id)));
            let (transport, session) = (self.transport.clone(), self.session.clone());
            tokio::spawn(async move { transport.post(&body, &[], Some(&session)).await.map(drop) });
        }
    }
}
