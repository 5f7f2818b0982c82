//! What clients of both revisions ask of servers, on its way there: calls, subscriptions, and tasks made of long calls.

pub(crate) mod call;
pub(crate) mod on_behalf;
pub(crate) mod peers;
pub(crate) mod resubscribe;
pub(crate) mod routing;
pub(crate) mod subscriptions;
pub(crate) mod task;
pub(crate) mod task_extension;
pub(crate) mod task_polling;

use std::fmt;
use std::sync::Arc;

use bowline_protocol::Principal;

use crate::call::{Caller, ClientFacts};
use crate::requester::{Requester, Role};
use crate::revision::{self, Revision};
use crate::session::{Route, Session};

/// Who asks, and how.
#[derive(Clone)]
pub struct Client {
    pub principal: Principal,
    pub role: Role,
    pub route: Route,
    pub caller: Caller,
    /// Of the older revision, or by a handle.
    pub session: Option<Arc<Session>>,
    /// `Mcp-*` headers as they came.
    pub headers: Option<Vec<(String, String)>>,
    pub log_level: Option<String>,
}

impl Client {
    pub fn of_session(session: &Arc<Session>) -> Client {
        Client {
            principal: session.principal.clone(),
            // A session may be used with several credentials; each request brings its own.
            role: Role::User,
            route: session.record.route.clone(),
            caller: session.caller(),
            session: Some(session.clone()),
            headers: None,
            log_level: session.log_level(),
        }
    }

    /// One that nobody can ask anything, with a session of its own at each server.
    pub fn absent(owner: &Principal, lane: String) -> Client {
        Client {
            principal: owner.clone(),
            role: Role::User,
            route: Route::All,
            caller: Caller {
                lane: lane.into(),
                owner: owner.as_str().into(),
                revision: Revision::V2025,
                client: Arc::new(ClientFacts { capabilities: revision::no_capabilities(), info: revision::our_info() }),
                inbox: None,
            },
            session: None,
            headers: None,
            log_level: None,
        }
    }

    #[must_use]
    pub fn with_role(self, role: Role) -> Client {
        Client { role, ..self }
    }

    pub fn requester(&self) -> Requester {
        Requester { principal: self.principal.clone(), role: self.role }
    }

    pub fn revision(&self) -> Revision {
        self.caller.revision
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {:?})", self.principal, self.route)
    }
}
