//! Requests that the hub's own tools make on behalf of their callers.

use std::sync::Arc;

use bowline_protocol::Principal;

use super::{ClientContext, call, resubscribe, subscriptions};
use crate::backend::Backend;
use crate::call::facts::ClientFacts;
use crate::call::reply::CallReply;
use crate::call::{Caller, Exchange, InboundSink, capabilities};
use crate::fields::Fields;
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
use crate::session::HubSession;

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
    let client = acting(client, session);
    let reply = if method.ends_with("subscribe") && !backend.offers(Exchange::Session) {
        let request =
            RpcRequest { id: message::RpcId::number(0), method: method.to_owned(), params: Some(params.to_raw()) };
        subscriptions::subscribe(hub, &client, backend, &request)
    } else {
        call::pass(hub, &client, backend, method, params, sink).await
    };
    resubscribe::note(&client, Some(backend.name()), method, Some(&params.to_raw()), &reply).await;
    reply
}

/// The client as backends see it when it acts by the hub's tools.
pub fn acting(client: &ClientContext, session: Option<&Arc<HubSession>>) -> ClientContext {
    let mut client = client.clone();
    // The client's own request speaks of our tool, not of the backend's.
    client.sent = None;
    if let Some(session) = session {
        client.session = Some(session.clone());
        client.caller.lane = session.id.as_str().into();
        client.caller.inbox = Some(session.inbox.sink.clone());
    }
    // A client that uses the hub's tools can answer with them, so the backend may ask. A server with sessions is told once what each
    // client can do, so a client without a session is another one to it when it acts by them.
    let facts = all_facts(&client);
    if client.caller.inbox.is_none() && client.exchange() == Exchange::Stateless {
        client.caller = Caller::without_session(&client.principal, facts);
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

/// The same for a client that can answer nothing, as it is.
pub async fn as_client(
    hub: &Arc<Hub>,
    client: &ClientContext,
    backend: &Backend,
    method: &str,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    call::pass(hub, client, backend, method, params, sink).await
}

/// A client that can answer everything, by itself or by the hub's tools, and for whom the hub follows tasks.
pub fn all_facts(client: &ClientContext) -> ClientFacts {
    let own = &client.caller.client;
    let capabilities = capabilities::with_tasks(&capabilities::with_tools(&own.capabilities));
    ClientFacts { capabilities, info: own.info.clone() }
}
