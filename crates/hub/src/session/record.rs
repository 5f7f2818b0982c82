//! What is durable about a session of the hub besides its log.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::Principal;
use bowline_store::{LogKind, Record};
use serde::{Deserialize, Serialize};

use crate::fields::{Raw, raw};

/// What a client sees: everything, or one backend as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    All,
    One(Arc<str>),
}

#[derive(Clone, Serialize, Deserialize)]
pub struct HubSessionRecord {
    pub route: Route,
    /// What its client negotiated. The client of a handle says its version with each request.
    pub version: String,
    pub capabilities: Raw,
    pub info: Raw,
    pub created_ms: u64,
    /// It belongs to a client without sessions, which names it by its handle.
    #[serde(default)]
    pub handle: bool,
}

impl HubSessionRecord {
    /// As the store keeps it.
    pub(super) fn stored(&self, principal: &Principal, now: u64) -> Record {
        let body = raw(self).get().as_bytes().to_vec();
        Record { kind: LogKind::Mcp, owner: principal.clone(), touched_ms: now, body: body.into() }
    }
}

impl fmt::Debug for HubSessionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionRecord({:?}, {})", self.route, self.version)
    }
}
