//! What clients ask of servers, on its way there: calls, subscriptions, and tasks made of long calls.

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

use crate::call::facts::{ClientFacts, no_capabilities, our_info};
use crate::call::{Caller, Exchange, Sent};
use crate::requester::{Requester, RequesterRole};
use crate::session::{HubSession, Route};

/// Who asks, and how.
#[derive(Clone)]
pub struct ClientContext {
    pub principal: Principal,
    pub role: RequesterRole,
    pub route: Route,
    pub caller: Caller,
    /// That its requests come in, or that a handle names.
    pub session: Option<Arc<HubSession>>,
    /// Its own request, if that was a stateless one. What the hub asks on its behalf is not.
    pub sent: Option<Sent>,
    pub log_level: Option<String>,
}

impl ClientContext {
    pub fn of_session(session: &Arc<HubSession>) -> ClientContext {
        ClientContext {
            principal: session.principal.clone(),
            // A session may be used with several credentials; each request brings its own.
            role: RequesterRole::User,
            route: session.record.route.clone(),
            caller: session.caller(),
            session: Some(session.clone()),
            sent: None,
            log_level: session.log_level(),
        }
    }

    /// A client that cannot be asked anything, with a session of its own at each server.
    pub fn absent(owner: &Principal, lane: String) -> ClientContext {
        ClientContext {
            principal: owner.clone(),
            role: RequesterRole::User,
            route: Route::All,
            caller: Caller {
                lane: lane.into(),
                owner: owner.as_str().into(),
                exchange: Exchange::Session,
                client: Arc::new(ClientFacts { capabilities: no_capabilities(), info: our_info() }),
                inbox: None,
            },
            session: None,
            sent: None,
            log_level: None,
        }
    }

    #[must_use]
    pub fn with_role(self, role: RequesterRole) -> ClientContext {
        ClientContext { role, ..self }
    }

    pub fn requester(&self) -> Requester {
        Requester { principal: self.principal.clone(), role: self.role }
    }

    pub fn exchange(&self) -> Exchange {
        self.caller.exchange
    }
}

impl fmt::Debug for ClientContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {:?})", self.principal, self.route)
    }
}
