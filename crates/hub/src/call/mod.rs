//! One call, as every part of the hub speaks of it: who makes it, what is said on the way, and what becomes of it.

pub mod facts;
pub mod outcome;
pub mod server_request;
pub mod slow_calls;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bowline_core::backend::CallFailure;
use bowline_protocol::{LogId, Principal};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;

use crate::call::facts::{ClientFacts, our_info};
use crate::call::outcome::{CallOutcome, ResultKind};
use crate::call::server_request::Replier;
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
    /// Names the client's session at the backend: each has an upstream session of its own where the backend has sessions.
    pub session_name: Arc<str>,
    /// Which of the sessions of clients that look alike it is, if those have several.
    pub number: usize,
    pub owner: Arc<str>,
    pub exchange: Exchange,
    /// The client's capabilities, as the backend gets them.
    pub client: Arc<ClientFacts>,
    /// Where requests and notifications go that belong to no call.
    pub inbox: Option<InboundSink>,
}

/// The session of our own housekeeping, and of all clients whose backend has no sessions.
pub const SHARED_SESSION: &str = "";

impl Caller {
    /// A client without a session. What it can do is part of its name: a backend with sessions gets them once for each.
    pub fn without_session(principal: &Principal, client: ClientFacts) -> Caller {
        Caller {
            session_name: format!("principal {principal} {}", client.capabilities).into(),
            number: 0,
            owner: principal.as_str().into(),
            exchange: Exchange::Stateless,
            client: Arc::new(client),
            inbox: None,
        }
    }

    /// Whether the two are the same but for the session that they are in.
    pub fn is_alike(&self, other: &Caller) -> bool {
        self.base() == other.base()
    }

    /// What both have before their numbers.
    fn base(&self) -> &str {
        let whole = &*self.session_name;
        if self.number == 0 { whole } else { whole.rsplit_once(' ').map_or(whole, |(base, _)| base) }
    }

    /// The same client in another one of its sessions. The first has the number 0.
    #[must_use]
    pub fn numbered(self, number: usize) -> Caller {
        if number == 0 {
            return self;
        }
        Caller { session_name: format!("{} {number}", self.session_name).into(), number, ..self }
    }

    /// The hub itself.
    pub fn hub() -> Caller {
        static HUB: LazyLock<Caller> = LazyLock::new(|| {
            let capabilities = raw(&json!({ "sampling": {}, "elicitation": { "form": {}, "url": {} }, "roots": {} }));
            Caller {
                session_name: SHARED_SESSION.into(),
                number: 0,
                owner: SHARED_SESSION.into(),
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
    /// The version in which it is written, as the client says.
    pub version: String,
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

/// How a call through the hub ended.
pub enum CallEnd {
    Answered { answer: RpcResult, status: u16 },
    Failed(CallFailure),
}

impl fmt::Debug for CallEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallEnd::Answered { answer, status } => write!(f, "Answered(ok: {}, {status})", answer.is_ok()),
            CallEnd::Failed(outcome) => write!(f, "Failed({outcome:?})"),
        }
    }
}

/// An answer, what became of the call, and the HTTP status that came with it.
#[derive(Clone)]
pub struct CallReply {
    pub answer: RpcResult,
    pub outcome: CallOutcome,
    pub kind: ResultKind,
    pub status: u16,
    /// The call goes on as a task of this session's, so what it has asked is still to be answered.
    pub goes_on_in: Option<LogId>,
}

impl CallReply {
    pub fn new(answer: RpcResult) -> CallReply {
        CallReply::with_status(answer, 200)
    }

    pub fn with_status(answer: RpcResult, status: u16) -> CallReply {
        let (outcome, kind) = outcome::of_answer(&answer);
        CallReply { answer, outcome, kind, status, goes_on_in: None }
    }
}

impl fmt::Debug for CallReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({}, {})", self.outcome.as_str(), self.status)
    }
}

pub fn refuse(code: i64, text: &str) -> CallReply {
    let status = if code == message::METHOD_NOT_FOUND { 404 } else { 200 };
    CallReply::with_status(Err(message::error(code, text)), status)
}

pub fn done(result: Raw) -> CallReply {
    CallReply::new(Ok(result))
}

/// How many messages a backend may send before the caller reads.
const INBOUND_MAX: usize = 64;

/// What comes next in a call.
#[derive(Debug)]
pub enum ConversationStep {
    Said(Inbound),
    Ended(CallReply),
}

pub type CallFuture = Pin<Box<dyn Future<Output = CallReply> + Send>>;

/// A call that is under way. Dropping it takes the call back.
pub struct Conversation {
    said: mpsc::Receiver<Inbound>,
    /// `None` once it has ended.
    work: Option<CallFuture>,
    /// Its end, until that is told.
    ended: Option<CallReply>,
}

impl Conversation {
    /// Begins the work that `make` gives; what belongs to it goes to the sink.
    pub fn begin(make: impl FnOnce(InboundSink) -> CallFuture) -> Conversation {
        let (sink, said) = mpsc::channel(INBOUND_MAX);
        Conversation { said, work: Some(make(sink)), ended: None }
    }

    /// Everything that was said before the answer comes before the answer. After its end nothing comes any more.
    pub async fn next(&mut self) -> ConversationStep {
        if let Some(work) = &mut self.work {
            tokio::select! {
                biased;
                Some(inbound) = self.said.recv() => return ConversationStep::Said(inbound),
                reply = work => {
                    // Senders see from here on that the receiver is gone, and a call that goes on can send elsewhere.
                    self.said.close();
                    self.work = None;
                    self.ended = Some(reply);
                }
            }
        }
        if let Some(inbound) = self.said.recv().await {
            return ConversationStep::Said(inbound);
        }
        match self.ended.take() {
            Some(reply) => ConversationStep::Ended(reply),
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Conversation")
    }
}

/// What a credential lets its bearer do with servers that all clients share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequesterRole {
    #[default]
    User,
    /// An admin, or any client of a hub without auth or over stdio.
    Operator,
}

#[derive(Clone, Debug)]
pub struct Requester {
    pub principal: Principal,
    pub role: RequesterRole,
}

impl Requester {
    pub fn operator(principal: Principal) -> Requester {
        Requester { principal, role: RequesterRole::Operator }
    }
}

impl From<Principal> for Requester {
    fn from(principal: Principal) -> Requester {
        Requester { principal, role: RequesterRole::User }
    }
}

impl From<&Principal> for Requester {
    fn from(principal: &Principal) -> Requester {
        principal.clone().into()
    }
}
