//! What clients ask of servers, on its way there: calls, subscriptions, and tasks made of long calls; by themselves, or by the hub's
//! own tools on their behalf.

pub(crate) mod call;
pub(crate) mod hosted_task;
pub(crate) mod peer_requests;
pub(crate) mod subscriptions;
pub(crate) mod task;

use std::fmt;
use std::sync::Arc;

use bowline_protocol::Principal;

use crate::backend::Backend;
use crate::call::facts::{self, ClientFacts, no_capabilities, our_info};
use crate::call::{CallReply, Caller, Exchange, InboundSink, Requester, RequesterRole, Sent};
use crate::fields::Fields;
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
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
    pub fn absent(owner: &Principal, session_name: String) -> ClientContext {
        ClientContext {
            principal: owner.clone(),
            role: RequesterRole::User,
            route: Route::All,
            caller: Caller {
                session_name: session_name.into(),
                number: 0,
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

/// Sends a request to a backend as the client, or as the session that stands for it.
pub async fn to_backend(
    hub: &Arc<Hub>,
    client: &ClientContext,
    session: Option<&Arc<HubSession>>,
    backend: &Backend,
    method: &str,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    pass(hub, &acting(client, session), backend, method, params, sink).await
}

/// The same for a client as it is. Where the server has no sessions, a subscription is one of the hub's own.
pub async fn pass(
    hub: &Arc<Hub>,
    client: &ClientContext,
    backend: &Backend,
    method: &str,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    let reply = if method.ends_with("subscribe") && !backend.offers(Exchange::Session) {
        let request =
            RpcRequest { id: message::RpcId::number(0), method: method.to_owned(), params: Some(params.to_raw()) };
        subscriptions::subscribe(hub, client, backend, &request)
    } else {
        call::pass(hub, client, backend, method, params, sink).await
    };
    subscriptions::note(client, Some(backend.name()), method, Some(&params.to_raw()), &reply).await;
    reply
}

/// The client as backends see it when it acts by the hub's tools.
pub fn acting(client: &ClientContext, session: Option<&Arc<HubSession>>) -> ClientContext {
    let mut client = client.clone();
    // The client's own request speaks of our tool, not of the backend's.
    client.sent = None;
    if let Some(session) = session {
        client.session = Some(session.clone());
        client.caller.session_name = session.id.as_str().into();
        client.caller.inbox = Some(session.inbox.clone());
    }
    // A client that uses the hub's tools can answer with them, so the backend may ask. A server with sessions is told once what each
    // client can do, so a client without a session is another one to it when it acts by them.
    let facts = all_facts(&client);
    if client.caller.inbox.is_none() && client.exchange() == Exchange::Stateless {
        client.caller = Caller::without_session(&client.principal, facts).numbered(client.caller.number);
    } else {
        client.caller.client = Arc::new(facts);
    }
    // A question to a stateless client would come back as a result of the backend's tool; in a session it is asked.
    client.caller.exchange = Exchange::Session;
    client
}

/// A client that asked for something long ago and may not be connected now.
pub fn of_owner(owner: &Principal, session: Option<&Arc<HubSession>>) -> ClientContext {
    acting(&ClientContext::absent(owner, format!("principal {owner}")), session)
}

/// A client that can answer everything, by itself or by the hub's tools, and for whom the hub follows tasks.
pub fn all_facts(client: &ClientContext) -> ClientFacts {
    let own = &client.caller.client;
    let capabilities = facts::with_tasks(&facts::with_tools(&own.capabilities));
    ClientFacts { capabilities, info: own.info.clone() }
}
