//! The hub's own doors: what clients of both eras ask for, over HTTP and over stdio.

mod aggregate;
mod answer;
mod batch;
pub(crate) mod bridge;
pub(crate) mod carried;
pub mod http;
mod legacy;
mod listen;
mod modern;
mod names;
pub(crate) mod pass;
mod reader;
pub(crate) mod renew;
pub(crate) mod running;
pub mod stdio;
mod talk;
mod tasked;
mod transparent;

pub(crate) use aggregate::troubles;
pub(crate) use reader::Logged;

use std::fmt;
use std::sync::Arc;

use bowline_protocol::Principal;

use crate::drive::conversation::{Conversation, Reply};
use crate::era::{self, Era};
use crate::fields::Raw;
use crate::hub::Hub;
use crate::link::{Caller, ClientFacts};
use crate::message::{self, Request};
use crate::requester::{Requester, Role};
use crate::session::{Route, Session};

/// Who asks, and how.
#[derive(Clone)]
pub struct Client {
    pub principal: Principal,
    pub role: Role,
    pub route: Route,
    pub caller: Caller,
    /// Of the older era, or by a handle.
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
                era: Era::Legacy,
                client: Arc::new(ClientFacts { capabilities: era::no_capabilities(), info: era::our_info() }),
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

    pub fn era(&self) -> Era {
        self.caller.era
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {:?})", self.principal, self.route)
    }
}

/// Begins whatever the request asks for.
fn begin(hub: &Arc<Hub>, client: Client, request: Request) -> Conversation {
    let hub = hub.clone();
    Conversation::begin(move |sink| {
        Box::pin(async move {
            match client.route.clone() {
                Route::One(name) => transparent::answer(&hub, &client, &name, &request, &sink).await,
                Route::All => aggregate::answer(&hub, &client, &request, &sink).await,
            }
        })
    })
}

fn refuse(code: i64, text: &str) -> Reply {
    let status = if code == message::METHOD_NOT_FOUND { 404 } else { 200 };
    Reply::with_status(Err(message::error(code, text)), status)
}

fn done(result: Raw) -> Reply {
    Reply::new(Ok(result))
}
