//! One transport to one backend: made by [`dial`], used by calls, gone for good when it is lost.

mod asked;
mod facts;
mod given_up;
mod http;
mod http_doubt;
mod http_held;
mod http_open;
mod http_shared;
mod http_stream;
mod http_words;
mod lane;
mod outgoing;
mod pipe;
mod program;
mod question;
mod renewals;
mod said;
mod sse;
mod stdio;
mod subscriptions;
mod unread;
mod waiting;

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

pub use self::facts::{Facts, synthesised_initialize};
pub use self::http_words::{header_text, mirror_headers, plain_text};
pub use self::question::Replier;
pub use self::renewals::Renewals;

use bowline_core::backend::{DialError, Generation};
use bowline_core::seats::SeatLimits;
use bowline_protocol::Principal;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::era::{self, Era};
use crate::fields::{Fields, Raw, raw};
use crate::hub::Observer;
use crate::message::{self, Answer, Id};
use crate::secrets::Secrets;
use crate::spec::{Dialect, Reach, ServerSpec, Target};

/// The largest message that a backend may send.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// How long a server that knows nothing of `server/discover` is given to say so.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// What is said again to a new connection keeps others waiting, so it must not take for ever.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(10);
/// A child may have to download itself first.
const DIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the messages that belong to a call, or to a client, go.
pub type Sink = mpsc::Sender<Inbound>;

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
    pub era: Era,
    /// What the client can do, which is what the backend is told.
    pub client: Arc<ClientFacts>,
    /// Where requests and notifications go that belong to no call.
    pub inbox: Option<Sink>,
}

pub struct ClientFacts {
    pub capabilities: Raw,
    pub info: Raw,
}

impl fmt::Debug for ClientFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientFacts({} bytes)", self.capabilities.get().len())
    }
}

/// The lane of our own housekeeping, and of everyone whose backend has no sessions.
pub const SHARED_LANE: &str = "";

impl Caller {
    /// A client without a session. What it can do is part of its name: a backend with sessions is told that once for each.
    pub fn without_session(principal: &Principal, client: ClientFacts) -> Caller {
        Caller {
            lane: format!("principal {principal} {}", client.capabilities).into(),
            owner: principal.as_str().into(),
            era: Era::Modern,
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
                era: Era::Modern,
                client: Arc::new(ClientFacts { capabilities, info: era::our_info() }),
                inbox: None,
            }
        });
        HUB.clone()
    }
}

/// One request to a backend.
pub struct Upcall {
    pub method: String,
    pub params: Option<Raw>,
    pub caller: Caller,
    pub sink: Option<Sink>,
    /// `Mcp-*` headers as the client sent them. When given, none are made up.
    pub headers: Option<Vec<(String, String)>>,
    /// What else belongs into the headers when they are made up.
    pub param_headers: Vec<(String, String)>,
    pub log_level: Option<String>,
}

impl fmt::Debug for Upcall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upcall({})", self.method)
    }
}

impl Upcall {
    pub fn of_hub(method: &str, params: Option<Raw>) -> Upcall {
        Upcall {
            method: method.to_owned(),
            params,
            caller: Caller::hub(),
            sink: None,
            headers: None,
            param_headers: Vec::new(),
            log_level: None,
        }
    }
}

/// How a call on one transport ended.
pub enum Ending {
    /// With a result or an error of the backend's own; `status` is the HTTP status that came with it.
    Answered { answer: Answer, status: u16 },
    /// The backend never saw it: the connection was refused.
    NotExecuted(String),
    /// The backend said that it does not run it, and nothing else is wrong; when it may be asked again, if it said so.
    Refused { why: String, retry_after: Option<Duration> },
    /// It was sent, and then the wire broke.
    Broken(String),
}

impl Ending {
    pub fn answered(answer: Answer) -> Ending {
        Ending::Answered { answer, status: 200 }
    }

    /// An error that is ours, about this call only.
    pub fn failed(message: &str) -> Ending {
        Ending::answered(Err(message::error(message::INTERNAL_ERROR, message)))
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Answered { answer, status } => write!(f, "Answered(ok: {}, {status})", answer.is_ok()),
            Ending::NotExecuted(why) => write!(f, "NotExecuted({why})"),
            Ending::Refused { why, .. } => write!(f, "Refused({why})"),
            Ending::Broken(why) => write!(f, "Broken({why})"),
        }
    }
}

/// What a transport tells its driver.
#[derive(Debug)]
pub enum LinkEvent {
    Lost {
        reason: String,
        exit: Option<Exit>,
    },
    /// Something that belongs to no client in particular.
    Inbound(Inbound),
    /// The process that one client had to itself has ended. The server has not.
    Exited {
        client: Arc<str>,
        exit: Option<Exit>,
    },
    /// A line of a child's stderr, and whose child that is if not everybody's.
    Stderr {
        line: String,
        client: Option<Arc<str>>,
    },
}

/// How a child process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

pub type LinkEvents = mpsc::Sender<(Generation, LinkEvent)>;

/// What a first answer says about the era of a server: a result of `server/discover`, one of the errors that only
/// modern servers know, or anything else, which means the older era.
fn is_modern_error(error: &Raw) -> bool {
    let code = message::code_of(error);
    (message::UNSUPPORTED_VERSION..=message::HEADER_MISMATCH).contains(&code)
}

fn is_modern_error_answer(answer: &Answer) -> bool {
    answer.as_ref().is_err_and(is_modern_error)
}

fn initialize_params(caller: &Caller) -> Raw {
    let mut params = Fields::default();
    params.put("protocolVersion", Era::Legacy.newest());
    params.set("capabilities", era::without_tasks(&caller.client.capabilities));
    params.set("clientInfo", caller.client.info.clone());
    params.to_raw()
}

pub enum Link {
    Http(Arc<http::HttpLink>),
    Sse(Arc<sse::SseLink>),
    Program(Arc<program::ProgramLink>),
}

impl Link {
    pub fn facts(&self) -> &Facts {
        match self {
            Link::Http(link) => link.facts(),
            Link::Sse(link) => link.facts(),
            Link::Program(link) => link.facts(),
        }
    }

    /// Dropping the future cancels the call upstream.
    pub async fn call(&self, call: &Upcall) -> Ending {
        match self {
            Link::Http(link) => link.call(call).await,
            Link::Sse(link) => link.call(call).await,
            Link::Program(link) => link.call(call).await,
        }
    }

    pub async fn notify(&self, caller: &Caller, method: &str, params: Option<Raw>) {
        match self {
            Link::Http(link) => link.notify(caller, method, params).await,
            Link::Sse(link) => link.notify(caller, method, params).await,
            Link::Program(link) => link.notify(caller, method, params).await,
        }
    }

    /// A client is gone, and its upstream session with it.
    pub async fn end_lane(&self, lane: &str) {
        match self {
            Link::Http(link) => link.end_lane(lane).await,
            Link::Sse(link) => link.end_lane(lane).await,
            Link::Program(link) => link.end_lane(lane).await,
        }
    }

    /// Whether a client has a session of its own there, in which it is told what everybody is told.
    pub fn has_own(&self, lane: &str) -> bool {
        match self {
            Link::Http(link) => link.has_session(lane),
            Link::Sse(link) => link.has_session(lane),
            Link::Program(link) => link.has_process(lane),
        }
    }

    /// After a reconnect: clients that wait for something get their sessions back.
    pub async fn warm(&self) {
        match self {
            Link::Http(link) => link.warm().await,
            Link::Sse(link) => link.warm().await,
            Link::Program(_) => {}
        }
    }

    /// Whether calls repeat arguments in their headers.
    pub fn mirrors_arguments(&self) -> bool {
        matches!(self, Link::Http(link) if link.facts().era == Era::Modern)
    }

    pub fn close(&self) {
        match self {
            Link::Http(link) => link.close(),
            Link::Sse(link) => link.close(),
            Link::Program(link) => link.close(),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.facts().version)
    }
}

/// What a dial needs to know besides the target.
#[derive(Clone)]
pub struct Dial {
    pub name: Arc<str>,
    pub generation: Generation,
    /// What the backend spoke last time, or is to be spoken to in.
    pub era: Option<Era>,
    /// It is to be spoken to in that era only.
    pub only_era: bool,
    pub events: LinkEvents,
    pub http: reqwest::Client,
    pub reach: Reach,
    pub renewals: Arc<Renewals>,
    /// What the backend may repeat and nobody is to read.
    pub secrets: Arc<Secrets>,
    pub programs: TaskTracker,
    /// How many processes of one program there may be.
    pub processes: SeatLimits,
    pub observer: Arc<dyn Observer>,
    /// Fires when the backend is removed.
    pub over: CancellationToken,
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dial({}, {:?})", self.name, self.generation)
    }
}

/// Makes a transport and asks the backend what it is.
pub async fn dial(spec: &ServerSpec, dial: Dial) -> Result<Link, DialError> {
    let made = async {
        match &spec.target {
            Target::Http { url, headers, dialect: Dialect::Streamable } => {
                match http::dial(url, headers, dial.clone()).await {
                    Err(http::HttpDialError::OlderTransport) => sse::dial(url, headers, dial).await.map(Link::Sse),
                    Err(http::HttpDialError::Failed(error)) => Err(error),
                    Err(
                        http::HttpDialError::Unreachable { reason, retry_after }
                        | http::HttpDialError::Refused { reason, retry_after },
                    ) => Err(DialError::Passing { reason, retry_after }),
                    Ok(link) => Ok(Link::Http(link)),
                }
            }
            Target::Http { url, headers, dialect: Dialect::Sse } => sse::dial(url, headers, dial).await.map(Link::Sse),
            Target::Invalid { reason, .. } => Err(DialError::Fatal { reason: reason.clone() }),
            Target::Stdio { command, args, env, cwd } => {
                let (command, args, env, cwd) = (command.clone(), args.clone(), env.clone(), cwd.clone());
                program::dial(stdio::Program { command, args, env, cwd }, dial).await.map(Link::Program)
            }
        }
    };
    match tokio::time::timeout(DIAL_TIMEOUT, made).await {
        Ok(result) => result,
        Err(_) => Err(passing("it did not answer in time")),
    }
}

impl Dial {
    /// What a caller is told whose session the backend refused, in the backend's own words but for what it was given in confidence.
    fn refused_session(&self, reason: &str) -> Ending {
        Ending::failed(&self.secrets.hide(format!("the server refused a new session: {reason}")))
    }
}

fn passing(reason: impl Into<String>) -> DialError {
    DialError::Passing { reason: reason.into(), retry_after: None }
}

/// A notification that takes back a request.
fn cancelled(id: &Id) -> Raw {
    let mut params = Fields::default();
    params.set("requestId", id.to_raw());
    params.put("reason", "the caller does not want it any more");
    params.to_raw()
}
