//! Requests that the hub's own tools make on behalf of their callers.

use std::sync::Arc;

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
    if client.caller.era == Era::Modern {
        // The question would come back as a result of the backend's tool; as an older client it is asked instead.
        client.caller.era = Era::Legacy;
    }
    if method.ends_with("subscribe") && transparent::is_modern_only(backend) {
        let request = Request { id: message::Id::number(0), method: method.to_owned(), params: Some(params.to_raw()) };
        return listen::subscribe(hub, &client, backend, &request);
    }
    aggregate::pass(hub, &client, backend, method, params, sink).await
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
