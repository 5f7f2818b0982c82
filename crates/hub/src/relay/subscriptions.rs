//! Subscriptions: held at stateless backends, made up from what is known for the others, and taken up again after each return.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::Backoff;
use bowline_core::backend::{CallFailure, ResendPolicy};
use bowline_env::{clock, entropy};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::backend::{Backend, BackendEvent};
use crate::call::{
    BackendCall, CallEnd, CallReply, Exchange, Inbound, InboundSink, SUBSCRIPTION_ID, done, outcome, refuse,
};
use crate::config::BackendKey;
use crate::fields::{Fields, Raw, empty, raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
use crate::relay::{self, ClientContext, call, task};
use crate::session::subscriptions::KeptRequest;
use crate::session::{HubSession, Route, Subscribing};

pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
const UPDATED: &str = "notifications/resources/updated";
/// How long the hub waits for what its servers agree to, before it says what it agrees to itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// A subscription waits for its backend for ever; a call that waits has a deadline, so it is made again and again.
const ROUND: Duration = Duration::from_secs(3600);
/// Before a subscription is tried again that ended although its backend is there.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), AGAIN_MAX, 0.1);
/// One that lasted as long as this was a good one.
const AGAIN_MAX: Duration = Duration::from_secs(60);
const SAID_MAX: usize = 64;
/// What a client subscribes to, and what it gets then. Templates are resources.
const LISTS: [(&str, &str); 3] = [
    ("toolsListChanged", "notifications/tools/list_changed"),
    ("promptsListChanged", "notifications/prompts/list_changed"),
    ("resourcesListChanged", "notifications/resources/list_changed"),
];
/// Who speaks when it is no server.
const HUB: &str = "";

/// `subscriptions/listen`: the answer comes when the subscription is over. That is also when we leave.
pub async fn answer(
    hub: &Arc<Hub>,
    client: &ClientContext,
    only: Option<&Backend>,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    let listening = async {
        match only {
            Some(backend) if backend.offers(Exchange::Stateless) => held(hub, client, backend, request, sink).await,
            _ => made_up(hub, client, only, request, sink).await,
        }
    };
    match hub.closing().run_until_cancelled(listening).await {
        Some(reply) => reply,
        None => done(under_id(Some(&raw(&json!({ "resultType": "complete" }))), request)),
    }
}

/// Passes a stateless backend's subscription on under the client's own id, whatever happens to the wire behind it.
async fn held(
    hub: &Hub,
    client: &ClientContext,
    backend: &Backend,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    hub.used(backend, &client.principal);
    let (mut acknowledged, mut again) = (false, AGAIN);
    let params = task::asked_of(hub, client, backend, request.params.as_ref());
    loop {
        let (inner, mut said) = mpsc::channel(SAID_MAX);
        let call = BackendCall {
            sink: Some(inner),
            sent: client.sent.clone(),
            ..BackendCall::new(client.caller.clone(), &request.method, params.clone())
        };
        let began = clock::now();
        let ended = backend.call(call, began + ROUND, ResendPolicy::IfNotExecuted);
        let passing = async {
            while let Some(inbound) = said.recv().await {
                let Inbound::Notification { server, method, params } = inbound else { continue };
                let repeated = method == ACKNOWLEDGED && std::mem::replace(&mut acknowledged, true);
                let params = task::told_by(hub, client, backend, &method, params);
                let params = Some(under_id(params.as_ref(), request));
                if !repeated && sink.send(Inbound::Notification { server, method, params }).await.is_err() {
                    return;
                }
            }
        };
        let (end, ()) = futures_util::future::join(ended, passing).await;
        match end {
            CallEnd::Answered { answer: Ok(result), status } if !acknowledged => {
                return CallReply::with_status(Ok(under_id(Some(&result), request)), status);
            }
            CallEnd::Answered { answer: Err(error), status } => return CallReply::with_status(Err(error), status),
            CallEnd::Answered { answer: Ok(result), .. } => {
                return CallReply::new(Ok(under_id(Some(&result), request)));
            }
            // One that was granted before is asked for again, below: a server that is busy for a while does not end it.
            CallEnd::Failed(outcome @ CallFailure::Refused { .. }) if !acknowledged => {
                return outcome::reply(backend.name(), &request.method, CallEnd::Failed(outcome));
            }
            CallEnd::Failed(_) => {
                let mut snapshot = backend.snapshot.clone();
                // One that is lost is waited for below. One that is there and does not keep the subscription would be asked
                // without end.
                if clock::since(began) >= AGAIN_MAX || !snapshot.borrow().is_connected() {
                    again = AGAIN;
                }
                if snapshot.borrow().is_connected() {
                    tokio::time::sleep(again.next(entropy::chance())).await;
                }
                if snapshot.wait_for(|now| now.is_connected()).await.is_err() {
                    return refuse(message::INTERNAL_ERROR, "the server was removed");
                }
            }
        }
    }
}

/// The subscription's id is the id of the client's own request.
fn under_id(params: Option<&Raw>, request: &RpcRequest) -> Raw {
    let mut params = Fields::of(params.map(|raw| &**raw));
    let mut meta = params.object("_meta");
    meta.set(SUBSCRIPTION_ID, request.id.to_raw());
    params.set("_meta", meta.to_raw());
    params.to_raw()
}

/// A subscription at the hub itself: changes of lists come from what happens to backends.
async fn made_up(
    hub: &Arc<Hub>,
    client: &ClientContext,
    only: Option<&Backend>,
    request: &RpcRequest,
    sink: &InboundSink,
) -> CallReply {
    let filter = Fields::of(request.params.as_deref()).object("notifications");
    let mut happenings = hub.happenings();
    let wanted: Vec<(&str, &str)> = LISTS.into_iter().filter(|(name, _)| filter.read(name) == Some(true)).collect();
    let mut agreed = Fields::default();
    wanted.iter().for_each(|(name, _)| agreed.put(name, &true));
    let uris: Vec<String> = filter.read("resourceSubscriptions").unwrap_or_default();
    let tasks: Vec<String> = filter.read("taskIds").unwrap_or_default();
    let (inbox, mut updates) = mpsc::channel(SAID_MAX);
    let (in_sessions, parts) = divided(hub, client, only, uris, tasks).await;
    let subscribed = subscribe_each(hub, client, in_sessions, &inbox).await;
    let mut holding = JoinSet::new();
    let acknowledged: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let (acknowledged, agreed) = oneshot::channel();
            holding.spawn(hold(hub.clone(), client.clone(), part, inbox.clone(), acknowledged));
            agreed
        })
        .collect();
    let mut uris: Vec<String> = subscribed.iter().map(|one| one.uri.clone()).collect();
    let mut tasks: Vec<String> = Vec::new();
    let until = clock::now() + PATIENCE;
    for part in acknowledged {
        // What is away, or refuses, is not agreed on.
        if let Ok(Ok(part)) = tokio::time::timeout_at(until.into(), part).await {
            uris.extend(part.read::<Vec<String>>("resourceSubscriptions").unwrap_or_default());
            tasks.extend(part.read::<Vec<String>>("taskIds").unwrap_or_default());
        }
    }
    for (key, granted) in [("resourceSubscriptions", uris), ("taskIds", tasks)] {
        if !granted.is_empty() {
            agreed.put(key, &granted);
        }
    }
    let params = under_id(Some(&raw(&json!({ "notifications": agreed }))), request);
    if sink
        .send(Inbound::Notification { server: HUB.into(), method: ACKNOWLEDGED.into(), params: Some(params) })
        .await
        .is_err()
    {
        return done(empty());
    }
    // Where only the hub's own tools are shown, they are always the same.
    let lists_change = only.is_some() || hub.options.expose.direct();
    let lists = async {
        loop {
            let changed: Vec<(Arc<str>, &str)> = match happenings.recv().await {
                Ok(happening) => {
                    let (key, event) = &*happening;
                    let BackendEvent::ListChanged(method) = event else { continue };
                    let ours = match only {
                        Some(backend) => backend.key == *key,
                        None => lists_change && hub.sees(&client.principal, key),
                    };
                    let asked = wanted.iter().any(|(_, told)| told == method);
                    if ours && asked { vec![(key.name.clone(), *method)] } else { continue }
                }
                // So much has happened that some of it was missed: any list may have changed.
                Err(RecvError::Lagged(_)) if !lists_change => continue,
                Err(RecvError::Lagged(_)) => wanted.iter().map(|(_, method)| (HUB.into(), *method)).collect(),
                Err(RecvError::Closed) => return,
            };
            for (server, method) in changed {
                let params = Some(under_id(None, request));
                let _ = sink.send(Inbound::Notification { server, method: method.to_owned(), params }).await;
            }
        }
    };
    let resources = async {
        while let Some(inbound) = updates.recv().await {
            if let Inbound::Notification { server, method, params } = inbound
                && matches!(method.as_str(), UPDATED | task::NOTIFICATION)
            {
                let params = Some(under_id(params.as_ref(), request));
                let _ = sink.send(Inbound::Notification { server, method, params }).await;
            }
        }
    };
    // It ends when the client ends it, by dropping this.
    futures_util::future::join(lists, resources).await;
    done(under_id(None, request))
}

/// A subscription at a backend with sessions.
struct Subscribed {
    uri: String,
    _place: Arc<SessionSubscription>,
}

/// What a subscription has at one backend with sessions: a session of its own, which ends with it, also if all was refused.
struct SessionSubscription {
    backend: Backend,
    session_name: Arc<str>,
}

impl Drop for SessionSubscription {
    fn drop(&mut self) {
        let (backend, session_name) = (self.backend.clone(), self.session_name.clone());
        tokio::spawn(async move { backend.end_backend_session(session_name).await });
    }
}

/// What of a subscription is for one stateless backend.
struct StatelessSubscription {
    backend: Backend,
    uris: Vec<String>,
    /// As the client calls them.
    tasks: Vec<String>,
}

/// Whose the resources and tasks are: at backends with sessions one by one, at each stateless one together.
async fn divided(
    hub: &Arc<Hub>,
    client: &ClientContext,
    only: Option<&Backend>,
    uris: Vec<String>,
    tasks: Vec<String>,
) -> (Vec<(String, Backend)>, Vec<StatelessSubscription>) {
    let (mut in_sessions, mut parts) = (Vec::new(), BTreeMap::new());
    let part =
        |backend: &Backend| StatelessSubscription { backend: backend.clone(), uris: Vec::new(), tasks: Vec::new() };
    for uri in uris {
        let found = only.cloned().or_else(|| call::server_of_resource(hub, client, &uri));
        match found {
            Some(backend) if backend.offers(Exchange::Stateless) => {
                parts.entry(backend.name().to_owned()).or_insert_with(|| part(&backend)).uris.push(uri);
            }
            Some(backend) => in_sessions.push((uri, backend)),
            None => {}
        }
    }
    for task in tasks {
        // Those that the hub runs itself are asked for, not told of.
        if let Some((backend, _)) = task::whose(hub, client, &task).await
            && backend.offers(Exchange::Stateless)
        {
            parts.entry(backend.name().to_owned()).or_insert_with(|| part(&backend)).tasks.push(task);
        }
    }
    (in_sessions, parts.into_values().collect())
}

/// Holds a part of the client's subscription, and says once what its backend agreed to.
async fn hold(
    hub: Arc<Hub>,
    mut client: ClientContext,
    part: StatelessSubscription,
    inbox: InboundSink,
    acknowledged: oneshot::Sender<Fields>,
) {
    let filter = json!({ "notifications": { "resourceSubscriptions": part.uris, "taskIds": part.tasks } });
    // This is a request of ours.
    client.sent = None;
    let method = "subscriptions/listen".to_owned();
    let request = RpcRequest { id: message::RpcId::number(0), method, params: Some(raw(&filter)) };
    let (inner, mut said) = mpsc::channel(SAID_MAX);
    let held = async {
        let _ = held(&hub, &client, &part.backend, &request, &inner).await;
        drop(inner);
    };
    let passing = async {
        let mut acknowledged = Some(acknowledged);
        while let Some(inbound) = said.recv().await {
            match inbound {
                Inbound::Notification { method, params, .. } if method == ACKNOWLEDGED => {
                    let agreed = Fields::of(params.as_deref()).object("notifications");
                    if let Some(told) = acknowledged.take() {
                        let _ = told.send(agreed);
                    }
                }
                inbound => drop(inbox.send(inbound).await),
            }
        }
    };
    futures_util::future::join(held, passing).await;
}

/// Subscribes at backends with sessions; which resources were taken.
async fn subscribe_each(
    hub: &Arc<Hub>,
    client: &ClientContext,
    wanted: Vec<(String, Backend)>,
    inbox: &InboundSink,
) -> Vec<Subscribed> {
    let mut taken = Vec::new();
    let mut places: HashMap<BackendKey, Arc<SessionSubscription>> = HashMap::new();
    for (uri, backend) in wanted {
        let place = places.entry(backend.key.clone()).or_insert_with(|| {
            let session_name = format!("{}+{:x}", client.caller.session_name, entropy::u128()).into();
            Arc::new(SessionSubscription { backend: backend.clone(), session_name })
        });
        let mut caller = client.caller.clone();
        // Updates of this subscription come here and nowhere else.
        caller.session_name = place.session_name.clone();
        caller.inbox = Some(inbox.clone());
        let call = BackendCall::new(caller, "resources/subscribe", Some(raw(&json!({ "uri": uri }))));
        hub.used(&backend, &client.principal);
        let end = backend.call_within(call, hub.options.call_timeout, ResendPolicy::Always).await;
        if matches!(end, CallEnd::Answered { answer: Ok(_), .. }) {
            taken.push(Subscribed { uri, _place: place.clone() });
        }
    }
    taken
}

/// `resources/subscribe` of a client with a session at a backend without: a subscription that lasts as long as the session.
pub fn subscribe(hub: &Arc<Hub>, client: &ClientContext, backend: &Backend, request: &RpcRequest) -> CallReply {
    let (Some(uri), Some(session)) = (Fields::of(request.params.as_deref()).text("uri"), client.session.clone()) else {
        return refuse(message::INVALID_PARAMS, "`uri` is missing");
    };
    let wanted = request.method == "resources/subscribe";
    let subscribing = session.subscription(&backend.key, &uri, wanted);
    if let Subscribing::TooMany = subscribing {
        return refuse(message::INTERNAL_ERROR, "there are as many subscriptions as one session may have");
    }
    if let Subscribing::Begun(token) = subscribing {
        let inbox = session.inbox.clone();
        let (client, backend, hub) = (client.clone(), backend.clone(), hub.clone());
        tokio::spawn(async move {
            let params = json!({ "notifications": { "resourceSubscriptions": [&uri] } });
            let (id, method) = (message::RpcId::number(0), "subscriptions/listen".to_owned());
            let request = RpcRequest { id, method, params: Some(raw(&params)) };
            let mut client = client.clone();
            client.caller.exchange = Exchange::Stateless;
            let (inner, mut said) = mpsc::channel(SAID_MAX);
            let held = held(&hub, &client, &backend, &request, &inner);
            let passing = async {
                while let Some(inbound) = said.recv().await {
                    if let Inbound::Notification { server, method, params } = inbound
                        && method == UPDATED
                    {
                        let _ = inbox.send(Inbound::Notification { server, method, params }).await;
                    }
                }
            };
            let ended = token.run_until_cancelled(futures_util::future::join(held, passing)).await;
            // The server is no more. One of the same name may be subscribed to again.
            if ended.is_some() {
                session.subscription(&backend.key, &uri, false);
            }
        });
    }
    done(empty())
}

/// Keeps a request that stands, if it was granted. Without a server it is meant for all of them.
pub async fn note(
    client: &ClientContext,
    server: Option<&str>,
    method: &str,
    params: Option<&RawValue>,
    reply: &CallReply,
) {
    let (Some(session), true, true) = (&client.session, KeptRequest::is_kept(method), reply.answer.is_ok()) else {
        return;
    };
    let (server, params) = (server.map(ToOwned::to_owned), params.map(ToOwned::to_owned));
    let standing = KeptRequest { server, method: method.to_owned(), params };
    Box::pin(session.keep(standing)).await;
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
        client = relay::acting(&client, Some(session));
    }
    let has_sessions = backend.offers(Exchange::Session);
    if one.method == "logging/setLevel" && !(has_sessions && logs(backend)) {
        return;
    }
    if !has_sessions {
        let request = RpcRequest { id: message::RpcId::number(0), method: one.method, params: one.params };
        subscribe(hub, &client, backend, &request);
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
