//! Subscriptions: held at modern backends, made up from what is known for the others, and taken up again after each return.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::backend::Resend;
use serde_json::json;
use tokio::sync::mpsc;

use super::{Client, done, refuse, transparent};
use crate::backend::{Backend, BackendEvent, CallEnd};
use crate::drive::conversation::Reply;
use crate::era::{self, Era};
use crate::fields::{Fields, Raw, empty, raw};
use crate::hub::Hub;
use crate::link::{Inbound, Sink, Upcall};
use crate::message::{self, Request};

const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
/// A subscription waits for its backend for ever; a call that waits has a deadline, so it is made again and again.
const ROUND: Duration = Duration::from_secs(3600);
const SAID_MAX: usize = 64;

/// `subscriptions/listen`: the answer comes when the subscription is over.
pub async fn answer(hub: &Arc<Hub>, client: &Client, only: Option<&Backend>, request: &Request, sink: &Sink) -> Reply {
    match only {
        Some(backend) if transparent::is_modern(backend) => held(client, backend, request, sink).await,
        _ => made_up(hub, client, only, request, sink).await,
    }
}

/// Passes a modern backend's subscription on under the client's own id, whatever happens to the wire behind it.
async fn held(client: &Client, backend: &Backend, request: &Request, sink: &Sink) -> Reply {
    let mut acknowledged = false;
    loop {
        let (inner, mut said) = mpsc::channel(SAID_MAX);
        let call = Upcall {
            method: request.method.clone(),
            params: request.params.clone(),
            caller: client.caller.clone(),
            sink: Some(inner),
            headers: client.headers.clone(),
            param_headers: Vec::new(),
            log_level: None,
        };
        let ended = backend.call(call, Instant::now() + ROUND, Resend::IfNotExecuted);
        let passing = async {
            while let Some(inbound) = said.recv().await {
                let Inbound::Notification { method, params } = inbound else { continue };
                let repeated = method == ACKNOWLEDGED && std::mem::replace(&mut acknowledged, true);
                let params = Some(under_id(params.as_ref(), request));
                if !repeated && sink.send(Inbound::Notification { method, params }).await.is_err() {
                    return;
                }
            }
        };
        let (end, ()) = futures_util::future::join(ended, passing).await;
        match end {
            CallEnd::Answered { answer: Ok(result), status } if !acknowledged => {
                return Reply { answer: Ok(under_id(Some(&result), request)), status };
            }
            CallEnd::Answered { answer: Err(error), status } => return Reply { answer: Err(error), status },
            CallEnd::Answered { answer: Ok(result), .. } => {
                return Reply::new(Ok(under_id(Some(&result), request)));
            }
            CallEnd::Failed(_) => {
                let mut snapshot = backend.snapshot.clone();
                if snapshot.wait_for(|now| now.is_connected()).await.is_err() {
                    return refuse(message::INTERNAL_ERROR, "the server was removed");
                }
            }
        }
    }
}

/// The subscription's id is the id of the client's own request.
fn under_id(params: Option<&Raw>, request: &Request) -> Raw {
    let mut params = Fields::of(params.map(|raw| &**raw));
    let mut meta = params.object("_meta");
    meta.set(era::META_SUBSCRIPTION, request.id.to_raw());
    params.set("_meta", meta.to_raw());
    params.to_raw()
}

/// A subscription at the hub itself: changes of lists come from what happens to backends.
async fn made_up(hub: &Arc<Hub>, client: &Client, only: Option<&Backend>, request: &Request, sink: &Sink) -> Reply {
    let filter = Fields::of(request.params.as_deref()).object("notifications");
    let mut happenings = hub.happenings();
    let wanted = |name: &str| filter.read(name) == Some(true);
    let mut agreed = Fields::default();
    for name in ["toolsListChanged", "promptsListChanged", "resourcesListChanged"] {
        if wanted(name) {
            agreed.put(name, &true);
        }
    }
    let uris: Vec<String> = filter.read("resourceSubscriptions").unwrap_or_default();
    let (inbox, mut updates) = mpsc::channel(SAID_MAX);
    let subscribed = subscribe_each(hub, client, only, &uris, &inbox).await;
    if !subscribed.is_empty() {
        let uris: Vec<&str> = subscribed.iter().map(|one| one.uri.as_str()).collect();
        agreed.put("resourceSubscriptions", &uris);
    }
    let params = under_id(Some(&raw(&json!({ "notifications": agreed }))), request);
    if sink.send(Inbound::Notification { method: ACKNOWLEDGED.into(), params: Some(params) }).await.is_err() {
        return done(empty());
    }
    let lists = async {
        loop {
            let happening = match happenings.recv().await {
                Ok(happening) => happening,
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => continue,
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            };
            let (key, event) = &*happening;
            let BackendEvent::ListChanged(method) = event else { continue };
            let visible = key.owner.as_ref().is_none_or(|owner| *owner == client.principal);
            let ours = only.is_none_or(|backend| backend.key == *key);
            let asked = match *method {
                "notifications/tools/list_changed" => wanted("toolsListChanged"),
                "notifications/prompts/list_changed" => wanted("promptsListChanged"),
                _ => wanted("resourcesListChanged"),
            };
            let params = Some(under_id(None, request));
            if visible && ours && asked {
                let _ = sink.send(Inbound::Notification { method: (*method).to_owned(), params }).await;
            }
        }
    };
    let resources = async {
        while let Some(inbound) = updates.recv().await {
            if let Inbound::Notification { method, params } = inbound
                && method == "notifications/resources/updated"
            {
                let params = Some(under_id(params.as_ref(), request));
                let _ = sink.send(Inbound::Notification { method, params }).await;
            }
        }
    };
    // It ends when the client ends it, by dropping this.
    futures_util::future::join(lists, resources).await;
    done(under_id(None, request))
}

/// A subscription at a backend of the older era. It has a session there of its own, which ends with it.
struct Subscribed {
    uri: String,
    backend: Backend,
    lane: Arc<str>,
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        let (backend, lane) = (self.backend.clone(), self.lane.clone());
        tokio::spawn(async move { backend.end_lane(lane).await });
    }
}

/// Subscribes at backends of the older era; which resources were taken.
async fn subscribe_each(
    hub: &Arc<Hub>,
    client: &Client,
    only: Option<&Backend>,
    uris: &[String],
    inbox: &Sink,
) -> Vec<Subscribed> {
    let mut taken = Vec::new();
    for uri in uris {
        let backend = match only {
            Some(backend) => Some(backend.clone()),
            None => super::names::server_of_resource(hub, client, uri),
        };
        let Some(backend) = backend else { continue };
        let mut caller = client.caller.clone();
        // Updates of this subscription come here and nowhere else.
        caller.lane = format!("{}+{:x}", caller.lane, crate::clock::random_bits()).into();
        caller.inbox = Some(inbox.clone());
        // Also what was refused has a session.
        let one = Subscribed { uri: uri.clone(), backend: backend.clone(), lane: caller.lane.clone() };
        let call = Upcall {
            method: "resources/subscribe".into(),
            params: Some(raw(&json!({ "uri": uri }))),
            caller,
            sink: None,
            headers: None,
            param_headers: Vec::new(),
            log_level: None,
        };
        let end = backend.call(call, Instant::now() + hub.options.call_timeout, Resend::Always).await;
        if matches!(end, CallEnd::Answered { answer: Ok(_), .. }) {
            taken.push(one);
        }
    }
    taken
}

/// `resources/subscribe` of an older client at a modern backend: a subscription that lasts as long as the session.
pub fn subscribe(hub: &Arc<Hub>, client: &Client, backend: &Backend, request: &Request) -> Reply {
    let (Some(uri), Some(session)) = (Fields::of(request.params.as_deref()).text("uri"), client.session.clone()) else {
        return refuse(message::INVALID_PARAMS, "`uri` is missing");
    };
    let token = session.subscription(&uri, request.method == "resources/subscribe");
    if let Some(token) = token {
        let inbox = session.inbox.clone();
        let (client, backend, hub) = (client.clone(), backend.clone(), hub.clone());
        tokio::spawn(async move {
            let params = json!({ "notifications": { "resourceSubscriptions": [uri] } });
            let mut request =
                Request { id: message::Id::number(0), method: "subscriptions/listen".into(), params: None };
            let facts = &client.caller.client;
            request.params = Some(era::with_meta(Some(&raw(&params)), &facts.capabilities, &facts.info, None));
            let mut client = client.clone();
            client.caller.era = Era::Modern;
            let _hub = hub;
            let (inner, mut said) = mpsc::channel(SAID_MAX);
            let held = held(&client, &backend, &request, &inner);
            let passing = async {
                while let Some(inbound) = said.recv().await {
                    if let Inbound::Notification { method, params } = inbound
                        && method == "notifications/resources/updated"
                    {
                        let _ = inbox.send(Inbound::Notification { method, params }).await;
                    }
                }
            };
            token.run_until_cancelled(futures_util::future::join(held, passing)).await;
        });
    }
    done(empty())
}
