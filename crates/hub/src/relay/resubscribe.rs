//! What a client asked for once and means for good: noted when it is granted, and asked for again when the server knows
//! nothing of it, as after our own restart.

use std::sync::Arc;

use bowline_core::backend::ResendPolicy;

use super::{ClientContext, on_behalf, subscriptions};
use crate::backend::Backend;
use crate::call::reply::CallReply;
use crate::call::{BackendCall, Exchange};
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
use crate::session::subscriptions::KeptRequest;
use crate::session::{HubSession, Route};

/// Keeps a request that stands, if it was granted. Without a server it is meant for all of them.
pub async fn note(client: &ClientContext, server: Option<&str>, method: &str, params: Option<&Raw>, reply: &CallReply) {
    let (Some(session), true) = (&client.session, reply.answer.is_ok()) else { return };
    let standing =
        KeptRequest { server: server.map(ToOwned::to_owned), method: method.to_owned(), params: params.cloned() };
    session.keep(standing).await;
}

/// Asks a server that is connected for everything that the session wants of it and that it does not know of.
pub fn renew(hub: &Arc<Hub>, session: &Arc<HubSession>, backend: &Backend) {
    let known = backend.renewals.of(session.id.as_str());
    let is_known = |one: &KeptRequest| {
        known.iter().any(|(method, params)| *method == one.method && text(params.as_ref()) == text(one.params.as_ref()))
    };
    for one in session.kept_requests.at(backend.name()).into_iter().filter(|one| !is_known(one)) {
        let (hub, session, backend) = (hub.clone(), session.clone(), backend.clone());
        tokio::spawn(async move { ask(&hub, &session, &backend, one).await });
    }
}

fn text(params: Option<&Raw>) -> &str {
    params.map_or("", |raw| raw.get())
}

async fn ask(hub: &Arc<Hub>, session: &Arc<HubSession>, backend: &Backend, one: KeptRequest) {
    let mut client = ClientContext::of_session(session);
    if session.record.route == Route::All {
        client = on_behalf::acting(&client, Some(session));
    }
    let has_sessions = backend.offers(Exchange::Session);
    if one.method == "logging/setLevel" && !(has_sessions && logs(backend)) {
        return;
    }
    if !has_sessions {
        let request = RpcRequest { id: message::RpcId::number(0), method: one.method, params: one.params };
        subscriptions::subscribe(hub, &client, backend, &request);
        return;
    }
    let call = BackendCall::new(client.caller, &one.method, one.params);
    hub.used(backend, &session.principal);
    // If the server is lost meanwhile, this is done again when it returns.
    backend.call_within(call, hub.options.call_timeout, ResendPolicy::Always).await;
}

/// Whether the server takes a log level.
pub fn logs(backend: &Backend) -> bool {
    backend.snapshot().facts.is_some_and(|facts| Fields::of(Some(&facts.capabilities)).has("logging"))
}
