//! Requests that the hub's own tools make on behalf of their callers.

use std::sync::Arc;

use bowline_protocol::Principal;

use super::{Client, aggregate, listen, transparent};
use crate::backend::Backend;
use crate::drive::conversation::Reply;
use crate::era::Era;
use crate::fields::Fields;
use crate::hub::Hub;
use crate::link::Sink;
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
    if method.ends_with("subscribe") && transparent::is_modern_only(backend) {
        let request = Request { id: message::Id::number(0), method: method.to_owned(), params: Some(params.to_raw()) };
        return listen::subscribe(hub, &client, backend, &request);
    }
    aggregate::pass(hub, &client, backend, method, params, sink).await
}

/// The client as backends see it when it acts by the hub's tools.
pub fn acting(client: &Client, session: Option<&Arc<Session>>) -> Client {
    let mut client = client.clone();
    // The headers of the client's own request speak of our tool, not of the backend's.
    client.headers = None;
    if let Some(session) = session {
        client.session = Some(session.clone());
        client.caller.lane = session.id.as_str().into();
        client.caller.inbox = Some(session.inbox.clone());
    }
    // Whoever uses the tools can answer by the tools, so the backend may ask.
    client.caller.client = Arc::new(aggregate::all_facts(&client));
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
