//! A call of the older era that is under way over HTTP: if its caller walks away, the backend is told.

use std::sync::Arc;

use super::http::HttpLink;
use super::lane::{Lane, UpSession};
use super::{Caller, cancelled};
use crate::message::{self, Id};

pub(super) struct Open<'a> {
    pub link: &'a Arc<HttpLink>,
    pub lane: &'a Lane<UpSession>,
    pub caller: &'a Caller,
    pub session: &'a Arc<UpSession>,
    pub id: &'a Id,
    pub over: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.lane.give_up(self.id.as_number().unwrap_or_default(), self.caller);
        }
        if !self.over && !self.link.closed.is_cancelled() {
            let body = message::notification("notifications/cancelled", Some(&cancelled(self.id)));
            let (link, session) = (self.link.clone(), self.session.clone());
            tokio::spawn(async move { link.post(&body, &[], Some(&session)).await.map(drop) });
        }
    }
}
