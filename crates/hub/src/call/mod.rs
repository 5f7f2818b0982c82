//! One call, as every part of the hub speaks of it: who makes it, what is said on the way, and what becomes of it.

pub(crate) mod capabilities;
pub mod conversation;
pub mod facts;
pub(crate) mod log_level;
pub mod outcome;
pub mod reply;
pub mod server_request;
pub(crate) mod suspended;

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bowline_protocol::Principal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;

use self::facts::{ClientFacts, our_info};
use self::server_request::Replier;
use crate::fields::{Raw, raw};
use crate::message::{self, RpcResult};

/// Under which a subscription's messages have its id in `_meta`.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// How two sides exchange messages, which decides how a server asks its client something. Stored under the names given here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Exchange {
    /// In a session that begins with a handshake: the server sends its questions while the call waits for its answer.
    #[serde(rename = "legacy")]
    Session,
    /// Each request stands alone and says what its client can do: a question is an answer, and the call is made again.
    #[serde(rename = "modern")]
    Stateless,
}

/// Where the messages that belong to a call, or to a client, go.
pub type InboundSink = mpsc::Sender<Inbound>;

/// Something that a backend says of its own accord.
pub enum Inbound {
    Notification {
        server: Arc<str>,
        method: String,
        params: Option<Raw>,
    },
    /// It wants an answer. Dropping `reply` says that there is none.
    Request {
        server: Arc<str>,
        method: String,
        params: Option<Raw>,
        reply: Replier,
    },
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inbound::Notification { method, .. } => write!(f, "Notification({method})"),
            Inbound::Request { method, .. } => write!(f, "Request({method})"),
        }
    }
}

/// On whose behalf a call is made.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Names the client: each has an upstream session of its own where the backend has sessions.
    pub lane: Arc<str>,
    pub owner: Arc<str>,
    pub exchange: Exchange,
    /// The client's capabilities, as the backend gets them.
    pub client: Arc<ClientFacts>,
    /// Where requests and notifications go that belong to no call.
    pub inbox: Option<InboundSink>,
}

/// The lane of our own housekeeping, and of everyone whose backend has no sessions.
pub const SHARED_LANE: &str = "";

impl Caller {
    /// A client without a session. What it can do is part of its name: a backend with sessions gets them once for each.
    pub fn without_session(principal: &Principal, client: ClientFacts) -> Caller {
        Caller {
            lane: format!("principal {principal} {}", client.capabilities).into(),
            owner: principal.as_str().into(),
            exchange: Exchange::Stateless,
            client: Arc::new(client),
            inbox: None,
        }
    }

    /// The hub itself.
    pub fn hub() -> Caller {
        static HUB: LazyLock<Caller> = LazyLock::new(|| {
            let capabilities = raw(&json!({ "sampling": {}, "elicitation": { "form": {}, "url": {} }, "roots": {} }));
            Caller {
                lane: SHARED_LANE.into(),
                owner: SHARED_LANE.into(),
                exchange: Exchange::Stateless,
                client: Arc::new(ClientFacts { capabilities, info: our_info() }),
                inbox: None,
            }
        });
        HUB.clone()
    }
}

/// A stateless client's own request, as it came. Its parameters say what the client can do.
#[derive(Clone)]
pub struct Sent {
    /// Its `Mcp-*` headers, if it came over HTTP. When given, none are made up.
    pub headers: Option<Vec<(String, String)>>,
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sent({} headers)", self.headers.as_ref().map_or(0, Vec::len))
    }
}

/// One request to a backend.
#[derive(Clone)]
pub struct BackendCall {
    pub method: String,
    pub params: Option<Raw>,
    pub caller: Caller,
    pub sink: Option<InboundSink>,
    /// The parameters are those of the client's own request. If not, they say nothing of the client.
    pub sent: Option<Sent>,
    /// What else belongs into the headers when they are made up.
    pub param_headers: Vec<(String, String)>,
    pub log_level: Option<String>,
}

impl fmt::Debug for BackendCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackendCall({})", self.method)
    }
}

impl BackendCall {
    pub fn of_hub(method: &str, params: Option<Raw>) -> BackendCall {
        BackendCall::new(Caller::hub(), method, params)
    }

    /// A request that the hub makes on a client's behalf.
    pub fn new(caller: Caller, method: &str, params: Option<Raw>) -> BackendCall {
        BackendCall {
            method: method.to_owned(),
            params,
            caller,
            sink: None,
            sent: None,
            param_headers: Vec::new(),
            log_level: None,
        }
    }
}

/// How a call on one transport ended.
pub enum CallEnding {
    /// With a result or an error of the backend's own; `status` is the HTTP status that came with it.
    Answered { answer: RpcResult, status: u16 },
    /// The backend never saw it: the connection was refused.
    NotExecuted(String),
    /// The backend said that it does not run it, and nothing else is wrong; when it may be asked again, if it said so.
    Refused { why: String, retry_after: Option<Duration> },
    /// It was sent, and then the wire broke.
    Broken(String),
}

impl CallEnding {
    pub fn answered(answer: RpcResult) -> CallEnding {
        CallEnding::Answered { answer, status: 200 }
    }

    /// An error that is ours, about this call only.
    pub fn failed(message: &str) -> CallEnding {
        CallEnding::answered(Err(message::error(message::INTERNAL_ERROR, message)))
    }
}

impl fmt::Debug for CallEnding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallEnding::Answered { answer, status } => write!(f, "Answered(ok: {}, {status})", answer.is_ok()),
            CallEnding::NotExecuted(why) => write!(f, "NotExecuted({why})"),
            CallEnding::Refused { why, .. } => write!(f, "Refused({why})"),
            CallEnding::Broken(why) => write!(f, "Broken({why})"),
        }
    }
}
