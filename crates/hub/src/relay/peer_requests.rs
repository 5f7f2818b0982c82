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

/// The version of what this node asks of others. Nodes that wrote none are of version 0; all that they know is still written.
pub const VERSION: u32 = 1;

/// What one node asks of another. The types here are the format: nothing else in the hub is written for another node by name.
#[derive(Serialize, Deserialize)]
pub enum PeerRequest {
    Request(CarriedRequest),
    Question(RemoteQuestion),
    Tell(SessionNotice),
    Cancel {
        #[serde(default)]
        version: u32,
        principal: Principal,
        task: LogId,
    },
}

impl PeerRequest {
    /// The version of the node that asks.
    pub fn version(&self) -> u32 {
        match self {
            PeerRequest::Request(CarriedRequest { version, .. })
            | PeerRequest::Question(RemoteQuestion { version, .. })
            | PeerRequest::Tell(SessionNotice { version, .. })
            | PeerRequest::Cancel { version, .. } => *version,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub struct CarriedRequest {
    #[serde(default)]
    pub version: u32,
    pub principal: Principal,
    /// A node of an older version does not say.
    #[serde(default)]
    pub role: CarriedRole,
    pub route: CarriedRoute,
    pub method: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub hops: u8,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarriedRole {
    #[default]
    User,
    Operator,
}

impl From<RequesterRole> for CarriedRole {
    fn from(role: RequesterRole) -> CarriedRole {
        match role {
            RequesterRole::User => CarriedRole::User,
            RequesterRole::Operator => CarriedRole::Operator,
        }
    }
}

impl From<CarriedRole> for RequesterRole {
    fn from(role: CarriedRole) -> RequesterRole {
        match role {
            CarriedRole::User => RequesterRole::User,
            CarriedRole::Operator => RequesterRole::Operator,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarriedRoute {
    All,
    One(String),
}

impl From<Route> for CarriedRoute {
    fn from(route: Route) -> CarriedRoute {
        match route {
            Route::All => CarriedRoute::All,
            Route::One(server) => CarriedRoute::One(server.to_string()),
        }
    }
}

impl From<CarriedRoute> for Route {
    fn from(route: CarriedRoute) -> Route {
        match route {
            CarriedRoute::All => Route::All,
            CarriedRoute::One(server) => Route::One(server.into()),
        }
    }
}

/// How the response to a carried request begins; its body follows in parts.
#[derive(Serialize, Deserialize)]
pub struct ResponseHead {
    #[serde(default)]
    pub version: u32,
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

/// A backend's question, for a client that has its handle on the other node.
#[derive(Serialize, Deserialize)]
pub struct RemoteQuestion {
    #[serde(default)]
    pub version: u32,
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
    let question =
        RemoteQuestion { version: VERSION, principal: principal.clone(), handle: log, server, method, params };
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
    #[serde(default)]
    pub version: u32,
    pub principal: Principal,
    pub session: LogId,
    pub event: String,
    pub server: String,
    pub data: Value,
}

impl SessionNotice {
    pub fn new(principal: &Principal, session: &LogId, event: &str, server: &str, data: &Value) -> SessionNotice {
        SessionNotice {
            version: VERSION,
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
    let request = PeerRequest::Cancel { version: VERSION, principal: principal.clone(), task: task.clone() };
    peers.open_stream(&node, raw(&request)).next().await == PeerStreamItem::Part("true".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What nodes ask each other. A change that makes this fail breaks a rolling upgrade: keep reading the old form (`serde(alias)`,
    /// `serde(default)`) and keep writing what older nodes need.
    #[test]
    fn what_nodes_ask_is_written_as_it_was() {
        let request = |role: &str, route: &str| {
            format!(
                r#"{{"Request":{{"version":1,"principal":"ann","role":"{role}","route":{route},"method":"POST","headers":[["accept","a/b"]],"body":"{{}}","hops":1}}}}"#
            )
        };
        let samples = [
            request("user", r#""all""#),
            request("operator", r#"{"one":"files"}"#),
            r#"{"Question":{"version":1,"principal":"ann","handle":"mcph_1","server":"files","method":"elicitation/create","params":{"a": 1}}}"#.into(),
            r#"{"Question":{"version":1,"principal":"ann","handle":"mcph_1","server":"files","method":"ping","params":null}}"#.into(),
            r#"{"Tell":{"version":1,"principal":"ann","session":"mcp_1","event":"task","server":"files","data":{"n":1}}}"#.into(),
            r#"{"Cancel":{"version":1,"principal":"ann","task":"task_1"}}"#.into(),
        ];
        for sample in samples {
            let request: PeerRequest = serde_json::from_str(&sample).unwrap();
            assert_eq!(request.version(), 1);
            assert_eq!(serde_json::to_string(&through(request)).unwrap(), sample);
            // Nodes wrote the same before there were versions.
            let before: PeerRequest = serde_json::from_str(&sample.replace(r#""version":1,"#, "")).unwrap();
            assert_eq!(before.version(), 0);
            assert_eq!(serde_json::to_string(&before).unwrap(), sample.replace(r#""version":1"#, r#""version":0"#));
        }
        for sample in [r#"{"Result":{"a": 1}}"#, r#"{"Error":{"code":-32603}}"#] {
            let answer: WireAnswer = serde_json::from_str(sample).unwrap();
            assert_eq!(serde_json::to_string(&answer).unwrap(), sample);
        }
        let head = r#"{"version":1,"status":200,"headers":[["content-type","text/event-stream"]]}"#;
        assert_eq!(serde_json::to_string(&serde_json::from_str::<ResponseHead>(head).unwrap()).unwrap(), head);
        let before: ResponseHead = serde_json::from_str(r#"{"status":204,"headers":[]}"#).unwrap();
        assert_eq!((before.version, before.status), (0, 204));
        let without_role =
            r#"{"Request":{"principal":"ann","route":"all","method":"GET","headers":[],"body":"","hops":0}}"#;
        let Ok(PeerRequest::Request(request)) = serde_json::from_str(without_role) else { panic!("it cannot be read") };
        assert_eq!(RequesterRole::from(request.role), RequesterRole::User);
    }

    /// The same request after this node has made its own types of it, and of those a request again.
    fn through(request: PeerRequest) -> PeerRequest {
        match request {
            PeerRequest::Request(CarriedRequest { role, route, version, principal, method, headers, body, hops }) => {
                let role = RequesterRole::from(role).into();
                let route = Route::from(route).into();
                PeerRequest::Request(CarriedRequest { role, route, version, principal, method, headers, body, hops })
            }
            request => request,
        }
    }
}
