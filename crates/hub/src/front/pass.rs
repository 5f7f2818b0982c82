//! Requests that the hub's own tools make on behalf of their callers.

use std::sync::Arc;

use bowline_protocol::Principal;

use super::{Client, aggregate, listen, renew, transparent};
use crate::backend::Backend;
use crate::drive::conversation::Reply;
use crate::era::Era;
use crate::fields::Fields;
use crate::hub::Hub;
use crate::link::{Caller, Sink};
use crate::message::{self, Request};
use crate::session::Session;

/// Sends a request to a backend as the client, or as the session that stands for it.
pub async fn to_backend(
    hub: &Arc<Hub>,
    client: &Client,
    session: Option<&Arc<Session>>,
    backend: &Backend,
    method: &str,
    params: &Fields,
    sink: &Sink,
) -> Reply {
    let client = acting(client, session);
    let reply = if method.ends_with("subscribe") && transparent::is_modern_only(backend) {
        let request = Request { id: message::Id::number(0), method: method.to_owned(), params: Some(params.to_raw()) };
        listen::subscribe(hub, &client, backend, &request)
    } else {
        aggregate::pass(hub, &client, backend, method, params, sink).await
    };
    renew::note(&client, Some(backend.name()), method, Some(&params.to_raw()), &reply).await;
    reply
}

/// The client as backends see it when it acts by the hub's tools.
pub fn acting(client: &Client, session: Option<&Arc<Session>>) -> Client {
    let mut client = client.clone();
    // The headers of the client's own request speak of our tool, not of the backend's.
    client.headers = None;
    if let Some(session) = session {
        client.session = Some(session.clone());
        client.caller.lane = session.id.as_str().into();
        client.caller.inbox = Some(session.inbox.sink.clone());
    }
    // Whoever uses the tools can answer by the tools, so the backend may ask. A server with sessions is told once what each
    // client can do, so a client without a session is another one to it when it acts by them.
    let facts = aggregate::all_facts(&client);
    if client.caller.inbox.is_none() && client.caller.era == Era::Modern {
        client.caller = Caller::without_session(&client.principal, facts);
    } else {
        client.caller.client = Arc::new(facts);
    }
    // A question to a modern client would come back as a result of the backend's tool; an older one is asked instead.
    client.caller.era = Era::Legacy;
    client
}

/// Somebody who asked for something long ago and may not be here now.
pub fn of_owner(owner: &Principal, session: Option<&Arc<Session>>) -> Client {
    acting(&Client::absent(owner, format!("principal {owner}")), session)
}

/// The same for a client that can answer nothing, as it is.
pub async fn as_client(
    hub: &Arc<Hub>,
    client: &Client,
    backend: &Backend,
    method: &str,
    params: &Fields,
    sink: &Sink,
) -> Reply {
    aggregate::pass(hub, client, backend, method, params, sink).await
}
