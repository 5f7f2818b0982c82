//! What one node asks of another on behalf of its clients: to answer a request, to put a question, to tell a session, to cancel a task.

use std::sync::Arc;

use bowline_protocol::{LogId, Principal};
use bowline_store::Holder;
use futures_util::future::Either;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::call::RequesterRole;
use crate::call::server_request::Replier;
use crate::fields::{Raw, raw};
use crate::hub::Hub;
use crate::message;
use crate::peers::PeerStreamItem;
use crate::session::elicitation_and_sampling::PendingServerRequest;
use crate::session::{self, Route};

/// What one node asks of another.
#[derive(Serialize, Deserialize)]
pub enum PeerRequest {
    Request(CarriedRequest),
    Question(RemoteQuestion),
    Tell(SessionNotice),
    Cancel { principal: Principal, task: LogId },
}

#[derive(Serialize, Deserialize)]
pub struct CarriedRequest {
    pub principal: Principal,
    /// A node of an older version does not say.
    #[serde(default)]
    pub role: RequesterRole,
    pub route: Route,
    pub method: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub hops: u8,
}

/// A backend's question, for a client that has its handle on the other node.
#[derive(Serialize, Deserialize)]
pub struct RemoteQuestion {
    pub principal: Principal,
    pub handle: LogId,
    pub server: String,
    pub method: String,
    pub params: Option<Box<RawValue>>,
}

/// An answer as it travels between nodes.
#[derive(Serialize, Deserialize)]
pub enum WireAnswer {
    Result(Box<RawValue>),
    Error(Box<RawValue>),
}

/// Asks a client by the tools, on whichever node its handle is. Without one it cannot answer.
pub async fn ask_by_handle(hub: &Arc<Hub>, principal: &Principal, asked: Asking) {
    // Another handle of the same principal's is another client's.
    let Some(log) = asked.handle.as_deref().and_then(session::log_of) else {
        let error = message::error(message::METHOD_NOT_FOUND, "the client cannot answer this");
        let _ = asked.reply.send(Err(error));
        return;
    };
    let there = match &hub.peers {
        Some(peers) if !hub.sessions.is_awake(&log) => peers.elsewhere(&log).await.ok().flatten(),
        _ => None,
    };
    let Asking { server, method, params, reply, .. } = asked;
    let (Some(peers), Some(node)) = (&hub.peers, there) else {
        // If the question cannot be kept it is dropped, and the backend gets an error.
        if let Ok(Some(session)) = hub.sessions.find(principal, log.as_str()).await {
            let _ = session.ask(PendingServerRequest::new(&server, method, params, reply), None).await;
        }
        return;
    };
    let question = RemoteQuestion { principal: principal.clone(), handle: log, server, method, params };
    let mut stream = peers.open_stream(&node, raw(&PeerRequest::Question(question)));
    tokio::spawn(async move {
        let mut reply = reply;
        let heard = match futures_util::future::select(stream.next(), std::pin::pin!(reply.closed())).await {
            Either::Left((heard, _)) => heard,
            // The call that asked is over.
            Either::Right(_) => return,
        };
        let answer = match heard {
            PeerStreamItem::Part(part) => match serde_json::from_str(&part) {
                Ok(WireAnswer::Result(result)) => Ok(result),
                Ok(WireAnswer::Error(error)) => Err(error),
                Err(_) => Err(message::error(message::INTERNAL_ERROR, "the answer cannot be read")),
            },
            PeerStreamItem::Ended | PeerStreamItem::Lost => {
                Err(message::error(message::INTERNAL_ERROR, "no client could be asked"))
            }
        };
        let _ = reply.send(answer);
    });
}

/// A question without the one who is asked.
pub struct Asking {
    /// The handle that the call named.
    pub handle: Option<String>,
    pub server: String,
    pub method: String,
    pub params: Option<Raw>,
    pub reply: Replier,
}

/// A notification for a session on another node.
#[derive(Serialize, Deserialize)]
pub struct SessionNotice {
    pub principal: Principal,
    pub session: LogId,
    pub event: String,
    pub server: String,
    pub data: Value,
}

impl SessionNotice {
    pub fn new(principal: &Principal, session: &LogId, event: &str, server: &str, data: &Value) -> SessionNotice {
        SessionNotice {
            principal: principal.clone(),
            session: session.clone(),
            event: event.to_owned(),
            server: server.to_owned(),
            data: data.clone(),
        }
    }
}

pub async fn tell(hub: &Hub, node: &Holder, told: SessionNotice) {
    if let Some(peers) = &hub.peers {
        let mut stream = peers.open_stream(node, raw(&PeerRequest::Tell(told)));
        while let PeerStreamItem::Part(_) = stream.next().await {}
    }
}

/// Cancels a task that another node works on. True if it was still working.
pub async fn cancel(hub: &Hub, principal: &Principal, task: &LogId) -> bool {
    let Some(peers) = &hub.peers else { return false };
    let Ok(Some(node)) = peers.elsewhere(task).await else { return false };
    let request = PeerRequest::Cancel { principal: principal.clone(), task: task.clone() };
    peers.open_stream(&node, raw(&request)).next().await == PeerStreamItem::Part("true".into())
}
